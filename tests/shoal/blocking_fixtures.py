"""A blocking client before a made-up cluster, and Ctrl-C at chosen moments."""

from __future__ import annotations

import gc
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from fake_cluster import FakeCluster

from shoal import (
    ClientConfig,
)
from shoal.client.http.routes import RetryPolicy
from shoal.client.loop_thread import LoopThread
from shoal.client.produce.producer import batch_of

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000)


@contextmanager
def cluster_on_thread(
    count: int, extend: Callable[[FakeCluster], object] = lambda cluster: None
) -> Iterator[FakeCluster]:
    """That many agents, on a thread of their own. `extend` may give them more routes."""
    thread = LoopThread("fake-cluster")
    try:

        async def start() -> FakeCluster:
            fake = FakeCluster(count)
            extend(fake)
            return await fake.__aenter__()

        cluster = thread.run(start())
        try:
            yield cluster
        finally:
            thread.run(cluster.__aexit__(None, None, None))
    finally:
        thread.close()


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)


def stored(cluster: FakeCluster, topic: str) -> list[bytes]:
    return [value for log in cluster.topics[topic].partitions for value in log.values()]


def fill(cluster: FakeCluster, topic: str, partitions: int, rows: int) -> None:
    """Partition p holds the values p*1000 ... in batches of 7."""
    cluster.create(topic, partitions)
    for number, log in enumerate(cluster.topics[topic].partitions):
        values = [b"%06d" % (number * 1_000 + row) for row in range(rows)]
        for first in range(0, rows, 7):
            log.append([batch_of(values[first : first + 7])], None)


class Interrupts:
    """Interrupts this thread between any two of its steps, as Ctrl-C does: one for each `arm`, within a time,
    unless it is disarmed before. Not here, nor in the file `spared`: what the user's own steps have got is
    the user's."""

    def __init__(self, longest_s: float, spared: str = "") -> None:
        self._longest_s = longest_s
        self._spared = (__file__, spared)
        self._rng = random.Random(1)
        self._armed = False

    def arm(self, patience: float = 1.0) -> None:
        """`patience`: how many times as long it may last."""
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(0.00002, self._longest_s * patience))

    def disarm(self) -> None:
        self._armed = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._armed and frame is not None and frame.f_code.co_filename in self._spared:
            signal.setitimer(signal.ITIMER_REAL, 0.00002)
        elif self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        gc.disable()  # an interrupt in a callback of the collector would reach nobody
        return self

    def __exit__(self, *exception: object) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        gc.enable()
