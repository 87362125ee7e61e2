"""The catalog at work in one agent, with a host and peers that only remember what they were asked."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.host.host import Host
from shoal.agent.levels import FIRST_LEVEL, SUPPORTED, Level, LevelRange
from shoal.agent.members.roster import Roster
from shoal.agent.partition.plan import Plan
from shoal.agent.peers.links import PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError, decode_version
from shoal.agent.submission import Appended, Submission
from shoal.agent.topics.catalog import (
    Catalog,
    Command,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    PartitionBirth,
    Seal,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import encode_command
from shoal.agent.topics.catalog_pull import Copy, Piece
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.cluster_file import ClusterFileError, ClusterRecord
from shoal.agent.topics.kept import FormerTopic
from shoal.agent.topics.local_catalog import LocalCatalog
from shoal.agent.topics.settings import TopicSettings
from shoal.errors import ShoalError
from shoal.format.batch import (
    Frame,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    Term,
    message_from_batch,
    stamp_message,
)
from shoal.format.hash_ranges import hash_ranges
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.replication.interfaces import ReplicaId

SELF, OTHER = "a" * 32, "b" * 32


def v(offset: int, epoch: int = 0) -> bytes:
    """A version as peers send it."""
    return CatalogVersion(epoch, offset).to_bytes()


def asks(offset: int, epoch: int = 0) -> bytes:
    """A question for a newer state than that."""
    return Copy(CatalogVersion(epoch, offset)).question()


def gives(catalog: Catalog) -> Callable[[bytes], bytes]:
    """A peer's answers: the whole state as one piece."""
    data = catalog.to_bytes()
    return lambda _: Piece(catalog.version, len(data), data).to_bytes()


def entry(number: int = 1, voters: tuple[str, ...] = (SELF, OTHER)) -> TopicEntry:
    births = tuple(PartitionBirth(bounds, voters) for bounds in hash_ranges(2))
    settings = TopicSettings(partitions=2, fsync=False)
    return TopicEntry(f"t{number}", bytes([number]) * 16, settings, births, 0)


def frame(offset: int, *commands: Command, term: int = 1) -> Frame:
    """Commands as the committed frame that holds them."""
    nothing: list[Any] = [None] * len(commands)
    columns = RecordColumns(nothing, nothing, [encode_command(command) for command in commands], nothing)
    return stamp_message(
        message_from_batch(columns_to_batch(columns, 0)),
        LogIdentity(b"c" * 16, bytes(16), 0),
        base_offset=Offset(offset),
        term=Term(term),
        previous_term=Term(0),
        index=LogIndex(offset + 1),
        append_time_us=0,
    )


@dataclass
class FakeNewborns:
    """Replicas that wait for their birth, as (group, replica_id)."""

    groups: FakeGroups
    waiting: list[Any] = field(default_factory=list)
    born: list[GroupId] = field(default_factory=list)

    def replicas(self) -> list[Any]:
        return [replica for replica in self.waiting if replica.group not in self.born]

    def be_born(self, group: GroupId) -> None:
        self.born.append(group)

    async def give_up(self, group: GroupId) -> bool:
        groups = self.groups
        groups.opened.pop(group, None)
        if group in groups.with_records:
            return False
        groups.records[group] = groups.records[group]._replace(state=ReplicaState.REMOVED)
        return True


