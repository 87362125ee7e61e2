"""Births that nobody leads are told, taken, given up and carried out: who does which, and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.host.newborns import Newborns
from shoal.agent.log_lines.names import Names
from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.topics import catalog_service as catalog_follow
from shoal.agent.topics.births import GATHER_MS, BirthTelling, decode_births
from shoal.agent.topics.catalog import (
    Births,
    Catalog,
    Command,
    ConfirmBirths,
    CreateTopic,
    PartitionBirth,
    Rebirth,
    RepeatBirths,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import encode_command
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.catalog_upkeep import AWAY_MS, MAX_PER_LOOK, UNLED_MS, CatalogUpkeep
from shoal.agent.topics.entries import mask_of
from shoal.agent.topics.settings import TopicSettings
from shoal.errors import ShoalError
from shoal.format.hash_ranges import hash_ranges
from shoal.membership.interface import Member
from shoal.replication.interfaces import BIRTH_ORDINALS, MAX_GENERATION, Configuration, ReplicaId
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, frame

AGENTS = tuple(letter * 32 for letter in "abcde")
TOPIC = b"\1" * 16


def unborn(partitions: int = 4, voters: tuple[str, ...] = AGENTS[:3], generation: int = 0) -> TopicEntry:
    births = tuple(PartitionBirth(bounds, voters, generation) for bounds in hash_ranges(partitions))
    settings = TopicSettings(partitions=partitions)
    return TopicEntry("orders", TOPIC, settings, births, 0, unborn=mask_of(range(partitions)))


class FakeService:
    """A catalog that takes what is proposed, unless it is told not to."""

    def __init__(self, *entries: TopicEntry) -> None:
        self.catalog = Catalog()
        self.proposed: list[Command] = []
        self.refuses = False
        self.is_leader = True
        self.leader: Any = None
        self.gate: asyncio.Event | None = None
        for entry in entries:
            self.apply(CreateTopic(entry))

    def apply(self, command: Command) -> str:
        outcome = self.catalog.apply(self.catalog.offset, command)
        self.catalog.check_invariants()
        return outcome

    def leads(self) -> bool:
        return self.is_leader

    async def propose(self, command: Command, _timeout_ms: int) -> Any:
        if self.refuses:
            raise ShoalError("not-leader", "no more")
        if self.gate is not None:
            await self.gate.wait()
        self.proposed.append(command)
        return SimpleNamespace(outcome=self.apply(command))


# ---- telling and taking ----------------------------------------------------------------------------


class FakeReplica:
    """Of one partition; leads or is about to, as its first voter."""

    def __init__(self, partition: int, generation: int = 0, *, is_leader: bool = True) -> None:
        birth = Configuration.birth(AGENTS[:3], generation)
        self.group = GroupId(TOPIC, partition)
        self.replica_id = birth.voters[0]
        self.is_leader = is_leader
        self.core = SimpleNamespace(
            replica_id=self.replica_id, leader=None, configuration=birth, commit_index=1
        )


class FakeNewborns:
    def __init__(self) -> None:
        self.waiting: list[FakeReplica] = []
        self.on_led = lambda: None

    def replicas(self) -> list[FakeReplica]:
        return list(self.waiting)

    def be_born(self, group: GroupId) -> None:
        self.waiting = [replica for replica in self.waiting if replica.group != group]


class Telling:
    """One agent's births, and the catalog of SELF."""

    agent_id = SELF

    def __init__(self, entry: TopicEntry | None = None, leader: str | None = SELF) -> None:
        self.newborns = FakeNewborns()
        self.service = FakeService(entry or unborn())
        self.leader = leader
        self.service.leader = lambda: self.leader
        self.asked: list[bytes] = []
        self.answers: list[bytes | Exception] = []
        self.births = BirthTelling(
            cast("Newborns", self.newborns), cast("CatalogService", self.service), cast("Roster", self)
        )

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        assert (agent_id, kind) == (OTHER, PeerMessage.CATALOG_BORN)
        self.asked.append(payload)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def told(self, *replicas: FakeReplica) -> None:
        """These come to lead; until all of them are born."""
        task = asyncio.create_task(self.births.run())
        try:
            self.newborns.waiting = list(replicas)
            self.newborns.on_led()
            async with asyncio.timeout(30):
                while self.newborns.waiting:
                    await asyncio.sleep(0.005)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def births(*partitions: int, generation: int = 0) -> tuple[Births, ...]:
    return (Births(TOPIC, generation, mask_of(partitions)),)


