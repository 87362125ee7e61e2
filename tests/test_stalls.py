"""The plugin that makes tests stand still at random moments: it does so, and ends with its test."""

from __future__ import annotations

import random
import time

from waiting import PATIENCE_S

from tests.stalls import STALL_S, Stalls


def test_the_process_stands_still_and_goes_on() -> None:
    """A loop that only looks at the clock finds a gap as long as a stall."""
    longest_s = 0.0
    with Stalls(random.Random(1)) as stalls:
        end_s = before_s = time.monotonic()
        end_s += PATIENCE_S
        while longest_s < STALL_S[0] and before_s < end_s:
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
    assert longest_s >= STALL_S[0]
    assert not stalls._thread.is_alive()
