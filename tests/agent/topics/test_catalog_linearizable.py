"""Making, changing and deleting topics is linearizable: clients at any agent, and a leader that dies."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from linearizability import Operation, is_linearizable

from tests.agent.agents import Agents, Running, agents_in, eventually

CLIENTS = 4
KINDS = {"create", "change", "delete"}
NAMES = ("t", "u")
AGES = ("1h", "2h", "3h")
ANSWERS_BEFORE = 40
ANSWERS_AFTER = 30
"""Of each topic, before the leader dies and after it: a second's work."""


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


class Client:
    """Asks one agent after the other, one request at a time; remembers what it saw."""

    def __init__(self, rng: random.Random, running: list[Running]) -> None:
        self._rng = rng
        self._running = running
        self.seen: dict[str, list[Operation]] = {name: [] for name in NAMES}

    async def work(self, stopping: asyncio.Event) -> None:
        """Until told to stop."""
        while not stopping.is_set():
            name = self._rng.choice(NAMES)
            kind = self._rng.choice(("create", "create", "change", "delete"))
            await self._ask(name, kind, None if kind == "delete" else self._rng.choice(AGES))
            await asyncio.sleep(self._rng.uniform(0, 0.02))

    async def _ask(self, name: str, kind: str, age: str | None) -> None:
        method = {"create": "PUT", "change": "PATCH", "delete": "DELETE"}[kind]
        body = None if age is None else {"retention": {"age": age}}
        begun = time.monotonic()
        definite, status = False, None
        try:
            agent = self._rng.choice([item for item in self._running if not item.task.done()])
            status, document = await agent.call(method, f"/v1/topics/{name}", body, timeout="3s")
            if status >= 500 or status in (421, 429):
                definite, status = bool(document.get("definite")), None
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        if status is not None or not definite:  # else it certainly did not happen
            self.seen[name].append(Operation(kind, age, status, begun, time.monotonic()))


async def age_at(at: Running, name: str) -> str | None:
    status, document = await at.call("GET", f"/v1/topics/{name}")
    return document["settings"]["retention"]["age"] if status == 200 else None


async def test_creating_changing_and_deleting_is_linearizable_while_the_leader_dies(agents: Agents) -> None:
    """One order explains every answer, and in the end every agent shows the same."""
    cluster = await agents.cluster(3)
    rng = random.Random(7)
    clients = [Client(random.Random(rng.random()), cluster) for _ in range(CLIENTS)]
    stopping = asyncio.Event()
    work = [asyncio.create_task(client.work(stopping)) for client in clients]

    def answered(name: str, since: float) -> list[Operation]:
        every = itertools.chain.from_iterable(client.seen[name] for client in clients)
        return [item for item in every if item.status is not None and item.begun >= since]

    async def enough(count: int, since: float) -> bool:
        found = [answered(name, since) for name in NAMES]
        return all(len(items) >= count and {item.kind for item in items} == KINDS for items in found)

    await eventually(lambda: enough(ANSWERS_BEFORE, 0.0))
    leader = next(item for item in cluster if item.agent.cluster.joined.catalog.leads())
    await leader.crash()
    died = time.monotonic()
    await eventually(lambda: enough(ANSWERS_AFTER, died))
    stopping.set()
    await asyncio.gather(*work)
    rest = [item for item in cluster if item is not leader]
    for name in NAMES:
        operations = itertools.chain.from_iterable(client.seen[name] for client in clients)
        assert is_linearizable(list(operations))

    async def agreed() -> bool:
        shown: list[Any] = [[await age_at(item, name) for name in NAMES] for item in rest]
        return all(item == shown[0] for item in shown)

    await eventually(agreed)


def op(kind: str, value: str | None, status: int | None, begun: float, ended: float) -> Operation:
    return Operation(kind, value, status, begun, ended)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([op("create", "a", 201, 0, 1), op("create", "a", 200, 2, 3)], True),
        ([op("create", "a", 201, 0, 1), op("create", "a", 201, 2, 3)], False),  # made twice
        ([op("create", "a", 201, 0, 3), op("create", "b", 201, 1, 2)], False),
        ([op("create", "a", 201, 0, 1), op("delete", None, 404, 2, 3)], False),  # forgotten
        ([op("create", "a", 201, 0, 2.5), op("delete", None, 404, 2, 3)], True),  # at the same time
        ([op("create", "a", 201, 0, 1), op("delete", None, None, 2, 3), op("create", "b", 201, 9, 10)], True),
        ([op("create", "a", None, 0, 1), op("create", "b", 409, 9, 10)], True),  # it happened after all
        ([op("create", "a", 201, 0, 1), op("change", "b", 200, 2, 3), op("create", "a", 200, 4, 5)], False),
    ],
)
def test_the_checker_tells_what_one_order_can_explain(operations: list[Operation], expected: bool) -> None:
    """It finds a lost, a doubled and a stale answer, and does not cry wolf."""
    assert is_linearizable(operations) == expected
