"""Proposals that the catalog's leader makes by itself: other births, ends of deletions, and a higher level.

Law of this file: it acts at the catalog's leader only, and only proposes. Where a command stands in the log
decides whether it still counts (catalog.py).

A birth that nobody leads is given up after the time of some elections while most of its voters are away. It
gets much longer where they are there: a disk may be full, or a voter without the memory of its vote.

The holder of a deleted topic that has been lost for `replace_after` is gone, here as in placement, and the
deletion is confirmed in its place. Should it come back, its own copy of the catalog says that the topic was
deleted (catalog_reconciler.py).

The level is raised once every member that has not left understands a higher one, for RAISE_AFTER_MS, unless
a member holds it. An agent that holds a replica, and of which gossip says nothing, understands the first
level. A member that was stopped in order counts for `replace_after`, while it holds replicas. Its host may be
between two versions, and may come back with either.

A recovery by force may begin below the level that the cluster had. The leader then takes the highest that is
known here at once. Something of it may be stored, which an agent that does not understand it cannot read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from shoal.agent.levels import BEFORE_LEVELS, Level, LevelRange, RaiseTimer, common_level
from shoal.agent.log_lines.names import agent_name, topic_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.members.roster import Roster, candidate_of
from shoal.agent.topics.catalog import ConfirmDeletion, RaiseLevel, Rebirth, RepeatBirths, TopicEntry
from shoal.agent.topics.catalog_service import CONFIRM_TIMEOUT_MS, CatalogService
from shoal.agent.topics.entries import partitions_in
from shoal.errors import ShoalError
from shoal.replication.interfaces import MAX_GENERATION
from shoal.replication.placement.assignment import birth_voters

UPKEEP_INTERVAL_S = 0.5
AWAY_MS = 3_000
"""Without a majority of its voters: an agent that restarts is back by then, as a rule."""
UNLED_MS = 60_000
"""With one, while no partition of the topic is being led for the first time."""
MAX_PER_LOOK = 128
"""Partitions placed in one look: some milliseconds. The rest at the next."""
MAX_CONFIRMED_PER_LOOK = 8
"""Each is a command in the catalog's log. The rest at the next look."""

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class CatalogUpkeep:
    """Call look() every UPKEEP_INTERVAL_S."""

    def __init__(
        self,
        roster: Roster,
        catalog: CatalogService,
        now_ms: Callable[[], int],
        *,
        replace_after_ms: Callable[[], int],
    ) -> None:
        self._roster = roster
        self._catalog = catalog
        self._now_ms = now_ms
        self._replace_after_ms = replace_after_ms
        self._waiting: dict[tuple[bytes, int, int], tuple[int, int | None]] = {}
        """By topic, partition and generation: since when a birth has waited, and without a majority."""
        self._unborn: dict[bytes, int] = {}
        self._lost_ms: dict[str, int] = {}

    async def look(self) -> None:
        await self.look_at_births()
        await self.look_at_deletions()

    # ---- births ----------------------------------------------------------------------------------

    async def look_at_births(self) -> None:
        """Give up what has waited for long enough."""
        if not self._catalog.leads():
            self._waiting.clear()
            self._unborn.clear()
            return
        entries = [entry for entry in self._catalog.catalog.topics.values() if entry.unborn]
        for entry, due in self._due(entries):
            await self._bear_again(entry, due[:MAX_PER_LOOK])

    def _due(self, entries: Sequence[TopicEntry]) -> list[tuple[TopicEntry, list[int]]]:
        """Notes what is unborn now, and since when. Partitions that have waited for long enough, by topic."""
        now_ms = self._now_ms()
        found, waiting = [], {}
        for entry in entries:
            is_progress = self._unborn.get(entry.topic_id) != entry.unborn
            due = []
            for partition in partitions_in(entry.unborn):
                birth = entry.partitions[partition]
                key = entry.topic_id, partition, birth.generation
                unled_ms, away_ms = self._waiting.get(key, (now_ms, None))
                linked = sum(self._roster.is_linked(voter) for voter in birth.voters)
                if is_progress:
                    unled_ms = now_ms
                if 2 * linked > len(birth.voters):
                    away_ms = None
                elif away_ms is None:
                    away_ms = now_ms
                waiting[key] = (unled_ms, away_ms)
                is_away = away_ms is not None and now_ms - away_ms >= AWAY_MS
                if (is_away or now_ms - unled_ms >= UNLED_MS) and birth.generation < MAX_GENERATION:
                    due.append(partition)
            if due:
                found.append((entry, due))
        self._waiting = waiting
        self._unborn = {entry.topic_id: entry.unborn for entry in entries}
        return found

    async def _bear_again(self, entry: TopicEntry, partitions: Sequence[int]) -> None:
        members = self._roster.birthplaces()
        if not members:
            return
        candidates = [candidate_of(member) for member in members]
        wanted = entry.settings.wanted_replicas(len(members))
        rebirths = []
        for partition in partitions:
            voters = birth_voters(entry.topic_id, partition, len(entry.partitions), candidates, wanted)
            rebirths.append(Rebirth(partition, entry.partitions[partition].generation + 1, voters))
        try:
            applied = await self._catalog.propose(
                RepeatBirths(entry.topic_id, tuple(rebirths)), CONFIRM_TIMEOUT_MS
            )
        except ShoalError as error:
            seldom.info("topic %s: cannot place leaderless partitions anew yet: %s", entry.name, error)
            return
        if applied.outcome == "done":
            logger.warning(
                "topic %s: new partitions %s had no leader; placed anew on %d live agents",
                entry.name,
                ", ".join(map(str, partitions)),
                len(members),
            )
        elif applied.outcome == "full":
            seldom.warning("topic %s: no room in the catalog to place it anew: delete topics", entry.name)

    # ---- deletions -------------------------------------------------------------------------------

    async def look_at_deletions(self) -> None:
        """Confirm for holders that were lost, without a break, for long enough."""
        tombstones = self._catalog.catalog.tombstones
        now_ms = self._now_ms()
        awaited = {holder for tombstone in tombstones.values() for holder in tombstone.waiting_for}
        self._lost_ms = {
            holder: self._lost_ms.get(holder, now_ms) for holder in awaited if self._roster.is_lost(holder)
        }
        limit_ms = self._replace_after_ms()
        gone = {holder for holder, since in self._lost_ms.items() if now_ms - since >= limit_ms}
        if not gone or not self._catalog.leads():
            return
        due = [
            (topic_id, holder)
            for topic_id, tombstone in sorted(tombstones.items())
            for holder in sorted(tombstone.waiting_for & gone)
        ]
        for topic_id, holder in due[:MAX_CONFIRMED_PER_LOOK]:
            names = topic_name(topic_id), agent_name(holder)
            try:
                await self._catalog.propose(ConfirmDeletion(topic_id, holder), CONFIRM_TIMEOUT_MS)
            except ShoalError as error:
                seldom.info("%s: cannot end the wait for %s, which is gone: %s", *names, error)
                return
            logger.info("%s: the deletion no longer waits for %s, which is gone", *names)


