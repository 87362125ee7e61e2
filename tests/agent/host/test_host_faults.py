"""Hosts whose disks fail, lose power or forget, and whose leaders are deposed: what was acknowledged
stays."""

import asyncio
import contextlib
import errno
import random
from collections.abc import Coroutine, Iterator
from dataclasses import replace

import pytest
from memory_disk import Fault, MemoryDisk
from waiting import until

from shoal.agent.durable.identity import HardStateFile, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.fetch import FetchRequest
from shoal.agent.host.free_space import MIN_FREE_BYTES
from shoal.agent.partition.plan import StateMachine
from shoal.agent.partition.status import ServingState
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Offset, ProducerStamp, Term
from shoal.replication.errors import ChangePending, NotLeader
from shoal.replication.interfaces import Configuration, HardState
from shoal.segment_store.log.log import PartitionLog
from tests.agent.harness import GROUP, Cluster, Node, columns, message, read_values
from tests.agent.memory_cluster import memory_cluster, refuse_writes


async def test_a_failed_sync_stops_the_replica_and_acknowledges_nothing() -> None:
    """The leader's disk fails: it says so, its waiting append is indefinite, another agent leads on."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        disks[leader.agent_id].faults.append(Fault("sync", errno.EIO, "topics", times=1_000))
        outcome = await asyncio.gather(
            leader.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000)),
            return_exceptions=True,
        )
        # The two others may have made it commit before the leader's own sync failed: then it is a success.
        if isinstance(outcome[0], ShoalError):
            assert not outcome[0].definite
        await until(lambda: leader.host.status(GROUP).state == "failed")
        with pytest.raises(ShoalError) as refused:
            await leader.host.append(GROUP, Submission.of([message("c")], timeout_ms=100))
        assert (refused.value.code, refused.value.retriable) == ("no-leader", True)
        successor = await until(lambda: next((n for n in cluster.nodes if n.leads and n is not leader), None))
        await successor.host.append(GROUP, Submission.of([message("d")], timeout_ms=30_000))
        values = await read_values(successor)
        assert values in (["a", "d"], ["a", "b", "d"])
        assert isinstance(outcome[0], ShoalError) or "b" in values


async def test_one_voter_with_a_failed_sync_never_acknowledges() -> None:
    """Alone there is no other copy: indefinite for what was written, refused for what comes."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = await cluster.leader()
        await cluster.append("a")
        disks[node.agent_id].faults.append(Fault("sync", errno.EIO, "topics", times=1_000))
        for submit in (
            node.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000)),
            node.host.append(GROUP, Submission.of(columns("c"), timeout_ms=30_000)),
        ):
            with pytest.raises(ShoalError) as refused:
                await submit
            assert refused.value.code in ("leadership-lost", "damaged")
        assert [status.state for status in node.host.statuses()] == [ServingState.FAILED]


async def test_a_full_disk_is_refused_before_anything_is_proposed() -> None:
    """Below the reserve an append is refused for certain, and taken again when there is room."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = await cluster.leader()
        await cluster.append("a")
        disk = disks[node.agent_id]
        roomy, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes() + 2**20
        await until(lambda: node.host.free_space.size_bytes < 2**26)
        with pytest.raises(ShoalError, match="disk-full") as refused:
            await node.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000))
        assert refused.value.definite
        disk.capacity_bytes = roomy
        await until(lambda: node.host.free_space.size_bytes > 2**26)
        assert await node.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000)) == Appended(
            Offset(1), 1
        )


async def test_a_burst_between_two_looks_at_the_disk_does_not_fill_it() -> None:
    """What was taken since the last look counts: the reserve holds, and the replica goes on."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = await cluster.leader()
        disk = disks[node.agent_id]
        disk.capacity_bytes = disk.used_bytes() + MIN_FREE_BYTES + 24 * 2**20
        await until(lambda: node.host.free_space.size_bytes < MIN_FREE_BYTES + 2**25)
        refused, taken = None, 0
        while refused is None and taken < 100:
            try:
                await node.host.append(GROUP, Submission.of(columns("x" * 2**20), timeout_ms=30_000))
                taken += 1
            except ShoalError as error:
                refused = error
        assert refused is not None
        assert (refused.code, refused.definite) == ("disk-full", True)
        assert 12 <= taken <= 26
        assert node.host.status(GROUP).state == "active"
        assert (await node.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=1))).next_offset == 1


