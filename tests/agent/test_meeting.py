"""Meeting others: whom mDNS hears is called until he is met."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.agent import meeting as module
from shoal.agent.meeting import Address, Meeting
from shoal.membership.interface import JoinError
from shoal.membership.mdns import Found


class Callee:
    """An agent that answers the third call only, and the roster that then has it."""

    def __init__(self) -> None:
        self.calls: list[list[Address]] = []
        self.met = asyncio.Event()

    async def join(self, addresses: Sequence[Address]) -> int:
        self.calls.append(list(addresses))
        if len(self.calls) < 3:
            raise JoinError("nobody there yet")
        self.met.set()
        return 1

    def find(self, _name: str) -> Any:
        return SimpleNamespace(status="alive") if self.met.is_set() else None

    def members(self) -> tuple[Any, ...]:
        return ()

    def ours(self) -> list[Any]:
        return []


async def test_an_announced_agent_is_called_again_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """mDNS reports an agent once; it may not have listened yet. Strangers and this agent are never called."""
    monkeypatch.setattr(module, "RETRY_FOUND_MS_MIN", 5)
    callee = Callee()
    found = Found("b", "fish", "127.0.0.1", 7946)
    heard = [found, Found("a", "fish", "127.0.0.1", 1), Found("c", "birds", "127.0.0.1", 2)]

    async def remember(_peers: list[Address]) -> None:
        raise AssertionError("nobody to remember")

    meeting = Meeting(
        agent_id="a",
        cluster="fish",
        seeds=[],
        remembered=[],
        roster=cast("Any", callee),
        rng=random.Random(1),
        join=callee.join,
        remember=remember,
    )
    meeting.heard = lambda: heard
    running = asyncio.create_task(meeting.run())
    try:
        meeting.on_found(found)
        await asyncio.wait_for(callee.met.wait(), 5)
        await asyncio.sleep(0.05)
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert callee.calls == [[("127.0.0.1", 7946)]] * 3
