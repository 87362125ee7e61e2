"""`shoal` on a machine whose clock is ahead by the seconds of its first argument; the command's own follow.

Law of this file: it changes what the wall clock of an agent says, before any other part is imported, and
nothing else. Monotonic time stays as it is.
"""

from __future__ import annotations

import sys
import time

from shoal.agent.process.clock import SystemClock


def run_ahead(seconds: int) -> None:
    """From now on."""
    SystemClock.now_us = lambda self: time.time_ns() // 1_000 + seconds * 1_000_000  # type: ignore[method-assign]


if __name__ == "__main__":
    run_ahead(int(sys.argv.pop(1)))
    from shoal.agent.cli.main import run

    run()