@contextlib.contextmanager
def full(disk: MemoryDisk) -> Iterator[None]:
    """No log can be written, and the disk says so: until it has room nobody opens one again."""

    async def nothing_free(path: str) -> tuple[int, int]:
        return 0, disk.capacity_bytes

    refuse_writes(disk)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "free_bytes", nothing_free)
        yield
    disk.faults.clear()


@pytest.mark.parametrize("feeds", [False, True])
async def test_a_follower_stopped_by_a_full_disk_returns_when_there_is_room(feeds: bool) -> None:
    """It says why it stopped, the others go on, and recovery brings it back without a restart: also one that
    feeds a state machine, as the catalog's does, which gets each record once."""
    cluster, disks = memory_cluster(3)
    taken: list[int] = []
    machine = StateMachine(lambda frame: taken.append(frame.stamp.base_offset), lambda: len(taken), lambda: 0)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        if feeds:
            await follower.host.close_group(GROUP)
            await follower.open(cluster.birth, machine=machine)
        with full(disks[follower.agent_id]):
            await cluster.append("b")
            await until(lambda: follower.host.status(GROUP).state == "failed")
            with pytest.raises(ShoalError, match="disk-full"):
                await follower.host.append(GROUP, Submission.of([message("x")], timeout_ms=100))
            await cluster.append("c")
        await until(lambda: follower.host.has(GROUP) and follower.host.status(GROUP).high_watermark == 3)
        assert await read_values(follower, local=True) == ["a", "b", "c"]
        await until(lambda: taken == ([0, 1, 2] if feeds else []))


