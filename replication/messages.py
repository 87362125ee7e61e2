"""The messages between replicas of one group, and their bytes.

Law of this file: frozen values, `encode` and `decode`. The group is named by the frame around a message, not
by the message. `decode` bounds every count before it allocates, and raises WireError and nothing else.

Bytes, little endian: kind u8, sender (u64, u64), receiver (u64, u64), term u64, then the kind's own fields.
"""

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

from shoal.format.batch import LogIndex, Term
from shoal.replication.errors import WireError
from shoal.replication.interfaces import MAX_INTEGER, NO_INDEX, NO_TERM, Configuration, ReplicaId, Run

MAX_RUNS: Final = 4096  # no request names more entries than this, so no more runs either
MAX_CONFIGURATIONS: Final = 8  # changes are one at a time; a leader cuts its request before it names more
MAX_MESSAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in `term`, which I have not entered yet? (thesis 9.6)"""

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    last_index: LogIndex
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """term: the asked one when granted, the voter's own when refused."""

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """RequestVote (section 5.2). transfer: the old leader asked for this election, so a lease does not refuse
    it."""

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    last_index: LogIndex
    last_term: Term
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteReply:
    """A granted one is a promise and leaves only after the vote is on disk."""

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    granted: bool


@dataclass(
    slots=True, unsafe_hash=True
)  # as all others never changed, but `frozen` makes it ten times as slow
class AppendRequest:
    """AppendEntries (section 5.3); without runs, a heartbeat.

    The frames of `runs` travel beside it. read_token counts the leader's heartbeat rounds for read indexes.
    quiet: the leader means to stop its heartbeats (safety 25). configurations: those that stand inside the
    runs. A driver that has the frames overrides them by what it decoded there: `dataclasses.replace(request,
    configurations=...)`.
    """

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    previous_index: LogIndex
    previous_term: Term
    runs: tuple[Run, ...]
    commit_index: LogIndex
    quiet: bool = False
    configurations: tuple[Configuration, ...] = ()
    read_token: int = 0

    @property
    def last_index(self) -> LogIndex:
        """The last index this request speaks of."""
        return self.runs[-1].last if self.runs else self.previous_index


@dataclass(slots=True, unsafe_hash=True)  # see AppendRequest
class AppendReply:
    """Accepted: everything up to match_index equals the leader's log and is synced here.

    Refused: previous_index did not match; the hint is the last entry here that still could.
    commit_index: what the sender knows as committed. quiet: it has disarmed its election timer.
    """

    sender: ReplicaId
    receiver: ReplicaId
    term: Term
    accepted: bool
    previous_index: LogIndex
    match_index: LogIndex
    commit_index: LogIndex = NO_INDEX
    reject_hint_index: LogIndex = NO_INDEX
    reject_hint_term: Term = NO_TERM
    read_token: int = 0
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: campaign at once, without asking first (thesis 3.10)."""

    sender: ReplicaId
    receiver: ReplicaId
    term: Term


Message: TypeAlias = PreVote | PreVoteReply | Vote | VoteReply | AppendRequest | AppendReply | TimeoutNow


def shorten(message: AppendRequest, last: LogIndex) -> AppendRequest:
    """The same request, ending at `last`: the driver's way to keep it within a size. It then tells
    `core.shortened(message.receiver, last)`."""
    assert message.previous_index < last <= message.last_index
    kept = tuple(Run(run.first, min(run.last, last), run.term) for run in message.runs if run.first <= last)
    configurations = tuple(item for item in message.configurations if item.index <= last)
    return replace(message, runs=kept, configurations=configurations)


_HEAD: Final = struct.Struct("<BQQQQQ")
_IDS: Final = struct.Struct("<QQQQ")
_IDS_START, _IDS_END = 1, 33  # in a head
_TERM: Final = struct.Struct("<Q")
_VOTE: Final = struct.Struct("<QQ?")
_GRANTED: Final = struct.Struct("<?")
_REQUEST: Final = struct.Struct("<QQQQ?HB")
_REPLY: Final = struct.Struct("<?QQQQQQ?")
_RUN: Final = struct.Struct("<QQQ")
_LENGTH: Final = struct.Struct("<I")
# The two messages of every append, each in one step: the same fields, one behind the other.
_WHOLE_REQUEST: Final = struct.Struct(_HEAD.format + (_REQUEST.format + _RUN.format).replace("<", ""))
_WHOLE_REPLY: Final = struct.Struct(_HEAD.format + _REPLY.format.replace("<", ""))
_COUNTS_END: Final = _HEAD.size + _REQUEST.size
_COUNTS_AT: Final = _COUNTS_END - 3
_ONE_RUN: Final = b"\x01\x00\x00"
"""The counts of a request with one run and no configuration."""
_TERM_PLACE: Final = 5
"""Behind kind and ids, among a head's fields."""

