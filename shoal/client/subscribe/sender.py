"""Words and extensions on their way to a group.

Law of this file: it sends what the ledger says is due, and tells the ledger what became of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from shoal.client.http.requests import now_ms
from shoal.client.subscribe.group_requests import GroupRequests
from shoal.client.subscribe.ledger import RELEASE, ActRequest, HeldAnswer, Ledger
from shoal.errors import ShoalError

logger = logging.getLogger("shoal.client")


class WordSender:
    """`late`: messages whose lease had ended before their word came."""

    def __init__(self, group: GroupRequests, ledger: Ledger) -> None:
        self.late = 0
        self._group = group
        self._ledger = ledger
        self.sending = asyncio.Lock()
        """Held while words are on their way."""

    async def send_words(self, *, everything: bool = False) -> bool:
        """Those that are due; True where some were not heard, and are due again after a pause. Raises
        Unreachable, and ShoalError where words will never be taken."""
        async with self.sending:
            acts = self._ledger.due(now_ms(), everything=everything)
            unheard = False
            for number, act in enumerate(acts):
                try:
                    unheard = await self._send(act) or unheard
                except BaseException as error:
                    self._put_back(acts[number:], error)
                    raise
            return unheard

    def _put_back(self, acts: Sequence[ActRequest], error: BaseException) -> None:
        """The first of them has failed; the others have not left."""
        first, *others = acts
        definite = getattr(error, "definite", False)
        if isinstance(error, ShoalError) and definite and not error.retriable:
            self._ledger.confirm(first)  # refused for good: the group or the topic is gone
        else:
            self._ledger.repeat(first, again=not definite)
        for act in others:
            self._ledger.repeat(act, again=False)

    async def _send(self, act: ActRequest) -> bool:
        heard = await self._group.act(act)
        done, left = act.split(heard.unheard)
        self._ledger.confirm(done)
        self._ledger.repeat(left, again=True)
        if heard.late and act.word != RELEASE:
            self.late += heard.late
            logger.warning(
                "%s/%s: %d messages were settled after their leases had ended: they are delivered again; a"
                " longer visibility gives their consumer more time",
                self._group.topic,
                self._group.group,
                heard.late,
            )
        return bool(left.parts)

    async def extend(self) -> None:
        """The leases that the ledger wants extended. Raises ShoalError and Unreachable."""
        time_ms = now_ms()
        by_lease: dict[int, dict[str, HeldAnswer]] = {}
        for held in self._ledger.look(time_ms):
            by_lease.setdefault(held.lease_ms, {})[held.receipt] = held
        for lease_ms, answers in by_lease.items():
            lost, unheard = await self._group.extend(list(answers), lease_ms)
            for receipt, held in answers.items():
                if receipt in lost:
                    self._ledger.lost(held)
                elif receipt not in unheard:
                    self._ledger.extended(held, time_ms)