class LevelUpkeep:
    """Call look() every UPKEEP_INTERVAL_S. `holders`: agents that hold replicas, as far as claims say.
    `is_founder`: this agent has founded the cluster in this run. Such a cluster has no former version to go
    back to, as long as each member has understood more."""

    def __init__(
        self,
        roster: Roster,
        catalog: CatalogService,
        now_ms: Callable[[], int],
        *,
        holders: Callable[[], AbstractSet[str]],
        replace_after_ms: Callable[[], int],
        is_founder: bool,
    ) -> None:
        self._roster = roster
        self._catalog = catalog
        self._now_ms = now_ms
        self._holders = holders
        self._replace_after_ms = replace_after_ms
        self._is_new = is_founder
        self._timer = RaiseTimer()
        self._left_ms: dict[str, int] = {}

    async def look(self) -> None:
        """Raise the level once it is time."""
        service = self._catalog
        if not service.leads():
            self._timer, self._left_ms = RaiseTimer(), {}
            return
        higher = self._due(service.catalog.level, service.local.level)
        if higher is None:
            return
        try:
            applied = await service.propose(RaiseLevel(higher), CONFIRM_TIMEOUT_MS)
        except ShoalError as error:
            seldom.info("cannot raise the cluster's level to %d yet: %s", higher, error)
            return
        if applied.outcome == "done":
            logger.info("the cluster is at level %d", higher, extra=about("level-raised"))

    def _due(self, level: Level, known: Level) -> Level | None:
        """The level to take now. `known`: the highest that the cluster has had, as far as is known here; that
        is taken again at once, whatever the members understand."""
        if known > level:
            return known
        understood = self._understood(level)
        common = common_level(understood.values())
        self._is_new &= common is not None and common > level  # else a former version is there
        return self._timer.look(
            self._now_ms(),
            level,
            understood.values(),
            held=not understood.keys().isdisjoint(self._roster.holds_level()),
            is_new=self._is_new,
        )

    def _understood(self, level: Level) -> Mapping[str, LevelRange]:
        """By everybody whose level counts. Claims are read only where the members would allow a raise."""
        now_ms, left = self._now_ms(), self._roster.levels_of_left()
        self._left_ms = {name: self._left_ms.get(name, now_ms) for name in left}
        members = self._roster.understood_levels()
        target = common_level(members.values())
        if target is None or target <= level:
            return members
        holders, limit_ms = self._holders(), self._replace_after_ms()
        resting = {
            name: left[name]
            for name, since_ms in self._left_ms.items()
            if name in holders and now_ms - since_ms < limit_ms
        }
        return {**understood_levels(self._roster, holders), **resting}


def understood_levels(roster: Roster, holders: Iterable[str]) -> dict[str, LevelRange]:
    """By the agents whose level counts: members that have not left, and holders of which gossip says
    nothing."""
    members = roster.understood_levels()
    left = {member.name for member in roster.members() if member.status == "left"}
    unknown = {holder: BEFORE_LEVELS for holder in holders if holder not in members and holder not in left}
    return {**unknown, **members}
