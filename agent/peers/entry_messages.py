"""Messages between two agents about entries that travel beside Raft: bytes <-> values.

Law of this file: pure. Frames are opaque here; their receiver checks them. Everything that is wrong
raises PeerMessageError.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from shoal.agent.durable.ids import GROUP_ID_BYTES, GroupId
from shoal.agent.peers.messages import PeerMessageError, decode_group
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import ReplicaId

_OFFER = struct.Struct("<qqqqqqq")
_HELD = struct.Struct("<q")
_WANTED = struct.Struct("<qqq")
_PIECE = struct.Struct("<?qqq")
_ENTRY = struct.Struct("<qqqqq")


class CopyOffer(NamedTuple):
    """A leader's: the log of its term begins at `first_index`, an entry of `first_term`."""

    receiver: ReplicaId
    leader: ReplicaId
    term: Term
    first_index: LogIndex
    first_term: Term


class EntriesRequest(NamedTuple):
    """Entries from `first_index` on, for the copy that `receiver` makes."""

    receiver: ReplicaId
    first_index: LogIndex


class Piece(NamedTuple):
    """The state of the sender's replica, and the frames from the wanted index on: at least one, none when its
    log ends before. `leads`: it leads `term`, so that what is not committed yet is its to send."""

    leads: bool
    term: Term
    commit_index: LogIndex
    last_index: LogIndex


class EntryId(NamedTuple):
    """One entry of the group, for ever: index and term (the Log Matching Property)."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks of an id
    term: Term


class EntryRequest(NamedTuple):
    """Any copy of that entry. `asked`, the replica that the asker knows there, says whether it lacks the
    entry for good. In terms up to `newest_term` the asker may have acknowledged later entries."""

    entry: EntryId
    asked: ReplicaId
    newest_term: Term


class EntryState(IntEnum):
    """What a replica says of an entry: here it is; my log is intact and has another there, or ends before,
    and I take nothing any more from the leaders of the terms named; damaged here too; trimmed here, so it was
    committed once; I cannot say now; another entry is committed in its place."""

    HERE = 0
    LACKS = 1
    DAMAGED = 2
    TRIMMED = 3
    UNKNOWN = 4
    OVERRULED = 5


def encode_offer(group: GroupId, offer: CopyOffer) -> bytes:
    numbers = (*offer.receiver, *offer.leader, offer.term, offer.first_index, offer.first_term)
    return group.to_bytes() + _OFFER.pack(*numbers)


def decode_offer(payload: bytes) -> tuple[GroupId, CopyOffer]:
    """Raises PeerMessageError."""
    group, numbers = _split(payload, _OFFER)
    receiver, leader = ReplicaId(*numbers[:2]), ReplicaId(*numbers[2:4])
    term, first_index, first_term = numbers[4:]
    if not 1 <= first_term <= term or first_index < 1:
        raise PeerMessageError(f"an offer of entry {first_index} of term {first_term} in term {term}")
    return group, CopyOffer(receiver, leader, Term(term), LogIndex(first_index), Term(first_term))


def encode_held(index: LogIndex) -> bytes:
    """The answer to an offer: the last entry of a log that has the offered one; 0 as long as it has not."""
    return _HELD.pack(index)


def decode_held(payload: bytes) -> LogIndex:
    """Raises PeerMessageError."""
    if len(payload) != _HELD.size:
        raise PeerMessageError(f"an answer of {len(payload)} bytes to an offer of segments")
    return LogIndex(_HELD.unpack(payload)[0])


def encode_wanted(group: GroupId, wanted: EntriesRequest) -> bytes:
    return group.to_bytes() + _WANTED.pack(*wanted.receiver, wanted.first_index)


def decode_wanted(payload: bytes) -> tuple[GroupId, EntriesRequest]:
    """Raises PeerMessageError."""
    group, (term, index, wanted) = _split(payload, _WANTED)
    if wanted < 1:
        raise PeerMessageError(f"entry {wanted} is wanted")
    return group, EntriesRequest(ReplicaId(term, index), LogIndex(wanted))


def encode_piece(piece: Piece, frames: Sequence[bytes | memoryview]) -> bytes:
    return b"".join((_PIECE.pack(*piece), *frames))


def decode_piece(payload: bytes) -> tuple[Piece, int]:
    """The piece, and where its frames begin. Raises PeerMessageError."""
    if len(payload) < _PIECE.size:
        raise PeerMessageError("a piece of a segment without its head")
    leads, term, commit_index, last_index = _PIECE.unpack_from(payload)
    if min(term, commit_index) < 0 or commit_index > last_index:
        raise PeerMessageError(f"a log that ends at {last_index} and is committed up to {commit_index}")
    return Piece(leads, Term(term), LogIndex(commit_index), LogIndex(last_index)), _PIECE.size


def encode_entry_wanted(group: GroupId, wanted: EntryRequest) -> bytes:
    return group.to_bytes() + _ENTRY.pack(*wanted.entry, *wanted.asked, wanted.newest_term)


def decode_entry_wanted(payload: bytes) -> tuple[GroupId, EntryRequest]:
    """Raises PeerMessageError."""
    group, (index, term, *asked, newest_term) = _split(payload, _ENTRY)
    if min(index, term) < 1 or newest_term < term:
        raise PeerMessageError(f"entry {index} of term {term} is wanted, of a log of term {newest_term}")
    entry = EntryId(LogIndex(index), Term(term))
    return group, EntryRequest(entry, ReplicaId(*asked), Term(newest_term))


def encode_entry(held: EntryState, frame: bytes | memoryview = b"") -> bytes:
    return b"".join((bytes([held]), frame))


def decode_entry(payload: bytes) -> tuple[EntryState, bytes]:
    """The frame is empty unless it is HERE. Raises PeerMessageError."""
    if not payload or payload[0] > max(EntryState) or (payload[0] == EntryState.HERE) != (len(payload) > 1):
        raise PeerMessageError(f"an answer of {len(payload)} bytes to a wanted entry")
    return EntryState(payload[0]), payload[1:]


def _split(payload: bytes, rest: struct.Struct) -> tuple[GroupId, tuple[int, ...]]:
    if len(payload) != GROUP_ID_BYTES + rest.size:
        raise PeerMessageError(f"{len(payload)} bytes about segments")
    return decode_group(payload[:GROUP_ID_BYTES]), rest.unpack_from(payload, GROUP_ID_BYTES)