_PRE_VOTE, _PRE_VOTE_REPLY, _VOTE_KIND, _VOTE_REPLY, _APPEND_REQUEST, _APPEND_REPLY, _TIMEOUT_NOW = range(
    1, 8
)


def encode(message: Message) -> bytes:
    """The bytes of a message; `decode` gives it back."""
    match message:
        case AppendRequest():
            return encode_request(message)
        case AppendReply():
            return _encode_reply(message)
        case PreVote():
            return _head(_PRE_VOTE, message) + _VOTE.pack(message.last_index, message.last_term, False)
        case PreVoteReply():
            return _head(_PRE_VOTE_REPLY, message) + _GRANTED.pack(message.granted)
        case Vote():
            return _head(_VOTE_KIND, message) + _VOTE.pack(
                message.last_index, message.last_term, message.transfer
            )
        case VoteReply():
            return _head(_VOTE_REPLY, message) + _GRANTED.pack(message.granted)
        case TimeoutNow():
            return _head(_TIMEOUT_NOW, message)
        case _:
            assert_never(message)


def _head(kind: int, message: Message) -> bytes:
    return _HEAD.pack(kind, *message.sender, *message.receiver, message.term)


def encode_request(message: AppendRequest) -> bytes:
    """As `encode`, of a leader's request."""
    runs = message.runs
    if len(runs) == 1 and not message.configurations:
        return _WHOLE_REQUEST.pack(
            _APPEND_REQUEST,
            *message.sender,
            *message.receiver,
            message.term,
            message.previous_index,
            message.previous_term,
            message.commit_index,
            message.read_token,
            message.quiet,
            1,
            0,
            *runs[0],
        )
    assert len(runs) <= MAX_RUNS
    assert len(message.configurations) <= MAX_CONFIGURATIONS
    head = _REQUEST.pack(
        message.previous_index,
        message.previous_term,
        message.commit_index,
        message.read_token,
        message.quiet,
        len(runs),
        len(message.configurations),
    )
    parts = [_head(_APPEND_REQUEST, message), head, *[_RUN.pack(*run) for run in runs]]
    for configuration in message.configurations:
        data = configuration.to_bytes()
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def _encode_reply(message: AppendReply) -> bytes:
    return _WHOLE_REPLY.pack(
        _APPEND_REPLY,
        *message.sender,
        *message.receiver,
        message.term,
        message.accepted,
        message.previous_index,
        message.match_index,
        message.commit_index,
        message.reject_hint_index,
        message.reject_hint_term,
        message.read_token,
        message.quiet,
    )


def decode(data: bytes) -> Message:
    """The message of these bytes. Raises WireError on anything that `encode` cannot have written."""
    size = len(data)
    if size == _WHOLE_REPLY.size and data[0] == _APPEND_REPLY:
        fields = _WHOLE_REPLY.unpack(data)
        if max(fields) > MAX_INTEGER:
            raise WireError("a number out of range")
        sender, receiver = _replica_ids(data[_IDS_START:_IDS_END])
        return AppendReply(sender, receiver, *fields[_TERM_PLACE:])
    if (
        size == _WHOLE_REQUEST.size
        and data[0] == _APPEND_REQUEST
        and data[_COUNTS_AT:_COUNTS_END] == _ONE_RUN
    ):
        return _decode_whole_request(data)
    if size > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {size} bytes")
    try:
        message, end = _decode(bytes(data))
    except struct.error as error:
        raise WireError(f"short message: {error}") from None
    if end != len(data):
        raise WireError(f"{len(data) - end} bytes after the message")
    return message


@lru_cache(maxsize=4096)
def _replica_ids(data: bytes) -> tuple[ReplicaId, ReplicaId]:
    """Sender and receiver: the same few all the time."""
    sender_term, sender_index, receiver_term, receiver_index = _bounded(_IDS, data, 0)
    return ReplicaId(sender_term, sender_index), ReplicaId(receiver_term, receiver_index)


