"""Bits that flip under real hosts: the exact bytes come back from a peer; nothing wrong is ever served."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from memory_disk import MemoryDisk
from waiting import until

from shoal.agent.durable.identity import HardStateFile
from shoal.agent.fetch import FetchRequest
from shoal.agent.host.repair import LogRepair, _is_overruled
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.entry_messages import (
    EntryId,
    EntryRequest,
    EntryState,
    decode_entry,
    encode_entry_wanted,
)
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Offset, ProducerStamp, Term
from shoal.replication.errors import ChangePending, InvalidChange, NotLeader
from shoal.replication.interfaces import UNBORN, Configuration, HardState, ReplicaId
from shoal.replication.interfaces import Replica as RaftReplica
from shoal.segment_store.config import LogConfig
from tests.agent.harness import GROUP, Cluster, Node, message, read_values
from tests.agent.memory_cluster import memory_cluster

COUNT = 40
VALUES = [f"{number}:" + "x" * 700 for number in range(COUNT)]
IN_NEWEST = 35
"""Values from here on lie in the newest segment, which every start folds."""
SEQUENCES: WeakKeyDictionary[Cluster, int] = WeakKeyDictionary()


def disk_readers(count: int) -> tuple[Cluster, dict[str, MemoryDisk]]:
    """Nodes that read from their disks what they serve. Three segments take the VALUES, and the third has
    room for what elections add on a busy machine."""
    config = LogConfig(
        segment_bytes=24_576, first_allocation_bytes=4096, max_allocation_step_bytes=8192, tail_cache_bytes=0
    )
    return memory_cluster(count, seed=count, log_config=config)


async def store(cluster: Cluster, value: str) -> Appended:
    """Append it once: on a busy machine an append may be tried again that was stored the first time."""
    stamp = ProducerStamp(b"once" * 4, 0, SEQUENCES.setdefault(cluster, 0))
    SEQUENCES[cluster] += 1
    appended = await cluster.append(value, producer=stamp)
    assert isinstance(appended, Appended)
    return appended


async def filled(cluster: Cluster) -> Node:
    """The leader of a group whose three logs hold VALUES, in several segments."""
    for value in VALUES:
        await store(cluster, value)
    await until(lambda: same_ends(cluster))
    for node in cluster.nodes:
        newest = log_of(node).first_index_of_segment(log_of(node).last_index)
        assert index_of(node, COUNT // 4) < newest < index_of(node, IN_NEWEST)
    return await cluster.leader()


def same_ends(cluster: Cluster) -> bool:
    if any(node.host.status(GROUP).state != "active" for node in cluster.alive):
        return False
    return (
        len({(log_of(node).synced_index, node.host.status(GROUP).commit_index) for node in cluster.alive})
        == 1
    )


def log_of(node: Node) -> Any:
    return node.host.replica(GROUP).log


def index_of(node: Node, value: int) -> LogIndex:
    """The entry that holds the value: values are batches of one record."""
    return LogIndex(log_of(node).index_for_offset(value))


class Place:
    """Where an entry lies on a disk; to be hit while its agent runs, or when it is stopped."""

    def __init__(self, disk: MemoryDisk, node: Node, index: LogIndex) -> None:
        self._disk = disk
        self.path = log_of(node).segment_of(index).path
        self.entry = log_of(node).entry(index)

    def bytes(self) -> bytes:
        return self._disk.content(self.path)[self.entry.position : self.entry.end_position]

    def hit(self, at: int = 300) -> None:
        self._disk.damage(self.path, self.entry.position + at)


async def whole(cluster: Cluster) -> None:
    """Every log verifies, all hold the same, and everything is served everywhere."""
    await until(lambda: same_ends(cluster))
    await until(lambda: not any(node.host.status(GROUP).damaged_ranges for node in cluster.alive))
    for node in cluster.alive:
        assert await log_of(node).verify() == []
        assert (await read_values(node, local=True))[:COUNT] == VALUES


@pytest.mark.parametrize("where", ["leader", "follower"])
async def test_a_flipped_bit_under_a_running_replica_is_mended(where: str) -> None:
    """The read that meets it says damaged; around it everything is served; soon the exact bytes are back."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        node = leader if where == "leader" else next(n for n in cluster.nodes if n is not leader)
        place = Place(disks[node.agent_id], node, index_of(node, 7))
        before = place.bytes()
        place.hit()
        with pytest.raises(ShoalError) as refused:
            await node.host.reader(GROUP).read(FetchRequest(7, max_bytes=1, local=True))  # type: ignore[arg-type]
        assert refused.value.code == "damaged"
        assert node.host.status(GROUP).state == "active"
        (damaged,) = node.host.status(GROUP).damaged_ranges
        assert (damaged.first_offset, damaged.end_offset) == (7, 8)
        for offset in (0, 6, 8):
            await node.host.reader(GROUP).read(FetchRequest(offset, max_bytes=1, local=True))  # type: ignore[arg-type]
        await until(lambda: not node.host.status(GROUP).damaged_ranges)
        assert place.bytes() == before
        await whole(cluster)


