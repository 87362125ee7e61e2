"""A drained agent holds nothing: the request, kept across restarts, and its progress.

Law of this file: it tells (a tag in gossip, a mark in the data directory) and counts. Leaders of groups move
replicas and leaderships away (steps.py), as for any other agent. A lost mark is harmless: the agent takes
replicas again.
"""

from __future__ import annotations

import os
from typing import Any

from shoal.agent.bootstrap.rules import SMALL_CATALOG_VOTERS
from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.durable.whole_file import replace_whole
from shoal.agent.host.host import Host
from shoal.agent.members.roster import Roster
from shoal.agent.topics.catalog import Catalog
from shoal.segment_store.disk.disk import Disk

MARK_NAME = "drained"
MARK = b"this agent was told to hold no replicas: `shoal drain --undo` takes that back\n"
MAX_REASONS = 8  # a screenful; the rest are of the same kind


class Draining:
    """One per agent, from its start on. `load()` first."""

    def __init__(self, disk: Disk, directory: str, roster: Roster) -> None:
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, MARK_NAME)
        self._roster = roster
        self.wanted = False

    async def load(self) -> None:
        """Whether it was told so in an earlier run. Raises OSError."""
        self.wanted = await self._disk.exists(self._path)

    async def begin(self) -> None:
        """Durable on return; told again, it changes nothing. Raises OSError."""
        if not await self._disk.exists(self._path):
            await replace_whole(self._disk, self._path, MARK)
            await self._disk.sync_directory(self._directory)
        self._tell(drained=True)

    async def undo(self) -> None:
        """It takes replicas again, and leads. Raises OSError."""
        if await self._disk.exists(self._path):
            await self._disk.unlink(self._path)
            await self._disk.sync_directory(self._directory)
        self._tell(drained=False)

    def _tell(self, *, drained: bool) -> None:
        self.wanted = drained
        self._roster.set_drained(drained=drained)

    def document(self, host: Host, catalog: Catalog) -> dict[str, Any]:
        """The progress. `safe_to_stop`: nothing is lost when the agent is stopped for good."""
        held = [record.group for record in host.replica_records() if record.state is not ReplicaState.REMOVED]
        return {
            "draining": self.wanted,
            "replicas": len(held),
            "leads": len(host.led_replicas()),
            "blocked": self._blocked(host, catalog) if self.wanted else [],
            "safe_to_stop": self.wanted and not held,
        }

    def _blocked(self, host: Host, catalog: Catalog) -> list[str]:
        """Topics that cannot leave: too few agents can take them, and a group never gets fewer voters."""
        able = len(self._roster.placeable())
        short: set[tuple[str, int]] = set()
        for record in host.replica_records():
            group, entry = record.group, catalog.by_id(record.group.topic_id)
            if group == CATALOG_GROUP:
                configuration = host.status(group).configuration if host.has(group) else None
                voters = 1 if configuration is None else len(configuration.voters)
                name, needed = "the catalog", min(SMALL_CATALOG_VOTERS, voters)
            else:
                factor = None if entry is None else entry.settings.replication_factor
                name = group.topic_id.hex() if entry is None else entry.name
                needed = factor if isinstance(factor, int) else 1
            if record.state is not ReplicaState.REMOVED and able < needed:
                short.add((name, needed))
        agents = f"{able} other agent{'' if able == 1 else 's'} can take them"
        return [
            f"{name} wants {needed} replicas, and {agents}" for name, needed in sorted(short)[:MAX_REASONS]
        ]
