"""What happens once is heard of by all who wait, and no interrupt of one of them stops who says it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import pytest

from shoal.client.produce.delivery import Delivery
from shoal.client.produce.outcome import Outcome

PATIENCE_S = 60.0
STEPS_MAX = 2_000


def on_a_thread(work: Callable[[], Any]) -> None:
    """Do it there; fails when it does not end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for ever"


class InterruptAt:
    """Raises KeyboardInterrupt in front of one step of the interpreter, counted from here, as signals do."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __enter__(self) -> Self:
        # CPython 3.12 traces none of them unless some frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace


def test_an_interrupt_of_who_waits_never_stops_who_delivers() -> None:
    """In front of each single step of waiting; the acknowledgement comes all the same, and to all others."""
    interrupted = 0
    for step in range(1, STEPS_MAX):
        delivery = Delivery()
        try:
            with InterruptAt(step) as interrupt, contextlib.suppress(TimeoutError):
                delivery.result(0.0)
        except KeyboardInterrupt:
            interrupted += 1
        if step % 8 == 0 or interrupt.left > 0:
            on_a_thread(lambda delivery=delivery: delivery.expect(0))  # type: ignore[misc]
        else:
            delivery.expect(0)
        assert delivery.result(0) == ()
        if interrupt.left > 0:
            break
    else:
        pytest.fail("waiting has no end")
    assert interrupted > 20


def test_all_who_wait_hear_of_it() -> None:
    """Threads and event loops alike; who comes later needs not wait."""
    outcome: Outcome[int] = Outcome()
    heard: list[int] = []

    async def wait() -> None:
        results = await asyncio.gather(*(_await(outcome) for _ in range(3)))
        heard.extend(results)

    threads = [threading.Thread(target=lambda: heard.append(outcome.result(PATIENCE_S))) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: asyncio.run(wait())))
    for thread in threads:
        thread.start()
    outcome.succeed(7)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == [7] * 6
    assert outcome.result(0) == 7
    assert asyncio.run(_await(outcome)) == 7


async def _await(outcome: Outcome[int]) -> int:
    return await outcome


def test_the_first_word_counts() -> None:
    """A failure is raised to everybody, each time."""
    outcome: Outcome[int] = Outcome()
    assert not outcome.done
    outcome.fail(ValueError("no"))
    outcome.succeed(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            outcome.result()
    assert outcome.done
    assert isinstance(outcome.error, ValueError)


def test_who_gives_up_waiting_leaves_nothing() -> None:
    """Asked again and again with a limit it keeps nobody who has gone; a cancelled task neither."""
    outcome: Outcome[int] = Outcome()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            outcome.result(0.0)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(outcome), 0.001)

    asyncio.run(give_up())
    assert outcome._waiters == []
    outcome.succeed(1)
    assert outcome.result() == 1


def test_an_event_loop_that_has_ended_is_not_told() -> None:
    """Who waited there has gone with it."""
    outcome: Outcome[int] = Outcome()
    waiting = outcome.__await__()

    async def begin() -> None:
        next(waiting)

    asyncio.run(begin())
    outcome.succeed(1)
    assert outcome.result() == 1
    waiting.close()