async def test_nobody_else_opens_or_deletes_a_replica_that_comes_back_from_a_full_disk() -> None:
    """From its stop until it serves again it is known to be here, in every turn of the loop: whoever opens
    what is missing would open its log twice. Its deletion comes after that, and leaves nothing."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        host, disk = follower.host, disks[follower.agent_id]
        with full(disk):
            await cluster.append("b")
            await until(lambda: host.status(GROUP).state == "failed")
        stopped, states = host.replica(GROUP), set[str]()
        while host.open_replica(GROUP) in (None, stopped):
            states.add(host.status(GROUP).state)
            await asyncio.sleep(0)
        assert states == {"failed", "installing"}

        with full(disk):
            await cluster.append("c")
            await until(lambda: host.status(GROUP).state == "failed")
        while host.status(GROUP).state == "failed":
            await asyncio.sleep(0)
        await host.delete_group(GROUP)
        await asyncio.sleep(0)
        assert not host.has(GROUP)
        assert host.replica_record(GROUP) is None
        assert not await disk.exists(follower.host._stores.directory(GROUP))


@pytest.mark.parametrize("seed", range(4))
async def test_power_failures_lose_nothing_acknowledged(seed: int) -> None:
    """Agents lose power, all of them in turn and sometimes all at once, while a producer appends."""
    rng = random.Random(seed)
    cluster, disks = memory_cluster(3, seed)
    acknowledged: list[tuple[int, str]] = []
    async with cluster:
        for round_ in range(5):
            burst = [
                asyncio.create_task(_append_once(cluster, f"{round_}.{number}", acknowledged))
                for number in range(6)
            ]
            await asyncio.sleep(rng.uniform(0, 0.05))
            victims = cluster.nodes if rng.random() < 0.3 else [rng.choice(cluster.nodes)]
            for node in victims:
                disks[node.agent_id].crash(rng)
                await cluster.stop(node)
            for node in victims:
                await cluster.start(node)
                assert node.host.status(GROUP).state == "active", node.host.status(GROUP).reason
            await asyncio.gather(*burst)
            ended = await cluster.append(f"{round_}.end")
            acknowledged.append((ended.base_offset, f"{round_}.end"))
        leader = await cluster.leader()
        values = await read_values(leader)
        for offset, value in acknowledged:
            assert values[offset] == value
        end = len(values)
        for node in cluster.nodes:
            await until(lambda node=node: node.host.status(GROUP).high_watermark == end)
            assert await read_values(node, local=True) == values


async def _append_once(cluster: Cluster, value: str, acknowledged: list[tuple[int, str]]) -> None:
    """One attempt; what it says is remembered, what it does not know is not repeated."""
    leader = next((node for node in cluster.alive if node.leads), None)
    if leader is None:
        return
    try:
        answer = await leader.host.append(GROUP, Submission.of([message(value)], timeout_ms=30_000))
    except ShoalError:
        return
    acknowledged.append((answer.base_offset, value))


async def test_a_deposed_leader_still_answers_success_for_a_committed_entry() -> None:
    """Its entry reached a majority before it was deposed: the new leader commits it, and the old one may say
    so (safety 22); what reached nobody is answered leadership-lost."""
    cluster, _ = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        others = [node for node in cluster.nodes if node is not leader]
        # Followers hear the leader, but nothing comes back: it cannot learn that its entry is everywhere.
        unhear(leader)
        reached = asyncio.create_task(
            leader.host.append(GROUP, Submission.of([message("reached")], timeout_ms=60_000))
        )
        await until(lambda: all(n.host.status(GROUP).log_end_offset == 2 for n in others))
        mute(leader)
        lost = asyncio.create_task(
            leader.host.append(GROUP, Submission.of([message("lost")], timeout_ms=60_000))
        )
        successor = await until(lambda: next((n for n in others if n.leads), None))
        await successor.host.append(GROUP, Submission.of([message("next")], timeout_ms=30_000))
        heal(leader)
        assert await reached == Appended(Offset(1), 1)
        with pytest.raises(ShoalError) as refused:
            await lost
        assert refused.value.code == "leadership-lost"
        assert not refused.value.definite
        await until(lambda: leader.host.status(GROUP).high_watermark == 3)
        assert await read_values(leader, local=True) == ["a", "reached", "next"]


async def test_who_waits_at_a_replica_that_is_removed_may_ask_again() -> None:
    """A drained leader whose last commits it never heard of cannot say whether they happened: it says so, and
    a producer that repeats itself is told where its records are. Nothing is stored twice."""
    cluster, _ = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        others = [node for node in cluster.nodes if node is not leader]
        stamp = ProducerStamp(b"once" * 4, 0, 0)
        unhear(leader)
        waiting = asyncio.create_task(
            leader.host.append(GROUP, Submission.of([message("b")], producer=stamp, timeout_ms=60_000))
        )
        await until(lambda: all(n.host.status(GROUP).log_end_offset == 2 for n in others))
        mute(leader)
        successor = await until(lambda: next((n for n in others if n.leads), None))
        gone = leader.host.replica(GROUP).replica_id
        replica = successor.host.replica(GROUP)

        def left_out() -> bool:
            """Once an entry of the successor's term is committed."""
            with contextlib.suppress(ChangePending, NotLeader):
                replica.propose_configuration(
                    [item for item in replica.core.configuration.replicas if item.id != gone]
                )
            return replica.core.configuration.find(gone) is None

        await until(left_out)
        await until(lambda: replica.state.configurations[0].find(gone) is None)
        await leader.host.retire_group(GROUP)
        with pytest.raises(ShoalError) as told:
            await waiting
        assert (told.value.code, told.value.retriable, told.value.definite) == (
            "leadership-lost",
            True,
            False,
        )
        assert "removed from its group" in told.value.detail
        again = await successor.host.append(
            GROUP, Submission.of([message("b")], producer=stamp, timeout_ms=30_000)
        )
        assert again == Appended(Offset(1), 1, duplicate=True)
        assert await read_values(successor) == ["a", "b"]


def unhear(node: Node) -> None:
    """Frames of its peers are lost on the way to it."""
    node.__dict__["handlers"] = handlers = node.links._handlers
    node.links._handlers = {frame_type: lambda *_: None for frame_type in handlers}


def mute(node: Node) -> None:
    """Its own frames are lost too."""
    node.links.send_control = lambda *_: False  # type: ignore[method-assign,assignment]
    node.links.send_bulk = lambda *_: False  # type: ignore[method-assign,assignment]


def heal(node: Node) -> None:
    """Both directions work again."""
    del node.links.send_control, node.links.send_bulk  # type: ignore[method-assign]
    node.links._handlers = node.__dict__.pop("handlers")


async def test_what_is_not_committed_is_seen_by_nobody() -> None:
    """Stored by the leader and provisional (acks=leader): no read shows it, however many bytes it may take
    and whichever batch it begins with, until a majority has it (safety 22)."""
    cluster, _ = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        await cluster.append("b")
        leader = await cluster.leader()
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            await cluster.stop(node)
        appended = await leader.host.append(
            GROUP, Submission.of([message("c")], acks="leader", timeout_ms=30_000)
        )
        assert appended.base_offset == 2
        assert await read_values(leader, local=True) == ["a", "b"]
        fetch = await leader.host.reader(GROUP).read(FetchRequest(Offset(1), max_bytes=1 << 20, local=True))
        assert (fetch.next_offset, fetch.high_watermark) == (2, 2)
        for node in others:
            await cluster.start(node)
        await cluster.append("d")
        assert (await read_values(await cluster.leader(), local=True))[:2] == ["a", "b"]