async def test_a_leader_leads_on_with_what_nobody_can_mend() -> None:
    """All copies of one entry are damaged: it answers damaged, appends and everything around it go on. When
    one copy is intact again, all are."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        places = [Place(disks[node.agent_id], node, index_of(node, 5)) for node in cluster.nodes]
        for place in places:
            place.hit()
        for _ in range(2):
            with pytest.raises(ShoalError, match="damaged"):
                await leader.host.reader(GROUP).read(FetchRequest(5, max_bytes=1))  # type: ignore[arg-type]
            assert (
                await leader.host.append(GROUP, Submission.of([message("more")], timeout_ms=30_000))
            ).count == 1
            await leader.host.reader(GROUP).read(FetchRequest(6, max_bytes=1))  # type: ignore[arg-type]
            await until(lambda: all(node.host.status(GROUP).damaged_ranges for node in cluster.nodes))
        assert leader.leads
        places[2].hit()  # a second flip of the same bit heals it
        await whole(cluster)


@pytest.mark.parametrize("indexed", [True, False])
async def test_damage_found_at_a_start_is_mended_before_the_replica_speaks(indexed: bool) -> None:
    """In what the fold needs, with an index that knows the entries and without: the replica says failed,
    sends nothing, and is whole soon after its peers can be asked."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        node = next(n for n in cluster.nodes if n is not leader)
        disk = disks[node.agent_id]
        places = [Place(disk, node, index_of(node, value)) for value in (36, 37)]
        before = [place.bytes() for place in places]
        index_path = log_of(node).segment_of(places[0].entry.index).index_path
        await cluster.stop(node)
        for place in places:
            place.hit()
        if not indexed:
            await disk.unlink(index_path)
        await store(cluster, "while it was away")
        await cluster.start(node)
        await until(lambda: node.host.status(GROUP).state == "active")
        assert [place.bytes() for place in places] == before
        await whole(cluster)
        await cluster.stop(node)
        await cluster.start(node)
        await whole(cluster)


async def test_three_agents_that_start_with_different_damage_mend_each_other() -> None:
    """Nobody leads and nobody votes: the intact copies are lent all the same."""
    cluster, disks = disk_readers(3)
    async with cluster:
        await filled(cluster)
        places = []
        for node, value in zip(list(cluster.nodes), (35, 36, 38), strict=True):
            places.append(Place(disks[node.agent_id], node, index_of(node, value)))
        for node in cluster.nodes:
            await cluster.stop(node)
        for place in places:
            place.hit()
        for node in cluster.nodes:
            await cluster.start(node)
        await whole(cluster)
        assert (await store(cluster, "more")).base_offset == COUNT


async def test_what_a_silent_voter_may_have_is_waited_for() -> None:
    """Two copies are damaged, and the third's agent is away: nothing is cut, served or given up before it has
    answered; then it is enough for all."""
    cluster, disks = disk_readers(3)
    async with cluster:
        await filled(cluster)
        away, *present = cluster.nodes
        places = [Place(disks[node.agent_id], node, index_of(node, 37)) for node in present]
        for node in cluster.nodes:
            await cluster.stop(node)
        for place in places:
            place.hit()
        for node in present:
            await cluster.start(node)
        with pytest.raises(TimeoutError):
            await until(lambda: any(node.leads for node in present), 1.0)
        assert {node.host.status(GROUP).state for node in present} == {"failed"}
        assert "entries" in present[0].host.status(GROUP).reason
        await cluster.start(away)
        await whole(cluster)


