"""The state of the catalog that this agent has: compared with its log, waited for, and saved.

Law of this file: it holds one state. Where a newer one comes from, and what is done about it, stands in
catalog_service.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from shoal.agent.durable.catalog_version import CatalogVersion, recoveries
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.host.host import Host
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.levels import Level
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.cluster_file import ClusterRecord
from shoal.agent.topics.kept import remember


class LocalCatalog:
    """Owned by the catalog's service. `record`: what is kept of the cluster, with the state last encoded."""

    def __init__(
        self, record: ClusterRecord, groups: Host, save: Callable[[ClusterRecord], Awaitable[None]]
    ) -> None:
        self.record = record
        self.catalog = Catalog.from_bytes(record.catalog)
        self.published = self.catalog.version
        """The version that peers may be told: never of a state that is about to become another epoch's."""
        self.astray = False
        """The log goes on from another state than the one here: a peer has to give a copy."""
        self._groups = groups
        self._save = save
        self._changed = asyncio.Event()
        self._encoded = (self.catalog.version, record.catalog)
        self._saved = (self.catalog.version, record.level)
        self._saved_security = self.catalog.security.changed

    @property
    def level(self) -> Level:
        """The highest that the cluster is known to have had. Its catalog's is below it for a moment after a
        recovery by force that began with less (catalog_upkeep.py)."""
        return max(self.record.level, self.catalog.level)

    # ---- the state and the log -------------------------------------------------------------------

    def is_between_epochs(self) -> bool:
        """The log was recovered by force, and its epoch has not begun in the state here. Such a state may
        contradict others under the same numbers: nobody is told of it, and it is not carried out."""
        groups = self._groups
        if not groups.has(CATALOG_GROUP):
            return False
        return groups.status(CATALOG_GROUP).term >> EPOCH_BITS > recoveries(self.catalog.epoch)

    def next_offset(self) -> int:
        """Of the first command of the log to read. Numbers of an earlier epoch do not say how much of this
        log is known: it is searched from its start for where the new epoch begins."""
        if not self.is_between_epochs():
            return self.catalog.offset
        return min(self.catalog.offset, self._groups.status(CATALOG_GROUP).log_start_offset)

    def saved_offset(self) -> int:
        """Of the first command of the log that the copy on disk lacks."""
        saved, _ = self._saved
        is_of_this_log = saved.epoch == self.catalog.epoch and not self.is_between_epochs()
        return saved.offset if is_of_this_log else 0

    def has_saved_security(self) -> bool:
        """Whether the copy on disk has the principals, roles and tokens of the state here. A token of which
        somebody was told that it is revoked may not come back after a crash."""
        return self._saved_security == self.catalog.security.changed

    def lacks_trimmed_commands(self) -> bool:
        """The copy of the state that made them dispensable was lost."""
        groups = self._groups
        return (
            groups.has(CATALOG_GROUP) and groups.status(CATALOG_GROUP).log_start_offset > self.catalog.offset
        )

    # ---- changes -----------------------------------------------------------------------------------

    def take(self, newer: Catalog) -> None:
        """A peer's state takes the place of the one here. Topics held here that it lacks are remembered."""
        held = [record.group for record in self._groups.replica_records()]
        kept = remember(self.record.kept, self.catalog, newer, held)
        self.record = replace(self.record, kept=kept, level=self.level)
        self.catalog = newer
        self.astray = False

    def note_level(self, level: Level) -> None:
        """The cluster has, or had, a level above the one known here; save() makes that durable."""
        assert level > self.level
        self.record = replace(self.record, level=level)

    def publish(self) -> bool:
        """Let those who wait see a change. False: between epochs, peers are not told of it."""
        between = self.is_between_epochs()
        if not between:
            self.published = self.catalog.version
        self._tell_waiting()
        return not between

    def _tell_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_published(self, version: CatalogVersion, timeout_ms: int) -> bool:
        """True once peers may be told of a state that is at least that version."""
        return await self.wait_until(lambda: self.published >= version, timeout_ms)

    async def wait_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """True once it holds, which is looked at after each change and each save of principals."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # ---- as bytes ----------------------------------------------------------------------------------

    def encode(self, taking: CatalogVersion | None = None) -> tuple[CatalogVersion, bytes]:
        """The present state, encoded once for the disk and for all who take a copy; or the state of version
        `taking`, where it is the last that was encoded: a copy under way goes on."""
        if self._encoded[0] not in (self.catalog.version, taking):
            self._encoded = (self.catalog.version, self.catalog.to_bytes())
        return self._encoded

    async def save(self) -> None:
        """The state on return is saved. Before replicas are opened, so that a restart finds each of them.
        Before they are deleted: a restart from a state that still had the topic would give birth to a replica
        without its memory. Raises OSError."""
        while (present := (self.catalog.version, self.level)) != self._saved:  # it may change meanwhile
            security = self.catalog.security.changed
            record = self.record = replace(self.record, catalog=self.encode()[1], level=self.level)
            await self._save(record)
            self._saved = present
            if security != self._saved_security:
                self._saved_security = security
                self._tell_waiting()