async def test_a_crash_while_a_replica_is_born_is_no_loss() -> None:
    """Registered as creating, nothing said: the birth is simply carried out again."""
    cluster, disks = memory_cluster(1)
    node = cluster.nodes[0]
    disk = disks[node.agent_id]
    disk.faults.append(Fault("sync", errno.EIO, "hard-state"))
    await node.start()
    with pytest.raises(Exception, match="hard-state"):
        await node.open(cluster.birth)
    record = node.registry.get(GROUP)
    assert record is not None
    assert record.state is ReplicaState.CREATING
    await node.stop()
    async with cluster:
        assert await cluster.append("a") == Appended(Offset(0), 1)


async def test_a_forgotten_vote_makes_a_replica_lost() -> None:
    """Both copies of its hard state damaged: it may have voted, so it never votes again (safety 3)."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        victim = cluster.nodes[1]
        await cluster.stop(victim)
        for copy in "ab":
            disks[victim.agent_id].damage(f"{victim.directory}/hard-state.{copy}", 60)
        await cluster.start(victim)
        assert victim.host.status(GROUP).state == "lost"
        await cluster.append("b")


async def test_a_log_above_the_stored_term_is_a_lost_replica() -> None:
    """The hard state is an old copy (a backup put back): what was promised since is not known (safety 3). It
    says so, never votes, and the others go on; nor does a second start believe it."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        victim = next(node for node in cluster.nodes if node is not leader)
        await until(lambda: victim.host.replica(GROUP).log.last_index >= 2)
        await cluster.stop(victim)
        disk = disks[victim.agent_id]
        kept = await HardStateFile.open(disk, victim.directory)
        stored = kept.get(GROUP)
        assert stored is not None
        assert stored[1].term > 0
        await kept.save(GROUP, stored[0], HardState(Term(0), None, stored[1].commit_index))
        await kept.close()
        for _ in range(2):
            await cluster.start(victim)
            status = victim.host.status(GROUP)
            assert status.state == "lost"
            await cluster.append("b")
            await cluster.stop(victim)
        await cluster.start(victim)


def ruin(disk: MemoryDisk, path: str, how: str) -> None:
    """The newest segment of a log, and its index, are not what they were: nothing tells what stood there."""
    content = disk.content(path)
    index_path = path.replace(".arrows", ".index")
    if how == "gone":
        for lost in (path, index_path):
            disk.lose(lost)
        return
    disk.lose(index_path)
    header_bytes = 8 + int.from_bytes(content[4:8], "little")
    start = 0 if how == "zeros" else header_bytes
    garbage = (
        bytes(len(content) - start) if how == "zeros" else random.Random(5).randbytes(len(content) - start)
    )
    disk.overwrite(path, start, garbage)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("how", ["gone", "zeros", "rubbish"])