@pytest.mark.parametrize("count", [1, 3])
async def test_what_every_voter_has_lost_is_quarantined(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """All have answered and none has it: the partition goes on around it, says so loudly, never serves it and
    never gives its offsets away. A copy that turns up after all heals everybody."""
    cluster, disks = disk_readers(count)
    async with cluster:
        await filled(cluster)
        places = [Place(disks[node.agent_id], node, index_of(node, 37)) for node in cluster.nodes]
        for node in cluster.nodes:
            await cluster.stop(node)
        for place in places:
            place.hit()
        for node in cluster.nodes:
            await cluster.start(node)
        assert (await store(cluster, "more")).base_offset == COUNT
        leader = await cluster.leader()
        with pytest.raises(ShoalError, match="damaged"):
            await leader.host.reader(GROUP).read(FetchRequest(37, max_bytes=1))  # type: ignore[arg-type]
        for offset in (36, 38, 39, COUNT):
            await leader.host.reader(GROUP).read(FetchRequest(offset, max_bytes=1))  # type: ignore[arg-type]
        assert "QUARANTINED" in caplog.text
        assert leader.host.status(GROUP).damaged_ranges
        places[-1].hit()  # heals
        if count > 1:
            await whole(cluster)


async def with_an_entry_of_its_own(
    cluster: Cluster, disks: dict[str, MemoryDisk], propose: Callable[[Replica], object] | None = None
) -> tuple[Node, Place, Place]:
    """Everything stands still; one that led has an entry that nobody else has. Where that lies, and the head
    of its segment."""
    leader = await filled(cluster)
    # All in one instant: it leads still, however long its next turn takes to come, and nobody else ever does.
    for node in cluster.nodes:
        node.cut_off()
    replica = leader.host.replica(GROUP)
    end = replica.state.tail.last_index
    if propose is None:
        with pytest.raises(ShoalError):
            await leader.host.append(GROUP, Submission.of([message("never committed")], timeout_ms=50))
    else:
        propose(replica)
    last = replica.state.tail.last_index
    assert last > end
    await until(lambda: log_of(leader).synced_index == last)
    place = Place(disks[leader.agent_id], leader, last)
    head = Place(disks[leader.agent_id], leader, log_of(leader).first_index_of_segment(last))
    for node in cluster.nodes:
        await cluster.stop(node)
    return leader, place, head


async def rid_of_it(cluster: Cluster, leader: Node) -> None:
    """Started alone it waits; with the others, what was never committed goes."""
    await cluster.start(leader)
    assert leader.host.status(GROUP).state == "failed"
    await only_what_is_appended_now(cluster, leader)


async def only_what_is_appended_now(cluster: Cluster, leader: Node) -> None:
    """The others start, and what is stored next is in the damaged entry's place everywhere."""
    for node in cluster.nodes:
        if node is not leader:
            await cluster.start(node)
    assert (await store(cluster, "committed")).base_offset == COUNT
    await whole(cluster)
    assert (await read_values(leader, local=True))[COUNT:] == ["committed"]


async def test_a_damaged_entry_that_was_never_committed_is_dropped() -> None:
    """A deposed leader's own entry, damaged before it could be compared: a majority is intact without it, in
    a newer term, so it goes, and the log continues as the others'."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader, place, _ = await with_an_entry_of_its_own(cluster, disks)
        place.hit()
        await rid_of_it(cluster, leader)


@pytest.mark.parametrize("rolls", [False, True])
async def test_an_entry_without_records_that_was_never_committed_is_dropped_too(rolls: bool) -> None:
    """It may have been a change of the members; whatever it was, a majority of those before it lacks it. The
    head of a segment is such an entry, too."""
    cluster, disks = disk_readers(3)
    async with cluster:
        propose = Replica.roll if rolls else lambda replica: replica.propose_control(Kind.NOOP, b"")
        _, place, _ = await with_an_entry_of_its_own(cluster, disks, propose)
        assert place.entry.record_count == 0
        place.hit(at=200)
        for node in cluster.nodes:
            await cluster.start(node)
        await whole(cluster)
        assert (await store(cluster, "committed")).base_offset == COUNT


async def test_what_may_have_been_a_change_of_the_members_is_read_once_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head of a segment and, behind it, an entry that was never committed, both damaged: while the first
    cannot be read nobody knows who might have committed the second. Afterwards it is dropped, by the word of
    those who lack it alone: none of them has another one committed there yet."""
    monkeypatch.setattr("shoal.agent.host.repair._is_overruled", lambda *_: False)
    cluster, disks = disk_readers(3)
    async with cluster:
        leader, place, head = await with_an_entry_of_its_own(cluster, disks)
        assert (head.entry.record_count, place.entry.record_count) == (0, 1)
        head.hit(at=200)
        place.hit()
        await rid_of_it(cluster, leader)


@pytest.mark.parametrize("count", [2, 3])
async def test_a_leader_that_cannot_send_what_was_never_committed_is_rid_of_it(count: int) -> None:
    """It is elected with an entry of an earlier life that nobody else has, and which rots before it could be
    sent: the others say that they lack it, it goes, and appends are stored in its place. Two voters, too."""
    cluster, disks = disk_readers(count)
    async with cluster:
        leader, place, _ = await with_an_entry_of_its_own(cluster, disks)
        await cluster.start(leader)
        assert leader.host.status(GROUP).state == "active"
        place.hit()
        await only_what_is_appended_now(cluster, leader)


async def test_of_two_voters_the_intact_one_forswears_the_term_of_what_it_lacks() -> None:
    """Nobody is elected before the damaged one speaks, and that waits for the other's word, which would be
    none in the term in which the entry was made: so that one enters the next (safety 10)."""
    cluster, disks = disk_readers(2)
    async with cluster:
        _, place, _ = await with_an_entry_of_its_own(cluster, disks)
        place.hit()
        for node in cluster.nodes:
            await cluster.start(node)
        assert (await store(cluster, "committed")).base_offset == COUNT
        await whole(cluster)


async def set_hard_state(disk: MemoryDisk, node: Node, *, term: int = 0, commit_index: int) -> None:
    """Of a node that does not run: a term that it has seen since, a commit index that it had not stored."""
    kept = await HardStateFile.open(disk, node.directory)
    stored = kept.get(GROUP)
    assert stored is not None
    state = HardState(Term(max(term, stored[1].term)), None, LogIndex(commit_index))
    await kept.save(GROUP, stored[0], state)
    await kept.close()


async def test_an_entry_that_one_voter_lacks_and_another_may_have_is_not_dropped() -> None:
    """One is damaged, one is intact without the entry and of a newer term, and the third, with which it was
    committed, is away: a minority without it proves nothing. Cut there, the two would lead on without what
    was acknowledged (safety 10)."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        lacking, away = (node for node in cluster.nodes if node is not leader)
        await cluster.stop(lacking)
        assert (await store(cluster, "acknowledged")).base_offset == COUNT
        entry = index_of(leader, COUNT)
        term = log_of(leader).last_term
        place = Place(disks[leader.agent_id], leader, entry)
        await cluster.stop(away)
        await cluster.stop(leader)
        place.hit()
        await set_hard_state(disks[leader.agent_id], leader, commit_index=entry - 1)
        await set_hard_state(disks[lacking.agent_id], lacking, term=term + 5, commit_index=entry - 1)
        await cluster.start(leader)
        await cluster.start(lacking)
        with pytest.raises(TimeoutError):
            await until(lambda: leader.leads or lacking.leads, 1.5)
        assert leader.host.status(GROUP).state == "failed"
        await cluster.start(away)
        await store(cluster, "after")
        await whole(cluster)
        for node in cluster.nodes:
            assert (await read_values(node, local=True))[COUNT:] == ["acknowledged", "after"]


async def test_one_voter_is_enough_that_has_another_entry_committed_there() -> None:
    """Of three voters one is damaged and one has gone for good: the third lacks the entry, which alone proves
    nothing, but knows that another one was committed under its number, which does (section 5.4.3)."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader, place, _ = await with_an_entry_of_its_own(cluster, disks)
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            await cluster.start(node)
        assert (await store(cluster, "committed")).base_offset == COUNT
        await until(lambda: same_ends(cluster))
        place.hit()
        await cluster.stop(others[0])
        await cluster.start(leader)
        await until(lambda: leader.host.status(GROUP).state == "active")
        await store(cluster, "after")
        await whole(cluster)
        assert (await read_values(leader, local=True))[COUNT:] == ["committed", "after"]


@pytest.mark.parametrize(
    ("index", "first_index", "commit_index", "goes"),
    [(1, 1, 0, True), (2, 1, 0, True), (2, 1, 2, False), (7, 7, 0, False), (8, 7, 0, True)],
)
async def test_the_only_entry_of_a_log_may_go_but_not_the_first_of_a_trimmed_one(
    index: int, first_index: int, commit_index: int, goes: bool
) -> None:
    """A newborn's first entry that others have overruled goes: the log is empty again, as at its birth. A log
    whose head was trimmed would not know its next number."""
    cut: list[int] = []

    class Log:
        async def truncate_suffix(self, from_index: LogIndex) -> None:
            cut.append(from_index)

    class HardStates:
        async def lower_floor(self, _group: object, floor: LogIndex) -> None:
            cut.append(floor)

    log = Log()
    log.first_index = LogIndex(first_index)  # type: ignore[attr-defined]
    log_repair: Any = object.__new__(LogRepair)
    log_repair._hard_states = HardStates()
    damaged: Any = SimpleNamespace(
        log=log, commit_index=LogIndex(commit_index), plan=SimpleNamespace(group=GROUP)
    )
    assert await log_repair._drop(damaged, EntryId(LogIndex(index), Term(1))) == goes
    assert cut == ([index - 1, index] if goes else [])


@pytest.mark.parametrize(
    ("index", "term", "overruled"),
    [(2, 1, True), (2, 3, True), (2, 2, False), (3, 1, False), (3, 2, False), (4, 1, False)],
)
def test_only_a_committed_entry_overrules_another(index: int, term: int, overruled: bool) -> None:
    """Of a log of entries 1 (term 1), 2 and 3 (term 2), committed up to 2: either of two that are not may
    still be, by whoever has it, and nothing lies behind the end."""
    log = SimpleNamespace(term_at={1: 1, 2: 2, 3: 2}.get)
    replica: Any = SimpleNamespace(log=log, core=SimpleNamespace(commit_index=2))
    assert _is_overruled(replica, EntryId(LogIndex(index), Term(term))) == overruled


async def test_what_one_alone_committed_is_not_dropped_by_the_word_of_a_voter_that_joined_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The only copy there ever was, acknowledged when its holder was the only voter, does not verify. The
    other voter of today lacks it, in a newer term: that proves nothing. It stays where it is, loudly, and is
    there again when its copy is (safety 10)."""
    cluster, disks = disk_readers(2)
    first, second = cluster.nodes
    voter, learner = cluster.birth.replicas
    cluster.birth = replace(cluster.birth, replicas=(voter, replace(learner, learner=True)))
    try:
        await cluster.start(first)
        await cluster.start(second)
        replica = first.host.replica(GROUP)
        await until(lambda: replica.is_leader and replica.core.match_indexes[learner.id] == 1)
        second.cut_off()  # it counts as heard for a while
        assert (await store(cluster, "acknowledged")).base_offset == 0
        entry = index_of(first, 0)
        replica.propose_configuration([voter, learner])
        await until(lambda: log_of(first).synced_index == entry + 1)
        place, term = Place(disks[first.agent_id], first, entry), log_of(first).last_term
        await cluster.stop(first)
        await cluster.stop(second)
        place.hit()
        await set_hard_state(disks[first.agent_id], first, commit_index=entry - 1)
        await set_hard_state(disks[second.agent_id], second, term=term + 5, commit_index=0)
        await cluster.start(first)
        await cluster.start(second)
        await until(lambda: "QUARANTINED" in caplog.text and first.host.status(GROUP).state == "active")
        assert log_of(first).term_at(entry) == term
        place.hit()  # the copy turns up
        await cluster.append("after")
        assert (await read_values(await cluster.leader()))[:2] == ["acknowledged", "after"]
    finally:
        for node in list(cluster.alive):
            await cluster.stop(node)


async def test_what_the_others_have_trimmed_is_not_waited_for() -> None:
    """Damaged while its agent was down, and dropped by the others meanwhile: nobody will ever lend it. The
    replica says that it is beyond repair, so that its leader has another one in its place."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        late = next(node for node in cluster.nodes if node is not leader)
        place = Place(disks[late.agent_id], late, index_of(late, 3))
        await cluster.stop(late)
        place.hit()
        await set_hard_state(disks[late.agent_id], late, commit_index=1)
        assert await leader.host.trim(GROUP, Offset(20), 1_000) > 3
        await until(lambda: all(log_of(node).start_offset > 3 for node in cluster.alive))
        await cluster.start(late)
        await until(lambda: [item.group for item in late.host.beyond_repair()] == [GROUP])
        assert late.host.status(GROUP).state == "failed"
        assert not [item for node in cluster.alive if node is not late for item in node.host.beyond_repair()]


async def changed(
    cluster: Cluster, wanted: Callable[[Configuration], Sequence[RaftReplica]]
) -> Configuration:
    """One step of the group's configuration, committed."""
    done: list[Configuration] = []

    def proposed() -> bool:
        for node in cluster.alive:
            if done or not node.leads:
                continue
            replica = node.host.replica(GROUP)
            with contextlib.suppress(ChangePending, InvalidChange, NotLeader):
                done.append(replica.propose_configuration(wanted(replica.core.configuration)))
        return bool(done)

    await until(proposed)
    await until(
        lambda: any(
            node.leads and node.host.committed_configuration(GROUP) == done[0] for node in cluster.alive
        )
    )
    return done[0]


async def replaced(cluster: Cluster, gone: Node, new: Node) -> None:
    """Another agent's replica takes the place of that one, as a leader's rebalancer does it."""
    learner = RaftReplica(UNBORN, new.agent_id, learner=True)
    now = await changed(cluster, lambda was: (*was.replicas, learner))
    mine = next(item for item in now.replicas if item.agent_id == new.agent_id)
    await cluster.start(new, replica_id=mine.id)
    await changed(cluster, lambda was: [replace(r, learner=False) for r in was.replicas])
    await changed(cluster, lambda was: [r for r in was.replicas if r.agent_id != gone.agent_id])
    await cluster.stop(gone)


async def test_a_waiting_replica_asks_those_who_took_the_place_of_all_whom_it_knows() -> None:
    """While its agent was down every other voter was replaced, and is gone. Its own log cannot say by whom;
    the routing table knows who holds the group."""
    cluster, disks = disk_readers(5)
    first, second, late, fourth, fifth = cluster.nodes
    cluster.birth = Configuration.birth(tuple(node.agent_id for node in (first, second, late)))
    try:
        for node in (first, second, late):
            await cluster.start(node)
        for value in VALUES:
            await store(cluster, value)
        await until(lambda: same_ends(cluster))
        place = Place(disks[late.agent_id], late, index_of(late, IN_NEWEST + 2))
        await cluster.stop(late)
        place.hit()
        await replaced(cluster, first, fourth)
        await replaced(cluster, second, fifth)
        holders = {node.agent_id: node for node in (fourth, fifth)}
        for node in holders.values():

            async def told(_peer: str, _payload: bytes, node: Node = node) -> bytes:
                configuration = node.host.committed_configuration(GROUP)
                return b"" if configuration is None else configuration.to_bytes()

            node.links.handle_request(PeerMessage.GROUP_CONFIGURATION, told)
        await cluster.start(late)
        assert late.host.status(GROUP).state == "failed"
        late.host.log_repair.holders = lambda _: [late.agent_id, *holders]
        await until(lambda: late.host.status(GROUP).state == "active")
        await store(cluster, "after")
        await until(lambda: late.host.status(GROUP).high_watermark == COUNT + 1)
        assert (await read_values(late, local=True)) == [*VALUES, "after"]
    finally:
        for node in list(cluster.alive):
            await cluster.stop(node)


async def test_only_who_can_never_take_it_again_says_that_it_lacks_an_entry() -> None:
    """An entry of the present term may still come from its leader, who may count the asker's copy: not known.
    One of an older term can only come with a newer one's: lacked, unless the asker may have acknowledged in
    this one, to a leader that has the entry; or this is not the replica that the asker knows. What is held is
    given, what is trimmed or damaged is named so, and so is what another entry was committed in the place
    of, by any replica that knows it."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        node = next(n for n in cluster.nodes if n is not leader)
        term, last = log_of(node).last_term, log_of(node).last_index
        place = Place(disks[node.agent_id], node, index_of(node, 7))

        me = node.host.replica(GROUP).replica_id

        async def ask(index: int, of_term: int, newest_term: int = 0, asked: ReplicaId = me) -> EntryState:
            entry = EntryId(LogIndex(index), Term(of_term))
            wanted = EntryRequest(entry, asked, Term(max(newest_term, of_term)))
            payload = encode_entry_wanted(GROUP, wanted)
            return decode_entry(await node.host.log_repair.on_entry("2" * 32, payload))[0]

        assert await ask(last, term) is EntryState.HERE
        assert await ask(last + 1, term) is EntryState.UNKNOWN
        await leader.host.transfer_all(2_000)
        await until(lambda: node.host.stored_term(GROUP) > term and same_ends(cluster))
        assert await ask(log_of(node).last_index + 1, term) is EntryState.LACKS
        assert await ask(last, term + 5) is EntryState.OVERRULED
        assert await ask(last, term + 5, asked=ReplicaId(0, 7)) is EntryState.OVERRULED
        stored = node.host.stored_term(GROUP)
        assert await ask(last + 9, term, stored - 1) is EntryState.LACKS
        assert await ask(last + 9, term, stored) is EntryState.UNKNOWN
        assert await ask(last + 9, term, asked=ReplicaId(0, 7)) is EntryState.UNKNOWN
        assert await ask(last, term, asked=ReplicaId(0, 7)) is EntryState.HERE
        place.hit()
        assert await ask(place.entry.index, place.entry.term) is EntryState.DAMAGED
        await whole(cluster)


async def test_a_peers_wrong_bytes_are_not_taken() -> None:
    """Another entry, a frame cut short, and bytes that do not verify leave the damage as it is."""
    cluster, disks = disk_readers(3)
    async with cluster:
        leader = await filled(cluster)
        node = next(n for n in cluster.nodes if n is not leader)
        place, other = (Place(disks[node.agent_id], node, index_of(node, value)) for value in (7, 8))
        good, wrong = place.bytes(), other.bytes()
        answers = [wrong, good[:-8], good[:400] + bytes([good[400] ^ 1]) + good[401:], b"", good + b"\0" * 8]
        asked = 0

        async def lie(_peer: str, _payload: bytes) -> bytes:
            nonlocal asked
            asked += 1
            return b"\0" + answers[min(asked, len(answers)) - 1]

        for peer in cluster.nodes:
            if peer is not node:
                peer.links.requests.handlers[PeerMessage.ENTRY] = lie
        place.hit()
        spoiled = place.bytes()
        with pytest.raises(ShoalError, match="damaged"):
            await node.host.reader(GROUP).read(FetchRequest(7, max_bytes=1, local=True))  # type: ignore[arg-type]
        await until(lambda: asked >= len(answers))
        assert place.bytes() == spoiled
        assert node.host.status(GROUP).damaged_ranges
        answers.append(good)
        await until(lambda: not node.host.status(GROUP).damaged_ranges)
        assert place.bytes() == good
