"""What a core does in few steps for the common case is what it does in general: the same outputs, the same
state."""

from __future__ import annotations

import random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from raft_group import make_core

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import Configuration, ReplicaId, Run
from shoal.replication.messages import AppendRequest
from shoal.replication.raft import RaftCore
from shoal.replication.roles.follower import Follower
from shoal.replication.state.ready import Ready

A, B, C = ReplicaId(0, 0), ReplicaId(0, 1), ReplicaId(0, 2)
CONFIG = RaftConfig(quiet_after_ms=None, commit_notice_ms=0)


@st.composite
def requests(draw: st.DrawFn, last_index: int, last_term: int) -> AppendRequest:
    """From a leader of some term: nearly always what continues the log, else anything near its end."""
    exact = draw(st.integers(0, 3)) > 0
    previous = last_index if exact else max(0, last_index - draw(st.integers(-1, 3)))
    previous_term = last_term if exact else draw(st.integers(0, last_term + 1))
    term = max(1, previous_term, last_term) + draw(st.sampled_from((0, 0, 0, 0, 1)))
    runs: list[Run] = []
    first, run_term = previous + 1, max(1, previous_term)
    for _ in range(draw(st.sampled_from((1, 1, 1, 1, 0, 2)))):
        run_term = min(term, run_term + draw(st.sampled_from((0, 0, 1))))
        run_last = first + draw(st.sampled_from((0, 0, 0, 4)))
        if not runs or runs[-1].term < run_term:
            runs.append(Run(LogIndex(first), LogIndex(run_last), Term(run_term)))
            first = run_last + 1
    configurations: tuple[Configuration, ...] = ()
    if runs and draw(st.integers(0, 9)) == 0:
        configurations = (Configuration(runs[-1].last, Configuration.birth(("a", "b", "c")).replicas),)
    return AppendRequest(
        sender=draw(st.sampled_from((A, A, A, A, C))),
        receiver=B,
        term=Term(term),
        previous_index=LogIndex(previous),
        previous_term=Term(previous_term),
        runs=tuple(runs),
        commit_index=LogIndex(max(0, first - 1 - draw(st.integers(-2, 3)))),
        quiet=draw(st.integers(0, 9)) == 0,
        configurations=configurations,
        read_token=draw(st.integers(0, 2)),
    )


def outcome(core: RaftCore, request: AppendRequest, now_ms: int) -> tuple[str, Ready | None]:
    """What stepping gives; the text of the assertion that a leader's impossible request may fail."""
    try:
        core.step(request, now_ms)
        return "", core.ready()
    except AssertionError as error:
        return str(error) or "asserted", None


def inside(core: RaftCore) -> tuple[int, int, int, object]:
    """What a core's one line does not say."""
    state = core.state
    return state.violations, state.election_count, len(state.outbox._in_flight), state.damaged


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_request_that_continues_the_log(data: st.DataObject) -> None:
    """Two followers with the same log and the same chance, one of which never takes the short way, answer
    alike, write alike and wait alike, whatever leaders send and however late the disk is."""
    log = [1] * data.draw(st.integers(0, 3))
    quick, slow = (make_core(1, log=log, config=CONFIG) for _ in range(2))
    out: list[tuple[Ready, Ready]] = []
    for now_ms in range(1, data.draw(st.integers(2, 12))):
        last_term = quick.term_at(quick.last_index) or 0
        request = data.draw(requests(quick.last_index, last_term))
        if data.draw(st.integers(0, 9)) == 0 and quick.last_index:
            stretch = [(LogIndex(1), quick.last_index)]
            quick.damaged(stretch, now_ms)
            slow.damaged(stretch, now_ms)
        seen = outcome(quick, request, now_ms)
        with patch.object(Follower, "_continues", lambda *_: False):
            assert outcome(slow, request, now_ms) == seen
        if seen[0]:
            return
        assert repr(quick) == repr(slow)
        assert inside(quick) == inside(slow)
        assert quick.deadline() == slow.deadline()
        if seen[1] is not None:
            assert slow.state.outbox._in_flight[-1].ready == seen[1]
            out.append((seen[1], slow.state.outbox._in_flight[-1].ready))
        while out and data.draw(st.booleans()):
            ready, other = out.pop(0)
            quick.advance(ready)
            slow.advance(other)


def test_the_short_way_is_taken() -> None:
    """Or the test above would compare the general way with itself."""
    core = make_core(1, log=[1, 1], config=CONFIG)
    run = Run(LogIndex(3), LogIndex(3), Term(1))
    request = AppendRequest(A, B, Term(1), LogIndex(2), Term(1), (run,), LogIndex(2))
    with patch.object(Follower, "_take_entries", side_effect=AssertionError("the general way")):
        core.step(request, 1)
    ready = core.ready()
    assert ready is not None
    assert ready.append == (run,)


@given(st.integers(1, 2**40), st.integers(0, 2**32))
def test_election_timeouts_are_drawn_as_randrange_draws(timeout_ms: int, seed: int) -> None:
    """The same chance gives the same timeouts."""
    core = make_core(1, config=CONFIG)
    state = core.state
    state.config = RaftConfig(
        election_timeout_ms=timeout_ms, heartbeat_interval_ms=1, quiet_after_ms=None, commit_notice_ms=0
    )
    state.rng, twin = random.Random(seed), random.Random(seed)
    drawn = [state.draw_election_timeout_ms() for _ in range(5)]
    assert drawn == [timeout_ms + twin.randrange(timeout_ms) for _ in range(5)]