async def test_a_voter_whose_newest_segment_is_ruined_does_not_vote_what_was_acknowledged_away(
    how: str, segments: int
) -> None:
    """Two of three acknowledged an entry. One is away, and the other's newest segment tells nothing any more,
    before any commit was noted: with the third, which lags, it would elect a leader without the entry. It is
    known beside its term and vote that the segment had begun, so it is lost, and never votes (safety 2)."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        voter, lagging = (node for node in cluster.nodes if node is not leader)
        await until(lambda: log_end(voter) == log_end(lagging) == log_end(leader))
        await cluster.stop(lagging)
        if segments == 2:
            replica = leader.host.replica(GROUP)
            replica.roll()
        await cluster.append("acknowledged")
        await until(lambda: log_end(voter) == log_end(leader))
        log = voter.host.replica(GROUP).log
        path = log.segment_of(log.last_index).path
        assert len(log.spans()) == segments
        await cluster.stop(voter)
        await cluster.stop(leader)
        for node in cluster.nodes:
            await forget_commits(disks[node.agent_id], node)
        ruin(disks[voter.agent_id], path, how)
        await cluster.start(voter)
        await cluster.start(lagging)
        with pytest.raises(TimeoutError):
            await until(lambda: voter.leads or lagging.leads, 1.5)
        assert voter.host.status(GROUP).state in ("lost", "failed")
        await cluster.start(leader)
        await cluster.append("after")
        led = await cluster.leader()
        assert await read_values(led) == ["a", "acknowledged", "after"]


def log_end(node: Node) -> int:
    return int(node.host.replica(GROUP).log.synced_index)


async def forget_commits(disk: MemoryDisk, node: Node) -> None:
    """As if it had been killed before it noted any."""
    kept = await HardStateFile.open(disk, node.directory)
    stored = kept.get(GROUP)
    assert stored is not None
    await kept.save(GROUP, stored[0], replace(stored[1], commit_index=LogIndex(0)))
    await kept.close()


async def test_what_is_to_be_truncated_is_never_noted_as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deposed leader's log has other entries where a majority has committed. It hears of those and of their
    commit at once: as long as the old ones lie on its disk no note may say that so much is committed, for a
    process that is killed then would find them committed when it starts again (section 5.3)."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        deposed = await cluster.leader()
        others = [node for node in cluster.nodes if node is not deposed]
        for node in others:
            await cluster.stop(node)
        with pytest.raises(ShoalError):
            await deposed.host.append(GROUP, Submission.of([message("never committed")], timeout_ms=200))
        await until(lambda: log_end(deposed) == deposed.host.replica(GROUP).core.last_index)
        end = log_end(deposed)
        await cluster.stop(deposed)
        for node in others:
            await cluster.start(node)
        await cluster.append("b", "c")
        go_on = asyncio.Event()
        truncate = PartitionLog.truncate_suffix

        def hold(log: PartitionLog, from_index: LogIndex) -> Coroutine[None, None, None]:
            async def held() -> None:
                await go_on.wait()
                await truncate(log, from_index)

            return held()

        monkeypatch.setattr(PartitionLog, "truncate_suffix", hold)
        await cluster.start(deposed)
        replica = deposed.host.replica(GROUP)
        await until(lambda: replica.core.commit_index >= end)
        assert (replica.log.synced_index, replica.core.stable_index < end) == (end, True)
        state = HardState(replica.core.term, None, replica.core.commit_index)
        await deposed.host.save_hard_state(replica, state)
        kept = await HardStateFile.open(disks[deposed.agent_id], deposed.directory)
        stored = kept.get(GROUP)
        await kept.close()
        stable_index = replica.core.stable_index
        go_on.set()
        assert stored is not None
        assert stored[1].commit_index <= stable_index
        await until(lambda: replica.log.synced_index == replica.core.last_index)
        assert await read_values(deposed, local=True) == ["a", "b", "c"]


async def test_a_birth_that_could_not_be_noted_is_refused_until_the_agent_starts_again() -> None:
    """The last note of a birth fails. Whoever opens the replica again in this life must not find it born: it
    would vote, be born anew after a restart, and vote again in the same term (safety 2, 3)."""
    cluster, disks = memory_cluster(1)
    (node,) = cluster.nodes
    async with cluster:
        other = GroupId(b"o" * 16, 0)
        birth = Configuration.birth((node.agent_id,))
        both_copies_of_the_first_note = 2
        fault = Fault("write", errno.EIO, "replicas", skip=both_copies_of_the_first_note)
        disks[node.agent_id].faults.append(fault)
        for _ in range(3):
            with pytest.raises(PairedFileError):
                await node.open(birth, other)
            assert not node.host.has(other)
        await cluster.stop(node)
        await cluster.start(node)
        await node.open(birth, other)
        await until(lambda: node.host.replica(other).is_leader)
        assert await node.host.append(other, Submission.of([message("a")], timeout_ms=30_000)) == Appended(
            Offset(0), 1
        )


async def test_a_bug_in_one_replica_costs_neither_the_link_nor_the_group() -> None:
    """The replica stops and says so; its agent's links, which other groups share, stay up."""
    cluster, _ = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        core = follower.host.replica(GROUP).core

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        core.step = broken  # type: ignore[method-assign]
        await cluster.append("b")
        await until(lambda: follower.host.status(GROUP).state == "failed")
        assert all(peer.control and peer.bulk for peer in follower.links.statistics())
        await cluster.append("c")
        assert [status.state for status in follower.host.statuses()] == [ServingState.FAILED]
