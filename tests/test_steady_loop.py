"""The loop of asynchronous tests: it goes as the machine's clock does, but while the process stands still."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable

import pytest
from steady_loop import STEP_S, SteadyLoop

from shoal.agent.process.clock import SystemClock

STALL_S = 0.5


async def test_a_stand_still_is_next_to_no_time() -> None:
    """For timers, and for the clock of agents."""
    loop, clock = asyncio.get_running_loop(), SystemClock()
    assert isinstance(loop, SteadyLoop)
    async with asyncio.timeout(STALL_S):
        began_s, began_ms = loop.time(), clock.now_ms()
        time.sleep(2 * STALL_S)
        assert loop.time() - began_s <= STEP_S
        await asyncio.sleep(0)
        assert clock.now_ms() - began_ms <= 4_000 * STEP_S


async def test_waiting_takes_as_long_as_it_should() -> None:
    """By both clocks, with something to do or nothing; none is ahead of the machine's."""
    loop = asyncio.get_running_loop()
    for turns in (1, 40):
        began_at_s, began_s = time.monotonic(), loop.time()
        for _ in range(turns):
            await asyncio.sleep(0.2 / turns)
        assert 0.2 <= loop.time() - began_s + 1e-6 <= time.monotonic() - began_at_s + 2e-6


async def test_what_happens_is_seen_at_once() -> None:
    """A wait without a timer ends with what it waits for."""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, lambda: time.sleep(0.1) or "done") == "done"


@pytest.mark.parametrize("make_loop", [SteadyLoop, asyncio.new_event_loop])
def test_nothing_begins_while_a_loop_ends(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Timers that a test has left begin a task in each turn: none is left behind that never ran."""
    ran = 0

    async def work() -> None:
        nonlocal ran
        ran += 1

    async def leave() -> None:
        loop = asyncio.get_running_loop()

        def begin() -> asyncio.Task[None]:
            loop.call_later(0, begin)
            return loop.create_task(work())

        begin()
        while not ran:
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(leave())
        gc.collect()
    assert [str(warning.message) for warning in said] == []
