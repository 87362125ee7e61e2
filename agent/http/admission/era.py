"""Eras of permissions: for how long whoever was let in is let in again without being asked.

Law of this file: whether something may have changed, and no verdicts. A connection asks a thousand times a
second, mostly the same: looking at one object takes a tenth of the look into what is remembered.
"""

from __future__ import annotations

import asyncio
import math


class Era:
    """Of one server."""

    __slots__ = ("_ends_ms", "_present", "now")

    def __init__(self, *, is_endless: bool) -> None:
        """`is_endless`: nobody is asked for anything."""
        self._present = object()
        self._ends_ms = math.inf
        self.now: object | None = self._present if is_endless else None
        """Whoever was let in is let in while this is the same: another one with each change of who may what,
        and once the first of what was let in ends. None until both were looked at in this turn of the
        loop."""

    def lasts_until(self, ends_ms: float) -> None:
        """At most, as somebody was let in until then: wall clock."""
        if ends_ms < self._ends_ms:
            self._ends_ms = ends_ms

    def begin(self) -> None:
        """Another one: all are asked again, in this turn too."""
        self._present, self._ends_ms = object(), math.inf
        if self.now is not None:
            self.now = self._present

    def go_on(self, now_ms: float) -> None:
        """Until the end of this turn; changes were looked at. `now_ms`: wall clock."""
        if now_ms >= self._ends_ms:
            self.begin()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop nobody knows when a turn ends, and each request looks
        loop.call_soon(setattr, self, "now", None)
        self.now = self._present
