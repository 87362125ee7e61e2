"""Where groups go as members come, go and differ: the catalog, copies everywhere, domains and weights; under
virtual time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.members.roster import TAG_DOMAIN, TAG_WEIGHT, candidate_of
from shoal.agent.placement import rebalancer
from shoal.agent.placement.rebalancer import SETTLE_MS
from shoal.agent.placement.targets import Goals, Observed
from shoal.agent.topics.catalog import AlterTopic, CreateTopic, PartitionBirth, TopicEntry
from shoal.agent.topics.settings import TopicSettings
from shoal.format.hash_ranges import hash_ranges
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.placement.assignment import Candidate, place
from shoal.replication.placement.steps import Members
from tests.agent.placement.test_rebalancer_steps import (
    OTHER,
    PARTITIONS,
    REPLACE_AFTER_MS,
    SELF,
    THIRD,
    TOPIC,
    FakeReplica,
    Fixture,
)

EVERYWHERE = b"e" * 16


def ids(letters: str) -> list[str]:
    return [letter * 32 for letter in letters]


class Pool(Fixture):
    """Members with tags; one group that is led here and was born on this agent alone."""

    def __init__(self, group: GroupId, tags: dict[str, dict[str, str]] | None = None) -> None:
        super().__init__((SELF,))
        self.alive = [SELF]
        self._tags = tags or {}
        settings = TopicSettings(replication_factor="all")
        partitions = (PartitionBirth(hash_ranges(1)[0], (SELF,)),)
        self.catalog.apply(1, CreateTopic(TopicEntry("e", EVERYWHERE, settings, partitions, 0)))
        self.replica = FakeReplica(group, Configuration.birth((SELF,)))
        self.led = [self.replica]
        self.fewest = 0
        """Voters that the group had at any time since this was set."""

    def transfer(self, group: GroupId, to: ReplicaId) -> None:
        """The other one gives it back at once: this agent leads for the whole test."""

    def placeable(self) -> list[Any]:
        return self.ours()

    def ours(self) -> list[Any]:
        return [SimpleNamespace(name=name, tags=self._tags.get(name[0], {})) for name in self.alive]

    async def settle(self) -> str:
        """Everybody catches up, and every step that is to be taken is; who votes, and then who learns."""
        await self.pass_time(SETTLE_MS + REPLACE_AFTER_MS, 500)
        for _ in range(60):
            self.catch_up()
            await self.pass_time(500)
            self.fewest = min(self.fewest, len(self.replica.configuration.voting_agents))
        holders = self.replica.configuration.replicas
        voters = "".join(sorted(item.agent_id[0] for item in holders if not item.learner))
        learners = "".join(sorted(item.agent_id[0] for item in holders if item.learner))
        return f"{voters} {learners}".strip()

    def kill(self, letters: str) -> None:
        self.alive = [name for name in self.alive if name[0] not in letters]
        self.silent |= set(ids(letters))


async def test_the_catalog_has_three_to_five_voters_whoever_comes_and_goes() -> None:
    """One, then three, then five as members come; the dead are replaced where somebody can take their place,
    and elsewhere stay, so that there are never fewer; nobody moves for balance."""
    pool = Pool(CATALOG_GROUP)
    seen = []
    for alive in ("a", "ab", "abc", "abcd", "abcde", "abcdefg"):
        pool.alive = ids(alive)
        seen.append(await pool.settle())
    assert seen == ["a", "a", "abc", "abc", "abcde", "abcde"]
    pool.kill("bc")
    assert await pool.settle() == "adefg"
    pool.kill("f")
    assert await pool.settle() == "adefg"
    pool.alive += ids("h")
    assert await pool.settle() == "adegh"


async def test_a_copy_for_everybody_follows_the_members() -> None:
    """Up to five of them vote and all others learn; who joins gets a copy, and who is gone for good has none,
    while a voter in its place keeps their number."""
    pool = Pool(GroupId(EVERYWHERE, 0))
    seen = []
    for alive in ("a", "abc", "abcd", "abcdefg"):
        pool.alive = ids(alive)
        seen.append(await pool.settle())
    assert [len(item.replace(" ", "")) for item in seen] == [1, 3, 4, 7]
    assert [len(item.split()[0]) for item in seen] == [1, 3, 3, 5]
    pool.kill("b")
    after = await pool.settle()
    assert len(after.split()[0]) == 5
    assert sorted(after.replace(" ", "")) == list("acdefg")


def alter(pool: Pool, factor: Any) -> None:
    """The last change of the catalog wins."""
    entry = pool.catalog.by_id(pool.replica.group.topic_id)
    assert entry is not None
    after = replace(entry.settings, replication_factor=factor)
    assert (
        pool.catalog.apply(pool.catalog.offset, AlterTopic(entry.topic_id, entry.settings, after)) == "done"
    )


async def test_a_changed_factor_moves_a_group_that_had_settled() -> None:
    """Up, down, to `all` and back, while the members stay as they are. No step leaves fewer voters than the
    smaller of the two numbers, and one replica changes at a time."""
    pool = Pool(GroupId(TOPIC, 0))
    pool.alive = ids("abcdefg")
    assert len(await pool.settle()) == 3
    seen: list[str] = []
    for factor in (5, 3, "all", 3, 7, "all", 2, 9):
        before = len(pool.replica.configuration.voting_agents)
        pool.fewest = before
        alter(pool, factor)
        seen.append(" ".join(str(len(part)) for part in (await pool.settle()).split()))
        assert pool.fewest == min(before, len(pool.replica.configuration.voting_agents))
    assert seen == ["5", "3", "5 2", "3", "7", "5 2", "2", "7"]


async def test_factors_that_change_at_once_end_in_the_last_one() -> None:
    """The learner that the first one wanted goes, and nobody who votes does."""
    pool = Pool(GroupId(TOPIC, 0))
    pool.alive = ids("abcde")
    voters = await pool.settle()
    alter(pool, 5)
    await pool.pass_time(1_000)
    assert "?" in pool.replica.holders()
    alter(pool, 3)
    assert await pool.settle() == voters


async def test_a_leader_hands_over_before_it_goes() -> None:
    """Partitions that shall have one replica, of three that were settled: a leader that keeps it removes the
    others, and any other leader hands over to where it belongs; it never removes itself."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    agents = [Candidate(agent_id, agent_id) for agent_id in (SELF, OTHER, THIRD)]
    await fixture.pass_time(SETTLE_MS + 500)
    fixture.catch_up()
    before = list(fixture.led)
    assert {replica.holders() for replica in before} == {"abc"}
    entry = fixture.catalog.topics["t"]
    after = replace(entry.settings, replication_factor=1)
    fixture.catalog.apply(fixture.catalog.offset, AlterTopic(TOPIC, entry.settings, after))
    for _ in range(20):
        fixture.catch_up()
        await fixture.pass_time(500)
    for number, replica in enumerate(before):
        (home,) = place(TOPIC, number, PARTITIONS, agents, 1)
        assert replica.holders() == ("a" if home == SELF else f"a{home[0]}"), number
        assert (replica in fixture.led) == (home == SELF)
    assert {agent_id for _, agent_id in fixture.handed_over} == {OTHER, THIRD}


