"""What agents say about entries beside Raft: it comes back as it was, or is refused with the one error."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.unsafe_recovery import decode_position
from shoal.agent.peers.entry_messages import (
    CopyOffer,
    EntriesRequest,
    EntryId,
    EntryRequest,
    EntryState,
    Piece,
    decode_entry,
    decode_entry_wanted,
    decode_held,
    decode_offer,
    decode_piece,
    decode_wanted,
    encode_entry,
    encode_entry_wanted,
    encode_held,
    encode_offer,
    encode_piece,
    encode_wanted,
)
from shoal.agent.peers.messages import PeerMessageError, decode_lost, encode_lost
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import ReplicaId

numbers = st.integers(1, 2**62)
ids = st.builds(ReplicaId, numbers, numbers)
groups = st.builds(GroupId, st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1))


@given(groups, ids, ids, numbers, numbers, numbers, st.booleans(), st.binary(min_size=1, max_size=50))
def test_everything_comes_back(
    group: GroupId, one: ReplicaId, other: ReplicaId, a: int, b: int, c: int, leads: bool, data: bytes
) -> None:
    """Each message, with any numbers in it."""
    low, high = sorted((a, b))
    offer = CopyOffer(one, other, Term(high), LogIndex(c), Term(low))
    assert decode_offer(encode_offer(group, offer)) == (group, offer)
    wanted = EntriesRequest(one, LogIndex(a))
    assert decode_wanted(encode_wanted(group, wanted)) == (group, wanted)
    piece = Piece(leads, Term(c), LogIndex(low), LogIndex(high))
    decoded, position = decode_piece(encode_piece(piece, [data]))
    assert (decoded, encode_piece(piece, [data])[position:]) == (piece, data)
    entry = EntryRequest(EntryId(LogIndex(a), Term(low)), other, Term(high))
    assert decode_entry_wanted(encode_entry_wanted(group, entry)) == (group, entry)
    assert decode_entry(encode_entry(EntryState.HERE, data)) == (EntryState.HERE, data)
    assert decode_entry(encode_entry(EntryState.TRIMMED)) == (EntryState.TRIMMED, b"")
    assert decode_held(encode_held(LogIndex(a))) == a
    assert decode_lost(encode_lost(group, one)) == (group, one)


@given(st.binary(max_size=100))
def test_anything_else_is_refused_with_the_one_error(data: bytes) -> None:
    """Bytes from a peer are hostile until they are understood."""
    for decode in (
        decode_offer,
        decode_wanted,
        decode_piece,
        decode_entry_wanted,
        decode_entry,
        decode_held,
        decode_lost,
        decode_position,
    ):
        with contextlib.suppress(PeerMessageError):
            decode(data)
