"""An event loop whose time jumps to the next timer instead of waiting for it.

Law of this file: asyncio as it is, but for the clock. Nothing in it may wait for a real socket or thread.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits by moving the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("nothing is going to happen any more: a wait without a timer")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """time() is virtual and begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        """So long passes before anything else is done."""
        self._jumping.now_s += seconds


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
