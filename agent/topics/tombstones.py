"""Ends the wait for holders of deleted topics that are gone for good.

Law of this file: it acts at the catalog's leader only, and proposes what the holder would have: that nothing
is left there. Whoever has been lost for `replace_after` is counted as gone, here as in placement. Should it
come back, its own copy of the catalog tells it that the topic existed and was deleted (catalog_service.py):
nobody has to remember it for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shoal.agent.members.roster import Roster
from shoal.agent.topics.catalog import ConfirmDeletion
from shoal.agent.topics.catalog_service import CONFIRM_TIMEOUT_MS, CatalogService
from shoal.errors import ShoalError

TOMBSTONE_INTERVAL_S = 1.0
MAX_BURIED_PER_LOOK = 16  # each is a command in the catalog's log; the rest a second later

logger = logging.getLogger("shoal.agent")


class Burying:
    """Call look() every TOMBSTONE_INTERVAL_S."""

    def __init__(
        self, roster: Roster, catalog: CatalogService, now_ms: Callable[[], int], *, replace_after_ms: int
    ) -> None:
        self._roster = roster
        self._catalog = catalog
        self._now_ms = now_ms
        self._replace_after_ms = replace_after_ms
        self._lost_ms: dict[str, int] = {}

    async def look(self) -> None:
        """Confirm for those that were lost, without a break, for long enough."""
        tombstones = self._catalog.catalog.tombstones
        now_ms = self._now_ms()
        awaited = {holder for tombstone in tombstones.values() for holder in tombstone.waiting_for}
        self._lost_ms = {
            holder: self._lost_ms.get(holder, now_ms) for holder in awaited if self._roster.is_lost(holder)
        }
        gone = {holder for holder, since in self._lost_ms.items() if now_ms - since >= self._replace_after_ms}
        if not gone or not self._catalog.leads():
            return
        due = [
            (topic_id, holder)
            for topic_id, tombstone in sorted(tombstones.items())
            for holder in sorted(tombstone.waiting_for & gone)
        ]
        for topic_id, holder in due[:MAX_BURIED_PER_LOOK]:
            try:
                await self._catalog.propose(ConfirmDeletion(topic_id, holder), CONFIRM_TIMEOUT_MS)
            except ShoalError as error:
                logger.info("the deletion of %s waits for %s still: %s", topic_id.hex(), holder[:8], error)
                return
            logger.info(
                "the deletion of %s waits no longer for %s, which is gone", topic_id.hex(), holder[:8]
            )
