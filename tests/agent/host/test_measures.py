"""What replicas count: records that committed, elections, leaderships, what was fetched and trimmed, and how
long a follower took."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.fetch import FetchRequest
from shoal.agent.host.role_counts import RoleCounts
from shoal.agent.metrics.histogram import NS_PER_S
from shoal.agent.metrics.measures import Measures
from shoal.agent.partition import reader
from shoal.agent.partition.append_sender import MAX_TIMED, Sender
from shoal.agent.partition.appender import Appender
from shoal.agent.partition.reader import LONG_FETCH_BYTES
from shoal.agent.peers.frames import Piece
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Offset, Term
from shoal.replication.interfaces import ReplicaId, Run
from shoal.replication.messages import AppendReply, AppendRequest
from shoal.replication.roles.transitions import Role
from shoal.segment_store import LogConfig
from tests.agent.harness import GROUP, Cluster, Node, message, read_values, until

LEADER, FOLLOWER = ReplicaId(Term(0), LogIndex(1)), ReplicaId(Term(0), LogIndex(2))
TINY = LogConfig(segment_bytes=4_096)


def measured(node: Node) -> Measures:
    return node.host._config.measures


async def test_what_has_committed_is_counted_once(tmp_path: Path) -> None:
    """Records and bytes at the agent that led, with the time from proposal to commit; fetches where they are.
    A busy machine may elect in the midst of it, so sums count."""
    async with Cluster(str(tmp_path), 3) as cluster:
        for _ in range(5):
            await cluster.append("a" * 50, "b" * 50)
        leader = await cluster.leader()
        every = [measured(node) for node in cluster.nodes]
        assert sum(counts.appended_records for counts in every) == 10
        assert sum(counts.commit.count for counts in every) == 5
        assert sum(counts.appended_bytes for counts in every) > 10 * 50
        assert sum(counts.replication.count for counts in every) > 0
        for node, counts in zip(cluster.nodes, every, strict=True):
            await until(lambda node=node: node.host.status(GROUP).high_watermark == 10)
            assert counts.leaderships_gained or not (counts.appended_records or counts.replication.count)
        follower = next(node for node in cluster.nodes if node is not leader)
        assert len(await read_values(follower, local=True)) == 10
        fetched = measured(follower)
        assert (fetched.fetched_records, fetched.fetch.count) == (10, 1)
        assert fetched.fetched_bytes > 10 * 50


async def test_a_new_leader_is_counted_with_its_election(tmp_path: Path) -> None:
    """The one that is stopped has lost what it had."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        first = measured(stopped := await cluster.leader())
        assert first.leaderships_gained == first.leaderships_lost + 1
        others = [measured(node) for node in cluster.nodes if node is not stopped]
        before = sum(counts.leaderships_gained for counts in others)
        await cluster.stop(stopped)
        assert first.leaderships_gained == first.leaderships_lost
        await cluster.append("b")
        second = measured(await cluster.leader())
        assert sum(counts.leaderships_gained for counts in others) > before
        assert min(second.leaderships_gained, second.elections) >= 1
        assert sum(counts.appended_records for counts in (first, *others)) == 2


async def test_what_no_majority_took_is_no_append(tmp_path: Path) -> None:
    """It waits for its commit, and is forgotten with the leadership."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        for node in cluster.nodes:
            if node is not leader:
                node.cut_off()
        with pytest.raises(ShoalError):
            await leader.host.append(GROUP, Submission.of([message("b")], timeout_ms=200))
        await until(lambda: measured(leader).leaderships_lost == 1)
        assert not leader.host.replica(GROUP).is_leader
        assert measured(leader).appended_records == 1


async def test_what_is_trimmed_is_counted_by_each_replica(tmp_path: Path) -> None:
    """Records up to where the log starts then, and the bytes that it has become smaller by."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        for number in range(60):
            await cluster.append(f"{number}" * 40)
        leader = await cluster.leader()
        before = leader.host.status(GROUP).size_bytes
        start = await leader.host.trim(GROUP, Offset(40), 60_000)
        await until(lambda: leader.host.status(GROUP).log_start_offset == start)
        counts = measured(leader)
        assert 0 < start <= 40
        assert counts.trimmed_records == start
        assert 0 < counts.trimmed_bytes < before