def _decode(data: bytes) -> tuple[Message, int]:
    sender, receiver = _replica_ids(data[_IDS_START:_IDS_END])
    (term,) = _TERM.unpack_from(data, _IDS_END)
    if term > MAX_INTEGER:
        raise WireError("a number out of range")
    kind = data[0]
    position = _HEAD.size
    if kind == _APPEND_REQUEST:
        return _decode_request(data, position, sender, receiver, Term(term))
    if kind == _APPEND_REPLY:
        raise WireError(f"a reply to an append of {len(data)} bytes")
    if kind in (_PRE_VOTE, _VOTE_KIND):
        last_index, last_term, transfer = _bounded(_VOTE, data, position)
        if kind == _PRE_VOTE:
            return PreVote(
                sender, receiver, Term(term), LogIndex(last_index), Term(last_term)
            ), position + _VOTE.size
        vote = Vote(sender, receiver, Term(term), LogIndex(last_index), Term(last_term), bool(transfer))
        return vote, position + _VOTE.size
    if kind in (_PRE_VOTE_REPLY, _VOTE_REPLY):
        (granted,) = _bounded(_GRANTED, data, position)
        reply_type = PreVoteReply if kind == _PRE_VOTE_REPLY else VoteReply
        return reply_type(sender, receiver, Term(term), bool(granted)), position + _GRANTED.size
    if kind == _TIMEOUT_NOW:
        return TimeoutNow(sender, receiver, Term(term)), position
    raise WireError(f"unknown kind {kind}")


def _bounded(layout: struct.Struct, data: bytes, position: int) -> tuple[int, ...]:
    fields = layout.unpack_from(data, position)
    if max(fields) > MAX_INTEGER:
        raise WireError("a number out of range")
    return fields


def _decode_request(
    data: bytes, position: int, sender: ReplicaId, receiver: ReplicaId, term: Term
) -> tuple[AppendRequest, int]:
    previous_index, previous_term, commit, token, quiet, run_count, configuration_count = _bounded(
        _REQUEST, data, position
    )
    if run_count > MAX_RUNS or configuration_count > MAX_CONFIGURATIONS:
        raise WireError("too many runs or configurations")
    position += _REQUEST.size
    runs: list[Run] = []
    for _ in range(run_count):
        runs.append(Run._make(_bounded(_RUN, data, position)))
        position += _RUN.size
    configurations = []
    for _ in range(configuration_count):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        configurations.append(Configuration.from_bytes(data[position : position + length]))
        position += length
    request = AppendRequest(
        sender,
        receiver,
        term,
        LogIndex(previous_index),
        Term(previous_term),
        tuple(runs),
        LogIndex(commit),
        quiet == 1,
        tuple(configurations),
        token,
    )
    if runs:
        _check_request(request)
    elif configurations:
        raise WireError("configurations without entries")
    return request, position


def _check_request(request: AppendRequest) -> None:
    """Runs continue previous_index without a gap, terms never fall, configurations stand inside the runs."""
    index, term = request.previous_index, request.previous_term
    for run in request.runs:
        if run.first != index + 1 or run.last < run.first or not max(term, 1) <= run.term <= request.term:
            raise WireError(f"{run} does not continue {index}@{term} in term {request.term}")
        index, term = run.last, run.term
    previous = request.previous_index
    for configuration in request.configurations:
        if not previous < configuration.index <= index:
            raise WireError(f"{configuration} stands outside the runs or out of order")
        previous = configuration.index


def _decode_whole_request(data: bytes) -> AppendRequest:
    """As _decode_request, of one run and no configuration."""
    fields = _WHOLE_REQUEST.unpack(data)
    if max(fields) > MAX_INTEGER:
        raise WireError("a number out of range")
    _, _, _, _, _, term, previous_index, previous_term, commit, token, quiet, _, _, first, last, run_term = (
        fields
    )
    sender, receiver = _replica_ids(data[_IDS_START:_IDS_END])
    run = Run(first, last, run_term)
    if first != previous_index + 1 or last < first or not (previous_term <= run_term <= term and run_term):
        raise WireError(f"{run} does not continue {previous_index}@{previous_term} in term {term}")
    return AppendRequest(
        sender, receiver, term, previous_index, previous_term, (run,), commit, quiet, (), token
    )
