"""Where the replicas of each group belong now, as the leader's agent sees the members.

Law of this file: pure decisions over what rebalancer.py has observed; replication/placement/assignment.py
places, steps.py moves. An ordinary topic belongs where the member list says. The catalog, and topics with a
copy on every agent, keep voters that are there: to move them would gain nothing.

A member keeps its placement until it has been unreachable for `replace_after` or is drained. Until then its
place is not reassigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.agent.bootstrap.rules import SMALL_CATALOG_VOTERS, catalog_voters
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.settings import ALL_REPLICAS_VOTERS, voters_of_all
from shoal.replication.interfaces import Configuration
from shoal.replication.placement.assignment import Candidate, block_start, place
from shoal.replication.placement.steps import Goal, Members, kept_voters

MAX_BLOCKS_PER_LOOK = 2
"""Blocks of partitions placed anew in one look, at a few milliseconds each: heartbeats go on in between."""
MAX_KEPT_GOALS = 16_384
"""Goals that are remembered; more are computed again."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The members at one look. belonging: those that share the replicas. steady: all of these are there, and
    have been the same for a while."""

    members: Members
    belonging: tuple[Candidate, ...]
    steady: bool


class Goals:
    """One per agent. `look()` begins each look at all groups led here."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._belonging: tuple[Candidate, ...] = ()
        self._known: dict[GroupId, tuple[object, Goal]] = {}
        self._blocks: set[tuple[bytes, int]] = set()
        self._fresh = 0

    def look(self, observed: Observed) -> None:
        """The members may be others: then every goal is."""
        self._fresh = 0
        if observed.belonging != self._belonging or len(self._known) > MAX_KEPT_GOALS:
            self._belonging = observed.belonging
            self._known.clear()
            self._blocks.clear()

    def goal(
        self, group: GroupId, configuration: Configuration, catalog: Catalog, observed: Observed
    ) -> Goal | None:
        """None for a topic that is not known here, and while its turn has not come."""
        if group == CATALOG_GROUP:
            return self._kept(group, configuration, observed, None)
        entry = catalog.by_id(group.topic_id)
        if entry is None:
            return None
        factor = entry.settings.replication_factor
        if factor == "all":
            return self._kept(group, configuration, observed, entry.settings.partitions)
        known = self._known.get(group)
        if known is not None and known[0] is entry:
            return known[1]
        if not self._may_place(group):
            return None
        voters = place(group.topic_id, group.partition, entry.settings.partitions, observed.belonging, factor)
        goal = Goal(factor, voters, voters[0] if voters else None)
        self._known[group] = (entry, goal)
        return goal

    def _may_place(self, group: GroupId) -> bool:
        """A thousand partitions at once would hold up everything else here."""
        block = (group.topic_id, block_start(group.partition))
        if block not in self._blocks:
            if self._fresh >= MAX_BLOCKS_PER_LOOK:
                return False
            self._fresh += 1
            self._blocks.add(block)
        return True

    def _kept(
        self, group: GroupId, configuration: Configuration, observed: Observed, partitions: int | None
    ) -> Goal:
        members = observed.members
        voting = configuration.voting_agents
        count = self._count(group, voting, members)
        voters = kept_voters(group, voting, observed.belonging, members, count)
        leader = None
        if partitions is not None:
            ranked = place(group.topic_id, group.partition, partitions, observed.belonging, count)
            leader = next((agent_id for agent_id in ranked if agent_id in voting), None)
        return Goal(count, voters, leader, everywhere=partitions is not None)

    def _count(self, group: GroupId, voting: Sequence[str], members: Members) -> int:
        """The number of voters follows the members that are not drained."""
        lost = {name for name in members.lost_since_ms if not members.is_dead(name)}
        present = (members.live | lost) - members.drained
        if group == CATALOG_GROUP:
            names = sorted(present) or [self._agent_id]
            wanted, voters = len(catalog_voters(names[0], names)), len(voting)
        else:
            # More vote where the topic had a greater replication factor before.
            wanted, voters = voters_of_all(len(present)), min(len(voting), ALL_REPLICAS_VOTERS)
        if members.drained & set(voting):
            return max(wanted, min(SMALL_CATALOG_VOTERS, voters))
        return steady_target(wanted, voters)


def steady_target(wanted: int, voters: int) -> int:
    """The number of voters follows growing members, never falling ones. A group of three or more gives up
    only an even voter, with which it survived no more failures."""
    return max(wanted, voters if voters < 3 or voters % 2 else voters - 1)
