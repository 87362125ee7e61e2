"""Bytes of messages: whatever goes out comes back, and whatever comes in is a message or a WireError."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.format.batch import LogIndex, Term
from shoal.replication.errors import WireError
from shoal.replication.interfaces import MAX_INTEGER, Configuration, Replica, ReplicaId, Run
from shoal.replication.messages import (
    MAX_MESSAGE_BYTES,
    AppendReply,
    AppendRequest,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
    decode,
    encode,
    shorten,
)

NUMBERS = st.one_of(st.integers(0, 5), st.integers(0, MAX_INTEGER))
IDS = st.builds(ReplicaId, NUMBERS, NUMBERS)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)


@st.composite
def configurations(draw: st.DrawFn, index: int) -> Configuration:
    """A configuration that some group may have."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    learners = [False, *(draw(st.booleans()) for _ in names[1:])]
    replicas = tuple(
        Replica(ReplicaId(draw(st.integers(0, 9)), number), name, learner)
        for number, (name, learner) in enumerate(zip(names, learners, strict=True))
    )
    return Configuration(LogIndex(index), replicas)


@st.composite
def requests(draw: st.DrawFn) -> AppendRequest:
    """A well-formed request: runs without gaps, terms that never fall, configurations inside."""
    previous = index = draw(st.integers(0, 1000))
    term = previous_term = draw(st.integers(0, 5))
    runs = []
    for _ in range(draw(st.integers(0, 4))):
        last, term = index + draw(st.integers(1, 5)), max(1, term + draw(st.integers(0, 3)))
        runs.append(Run(LogIndex(index + 1), LogIndex(last), Term(term)))
        index = last
    places = sorted(draw(st.sets(st.integers(previous + 1, index), max_size=3))) if runs else []
    return AppendRequest(
        sender=draw(IDS),
        receiver=draw(IDS),
        term=Term(term + draw(st.integers(0, 3))),
        previous_index=LogIndex(previous),
        previous_term=Term(previous_term),
        runs=tuple(runs),
        commit_index=LogIndex(draw(NUMBERS)),
        quiet=draw(st.booleans()),
        configurations=tuple(draw(configurations(place)) for place in places),
        read_token=draw(NUMBERS),
    )


MESSAGES = st.one_of(
    st.builds(PreVote, IDS, IDS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteReply, IDS, IDS, NUMBERS, st.booleans()),
    st.builds(Vote, IDS, IDS, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteReply, IDS, IDS, NUMBERS, st.booleans()),
    requests(),
    st.builds(
        AppendReply,
        IDS,
        IDS,
        NUMBERS,
        st.booleans(),
        NUMBERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.booleans(),
    ),
    st.builds(TimeoutNow, IDS, IDS, NUMBERS),
)


@given(MESSAGES)
def test_a_message_survives_the_wire(message: Message) -> None:
    """decode(encode(m)) is m, for every kind."""
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_a_cut_message_is_refused(message: Message, data: st.DataObject) -> None:
    """Every proper prefix, and anything longer, is a WireError."""
    encoded = encode(message)
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(WireError):
        decode(encoded[:end])
    with pytest.raises(WireError):
        decode(encoded + b"\0")


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_mean_something(data: bytes) -> None:
    """Nothing but WireError leaves decode; what it accepts, encode gives back."""
    try:
        message = decode(data)
    except WireError:
        return
    assert decode(encode(message)) == message


@given(MESSAGES, st.integers(0, 2**32))
def test_flipped_bits_are_refused_or_mean_something(message: Message, seed: int) -> None:
    """Mutations of real messages reach deeper than random bytes do."""
    rng = random.Random(seed)
    data = bytearray(encode(message))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        decoded = decode(bytes(data))
    except WireError:
        return
    assert decode(encode(decoded)) == decoded


def test_counts_are_bounded_before_anything_is_allocated() -> None:
    """A header that promises 65,535 runs or more bytes than a message may have is refused at once."""
    request = AppendRequest(
        ReplicaId(0, 0), ReplicaId(0, 1), Term(1), LogIndex(0), Term(0), (), commit_index=LogIndex(0)
    )
    data = bytearray(encode(request))
    data[-3:-1] = b"\xff\xff"
    with pytest.raises(WireError, match="too many"):
        decode(bytes(data))
    with pytest.raises(WireError, match="bytes"):
        decode(b"\x07" * (MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize(
    "runs",
    [
        ((2, 2, 1),),  # a gap after previous_index 0
        ((1, 1, 2), (2, 2, 1)),  # a term falls
        ((1, 1, 1), (3, 3, 1)),  # a gap
        ((1, 0, 1),),  # empty
        ((1, 1, 9),),  # a term after the message's own
        ((1, 1, 0),),  # no entry has term 0
    ],
)
def test_impossible_runs_are_refused(runs: tuple[tuple[int, int, int], ...]) -> None:
    """Entries have no gaps, and terms only rise (section 5.3): the decoder says so, not the core."""
    made = tuple(Run(LogIndex(a), LogIndex(b), Term(c)) for a, b, c in runs)
    request = AppendRequest(
        ReplicaId(0, 0), ReplicaId(0, 1), Term(3), LogIndex(0), Term(0), made, commit_index=LogIndex(0)
    )
    with pytest.raises(WireError, match="does not continue"):
        decode(encode(request))


@given(requests().filter(lambda request: bool(request.runs)), st.data())
def test_shortening_cuts_runs_and_configurations(request: AppendRequest, data: st.DataObject) -> None:
    """A shortened request is well formed and ends where the driver said."""
    last = data.draw(st.integers(request.previous_index + 1, request.last_index))
    shorter = shorten(request, LogIndex(last))
    assert shorter.last_index == last
    assert all(item.index <= last for item in shorter.configurations)
    assert decode(encode(shorter)) == shorter


def test_a_configuration_needs_a_voter_and_one_replica_per_agent() -> None:
    """Bytes of an impossible configuration are refused."""
    learner = Replica(ReplicaId(0, 0), "a", learner=True)
    twice = (Replica(ReplicaId(0, 0), "a"), Replica(ReplicaId(0, 1), "a"))
    for replicas in ((learner,), twice, (Replica(ReplicaId(0, 0), "a"), Replica(ReplicaId(0, 0), "b"))):
        with pytest.raises(WireError):
            Configuration.from_bytes(Configuration(LogIndex(1), replicas).to_bytes())
