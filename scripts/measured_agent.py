"""An agent for benchmarks: `shoal` itself, which tells how long its event loop was held, or counts nothing.

python scripts/measured_agent.py --holds FILE agent --data DIR ...   at each SIGUSR1 its longest hold, in FILE
python scripts/measured_agent.py --uncounted agent --data DIR ...    without the counters of /metrics

Law of this file: what it changes, it changes in its own process, from outside; the product has no switch for
either. A hold is the time between two questions to the kernel: all callbacks of one round.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import time
from typing import Any

from shoal.agent.cli.main import run
from shoal.agent.metrics.histogram import Histogram
from shoal.agent.metrics.measures import HttpMeasures
from shoal.agent.partition.appender import Appender
from shoal.agent.process import event_loop
from shoal.segment_store.disk.threads import SyncRequest

COUNTED = (
    (Histogram, "observe"),
    (HttpMeasures, "answered"),
    (HttpMeasures, "appended"),
    (Appender, "committed"),
    (Appender, "_propose"),
    (SyncRequest, "begin"),
    (SyncRequest, "ended"),
)
"""What an append on its way touches for the sake of metrics. Two looks at the clock remain, in front.py."""


class TimedSelector(selectors.DefaultSelector):
    """Notes how long the loop was away."""

    longest_ns = 0
    _resumed_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector."""
        if self._resumed_ns:
            self.longest_ns = max(self.longest_ns, time.monotonic_ns() - self._resumed_ns)
        events = super().select(timeout)
        self._resumed_ns = time.monotonic_ns()
        return events


def tell_holds(path: str) -> None:
    """With each SIGUSR1 the nanoseconds of the longest hold since the last one stand in the file."""
    selector = TimedSelector()

    def tell(*_: object) -> None:
        with open(f"{path}.new", "w") as file:
            file.write(str(selector.longest_ns))
        selector.longest_ns = 0
        os.replace(f"{path}.new", path)

    def make_loop(*, direct: bool = True) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selector)

    signal.signal(signal.SIGUSR1, tell)
    event_loop.new_event_loop = make_loop


def count_nothing() -> None:
    """The same steps without a counter or a look at the clock between them."""

    def nothing(*_: Any) -> None: ...

    def propose(self: Any, *arguments: Any) -> Any:
        return self._replica.propose_message(*arguments)

    def begin(self: Any) -> None:
        try:
            self.file.begin(self)
        except BaseException:
            self._make_room()
            raise

    def ended(self: Any, error: BaseException | None) -> None:
        self._make_room()
        self.done(error)

    instead = (nothing, nothing, nothing, nothing, propose, begin, ended)
    for (owner, name), other in zip(COUNTED, instead, strict=True):
        assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
        setattr(owner, name, other)


def main() -> None:
    """Take the first option off, and go on as `shoal`."""
    option = sys.argv.pop(1)
    if option == "--holds":
        tell_holds(sys.argv.pop(1))
    elif option == "--uncounted":
        count_nothing()
    else:
        assert option == "--counted", option
    run()


if __name__ == "__main__":
    main()