@dataclass
class FakeGroups:
    """A host that opens anything, unless it is told not to."""

    opened: dict[GroupId, dict[str, Any]] = field(default_factory=dict)
    cleared_writes: dict[GroupId, LogIndex] = field(default_factory=dict)
    deleted: list[GroupId] = field(default_factory=list)
    with_records: set[GroupId] = field(default_factory=set)
    refuse: int = 0
    on_open: Callable[[], None] = lambda: None
    on_delete: Callable[[GroupId], None] = lambda _: None
    end: int = 0
    start: int = 0
    term: int = 1
    on_append: Callable[[Sequence[Message]], None] = lambda _: None

    records: dict[GroupId, ReplicaRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.newborns = FakeNewborns(self)
        self.reopener = SimpleNamespace(on_opened=lambda: None)

    def has(self, group: GroupId) -> bool:
        return group in self.opened

    def status(self, group: GroupId) -> Any:
        return SimpleNamespace(log_start_offset=self.start, term=self.term, state="active")

    def set_segment_bytes(self, group: GroupId, segment_bytes: int) -> None:
        self.opened[group]["segment_bytes"] = segment_bytes

    def set_retention(self, group: GroupId, retention: Any) -> None:
        self.opened[group]["retention"] = retention

    def set_groups(self, group: GroupId, plans: Any) -> None:
        self.opened[group]["groups"] = plans

    def replica_record(self, group: GroupId) -> ReplicaRecord | None:
        return self.records.get(group)

    def replica_records(self) -> Iterator[ReplicaRecord]:
        return iter(list(self.records.values()))

    async def open_group(self, plan: Plan) -> None:
        if self.refuse:
            self.refuse -= 1
            raise OSError("the disk says no")
        self.on_open()
        self.opened[plan.group] = {name: getattr(plan, name) for name in Plan.__slots__}
        replica_id = plan.own_id(SELF) or ReplicaId(0, 0)
        self.records[plan.group] = ReplicaRecord(plan.group, replica_id, ReplicaState.ACTIVE)

    async def delete_group(self, group: GroupId) -> None:
        self.on_delete(group)
        self.opened.pop(group, None)
        self.records.pop(group, None)
        self.deleted.append(group)

    async def append(self, group: GroupId, submission: Submission) -> Appended:
        assert group == CATALOG_GROUP
        assert not isinstance(submission.records, RecordColumns)
        self.on_append(submission.records)
        return Appended(Offset(self.end), 1)

    async def offsets(self, group: GroupId) -> Any:
        return SimpleNamespace(high_watermark=Offset(self.end))


@dataclass
class FakePeers:
    """One other agent; `answers` maps a kind to what it says."""

    agent_id: str = SELF
    versions: dict[str, CatalogVersion] = field(default_factory=dict)
    answers: dict[int, Callable[[bytes], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    hints: list[tuple[str, int]] = field(default_factory=list)
    level: Level = FIRST_LEVEL
    greeted_again: int = 0

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        self.asked.append((agent_id, kind))
        if kind not in self.answers:
            raise PeerUnavailable("not connected")
        return self.answers[kind](payload)

    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool:
        self.hints.append((agent_id, decode_version(payload).offset))
        return True

    def live_peers(self) -> list[str]:
        return [OTHER]

    def set_level(self, level: Level) -> None:
        self.level = level

    def greet_again(self) -> None:
        self.greeted_again += 1

    def catalog_versions(self) -> dict[str, CatalogVersion]:
        return dict(self.versions)


class Fixture:
    def __init__(
        self,
        birth: tuple[str, ...],
        catalog: Catalog | None = None,
        leader: str | None = SELF,
        kept: Mapping[bytes, FormerTopic] | None = None,
        levels: LevelRange = SUPPORTED,
    ) -> None:
        self.groups = FakeGroups()
        self.peers = FakePeers()
        self.saved: list[Catalog] = []
        self.records: list[ClusterRecord] = []
        self.refuse_saves = 0
        self.service = CatalogService(
            local=LocalCatalog(
                ClusterRecord("c", b"c" * 16, birth, (catalog or Catalog()).to_bytes(), kept or {}),
                cast("Host", self.groups),
                self.save,
            ),
            groups=cast("Host", self.groups),
            peers=cast("Roster", self.peers),
            watch=Watch("run"),
            rng=random.Random(1),
            leader=lambda: leader,
            now_us=lambda: 0,
            levels=levels,
        )

    async def save(self, record: ClusterRecord) -> None:
        if self.refuse_saves:
            self.refuse_saves -= 1
            raise OSError(errno.ENOSPC, "no room")
        self.saved.append(Catalog.from_bytes(record.catalog))
        self.records.append(record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fixture]:
        await self.service.start()
        task = asyncio.create_task(self.service.run())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_a_voter_opens_what_it_was_born_into_after_saving() -> None:
    """A restart must find every replica it has opened, so the state is on disk first."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        assert CATALOG_GROUP in fixture.groups.opened
        fixture.service.apply(frame(0, CreateTopic(entry()), CreateTopic(entry(2, (OTHER,)))))
        await until(lambda: len(fixture.groups.opened) == 3)
    assert set(fixture.groups.opened) == {
        CATALOG_GROUP,
        *(GroupId(b"\1" * 16, number) for number in range(2)),
    }
    opened = fixture.groups.opened[GroupId(b"\1" * 16, 0)]
    assert [replica.agent_id for replica in opened["birth"].replicas] == [SELF, OTHER]
    assert not opened["log_config"].fsync
    assert fixture.saved[-1].offset == 2
    assert fixture.peers.hints == [(OTHER, 2)]


async def test_a_restart_opens_replicas_from_the_saved_state() -> None:
    """Before anybody has been reached."""
    catalog = Catalog()
    catalog.apply(0, CreateTopic(entry()))
    fixture = Fixture((OTHER,), catalog)
    async with fixture.running():
        await until(lambda: len(fixture.groups.opened) == 2)


async def test_a_replica_that_cannot_be_opened_is_tried_again() -> None:
    """A full table of files, a slow disk: the topic must not stay short of a replica for ever."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.groups.refuse = 3
        fixture.service.apply(frame(0, CreateTopic(entry())))
        await until(lambda: len(fixture.groups.opened) == 3)


async def test_a_replica_that_comes_back_has_the_settings_of_today() -> None:
    """The plan with which it is opened again may be of before it was closed."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.service.apply(frame(0, CreateTopic(entry())))
        await until(lambda: len(fixture.groups.opened) == 3)
        opened = fixture.groups.opened[GroupId(b"\1" * 16, 0)]
        retention, opened["retention"] = opened["retention"], None
        fixture.groups.reopener.on_opened()
        await until(lambda: opened["retention"] == retention)


async def test_a_full_disk_keeps_the_state_unsaved_and_the_agent_alive() -> None:
    """Nothing is opened from a state that a restart would not find; when there is room, all of it is."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.refuse_saves = 2
        fixture.service.apply(frame(0, CreateTopic(entry())))
        await until(lambda: not fixture.refuse_saves)
        assert set(fixture.groups.opened) == {CATALOG_GROUP}
        await until(lambda: len(fixture.groups.opened) == 3)
    assert fixture.saved[-1].offset == 1


async def test_nothing_is_deleted_before_its_deletion_is_saved() -> None:
    """A deletion that comes while other replicas are opened: power fails before the next save, and the saved
    state, which has the topic, would have an empty replica born under the same id."""
    fixture = Fixture((SELF,))
    first = entry(1)

    def delete_the_first() -> None:
        if GroupId(b"\2" * 16, 0) in fixture.groups.opened and fixture.service.catalog.offset == 2:
            fixture.service.apply(frame(2, DeleteTopic(first.topic_id)))

    unsaved: list[GroupId] = []

    def is_saved(group: GroupId) -> None:
        if fixture.saved[-1].by_id(group.topic_id) is not None:
            unsaved.append(group)

    fixture.groups.on_open, fixture.groups.on_delete = delete_the_first, is_saved
    async with fixture.running():
        fixture.service.apply(frame(0, CreateTopic(first)))
        await until(lambda: len(fixture.groups.opened) == 3)
        fixture.service.apply(frame(1, CreateTopic(entry(2))))
        await until(lambda: len(fixture.groups.deleted) == 2)
    assert not unsaved


async def test_a_deletion_is_carried_out_and_confirmed_at_the_leader() -> None:
    """Only then may the tombstone go (safety 4)."""
    fixture = Fixture((OTHER,), leader=OTHER)
    catalog = Catalog()
    catalog.apply(0, CreateTopic(entry()))
    catalog.apply(1, DeleteTopic(entry().topic_id))
    fixture.peers.answers = {
        PeerMessage.CATALOG_PULL: gives(catalog),
        PeerMessage.CATALOG_CONFIRM: lambda topic_id: b"" if topic_id == entry().topic_id else b"?",
    }
    async with fixture.running():
        fixture.peers.versions = {OTHER: CatalogVersion(0, 2)}
        fixture.service.exchange.look()
        await until(lambda: (OTHER, PeerMessage.CATALOG_CONFIRM) in fixture.peers.asked)
    assert fixture.groups.deleted == [GroupId(entry().topic_id, number) for number in range(2)]


async def test_replicas_that_came_later_are_opened_under_their_ids_and_deleted_with_the_topic() -> None:
    """The registry knows them, the birth does not. What was removed stays away, and goes with the topic. A
    topic that this agent has had, and that is gone without a tombstone, is deleted too."""
    fixture = Fixture((SELF,), leader=OTHER)
    first, second = GroupId(b"\1" * 16, 0), GroupId(b"\1" * 16, 1)
    fixture.groups.records = {
        first: ReplicaRecord(first, ReplicaId(2, 9), ReplicaState.ACTIVE),
        second: ReplicaRecord(second, ReplicaId(0, 0), ReplicaState.REMOVED),
    }
    fixture.service.apply(frame(0, CreateTopic(entry(1, (OTHER,)))))
    async with fixture.running():
        await until(lambda: first in fixture.groups.opened)
        assert fixture.groups.opened[first]["replica_id"] == ReplicaId(2, 9)
        newer = Catalog()
        commands = (
            CreateTopic(entry(1, (OTHER,))),
            DeleteTopic(first.topic_id),
            ConfirmDeletion(first.topic_id, OTHER),
        )
        for offset, command in enumerate(commands):
            newer.apply(offset, command)
        assert not newer.tombstones
        fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
        fixture.peers.versions = {OTHER: CatalogVersion(0, 3)}
        fixture.service.exchange.look()
        await until(lambda: len(fixture.groups.deleted) == 2)
    assert fixture.groups.deleted == [first, second]
    assert set(fixture.groups.opened) == {CATALOG_GROUP}


async def test_a_replica_of_a_topic_never_heard_of_is_kept() -> None:
    """It may be news, or the catalog here may have lost its memory: keep, and report (safety 4)."""
    fixture = Fixture((SELF,))
    group = GroupId(b"\7" * 16, 0)
    fixture.groups.records[group] = ReplicaRecord(group, ReplicaId(2, 9), ReplicaState.ACTIVE)
    fixture.service.apply(frame(0, CreateTopic(entry())))
    async with fixture.running():
        await until(lambda: len(fixture.groups.opened) == 3)
        with pytest.raises(ShoalError) as caught:
            async with fixture.service.changing:
                await fixture.service.open_replica(group, ReplicaId(2, 9))
        assert caught.value.code == "unknown-topic"
    assert fixture.groups.deleted == []


async def test_the_leader_proposes_a_holders_confirmation_once() -> None:
    """A repeated confirmation proposes nothing."""
    fixture = Fixture((SELF,))
    fixture.service.apply(frame(0, CreateTopic(entry()), DeleteTopic(entry().topic_id)))
    proposed: list[int] = []
    fixture.groups.end = 2

    def append(messages: Sequence[Message]) -> None:
        proposed.append(len(messages))
        fixture.service.apply(frame(2, ConfirmDeletion(entry().topic_id, OTHER)))

    fixture.groups.on_append = append
    for _ in range(2):
        assert await fixture.service.on_confirm(OTHER, entry().topic_id) == b""
    assert proposed == [1]


async def test_a_follower_pulls_what_is_newer_and_survives_silence() -> None:
    """A peer that does not answer is asked again; an old snapshot never replaces a newer state."""
    fixture = Fixture((OTHER,), leader=OTHER)
    newer = Catalog()
    newer.apply(0, CreateTopic(entry(3, (OTHER,))))
    async with fixture.running():
        fixture.service.exchange.on_hint(OTHER, v(1))
        fixture.peers.versions = {OTHER: CatalogVersion(0, 0)}
        await until(lambda: len(fixture.peers.asked) >= 1)
        assert fixture.service.catalog.offset == 0
        fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
        fixture.service.exchange.on_hint(OTHER, v(1))
        await until(lambda: fixture.service.catalog.offset == 1)
        fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(Catalog())}
        fixture.service.exchange.on_hint(OTHER, v(5))
        asked = len(fixture.peers.asked)
        await until(lambda: len(fixture.peers.asked) > asked)
        assert fixture.service.catalog.offset == 1


async def test_questions_of_peers() -> None:
    """A pull answers only what is newer; an await answers when the version is reached."""
    fixture = Fixture((SELF,))
    waiting = asyncio.create_task(fixture.service.exchange.on_await(OTHER, v(1)))
    await asyncio.sleep(0)
    assert not waiting.done()
    fixture.service.apply(frame(0, CreateTopic(entry())))
    assert decode_version(await waiting) == (0, 1)
    assert await fixture.service.exchange.on_pull(OTHER, asks(0)) == gives(fixture.service.catalog)(b"")
    assert await fixture.service.exchange.on_pull(OTHER, asks(1)) == b""
    with pytest.raises(PeerMessageError):
        await fixture.service.exchange.on_pull(OTHER, b"?")


async def test_many_creations_ask_a_peer_two_questions() -> None:
    """One that is on its way, and one for all who came meanwhile: the link has room for other questions."""
    fixture = Fixture((SELF,))
    going_on, most, asked = 0, 0, 0
    answered = asyncio.Event()

    async def request(agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        nonlocal going_on, most, asked
        asked, going_on = asked + 1, going_on + 1
        most = max(most, going_on)
        await answered.wait()
        going_on -= 1
        return payload

    fixture.peers.request = request  # type: ignore[method-assign]
    telling = []
    for number in range(100):
        fixture.service.apply(frame(number, CreateTopic(entry(number + 1))))
        telling.append(asyncio.create_task(fixture.service.exchange.tell_peers()))
        await asyncio.sleep(0)
    answered.set()
    await asyncio.gather(*telling)
    assert (most, asked) == (1, 2)
    await fixture.service.exchange.tell_peers()
    assert asked == 2


async def test_make_current_waits_for_what_was_committed() -> None:
    """Else a new leader would create a topic that its predecessor had created already."""
    fixture = Fixture((SELF,))
    fixture.groups.end = 1
    with pytest.raises(ShoalError) as caught:
        await fixture.service.make_current(20)
    assert (caught.value.code, caught.value.definite) == ("timeout", True)
    fixture.service.apply(frame(0, CreateTopic(entry())))
    await fixture.service.make_current(20)


async def test_a_record_that_cannot_be_understood_halts_the_catalog() -> None:
    """Half the truth would be another truth; the readiness check shows the reason."""
    fixture = Fixture((SELF,))
    nothing: list[Any] = [None]
    batch = columns_to_batch(RecordColumns(nothing, nothing, [b'{"v":1,"op":"fly"}'], nothing), 0)
    good = frame(0, CreateTopic(entry()))
    bad = Frame(
        good.stamp,
        stamp_message(
            message_from_batch(batch),
            LogIdentity(b"c" * 16, bytes(16), 0),
            base_offset=Offset(0),
            term=Term(1),
            previous_term=Term(0),
            index=LogIndex(1),
            append_time_us=0,
        ).data,
    )
    fixture.service.apply(bad)
    assert fixture.service.halted is not None
    assert "unknown operation 'fly'" in fixture.service.halted
    fixture.service.apply(good)
    assert fixture.service.catalog.offset == 0


async def test_a_seal_is_noticed() -> None:
    """Everybody who applies it gives the cluster up."""
    fixture = Fixture((SELF,))
    fixture.service.apply(frame(0, Seal(b"s" * 16)))
    assert fixture.service.sealed.is_set()
    assert Fixture((SELF,), fixture.service.catalog).service.sealed.is_set()


def test_the_cluster_record_survives_its_bytes_and_nothing_else() -> None:
    """One flipped bit is one clear error."""
    record = ClusterRecord("c", b"c" * 16, (SELF, OTHER), Catalog().to_bytes())
    data = record.to_bytes()
    assert ClusterRecord.from_bytes(data) == record
    for position in range(len(data)):
        with pytest.raises(ClusterFileError):
            ClusterRecord.from_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ClusterFileError):
            ClusterRecord.from_bytes(data[:position])


async def test_a_leader_that_lacks_what_its_log_has_dropped_asks_its_peers() -> None:
    """Whose copy of the state was lost; otherwise a leader asks nobody, since nobody knows more."""
    newer = Catalog()
    newer.apply(0, CreateTopic(entry(3, (OTHER,))))
    fixture = Fixture((SELF,))
    fixture.peers.versions = {OTHER: CatalogVersion(0, 1)}
    fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
    async with fixture.running():
        fixture.service.exchange.look()
        await asyncio.sleep(0.05)
        assert PeerMessage.CATALOG_PULL not in [kind for _, kind in fixture.peers.asked]
        fixture.groups.start = 1
        fixture.service.exchange.look()
        await until(lambda: fixture.service.catalog.offset == 1)