async def test_all_that_is_led_is_one_command() -> None:
    """However many partitions, at the catalog's leader or elsewhere."""
    here = Telling()
    await here.told(*(FakeReplica(partition) for partition in range(4)))
    assert here.service.proposed == [ConfirmBirths(births(0, 1, 2, 3))]
    there = Telling(leader=OTHER)
    there.answers = [encode_command(ConfirmBirths(births(0, 3)))]
    await there.told(FakeReplica(0), FakeReplica(3))
    assert [decode_births(payload) for payload in there.asked] == [births(0, 3)]
    assert there.service.proposed == []


async def test_a_birth_waits_a_moment_for_others_that_are_about_to_be_led() -> None:
    """They then are one command; and not longer than a moment for one that has no majority."""
    telling = Telling()
    late = FakeReplica(1, is_leader=False)
    asyncio.get_running_loop().call_later(GATHER_MS / 2_000, setattr, late, "is_leader", True)
    await telling.told(FakeReplica(0), late)
    assert telling.service.proposed == [ConfirmBirths(births(0, 1))]
    never = FakeReplica(3, is_leader=False)
    task = asyncio.create_task(telling.told(FakeReplica(2), never))
    async with asyncio.timeout(30):
        while telling.newborns.waiting != [never]:
            await asyncio.sleep(0.005)
    task.cancel()
    assert telling.service.proposed[1:] == [ConfirmBirths(births(2))]


async def test_what_is_not_taken_is_told_again() -> None:
    """The catalog has no leader, its leader does not answer or answers nonsense, or not for this birth."""
    telling = Telling(leader=None)
    asyncio.get_running_loop().call_later(0.05, setattr, telling, "leader", OTHER)
    telling.answers = [
        PeerUnavailable("not connected"),
        b"?",
        encode_command(ConfirmBirths(births(0, generation=1))),
        encode_command(ConfirmBirths(())),
        encode_command(ConfirmBirths(births(0))),
    ]
    await telling.told(FakeReplica(0))
    assert telling.answers == []


async def test_what_is_told_at_the_same_time_is_one_command() -> None:
    """Who comes while one is being committed shares the next; what is born already needs none."""
    telling = Telling()
    telling.service.gate = asyncio.Event()
    tasks = [asyncio.create_task(telling.births.take(births(partition))) for partition in range(3)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(telling.births.on_born(OTHER, encode_command(ConfirmBirths(births(3)))))]  # type: ignore[list-item]
    await asyncio.sleep(0)
    telling.service.gate.set()
    *taken, answer = await asyncio.gather(*tasks)
    assert taken == [births(partition) for partition in range(3)]
    assert decode_births(cast("bytes", answer)) == births(3)
    assert len(telling.service.proposed) <= 2
    assert await telling.births.take(births(0, 1, 2, 3)) == births(0, 1, 2, 3)
    assert len(telling.service.proposed) <= 2


async def test_a_birth_that_was_given_up_is_not_taken() -> None:
    """Neither before nor after the other one is born."""
    telling = Telling()
    telling.service.apply(RepeatBirths(TOPIC, (Rebirth(0, 1, AGENTS[:3]),)))
    assert await telling.births.take(births(0)) == ()
    assert telling.service.proposed == []
    assert await telling.births.take(births(0, generation=1)) == births(0, generation=1)
    assert await telling.births.take(births(0)) == ()


async def test_a_catalog_that_is_led_elsewhere_takes_nothing() -> None:
    """And what was told meanwhile is not answered as if it were."""
    telling = Telling()
    telling.service.refuses = True
    with pytest.raises(ShoalError):
        await telling.births.take(births(0))
    assert await telling.births.take(()) == ()
    for payload in (b"", encode_command(RepeatBirths(TOPIC, ()))):
        with pytest.raises(PeerMessageError):
            await telling.births.on_born(OTHER, payload)


# ---- giving up ---------------------------------------------------------------------------------------


class Waiting:
    """The catalog's leader, and which agents its links reach."""

    def __init__(self, entry: TopicEntry) -> None:
        self.service = FakeService(entry)
        self.linked = set(AGENTS)
        self.now_ms = 0
        self.upkeep = CatalogUpkeep(
            cast("Roster", self),
            cast("CatalogService", self.service),
            lambda: self.now_ms,
            replace_after_ms=lambda: 1,
        )

    def is_linked(self, agent_id: str) -> bool:
        return agent_id in self.linked

    def birthplaces(self) -> Sequence[Member]:
        return [cast("Member", SimpleNamespace(name=agent_id, tags={})) for agent_id in sorted(self.linked)]

    async def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        await self.upkeep.look_at_births()

    @property
    def generations(self) -> list[int]:
        (entry,) = self.service.catalog.topics.values()
        return [birth.generation for birth in entry.partitions]


