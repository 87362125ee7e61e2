"""A pytest plugin that makes this process stand still at random moments, as on a machine that is too busy:
tests that rest on real milliseconds turn red.

    python -m pytest -p tests.stalls --stall-seed 3 tests/agent/delivery

While it stands no Python runs in any thread, and nothing beside Python is held: the kernel, compiled code and
other processes go on. With `--stall-processes` the processes that a test has started are stopped as well, one
at a time. What a virtual clock drives sees none of it, and by the steady clock of asynchronous tests a stall
is short: `--plain-clocks` lets them have the machine's, and shows what an agent does that stood still.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any, Self

import psutil
import pytest

STALL_S = 0.3, 1.5
"""Longer than an election in tests; shorter than what a link takes for dead in a cluster of processes."""
GAP_S = 0.05, 0.6
"""Between two stalls at first. Every further gap of a test is longer, so that it comes to its end: a test may
need some seconds without one."""
GROWTH = 1.25
GAP_MOST_S = 20.0


class Stalls:
    """Of one test. Use as a context manager."""

    def __init__(self, rng: random.Random, *, processes: bool = False) -> None:
        self.count = 0
        self._rng = rng
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
        # Not ctypes.CDLL: a call through PyDLL keeps the interpreter's lock.
        self._sleep = ctypes.PyDLL(None).usleep

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        longer = 1.0
        while not self._over.wait(min(longer * self._rng.uniform(*GAP_S), GAP_MOST_S)):
            longer *= GROWTH
            stall_s = self._rng.uniform(*STALL_S)
            if not (self._processes and self._rng.random() < 0.7 and self._stop_process(stall_s)):
                self._sleep(int(1e6 * stall_s))
            self.count += 1

    def _stop_process(self, stall_s: float) -> bool:
        """Stop a descendant for so long, unless the test has stopped it; whether there was one."""
        there = [process.pid for process in psutil.Process().children(recursive=True)]
        running = sorted(set(there) - stopped_by_tests)
        if not running:
            return False
        pid = self._rng.choice(running)
        with contextlib.suppress(ProcessLookupError):
            plain_kill(pid, signal.SIGSTOP)
            self._over.wait(stall_s)
            if pid not in stopped_by_tests:
                plain_kill(pid, signal.SIGCONT)
        return True


stopped_by_tests: set[int] = set()
"""They are left alone, and stay stopped."""
plain_kill = os.kill


def kill(pid: int, number: int) -> None:
    """As os.kill; remembers what is to stay stopped."""
    if number == signal.SIGSTOP:
        stopped_by_tests.add(pid)
    elif number == signal.SIGCONT:
        stopped_by_tests.discard(pid)
    plain_kill(pid, number)


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("stalls")
    group.addoption("--stall-seed", type=int, default=0, help="another one: other moments")
    group.addoption("--stall-processes", action="store_true", help="stop processes of tests, too")


def pytest_configure(config: Any) -> None:
    if config.getoption("stall_processes"):
        os.kill = kill


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """The test with its fixtures."""
    rng = random.Random(f"{item.config.getoption('stall_seed')} {item.nodeid}")
    with Stalls(rng, processes=item.config.getoption("stall_processes")):
        return (yield)
