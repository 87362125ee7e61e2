"""Partitions that nobody has led get another birth, on agents that are there.

Law of this file: it acts at the catalog's leader only, and only proposes: whether a birth is still to be
given up is decided where the command stands in the catalog's log (catalog.py). A birth has the time of some
elections while most of its voters are away, and much longer where they are there and nobody leads all the
same: then their disks may be full, or one of them is without the memory of its vote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.agent.members.roster import Roster, candidate_of
from shoal.agent.topics.catalog import BearAgain, Rebirth, TopicEntry
from shoal.agent.topics.catalog_service import CONFIRM_TIMEOUT_MS, CatalogService
from shoal.agent.topics.entries import partitions_in
from shoal.errors import ShoalError
from shoal.replication.interfaces import MAX_GENERATION
from shoal.replication.placement.assignment import Candidate, birth_voters

REBIRTH_INTERVAL_S = 0.5
AWAY_MS = 3_000
"""Without a majority of its voters: whoever restarts is back by then, as a rule."""
UNLED_MS = 60_000
"""With one, while no partition of the topic is being led for the first time."""
MAX_PER_LOOK = 128
"""Placed in one look: some milliseconds. The rest at the next."""

logger = logging.getLogger("shoal.agent")


class _Waiting(NamedTuple):
    """Since when a birth has waited, and without a majority; ms. None: it has one."""

    unled_ms: int
    away_ms: int | None


class Rebirths:
    """Call look() every REBIRTH_INTERVAL_S."""

    def __init__(self, roster: Roster, catalog: CatalogService, now_ms: Callable[[], int]) -> None:
        self._roster = roster
        self._catalog = catalog
        self._now_ms = now_ms
        self._waiting: dict[tuple[bytes, int, int], _Waiting] = {}
        """By topic, partition and generation."""
        self._unborn: dict[bytes, int] = {}

    async def look(self) -> None:
        """Give up what has waited for long enough."""
        if not self._catalog.leads():
            self._waiting.clear()
            self._unborn.clear()
            return
        entries = [entry for entry in self._catalog.catalog.topics.values() if entry.unborn]
        self._note(entries)
        for entry in entries:
            if due := self._due(entry)[:MAX_PER_LOOK]:
                await self._bear_again(entry, due)

    def _note(self, entries: Sequence[TopicEntry]) -> None:
        """What is unborn now, and since when."""
        now_ms = self._now_ms()
        waiting = {}
        for entry in entries:
            is_progress = self._unborn.get(entry.topic_id) != entry.unborn
            for partition in partitions_in(entry.unborn):
                birth = entry.partitions[partition]
                key = entry.topic_id, partition, birth.generation
                known = self._waiting.get(key)
                away_ms = None if known is None else known.away_ms
                unled_ms = now_ms if known is None or is_progress else known.unled_ms
                there = sum(self._roster.is_linked(voter) for voter in birth.voters)
                has_majority = 2 * there > len(birth.voters)
                waiting[key] = _Waiting(
                    unled_ms, None if has_majority else now_ms if away_ms is None else away_ms
                )
        self._waiting = waiting
        self._unborn = {entry.topic_id: entry.unborn for entry in entries}

    def _due(self, entry: TopicEntry) -> list[int]:
        now_ms = self._now_ms()
        due = []
        for partition in partitions_in(entry.unborn):
            generation = entry.partitions[partition].generation
            waiting = self._waiting[entry.topic_id, partition, generation]
            is_away = waiting.away_ms is not None and now_ms - waiting.away_ms >= AWAY_MS
            if (is_away or now_ms - waiting.unled_ms >= UNLED_MS) and generation < MAX_GENERATION:
                due.append(partition)
        return due

    async def _bear_again(self, entry: TopicEntry, partitions: Sequence[int]) -> None:
        members = self._roster.birthplaces()
        if not members:
            return
        candidates = [candidate_of(member) for member in members]
        rebirths = tuple(_rebirth(entry, partition, candidates) for partition in partitions)
        try:
            applied = await self._catalog.propose(BearAgain(entry.topic_id, rebirths), CONFIRM_TIMEOUT_MS)
        except ShoalError as error:
            logger.info("%s: partitions that nobody leads wait still: %s", entry.name, error)
            return
        if applied.outcome == "done":
            logger.warning(
                "%s: nobody has led partitions %s: they are born again, on %d live agents",
                entry.name,
                ", ".join(map(str, partitions)),
                len(members),
            )
        elif applied.outcome == "full":
            logger.warning("%s: the catalog has no room to give its partitions other voters", entry.name)


def _rebirth(entry: TopicEntry, partition: int, candidates: Sequence[Candidate]) -> Rebirth:
    wanted = entry.settings.wanted_replicas(len(candidates))
    voters = birth_voters(entry.topic_id, partition, len(entry.partitions), candidates, wanted)
    return Rebirth(partition, entry.partitions[partition].generation + 1, voters)
