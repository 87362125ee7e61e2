"""An agent for benchmarks: `shoal` itself, which tells how long its event loop was held, or counts by turns.

python scripts/measured_agent.py --holds FILE agent --data DIR ...   its longest holds in FILE at each SIGUSR1
python scripts/measured_agent.py --switched FILE agent --data DIR ...   each SIGUSR1 ends counters and
    log lines, or begins them again, and FILE says which

Law of this file: what it changes, it changes in its own process, from outside; the product has no switch for
either.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

from holds import Teller, say

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


def tell_holds(path: str) -> None:
    """SIGUSR1 ends a window and puts its longest holds into the file; SIGUSR2 does so after a window of work
    that is no scrape."""

    def make_loop(*, direct: bool = True) -> asyncio.AbstractEventLoop:
        teller = Teller(path)
        signal.signal(signal.SIGUSR1, teller.tell)
        signal.signal(signal.SIGUSR2, teller.work)
        return teller.loop

    event_loop.new_event_loop = make_loop


def switch_counting(path: str) -> None:
    """One process does both by turns: two agents of one build differ by more than counters cost."""
    counted = {(owner, name): vars(owner)[name] for owner, name in COUNTED}
    uncounted = dict(zip(COUNTED, _without_counters(), strict=True))
    counts = True

    def switch(*_: object) -> None:
        nonlocal counts
        counts = not counts
        for (owner, name), method in (counted if counts else uncounted).items():
            setattr(owner, name, method)
        logging.disable(logging.NOTSET if counts else logging.CRITICAL)
        say(path, "counted" if counts else "uncounted")

    signal.signal(signal.SIGUSR1, switch)


def _without_counters() -> tuple[Callable[..., Any], ...]:
    """The steps of `COUNTED` without a counter or a look at the clock between them."""

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

    return (nothing, nothing, nothing, nothing, propose, begin, ended)


def main() -> None:
    """Take the first option off, and go on as `shoal`."""
    option = sys.argv.pop(1)
    {"--holds": tell_holds, "--switched": switch_counting}[option](sys.argv.pop(1))
    run()


if __name__ == "__main__":
    main()