async def test_only_so_many_groups_change_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of many partitions that is lowered must not hold up everything else; each has its turn."""
    monkeypatch.setattr(rebalancer, "MAX_STEPS_PER_LOOK", 5)
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    await fixture.pass_time(SETTLE_MS + 500)
    entry = fixture.catalog.topics["t"]
    after = replace(entry.settings, replication_factor=2)
    fixture.catalog.apply(fixture.catalog.offset, AlterTopic(TOPIC, entry.settings, after))
    changed = []
    for _ in range(4):
        await fixture.pass_time(250)
        changed.append(sum(len(replica.holders()) == 2 for replica in fixture.led))
    assert changed == [5, 8, 8, 8], "of the other four the leader goes, which hands over first"


@pytest.mark.parametrize("shared", ["bc", "ab"])
async def test_replicas_grow_into_other_failure_domains(shared: str) -> None:
    """Four agents, two of them in one rack: three replicas are in three racks, as gossip's tags name them;
    without a third rack the group is whole all the same."""
    racks = {letter: {TAG_DOMAIN: "shared"} for letter in shared}
    pool = Pool(GroupId(TOPIC, 0), racks)
    pool.alive = ids("abcd")
    voters = await pool.settle()
    assert len(voters) == 3
    assert not set(shared) <= set(voters)
    pool = Pool(GroupId(TOPIC, 0), {letter: {TAG_DOMAIN: "one"} for letter in "abc"})
    pool.alive = ids("abc")
    assert await pool.settle() == "abc"


def test_weights_in_tags_are_shares() -> None:
    """What an agent of twice the weight is to hold, by the goals of all partitions of a topic."""
    tags = {"a": {TAG_WEIGHT: "200"}}
    belonging = tuple(
        candidate_of(SimpleNamespace(name=name, tags=tags.get(name[0], {})))  # type: ignore[arg-type]
        for name in ids("abcdef")
    )
    assert belonging[0] == Candidate(SELF, belonging[0].failure_domain, 200)
    members = Members(candidates=belonging, live=frozenset(ids("abcdef")), now_ms=0, replace_after_ms=1)
    count = 70
    settings = TopicSettings(partitions=count)
    pool = Pool(CATALOG_GROUP)
    births = tuple(PartitionBirth(bounds, (SELF,)) for bounds in hash_ranges(count))
    pool.catalog.apply(2, CreateTopic(TopicEntry("w", b"w" * 16, settings, births, 0)))
    held = dict.fromkeys(ids("abcdef"), 0)
    goals = Goals(SELF)
    observed = Observed(members, belonging, steady=True)
    born = Configuration.birth((SELF,))
    for number in range(count):
        goals.look(observed)
        goal = goals.goal(GroupId(b"w" * 16, number), born, pool.catalog, observed)
        assert goal is not None
        for agent_id in goal.voters:
            held[agent_id] += 1
    assert held[SELF] == 2 * 3 * count // 7
    assert all(abs(share - 3 * count // 7) <= 1 for name, share in held.items() if name != SELF)
