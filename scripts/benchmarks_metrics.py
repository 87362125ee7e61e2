"""What metrics cost: the counters on an append's way, and a scrape beside everything else.

Law of this file: from outside, over HTTP. Agents run by measured_agent.py: one counts as users' agents do,
one does not; a third tells how long its event loop was held.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Protocol

import bench_topics
import cluster
import environment
import load
import terminal
from bench_topics import RECORD_BYTES, RUN_TIMEOUT_SECONDS, post
from row import Row

PROGRAM = (str(environment.python()), str(environment.ROOT / "scripts" / "measured_agent.py"))
PARTITIONS = 1_000
SCRAPES = 9  # in each round; the longest hold of each counts
PAUSE_SECONDS = 0.1
SINGLE_REQUESTS = 20_000
WARM_UP_REQUESTS = 3_000
COUNTED_BAR = 0.98
HOLD_BAR_MS = 5.0
SCRAPE_BAR_MS = 100.0
TEXTS = {"all series": "/metrics?partitions=true", "the agent's alone": "/metrics"}


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path
    rounds: int

    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """Counted beside uncounted; then scrapes of an agent with a thousand partitions."""
    return [*_counted(bench), *_scraped(bench)]


@contextlib.contextmanager
def _agent(bench: Bench, *options: str) -> Iterator[cluster.AgentProcess]:
    directory = bench.directory / secrets.token_hex(4)
    agents = cluster.LocalCluster(directory)
    try:
        agents.start([*PROGRAM, *options], f"bench-{secrets.token_hex(4)}", ("bench-0",))
        bench_topics.wait_ready(agents)
        yield agents.agents[0]
    finally:
        agents.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _counted(bench: Bench) -> list[Row]:
    with _agent(bench, "--counted") as counted, _agent(bench, "--uncounted") as uncounted:
        rates = []
        for agent in (counted, uncounted):
            bench_topics.create_topic(agent.url, "bench", 1, 1)
            target = f"{agent.url}/v1/topics/bench/records"
            request = load.request_bytes("POST", target, b"x" * RECORD_BYTES, Content_Type="text/plain")
            post(request, agent.url, connections=64, requests=WARM_UP_REQUESTS)
            rates.append(_rate(request, agent.url))
        ours, floor = bench.alternate(*rates)
    name = "single-record POST, 64 connections, counted"
    return [Row(name, f"{ours:,.0f}/s", f"uncounted {floor:,.0f}/s", ours / floor, COUNTED_BAR)]


def _rate(request: bytes, url: str) -> Callable[[], float]:
    return lambda: post(request, url, connections=64, requests=SINGLE_REQUESTS).per_second


def _scraped(bench: Bench) -> list[Row]:
    holds = bench.directory / "holds"
    found = []
    with _agent(bench, "--holds", str(holds)) as agent:
        bench_topics.create_topic(agent.url, "many", PARTITIONS, 1)
        _wait_led(agent.url)
        for what, path in TEXTS.items():
            found += _scrape_rows(bench, agent, holds, f"scrape of {PARTITIONS:,} partitions, {what}", path)
    return found


def _scrape_rows(
    bench: Bench, agent: cluster.AgentProcess, holds: pathlib.Path, name: str, path: str
) -> list[Row]:
    held_ms, still_ms, took_ms, size = [], [], [], 0
    bar = terminal.Bar("scrapes")
    count = bench.rounds * SCRAPES
    for number in range(count):
        _longest_hold_ms(agent, holds)
        time.sleep(PAUSE_SECONDS)
        still_ms.append(_longest_hold_ms(agent, holds))
        began = time.monotonic()
        size = len(_get(agent.url + path))
        took_ms.append((time.monotonic() - began) * 1_000)
        held_ms.append(_longest_hold_ms(agent, holds))
        bar.update((number + 1) / count, f"{held_ms[-1]:.1f} ms")
    held, took = statistics.median(held_ms), statistics.median(took_ms)
    return [
        Row(
            f"{name}: longest hold",
            f"{held:.1f} ms (worst {max(held_ms):.1f})",
            f"bar: {HOLD_BAR_MS:.0f} ms; without a scrape {statistics.median(still_ms):.1f} ms",
            held / HOLD_BAR_MS,
            1.0,
            True,
        ),
        Row(
            f"{name}: whole",
            f"{took:.0f} ms for {size / 1024:.0f} KiB",
            f"bar: {SCRAPE_BAR_MS:.0f} ms",
            took / SCRAPE_BAR_MS,
            1.0,
            True,
        ),
    ]


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=RUN_TIMEOUT_SECONDS) as answer:  # noqa: S310
        body: bytes = answer.read()
        return body


def _wait_led(url: str) -> None:
    """All partitions, and the catalog."""
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    wanted = f'\nshoal_replicas{{role="leader"}} {PARTITIONS + 1}\n'.encode()
    while wanted not in _get(f"{url}/metrics"):
        if time.monotonic() > deadline:
            raise cluster.ClusterProblem(f"{PARTITIONS} partitions are not led in time")
        time.sleep(cluster.POLL_SECONDS)


def _longest_hold_ms(agent: cluster.AgentProcess, holds: pathlib.Path) -> float:
    """Since it was last asked for."""
    holds.unlink(missing_ok=True)
    os.kill(agent.pid, signal.SIGUSR1)
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while not holds.exists():
        if time.monotonic() > deadline:
            raise cluster.ClusterProblem("the agent does not say how long its loop was held")
        time.sleep(0.001)
    return int(holds.read_text()) / 1e6