async def test_what_has_no_majority_for_long_is_born_again_among_the_living() -> None:
    """Only what nobody has led, only without a break, only at the catalog's leader; again if need be."""
    waiting = Waiting(unborn())
    waiting.service.apply(ConfirmBirths(births(0)))
    waiting.linked -= {AGENTS[0]}
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS)
    assert waiting.generations == [0, 0, 0, 0], "two of three are there"
    waiting.linked -= {AGENTS[1]}
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS - 1)
    waiting.linked |= {AGENTS[1]}
    await waiting.pass_time(0)
    waiting.linked -= {AGENTS[1]}
    await waiting.pass_time(1)
    waiting.service.is_leader = False
    await waiting.pass_time(AWAY_MS)
    waiting.service.is_leader = True
    await waiting.pass_time(0)
    assert waiting.generations == [0, 0, 0, 0]
    await waiting.pass_time(AWAY_MS)
    assert waiting.generations == [0, 1, 1, 1]
    entry = waiting.service.catalog.topics["orders"]
    assert all(set(birth.voters) == set(AGENTS[2:]) for birth in entry.partitions[1:])
    await waiting.pass_time(AWAY_MS)
    assert waiting.generations == [0, 1, 1, 1]
    waiting.linked = set(AGENTS[:2])
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS)
    assert waiting.generations == [0, 2, 2, 2]
    assert len(waiting.service.catalog.topics["orders"].partitions[1].voters) == 2


async def test_what_nobody_leads_though_all_are_there_is_born_again_in_the_end() -> None:
    """While others of the topic come to be led it is only slow."""
    waiting = Waiting(unborn())
    await waiting.pass_time(0)
    await waiting.pass_time(UNLED_MS - 1)
    waiting.service.apply(ConfirmBirths(births(2)))
    await waiting.pass_time(UNLED_MS - 1)
    assert waiting.generations == [0, 0, 0, 0]
    await waiting.pass_time(UNLED_MS)
    assert waiting.generations == [1, 1, 0, 1]


async def test_births_end_where_their_numbers_do() -> None:
    """And a refusal, or a moment without any agent, is met again."""
    waiting = Waiting(unborn(generation=MAX_GENERATION - 1))
    waiting.linked = set()
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS)
    waiting.linked = {AGENTS[4]}
    waiting.service.refuses = True
    await waiting.pass_time(0)
    waiting.service.refuses = False
    assert set(waiting.generations) == {MAX_GENERATION - 1}
    await waiting.pass_time(0)
    assert set(waiting.generations) == {MAX_GENERATION}
    waiting.linked = set()
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS)
    assert set(waiting.generations) == {MAX_GENERATION}


async def test_one_look_places_a_bounded_number() -> None:
    """The rest follows."""
    waiting = Waiting(unborn(MAX_PER_LOOK + 5))
    waiting.linked = {AGENTS[3]}
    await waiting.pass_time(0)
    await waiting.pass_time(AWAY_MS)
    assert sum(waiting.generations) == MAX_PER_LOOK
    await waiting.pass_time(0)
    assert sum(waiting.generations) == MAX_PER_LOOK + 5


# ---- carrying out --------------------------------------------------------------------------------


FIRST, SECOND = GroupId(TOPIC, 0), GroupId(TOPIC, 1)


def again(*voters: str) -> RepeatBirths:
    return RepeatBirths(TOPIC, (Rebirth(0, 1, voters),))


