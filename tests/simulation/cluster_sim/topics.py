"""A client that creates and deletes topics, and what must be true of them at the end.

Law of this file: over HTTP, as users do. What was acknowledged must be; what nobody knows may be either way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from log_clients import Connections, NoAnswer, Workload

PAUSE_S = 0.5
RETRY_S = 0.2
CREATE_ATTEMPTS_MAX = 30
TOPICS_MAX = 12
DONE = (200, 201, 204)


class TopicClient:
    """`present` and `absent`: names of which it is certain that they exist, or do not."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._connections = Connections()
        self._number = 0
        self.last_refusal = ""
        self.present: set[str] = set()
        self.absent: set[str] = set()

    async def run(self) -> None:
        """Until the work stops."""
        while not self._work.stopping:
            await asyncio.sleep(self._work.rng.uniform(0, 2 * PAUSE_S))
            if self._number < TOPICS_MAX and self._work.rng.random() < 0.6:
                self._number += 1
                name = f"t{self._number}"
                if await self._ask("PUT", name, {"partitions": 1}) is True:
                    self.present.add(name)
            elif self.present:
                name = self._work.rng.choice(sorted(self.present))
                self.present.discard(name)
                outcome = await self._ask("DELETE", name, None)
                if outcome is False:
                    self.present.add(name)
                elif outcome is True:
                    self.absent.add(name)
        self._connections.close()

    async def create(self, name: str, body: dict[str, Any]) -> None:
        """Until it is there. Raises AssertionError when no agent makes it."""
        for _ in range(CREATE_ATTEMPTS_MAX):
            if await self._ask("PUT", name, body) is True:
                return
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"topic {name} cannot be created: {self.last_refusal}")

    async def _ask(self, method: str, name: str, body: dict[str, Any] | None) -> bool | None:
        """True: done; False: certainly not; None: nobody knows."""
        try:
            answer = await self._connections.request(
                self._work.some_agent(), method, f"/v1/topics/{name}?timeout=3s", body
            )
        except NoAnswer as error:
            self.last_refusal = str(error)
            return None if error.sent else False
        if answer.status in DONE:
            return True
        self.last_refusal = str(answer)
        return False if answer.definite else None