async def test_a_wait_for_room_is_not_in_the_time_of_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers hold too much memory for ten seconds: the disk is no slower for that."""
    now_ns = 0
    async with Cluster(str(tmp_path), 1) as cluster:
        await cluster.append("a" * (LONG_FETCH_BYTES + 1))
        leader = await cluster.leader()
        monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))

        async def admit(held_bytes: int) -> None:
            nonlocal now_ns
            now_ns += 10 * NS_PER_S

        request = FetchRequest(Offset(0), max_bytes=2**24, admit=admit)
        assert (await leader.host.reader(GROUP).read(request)).pieces is not None
        assert now_ns == 10 * NS_PER_S
        assert (measured(leader).fetch.count, measured(leader).fetch.sum_ns) == (1, 0)


class Sent:
    """A sender whose frames are all in memory."""

    def __init__(self) -> None:
        self.shipped = 0
        nothing: Any = None
        everybody = SimpleNamespace(get=lambda replica: SimpleNamespace(agent_id="f" * 32))
        core: Any = SimpleNamespace(state=SimpleNamespace(configurations=[SimpleNamespace(by_id=everybody)]))
        frames = {LogIndex(index): SimpleNamespace(data=b"frame") for index in range(10)}
        ahead: Any = SimpleNamespace(frames=frames)
        self.sender = Sender(
            GROUP, core, ahead, nothing, 1_000, ship=self._ship, on_cut=nothing, on_damage=nothing
        )

    def _ship(self, agent_id: str, pieces: list[Piece]) -> None:
        self.shipped += pieces[-1] == b"frame"

    def send(self, index: int, term: int = 1, receiver: ReplicaId = FOLLOWER) -> None:
        previous, last = LogIndex(index - 1), LogIndex(index)
        runs = (Run(last, last, Term(term)),)
        self.sender.send(AppendRequest(LEADER, receiver, Term(term), previous, Term(term), runs, LogIndex(0)))

    def reply(self, match: int, now_ns: int, term: int = 1) -> int | None:
        reply = AppendReply(FOLLOWER, LEADER, Term(term), True, LogIndex(0), LogIndex(match))
        return self.sender.acknowledged(reply, now_ns)


def test_one_request_to_a_follower_is_timed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its sending to the answer that covers it; answers to older ones and of other terms say nothing."""
    times = iter((100, 200, 300, 400))
    monkeypatch.setattr("shoal.agent.partition.append_sender.time.monotonic_ns", lambda: next(times))
    sent = Sent()
    assert sent.reply(9, 50) is None
    sent.send(1)  # at 100
    sent.send(2)
    sent.send(3)
    assert sent.reply(0, 120) is None
    assert sent.reply(2, 170) == 70
    assert sent.reply(3, 180) is None
    sent.send(4)  # at 200
    assert sent.reply(4, 230, term=2) is None
    sent.send(5)  # at 300
    sent.send(6, term=2)  # at 400: what was sent in an older term counts no more
    assert sent.reply(6, 450, term=2) == 50
    assert sent.shipped == 6


def test_entries_that_were_sent_again_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answer may be one to either. A follower that was away for an hour is no slow one."""
    times = iter((100, 200, 300))
    monkeypatch.setattr("shoal.agent.partition.append_sender.time.monotonic_ns", lambda: next(times))
    sent = Sent()
    sent.send(3)  # at 100, and lost
    sent.send(2)
    sent.send(3)
    sent.send(4)
    assert sent.reply(2, 150) is None
    assert sent.reply(4, 160) is None
    sent.send(5)  # at 200
    assert sent.reply(5, 260) == 60


def test_followers_that_never_answer_are_forgotten() -> None:
    """However many there have been."""
    sent = Sent()
    for number in range(3 * MAX_TIMED):
        sent.send(1, receiver=ReplicaId(Term(0), LogIndex(number)))
    assert len(sent.sender._timed) <= MAX_TIMED


def test_entries_that_another_leader_replaced_are_no_appends() -> None:
    """A deposed leader hears of a commit before it hears that it leads no longer."""
    measures = Measures()
    committed: Any = SimpleNamespace(last_index=7)
    replica: Any = SimpleNamespace(is_leader=False, state=SimpleNamespace(committed=committed))
    appender = Appender(replica, measures)
    appender._proposed.extend((LogIndex(index), 0, 10, 100) for index in (6, 7))
    appender.committed()
    assert (measures.appended_records, measures.commit.count) == (0, 0)
    appender.role_changed()
    assert not appender._proposed
    replica.is_leader = True
    appender._proposed.extend((LogIndex(index), 0, 10, 100) for index in (6, 7, 8))
    appender.committed()
    assert (measures.appended_records, measures.appended_bytes, measures.commit.count) == (20, 200, 2)
    assert [entry for entry, *_ in appender._proposed] == [8]


def test_an_election_that_ended_within_its_turn_is_counted_once() -> None:
    """A newer term came with the next message; nobody has seen a candidate."""
    measures, state = Measures(), SimpleNamespace(election_count=0)
    core = SimpleNamespace(state=state, role=Role.FOLLOWER)
    replica: Any = SimpleNamespace(core=core, is_leader=False, failure=None)
    counts = RoleCounts(replica, measures)
    state.election_count = 1
    counts.role_changed()
    counts.role_changed()
    assert measures.elections == 1
