"""Ctrl-C and SIGTERM while a command works: they do what the command says, instead of ending it at once.

Law of this file: these two signals, and as long as a block lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def on_interruption(call: Callable[[], object]) -> Iterator[None]:
    """Each of the signals calls it, in the event loop."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def interruptible() -> Iterator[asyncio.Task[Any]]:
    """Each of them cancels the present task, which still may await its end. The task, to be uncancelled."""
    task = asyncio.current_task()
    assert task is not None
    with on_interruption(task.cancel):
        yield task
