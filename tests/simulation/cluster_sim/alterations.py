"""A client that changes a topic's settings while everything else goes wrong, alone and against itself.

Law of this file: over HTTP, as operators do. It knows what was asked of each setting and what was answered;
what stands in the end must be explained by that. Replicas follow the factor; verdict.py looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from log_clients import Connections, NoAnswer, Workload, now_s

PAUSE_S = 1.0
OK = 200
AGES = ("1h", "2h", "3h", "4h", "5h")
FACTOR, AGE = "replication_factor", "segment.age"
BORN = {FACTOR: 3, AGE: "1d"}
"""What the topic is made with."""


@dataclass(slots=True)
class Alteration:
    """outcome: True done, False certainly not, None nobody knows. ended_s: infinite if nobody knows."""

    setting: str
    value: Any
    begun_s: float
    ended_s: float
    outcome: bool | None
    answer: Any = None


class Alterations:
    """`factors`: those to choose from. `lowered(topic_id, factor)` is told before one is asked for.
    `broken`: what was found wrong at once."""

    def __init__(
        self, work: Workload, topic: str, factors: tuple[Any, ...], lowered: Callable[[bytes, Any], None]
    ) -> None:
        self._work = work
        self._path = f"/v1/topics/{topic}"
        self._factors = factors
        self._lowered = lowered
        self._connections = (Connections(), Connections())
        self.asked: list[Alteration] = []
        self.broken: list[str] = []

    async def run(self) -> None:
        """Until the work stops. What is under way is finished, or given up as unknown."""
        rng = self._work.rng
        try:
            while not self._work.stopping:
                await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))
                document = await self._read()
                if document is None:
                    continue
                change = rng.choice((self._one, self._two_settings, self._twice_at_once))
                await change(document)
        finally:
            for connections in self._connections:
                connections.close()

    async def _one(self, topic: dict[str, Any]) -> None:
        await self._alter(0, topic, FACTOR, self._work.rng.choice(self._factors))

    async def _two_settings(self, topic: dict[str, Any]) -> None:
        """At once, by two: neither undoes the other's. The question behind them sees both."""
        factor, age = self._work.rng.choice(self._factors), self._work.rng.choice(AGES)
        both = await asyncio.gather(self._alter(0, topic, FACTOR, factor), self._alter(1, topic, AGE, age))
        after = await self._alter(0, topic, AGE, age)
        if self._is_certain and all(item.outcome for item in (*both, after)):
            seen = after.answer[FACTOR]
            if seen != factor:
                self.broken.append(f"{FACTOR} was made {factor}, and {AGE} at once; then it is {seen}")

    async def _twice_at_once(self, topic: dict[str, Any]) -> None:
        """Both expect the settings that were read: of two other values one at most is taken."""
        version = topic["settings_version"]
        values = self._work.rng.sample([item for item in self._factors if item != topic[FACTOR]], 2)
        both = await asyncio.gather(
            *(self._alter(number, topic, FACTOR, value, version) for number, value in enumerate(values))
        )
        if self._is_certain and all(item.outcome for item in both):
            self.broken.append(f"{FACTOR} of version {version} was made {values[0]}, and {values[1]} as well")

    @property
    def _is_certain(self) -> bool:
        """Nothing of which nobody knows may still come to pass."""
        return all(item.outcome is not None for item in self.asked)

    async def _read(self) -> Any:
        try:
            answer = await self._connections[0].request(self._work.some_agent(), "GET", self._path)
        except NoAnswer:
            return None
        return answer.body if answer.status == OK else None

    async def _alter(
        self, number: int, topic: dict[str, Any], setting: str, value: Any, version: str | None = None
    ) -> Alteration:
        table, _, part = setting.partition(".")
        body = {table: {part: value} if part else value}
        if setting == FACTOR:
            self._lowered(bytes.fromhex(topic["id"]), value)
        condition = "" if version is None else f"&if_version={version}"
        change = Alteration(setting, value, now_s(), float("inf"), None)
        self.asked.append(change)
        try:
            answer = await self._connections[number].request(
                self._work.some_agent(), "PATCH", f"{self._path}?timeout=3s{condition}", body
            )
        except NoAnswer as error:
            change.outcome = None if error.sent else False
            return change
        if answer.status == OK:
            change.outcome, change.ended_s, change.answer = True, now_s(), answer.body
        elif answer.definite:
            change.outcome = False
        return change

    def unexplained(self, settings: dict[str, Any]) -> list[str]:
        """Settings as they stand in the end, that no change explains which none has followed."""
        found = list(self.broken)
        for setting in (FACTOR, AGE):
            changes = [item for item in self.asked if item.setting == setting and item.outcome is not False]
            done = [item for item in changes if item.outcome]
            possible = [
                item.value for item in changes if not any(later.begun_s > item.ended_s for later in done)
            ]
            if not done:
                possible.append(BORN[setting])
            if settings[setting] not in possible:
                found.append(f"{setting} is {settings[setting]}, possible is {possible}")
        return found
