"""Leaderships are handed over before an agent stops, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_loop import VirtualLoop, run_virtually

from shoal.agent.host.leadership_transfer import ANSWERED_MS, NOBODY_POLLS, POLL_S, hand_over_all
from shoal.replication.errors import InvalidChange

NOBODY_MS = round(NOBODY_POLLS * POLL_S * 1000)


class Clock:
    """The loop's."""

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class Leader:
    """Of three voters. `taken_after_ms`: before that nobody is there; None: never."""

    def __init__(self, taken_after_ms: int | None) -> None:
        self.taken_after_ms = taken_after_ms
        self.host = SimpleNamespace(clock=Clock(), schedule=self._schedule)
        self.core: Any = self
        self.configuration = SimpleNamespace(voters=(1, 2, 3))
        self.group = "t/0"
        self.is_leader, self.is_transferring = True, False
        self.waiting: list[str] = []

    def transfer_leadership(self, _to: None, now_ms: int) -> None:
        if self.taken_after_ms is None or now_ms < self.taken_after_ms:
            raise InvalidChange("no other voter can be reached")
        self.is_transferring = True

    def _schedule(self, _replica: object) -> None:
        self.is_leader = False


@pytest.mark.parametrize(
    ("after_ms", "moved", "took_ms"),
    [
        ([0, 0], 2, 10),
        ([0, NOBODY_MS - 100], 2, NOBODY_MS - 100),
        ([None], 0, NOBODY_MS),
        ([0, None], 1, NOBODY_MS),
        ([], 0, 0),
    ],
)
def test_a_leadership_is_offered_until_somebody_is_there(
    after_ms: list[int | None], moved: int, took_ms: int
) -> None:
    """An instant in which nobody was heard is no reason to stop as a leader; that all others are gone is."""

    async def hand_over() -> tuple[int, float]:
        leaders: list[Any] = [Leader(after) for after in after_ms]
        count = await hand_over_all(leaders, 30_000)
        return count, asyncio.get_running_loop().time() * 1000

    count, at_ms = run_virtually(hand_over())
    assert count == moved
    assert took_ms <= at_ms <= took_ms + 50


def test_who_stood_still_offers_it_again() -> None:
    """It has heard nobody in that time, and hears them as soon as it goes on."""

    class Still(Leader):
        offers = 0

        def transfer_leadership(self, to: None, now_ms: int) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.stand_still(2 * NOBODY_MS / 1000)
            self.offers += 1
            self.taken_after_ms = None if self.offers < 4 else 0
            super().transfer_leadership(to, now_ms)

    leader: Any = Still(None)
    assert run_virtually(hand_over_all([leader], 30_000)) == 1
    assert leader.offers == 4


@pytest.mark.parametrize(("answered_ms", "took_ms"), [(200, 200), (60_000, ANSWERED_MS + 10)])
def test_requests_under_way_are_answered_before_the_agent_leaves(answered_ms: int, took_ms: int) -> None:
    """Its successor commits them, and says so while the agent is still heard; what takes long is left."""

    async def hand_over() -> tuple[int, float]:
        leader: Any = Leader(0)
        leader.waiting = ["an append"]
        asyncio.get_running_loop().call_later(answered_ms / 1_000, leader.waiting.clear)
        count = await hand_over_all([leader], 30_000)
        return count, asyncio.get_running_loop().time() * 1000

    count, at_ms = run_virtually(hand_over())
    assert count == 1
    assert took_ms <= at_ms <= took_ms + 50


def test_the_time_that_is_given_is_kept() -> None:
    """A voter that was asked and does not take over."""

    async def hand_over() -> tuple[int, float]:
        leader: Any = Leader(0)
        leader.host.schedule = lambda _replica: None
        return await hand_over_all([leader], 2_000), asyncio.get_running_loop().time() * 1000

    count, at_ms = run_virtually(hand_over())
    assert count == 0
    assert 2_000 <= at_ms <= 2_050
