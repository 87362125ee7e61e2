"""Clients that keep to one agent and give it little time: whoever waits for seconds at an agent that is cut
off neither sees what it says meanwhile, nor what the others do.

Law of this file: one of them at each agent; what each did is told to the history, a request that was given
up as one of which nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from log_clients import Address, Answer, NoAnswer, Steady, Workload, now_s
from log_history import LATEST, Append, Outcome, Poll

PATIENCE_S = 0.5
"""Less than an election takes: the next request meets another state of things."""
CALM_SLOWNESS = 10.0
APPENDS_SHARE = 0.4


class Impatient(Steady):
    """`agent()`: the only one that it asks."""

    calm_slowness = CALM_SLOWNESS

    def __init__(
        self,
        work: Workload,
        name: str,
        agent: Callable[[], Address],
        topic: str,
        partitions: int,
        pause_s: float,
    ) -> None:
        super().__init__(work, pause_s)
        self._name = name
        self._agent = agent
        self._topic = topic
        self._partitions = partitions
        self._number = 0

    async def _act(self) -> None:
        partition = self._work.rng.randrange(self._partitions)
        if self._work.rng.random() < APPENDS_SHARE:
            await self._append(partition)
        else:
            await self._ask_the_end(partition)

    async def _ask(self, method: str, partition: int, question: str, body: object = None) -> Answer:
        """Raises NoAnswer."""
        path = f"/v1/topics/{self._topic}/partitions/{partition}/records?{question}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._connections.request(self._agent(), method, path, body)
        except TimeoutError:
            raise NoAnswer("out of patience", sent=True) from None

    async def _append(self, partition: int) -> None:
        value, invoked_at = f"{self._name}-{self._number}", now_s()
        outcome: Outcome = "ok"
        base_offset = None
        try:
            answer = await self._ask("POST", partition, "acks=all", {"records": [{"value": value}]})
        except NoAnswer as error:
            outcome = "info" if error.sent else "fail"
        else:
            if answer.status == 200:
                base_offset = answer.body["appended"][0]["base_offset"]
            else:
                outcome = "fail" if answer.definite else "info"
        place = (self._topic, partition)
        self._work.history.appends.append(
            Append(self._name, self._number, place, (value,), invoked_at, now_s(), outcome, base_offset)
        )
        self._number += 1

    async def _ask_the_end(self, partition: int) -> None:
        invoked_at = now_s()
        try:
            answer = await self._ask("GET", partition, f"offset={LATEST}")
        except NoAnswer:
            return
        if answer.status != 200:
            return
        body = answer.body
        records = tuple((int(item["offset"]), str(item["value"])) for item in body["records"])
        self._work.history.polls.append(
            Poll(
                self._name,
                (self._topic, partition),
                LATEST,
                records,
                int(body["next_offset"]),
                invoked_at,
                log_start_offset=int(body["log_start_offset"]),
                completed_at=now_s(),
            )
        )
