"""Replicas on their way back: closed for work on their files, stopped by a full disk, or kept closed by one.

Law of this file: while a replica is closed and opened again, nobody else opens or deletes it. One that a full
disk refused is tried again. How it is opened stands in host.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import PairedFileFull
from shoal.agent.host.open_group import GroupHost, nothing
from shoal.agent.partition.plan import Plan
from shoal.segment_store.errors import DiskFull, is_no_space

PAUSE_LOOKS_MAX = 64
"""Looks at the disk, about one a second, between two openings of a replica that is refused although the disk
has room: by a quota, or for want of inodes. An opening reads up to a segment."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Refused:
    """A replica whose opening met a full disk: after so many looks it is tried again, then after twice as
    many."""

    plan: Plan
    looks_left: int = 0
    pause_looks: int = 1


class Reopener:
    """One per host. `write_again` settles what the disk refused of promises and records of replicas, or says
    that it is still refused."""

    def __init__(
        self,
        host: GroupHost,
        abandon_copy: Callable[[GroupId], Awaitable[None]],
        write_again: Callable[[], Awaitable[bool]],
    ) -> None:
        self._host = host
        self._abandon_copy = abandon_copy
        self._write_again = write_again
        self._under_way: dict[GroupId, asyncio.Future[None]] = {}
        self._refused: dict[GroupId, _Refused] = {}
        """Of this agent's replicas only; none of them is open."""
        self._is_settled = False
        self.on_opened: Callable[[], None] = lambda: None
        """Called when one has come back: its plan may be older than its topic's settings."""

    @contextmanager
    def of(self, group: GroupId) -> Iterator[None]:
        """The replica is closed, worked on and opened meanwhile."""
        over = self._under_way[group] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._under_way[group]
            over.set_result(None)
            self.on_opened()

    async def is_over(self, group: GroupId) -> None:
        """Nobody opens or closes it any more."""
        while (over := self._under_way.get(group)) is not None:
            await asyncio.shield(over)

    async def settle(self) -> None:
        """For good: what is under way ends, and nothing more is begun."""
        self._is_settled = True
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    def failed(self, plan: Plan, error: Exception) -> None:
        """Its opening did. It is tried again only after a full disk: a disk that has failed is judged by the
        recovery of the whole agent."""
        is_full = isinstance(error, DiskFull | PairedFileFull)
        if is_full or (isinstance(error, OSError) and is_no_space(error)):
            self._refused[plan.group] = _Refused(plan)

    def forget(self, group: GroupId) -> None:
        """It is not to be opened any more."""
        self._refused.pop(group, None)

    async def look(self) -> None:
        """The disk has room: replicas that stopped when it was full come back by recovery, and those whose
        opening it refused are opened. None of them before their promises are on the disk."""
        if self._is_settled or not await self._write_again():
            return
        host = self._host
        full = [one for one in host.open_replicas() if one.failure and one.failure[0] == "disk-full"]
        for replica in full:
            if host.may_reopen(replica):
                await self._abandon_copy(replica.group)
            if host.may_reopen(replica) and not self._is_settled:
                logger.warning("%s: opening the replica again, since the disk has room", replica.group)
                await host.reopen(replica.group, nothing)
        for group, refused in list(self._refused.items()):
            if refused.looks_left:
                refused.looks_left -= 1
            elif self._refused.get(group) is refused and not self._is_settled:
                await self._try_again(refused)

    async def _try_again(self, refused: _Refused) -> None:
        group = refused.plan.group
        logger.warning("%s: opening the replica again, since the disk has room", group)
        del self._refused[group]
        await self._host.open_anew(refused.plan, nothing)
        again = self._refused.get(group)
        if again is not None:
            again.looks_left = refused.pause_looks
            again.pause_looks = min(2 * refused.pause_looks, PAUSE_LOOKS_MAX)
