"""An agent's process: open files, signals, and one line for a fault.

Law of this file: it knows the operating system and the kinds of faults, not the agent.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.agent.log_lines.schema import about
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import PortError
from shoal.segment_store.errors import StoreError

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
logger = logging.getLogger("shoal.agent")


def allow_open_files() -> None:
    """As many as the system lets this process have: the soft limit is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files() -> int:
    """How many this process may have now: segment files, connections and all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def report(group: BaseExceptionGroup[BaseException]) -> None:
    """A part has failed: log one line for a fault of the start, and the traceback of any other."""
    faults, others = group.split((StartError, PortError, StoreError))
    for fault in _leaves(faults):
        logger.error("%s", fault, extra=about("agent-failed"))
    if others is not None:
        logger.error("the agent failed and stops", exc_info=others, extra=about("agent-failed"))


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> Iterator[BaseException]:
    for error in () if group is None else group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


@contextmanager
def held_back() -> Iterator[None]:
    """Processes that are started meanwhile hold the signals of `asked_by_signals` back until they are in it.
    Before that, the signals would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def asked_by_signals(ask: Callable[[], None], reload: Callable[[], None] | None = None) -> Iterator[None]:
    """SIGTERM and SIGINT call `ask`; SIGHUP calls `reload`, or `ask` where there is none."""
    loop = asyncio.get_running_loop()
    for number in HANDLED:
        loop.add_signal_handler(number, (reload or ask) if number is signal.SIGHUP else ask)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # what was held back comes now
    try:
        yield
    finally:
        for number in HANDLED:
            loop.remove_signal_handler(number)
