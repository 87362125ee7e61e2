"""The rebalancer against replicas and members that only remember: virtual time, no disk, no network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.host import Host
from shoal.agent.members.roster import Roster
from shoal.agent.partition.state.copy_leases import CopyLeases
from shoal.agent.peers.links import PeerRequestFailed
from shoal.agent.peers.messages import decode_hold
from shoal.agent.placement.leader_balancer import (
    MAX_TRANSFERS_PER_LOOK,
    RETURNED_MS,
    UNTAKEN_MS,
    LeaderBalancer,
)
from shoal.agent.placement.lost_replicas import LostReplicas
from shoal.agent.placement.quiet_groups import PAUSE_MS_MAX, PAUSE_MS_MIN
from shoal.agent.placement.rebalancer import (
    MAX_BALANCING_MOVES,
    MAX_MOVES,
    REFUSED_MS,
    SETTLE_MS,
    STALL_MS,
    STEADY_MS,
    Rebalancer,
)
from shoal.agent.topics.catalog import Catalog, CreateTopic, PartitionBirth, TopicEntry
from shoal.agent.topics.settings import TopicSettings
from shoal.format.batch import LogIndex
from shoal.format.hash_ranges import hash_ranges
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId

SELF, OTHER, THIRD, FOURTH = "a" * 32, "b" * 32, "c" * 32, "d" * 32
TOPIC = b"t" * 16
PARTITIONS = 12
REPLACE_AFTER_MS = 10_000


@dataclass
class FakeReplica:
    """Led here; commits whatever is proposed at once. `matches`: what each follower has synced."""

    group: GroupId
    configuration: Configuration
    commit_index: LogIndex = field(default=LogIndex(100))
    matches: dict[ReplicaId, LogIndex] = field(default_factory=dict)
    shipments: CopyLeases = field(default_factory=CopyLeases)
    first_index: LogIndex = field(default=LogIndex(1))
    woken: int = 0
    """How often its core was told to end the quiet, and had a turn."""
    left_behind: tuple[ReplicaId, ...] = ()
    """By a group that went quiet."""
    term: int = 1
    leads: bool = True
    asked: Callable[[], None] = lambda: None
    """Called when a look gets to it."""

    is_transferring = False

    @property
    def serves(self) -> bool:
        self.asked()
        return self.leads

    @property
    def core(self) -> Any:
        return self

    @property
    def host(self) -> Any:
        return self

    def wake_quiet(self, now_ms: int) -> None:
        self.woken += 1

    def schedule(self, replica: FakeReplica) -> None:
        assert replica is self
        assert self.woken

    @property
    def state(self) -> Any:
        return SimpleNamespace(committed=SimpleNamespace(last_index=self.commit_index))

    @property
    def replica_id(self) -> ReplicaId:
        return next(item.id for item in self.configuration.replicas if item.agent_id == SELF)

    @property
    def match_indexes(self) -> dict[ReplicaId, LogIndex]:
        others = [item.id for item in self.configuration.replicas if item.agent_id != SELF]
        return {item: self.matches.get(item, LogIndex(0)) for item in others}

    def propose_configuration(self, replicas: Sequence[Replica]) -> None:
        self.commit_index = LogIndex(self.commit_index + 1)
        self.configuration = Configuration(
            self.commit_index,
            tuple(
                Replica(ReplicaId(1, self.commit_index), item.agent_id, item.learner)
                if item.id == UNBORN
                else item
                for item in replicas
            ),
        )

    def holders(self) -> str:
        return "".join(
            f"{item.agent_id[0]}{'?' if item.learner else ''}" for item in self.configuration.replicas
        )


class Fixture:
    """A cluster as one agent sees it."""

    agent_id = SELF

    def __init__(self, births: tuple[str, ...], led: int = 1) -> None:
        self.now_ms = 0
        self.replace_after_ms = REPLACE_AFTER_MS
        self.alive = [SELF, OTHER, THIRD]
        self.silent: set[str] = set()
        self.ghosts: frozenset[str] = frozenset()
        """Whom gossip shows alive and nobody ever met."""
        self.told: list[tuple[str, bool]] = []
        self.refuses = False
        self.broken: set[str] = set()
        """Whose register of replicas takes nothing until they are restarted."""
        self.drained_agents: frozenset[str] = frozenset()
        self.handed_over: list[tuple[int, str]] = []
        """When, and to whom."""
        number = max(PARTITIONS, led)
        settings = TopicSettings(partitions=number)
        partitions = tuple(PartitionBirth(bounds, births) for bounds in hash_ranges(number))
        self.catalog = Catalog()
        self.catalog.apply(0, CreateTopic(TopicEntry("t", TOPIC, settings, partitions, 0)))
        born = Configuration.birth(births)
        self.led = [FakeReplica(GroupId(TOPIC, number), born) for number in range(led)]
        self.lost_replicas = LostReplicas(lambda: self.now_ms)
        self.rebalancer = Rebalancer(
            roster=cast("Roster", self),
            host=cast("Host", SimpleNamespace(led_replicas=lambda: self.led, transfer=self.transfer)),
            catalog=lambda: self.catalog,
            now_ms=lambda: self.now_ms,
            replace_after_ms=lambda: self.replace_after_ms,
            lost_replicas=self.lost_replicas,
        )

    # what the rebalancer asks of the roster

    def placeable(self) -> list[Any]:
        return [SimpleNamespace(name=name, tags={}) for name in sorted(self.met() - self.drained_agents)]

    def ours(self) -> list[Any]:
        return [SimpleNamespace(name=name, tags={}) for name in self.alive]

    def met(self) -> frozenset[str]:
        return frozenset(self.alive) - self.ghosts

    def drained(self) -> frozenset[str]:
        return self.drained_agents

    def transfer(self, group: GroupId, to: ReplicaId) -> None:
        """The other one leads at once."""
        replica = next(item for item in self.led if item.group == group)
        target = replica.configuration.find(to)
        assert target is not None
        self.handed_over.append((self.now_ms, target.agent_id))
        self.led.remove(replica)

    def is_lost(self, agent_id: str) -> bool:
        return agent_id not in self.alive and agent_id in self.silent

    def live_agents(self) -> frozenset[str]:
        return frozenset(self.alive)

    async def request(self, agent_id: str, _kind: int, payload: bytes, _timeout_ms: int) -> bytes:
        _, configuration, caught_up = decode_hold(payload)
        assert agent_id in {item.agent_id for item in configuration.replicas}
        if self.refuses:
            raise PeerRequestFailed("busy")
        if agent_id in self.broken:
            return b"the disk failed"
        self.told.append((agent_id, caught_up))
        return b""

    async def pass_time(self, duration_ms: int, step_ms: int = 250) -> None:
        for _ in range(0, duration_ms, step_ms):
            self.now_ms += step_ms
            async with asyncio.TaskGroup() as tasks:
                await self.rebalancer.look(tasks)

    def catch_up(self) -> None:
        for replica in self.led:
            replica.matches = {
                item.id: LogIndex(replica.commit_index) for item in replica.configuration.replicas
            }


async def test_growth_waits_until_members_have_settled_and_tells_each_learner_twice() -> None:
    """Open your replica; and, once: you have everything. The group, which may have gone quiet before the
    replica was there, is woken for each."""
    fixture = Fixture((SELF,))
    await fixture.pass_time(SETTLE_MS - 250)
    assert fixture.led[0].holders() == "a"
    await fixture.pass_time(2_000)
    assert sorted(fixture.led[0].holders().split("?")) in (["", "ab", "c"], ["", "ac", "b"])
    assert {caught_up for _, caught_up in fixture.told} == {False}
    fixture.catch_up()
    await fixture.pass_time(250)
    assert {item for item in fixture.told if item[1]} == {(OTHER, True), (THIRD, True)}
    fixture.catch_up()
    await fixture.pass_time(500)
    assert fixture.led[0].holders() in ("abc", "acb")
    told = len(fixture.told)
    await fixture.pass_time(5_000)
    assert len(fixture.told) == told == 4
    assert fixture.led[0].woken == 4


async def test_a_replica_that_a_quiet_group_left_behind_is_spoken_to_once_its_agent_lives() -> None:
    """Soon, and ever more seldom as long as that does not help; not at all for an agent that is dead."""
    fixture = Fixture((SELF, OTHER, THIRD), led=2)
    replica, contented = fixture.led
    replica.left_behind = (ReplicaId(0, 2),)
    assert replica.configuration.replicas[2].agent_id == THIRD
    fixture.alive.remove(THIRD)
    await fixture.pass_time(5_000)
    assert not replica.woken
    fixture.alive.append(THIRD)
    await fixture.pass_time(250)
    assert replica.woken == 1
    await fixture.pass_time(PAUSE_MS_MIN + 250)
    assert replica.woken == 2
    await fixture.pass_time(100_000)
    assert replica.woken in (7, 8), "after 1, 2, 4, 8, 16 and then every 30 seconds"
    replica.left_behind = ()
    await fixture.pass_time(2 * PAUSE_MS_MAX + 1_000)
    replica.left_behind = (ReplicaId(0, 2),)
    before = replica.woken
    await fixture.pass_time(250)
    assert replica.woken == before + 1, "another time begins anew"
    assert not contented.woken


async def test_a_step_waits_for_the_last_one_to_be_committed() -> None:
    """One change at a time."""
    fixture = Fixture((SELF,))
    replica = fixture.led[0]
    replica.configuration = Configuration(LogIndex(101), replica.configuration.replicas)
    await fixture.pass_time(5_000)
    assert replica.holders() == "a"


async def test_only_so_many_groups_move_at_a_time() -> None:
    """An agent that joins must not be flooded by a leader of thousands."""
    fixture = Fixture((SELF,), led=PARTITIONS)
    await fixture.pass_time(10_000)
    moving = [replica for replica in fixture.led if "?" in replica.holders()]
    assert len(moving) == MAX_MOVES
    for _ in range(8):
        fixture.catch_up()
        await fixture.pass_time(500)
    assert all(len(replica.holders()) == 3 for replica in fixture.led)


async def test_a_voter_is_replaced_after_a_silence_without_a_break() -> None:
    """Gossip and link must both have lost it, all the time (safety 5)."""
    fixture = Fixture((SELF, OTHER, THIRD))
    fixture.alive = [SELF, OTHER, FOURTH]
    await fixture.pass_time(2 * REPLACE_AFTER_MS)
    assert fixture.led[0].holders() == "abc"  # it is still heard on its link
    fixture.silent = {THIRD}
    await fixture.pass_time(REPLACE_AFTER_MS - 500)
    fixture.silent = set()
    await fixture.pass_time(250)
    fixture.silent = {THIRD}
    await fixture.pass_time(REPLACE_AFTER_MS - 500)
    assert fixture.led[0].holders() == "abc"
    for _ in range(4):
        await fixture.pass_time(1_000)
        fixture.catch_up()
    assert fixture.led[0].holders() == "abd"


async def test_an_agent_that_refuses_is_asked_again_and_at_last_passed_over() -> None:
    """It may be busy for minutes; it must not hold the group up for ever."""
    fixture = Fixture((SELF, OTHER, THIRD))
    fixture.alive = [SELF, OTHER, FOURTH]
    fixture.silent = {THIRD}
    fixture.refuses = True
    await fixture.pass_time(REPLACE_AFTER_MS + 1_000)
    assert fixture.led[0].holders() == "abcd?"
    await fixture.pass_time(REFUSED_MS - 5_000, 1_000)
    assert fixture.led[0].holders() == "abcd?"
    assert not fixture.led[0].woken
    fixture.alive.append("e" * 32)
    fixture.refuses = False
    await fixture.pass_time(2_000, 1_000)
    assert fixture.told[-1] == (FOURTH, False)
    assert fixture.led[0].woken
    await fixture.pass_time(STALL_MS, 1_000)
    assert fixture.led[0].holders() == "abce?"


async def test_an_agent_that_takes_nothing_before_a_restart_is_passed_over_at_once() -> None:
    """Its disk has failed: the group needs its third voter now."""
    fixture = Fixture((SELF, OTHER, THIRD))
    fixture.alive = [SELF, OTHER, FOURTH, "e" * 32]
    fixture.silent = {THIRD}
    fixture.broken = {FOURTH}
    await fixture.pass_time(REPLACE_AFTER_MS + 4_000)
    assert fixture.led[0].holders() == "abce?"
    assert fixture.told[-1] == ("e" * 32, False)


async def test_a_learner_that_copies_segments_is_not_stalled() -> None:
    """Where the head is trimmed its Raft log stays empty for as long as the copy takes: what it has asked for
    counts. One that asks for nothing more makes room."""
    fixture = Fixture((SELF, OTHER, THIRD))
    fixture.alive = [SELF, OTHER, FOURTH]
    fixture.silent = {THIRD}
    replica = fixture.led[0]
    replica.first_index = LogIndex(50)
    await fixture.pass_time(REPLACE_AFTER_MS + 1_000)
    assert replica.holders() == "abcd?"
    (learner,) = replica.configuration.learners
    for step in range(4):
        replica.shipments.asked(learner, LogIndex(50 + step), fixture.now_ms)
        await fixture.pass_time(STALL_MS // 2, 1_000)
    assert replica.holders() == "abcd?"
    await fixture.pass_time(2 * STALL_MS, 1_000)
    assert replica.holders() == "abc"


async def test_a_group_whose_head_is_trimmed_grows_like_any_other() -> None:
    """New replicas need no entry that is gone (safety 27)."""
    fixture = Fixture((SELF,))
    replica = fixture.led[0]
    replica.first_index = LogIndex(50)
    await fixture.pass_time(SETTLE_MS + 500)
    fixture.catch_up()
    await fixture.pass_time(1_000)
    assert sorted(replica.holders()) == ["a", "b", "c"]


async def test_moves_for_balance_wait_until_the_members_have_been_the_same_for_a_while() -> None:
    """Then only a few groups move at a time; a repair does not wait for them. The newcomer ends with its
    share."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    await fixture.pass_time(2 * STEADY_MS)
    led = list(fixture.led)
    assert {replica.holders() for replica in led} == {"abc"}
    fixture.alive.append(FOURTH)
    await fixture.pass_time(STEADY_MS)
    assert {replica.holders() for replica in led} == {"abc"}
    await fixture.pass_time(SETTLE_MS + 500)
    assert sum("?" in replica.holders() for replica in led) == MAX_BALANCING_MOVES
    for _ in range(200):
        fixture.catch_up()
        await fixture.pass_time(250)
    moved = [replica for replica in led if "d" in replica.holders()]
    assert abs(len(moved) - PARTITIONS * 3 // 4) <= 3  # those that lost their leader here move on elsewhere
    assert all(len(replica.holders()) in (3, 4) for replica in led)
    before = [replica.configuration for replica in fixture.led]
    fixture.catch_up()
    await fixture.pass_time(3 * STEADY_MS)
    assert [replica.configuration for replica in fixture.led] == before


async def test_leadership_goes_where_it_belongs_a_little_at_a_time() -> None:
    """Not before everybody has been there for a while, so many in a quarter of a second, and each once."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.catch_up()
    await fixture.pass_time(STEADY_MS)
    assert fixture.handed_over == []
    await fixture.pass_time(5_000)
    times = Counter(now_ms for now_ms, _ in fixture.handed_over)
    assert max(times.values()) == MAX_TRANSFERS_PER_LOOK
    assert Counter(agent_id for _, agent_id in fixture.handed_over) == {OTHER: 4, THIRD: 4}
    assert len(fixture.led) == PARTITIONS // 3


@pytest.mark.parametrize("fault", ["lags", "is away", "comes and goes"])
async def test_leadership_stays_while_a_group_is_not_healthy(fault: str) -> None:
    """Balance is worth no interruption of a group that lacks somebody."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.catch_up()
    for replica in fixture.led if fault == "lags" else ():
        replica.matches = {}
    for turn in range(40):
        if fault == "is away" or (fault == "comes and goes" and turn % 2):
            fixture.alive = [SELF, OTHER]
        else:
            fixture.alive = [SELF, OTHER, THIRD]
        await fixture.pass_time(STEADY_MS // 4)
    assert fixture.handed_over == []


async def test_a_leadership_that_came_back_is_not_offered_again_for_a_while() -> None:
    """Whoever gave it back had a reason, a disk that does not answer perhaps: nothing goes to and fro."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.catch_up()
    all_of_them = list(fixture.led)
    await fixture.pass_time(2 * STEADY_MS)
    offered = len(fixture.handed_over)
    assert offered == PARTITIONS * 2 // 3
    for replica in all_of_them:
        replica.term += 2 * (replica not in fixture.led)
    fixture.led = all_of_them
    await fixture.pass_time(RETURNED_MS - 2 * STEADY_MS, 1_000)
    assert len(fixture.handed_over) == offered
    await fixture.pass_time(2 * STEADY_MS)
    assert len(fixture.handed_over) == 2 * offered


def test_a_leadership_that_came_back_because_it_belonged_here_is_offered_like_any_other() -> None:
    """Members come and go, and it goes to and fro with them: nobody gave it back for a fault."""
    fixture = Fixture((SELF, OTHER, THIRD))
    fixture.catch_up()
    (replica,) = fixture.led
    given: Any = replica
    leading = LeaderBalancer(
        cast("Host", SimpleNamespace(transfer=fixture.transfer)), lambda: 1_000, settle_ms=lambda: 0
    )
    other = next(item.id for item in replica.configuration.replicas if item.agent_id == OTHER)
    leading.look([replica.group], {})
    assert leading.may_hand_over(given, OTHER)
    leading.hand_over(given, other, frozenset())
    assert fixture.handed_over == [(0, OTHER)]
    replica.term += 2
    leading.look([replica.group], {})
    assert not leading.may_hand_over(given, OTHER)
    assert not leading.may_hand_over(given, SELF)
    assert leading.may_hand_over(given, OTHER)


async def test_a_leadership_that_was_not_taken_is_offered_again_less_and_less_often() -> None:
    """By the term: whoever takes one leads in a newer. Appends wait while it is offered."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.catch_up()
    everything = list(fixture.led)
    await fixture.pass_time(2 * STEADY_MS)
    replica = next(item for item in everything if item not in fixture.led)
    fixture.led = [replica]
    replica.term += 2  # what was offered until now it has taken
    offers: list[int] = []
    while len(offers) < 8 and fixture.now_ms < 5 * RETURNED_MS:
        await fixture.pass_time(250)
        if not fixture.led:
            offers.append(fixture.now_ms)
            fixture.led = [replica]
    gaps = [round((after - before) / UNTAKEN_MS) for before, after in pairwise(offers)]
    assert gaps == [1, 2, 4, 8, 16, 30, 30]


async def test_a_drained_agent_gives_everything_away_and_leads_nothing() -> None:
    """At once, as far as somebody can take it: nobody is waited for to die."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.alive.append(FOURTH)
    await fixture.pass_time(SETTLE_MS + 500)
    fixture.drained_agents = frozenset({THIRD})
    for _ in range(80):
        fixture.catch_up()
        await fixture.pass_time(250)
    assert {"".join(sorted(replica.holders())) for replica in fixture.led} == {"abd"}
    led = len(fixture.led)
    fixture.drained_agents = frozenset({SELF})
    fixture.catch_up()
    await fixture.pass_time(8_000)
    assert led
    assert fixture.led == []


async def test_nothing_is_moved_to_members_that_nobody_ever_met() -> None:
    """Gossip can be forged: they neither get learners nor a share of what belongs to those who are there."""
    fixture = Fixture((SELF,), led=PARTITIONS)
    quiet = Fixture((SELF,), led=PARTITIONS)
    ghosts = [f"{number:032x}" for number in range(8)]
    fixture.alive += ghosts
    fixture.ghosts = frozenset(ghosts)
    for item in (fixture, quiet):
        await item.pass_time(SETTLE_MS + REPLACE_AFTER_MS, 500)
        for _ in range(40):
            item.catch_up()
            await item.pass_time(500)
    assert [replica.holders() for replica in fixture.led] == [replica.holders() for replica in quiet.led]
    assert {agent_id for agent_id, _ in fixture.told} == {OTHER, THIRD}