async def test_what_was_given_up_goes_and_what_is_born_here_again_is_opened() -> None:
    """Under the ids of its birth; the other partition stays as it is."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.service.apply(frame(0, CreateTopic(unborn(2, (SELF, OTHER)))))
        await until(lambda: SECOND in fixture.groups.opened)
        assert fixture.groups.opened[FIRST]["awaits_birth"]
        fixture.service.apply(frame(1, ConfirmBirths((Births(TOPIC, 0, 2),)), again(OTHER, SELF)))
        born_again = ReplicaId(0, BIRTH_ORDINALS + 1)
        await until(lambda: fixture.groups.records[FIRST].replica_id == born_again)
        assert fixture.groups.opened[FIRST]["birth"] == Configuration.birth((OTHER, SELF), 1)
        assert fixture.groups.opened[FIRST]["awaits_birth"]
    assert fixture.groups.records[SECOND] == ReplicaRecord(SECOND, ReplicaId(0, 0), ReplicaState.ACTIVE)


async def test_what_is_born_again_elsewhere_is_not_opened_here_any_more() -> None:
    """Nor after a restart; and what another agent holds later is opened when it is asked to."""
    catalog = Catalog()
    catalog.apply(0, CreateTopic(unborn(2, (SELF, OTHER))))
    catalog.apply(1, again(OTHER))
    fixture = Fixture((OTHER,), catalog)
    fixture.groups.records = {
        group: ReplicaRecord(group, ReplicaId(0, 0), ReplicaState.ACTIVE) for group in (FIRST, SECOND)
    }
    async with fixture.running():
        await until(lambda: fixture.groups.records[FIRST].state is ReplicaState.REMOVED)
        await until(lambda: SECOND in fixture.groups.opened)
        assert FIRST not in fixture.groups.opened


async def test_what_contradicts_the_catalog_is_kept_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A replica with records of a birth that was given up, one of a birth that the catalog does not know:
    neither can be, unless a recovery by force has lost what the catalog said. None is opened."""
    catalog = Catalog()
    catalog.apply(0, CreateTopic(unborn(2, (SELF, OTHER))))
    catalog.apply(1, again(SELF))
    fixture = Fixture((SELF,), catalog)
    fixture.groups.with_records = {FIRST}
    fixture.groups.records = {
        FIRST: ReplicaRecord(FIRST, ReplicaId(0, 0), ReplicaState.ACTIVE),
        SECOND: ReplicaRecord(SECOND, ReplicaId(0, 2 * BIRTH_ORDINALS), ReplicaState.ACTIVE),
    }
    names = Names()
    names.find_topic = catalog.name_of
    with caplog.at_level(logging.ERROR), names.in_use():
        async with fixture.running():
            await until(lambda: len(caplog.records) == 2)
            for number in range(2, 4):
                fixture.service.apply(frame(number, CreateTopic(_other(number))))
            await until(lambda: bool(fixture.saved) and fixture.saved[-1].offset == 4)
            await asyncio.sleep(0.05)
    assert len(caplog.records) == 2
    assert all("orders/" in record.message and "kept" in record.message for record in caplog.records)
    assert not {FIRST, SECOND} & fixture.groups.opened.keys()
    assert {record.state for record in fixture.groups.records.values()} == {ReplicaState.ACTIVE}


def _other(number: int) -> TopicEntry:
    births = (PartitionBirth(next(iter(hash_ranges(1))), (OTHER,)),)
    return TopicEntry(f"other-{number}", bytes([9, number]) * 8, TopicSettings(), births, 0)


async def test_a_state_in_which_only_births_are_new_is_saved_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nothing to carry out; with whatever else is new it is saved at once."""
    monkeypatch.setattr(catalog_follow, "SAVE_LATER_S", 0.1)
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.service.apply(frame(0, CreateTopic(unborn(2, (SELF, OTHER)))))
        await until(lambda: bool(fixture.saved) and SECOND in fixture.groups.opened)
        fixture.service.apply(frame(1, ConfirmBirths((Births(TOPIC, 0, 1),))))
        fixture.service.apply(frame(2, ConfirmBirths((Births(TOPIC, 0, 2),))))
        await asyncio.sleep(0)
        assert fixture.saved[-1].offset == 1
        await until(lambda: fixture.saved[-1].offset == 3)
        assert len(fixture.saved) == 2
        monkeypatch.setattr(catalog_follow, "SAVE_LATER_S", 1_000)
        fixture.service.apply(frame(3, ConfirmBirths((Births(TOPIC, 0, 2),))))
        fixture.service.apply(frame(4, CreateTopic(_other(4))))
        await until(lambda: fixture.saved[-1].offset == 5)


async def test_replicas_hear_from_the_catalog_that_they_are_born() -> None:
    """Of their own birth, not of another one."""
    fixture = Fixture((SELF,))
    async with fixture.running():
        fixture.service.apply(frame(0, CreateTopic(unborn(2, (SELF, OTHER)))))
        fixture.groups.newborns.waiting = [
            SimpleNamespace(group=FIRST, replica_id=ReplicaId(0, 0)),
            SimpleNamespace(group=SECOND, replica_id=ReplicaId(0, BIRTH_ORDINALS)),
        ]
        fixture.service.apply(frame(1, ConfirmBirths((Births(TOPIC, 0, 3),))))
        assert fixture.groups.newborns.born == [FIRST]
