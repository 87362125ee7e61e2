"""How much work a call takes: the same number on every machine, however busy.

Law of this file: lines of Python that were run, as the interpreter counts them for a debugger. Time would say
more about the neighbours.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooMuchWork(AssertionError):
    """More lines were run than allowed."""


@contextmanager
def lines_at_most(limit: int) -> Iterator[None]:
    """Raises TooMuchWork at the line that is one too many, so that what would never end does."""
    left = limit

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TooMuchWork(f"more than {limit:,} lines of Python")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
