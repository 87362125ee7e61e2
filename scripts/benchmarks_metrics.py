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
from collections.abc import Iterator
from typing import Protocol

import bench_topics
import cluster
import environment
import load
import terminal
from bench_topics import RECORD_BYTES, RUN_TIMEOUT_SECONDS, post
from holds import PIECE_NS, TELLER, Holds
from row import Row

PROGRAM = (str(environment.python()), str(environment.ROOT / "scripts" / "measured_agent.py"))
PARTITIONS = 1_000
SCRAPES = 9  # in each round; the longest hold of each counts, beside as much work that is no scrape
SINGLE_REQUESTS = 20_000
WARM_UP_REQUESTS = 3_000
COUNTED_ROUNDS = 4  # for each of the others' rounds: 2 % is less than one round scatters
COUNTED_BAR = 0.98
HOLD_BAR_MS = 5.0
OF_A_SCRAPE = ("Scrapes.", "RequestHandler.", "_Selector", "BaseSelectorEventLoop.", "shield.")
"""Whose callbacks a request consists of. The agent's own go on meanwhile: it looks at all partitions each
second, and holds the loop for that with a scrape and without one."""
SCRAPE_BAR_MS = 100.0
LONE_PIECES = 25_000  # some nine seconds: a virtual machine books on a thread what none of its code took
TEXTS = {"all series": "/metrics?partitions=true", "the agent's alone": "/metrics"}


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path
    rounds: int


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
    """One process counts and does not by turns; its log goes to a file, so its lines are JSON."""
    says = bench.directory / "counts"
    rounds: list[dict[str, float]] = []
    bar = terminal.Bar("rounds")
    with _agent(bench, "--switched", str(says)) as agent:
        bench_topics.create_topic(agent.url, "bench", 1, 1)
        target = f"{agent.url}/v1/topics/bench/records"
        request = load.request_bytes("POST", target, b"x" * RECORD_BYTES, Content_Type="text/plain")
        mode = _signal(agent, says)
        for number in range(COUNTED_ROUNDS * bench.rounds):
            first = _rate(request, agent.url)
            other = _signal(agent, says)
            # the next round begins as this one ends, so that each mode comes first in every other round
            rounds.append({mode: first, other: _rate(request, agent.url)})
            mode = other
            ratio = rounds[-1]["counted"] / rounds[-1]["uncounted"]
            bar.update((number + 1) / (COUNTED_ROUNDS * bench.rounds), f"ratio {ratio:.2f}")
    ours, floor = (statistics.median(each[mode] for each in rounds) for mode in ("counted", "uncounted"))
    low, ratio, high = statistics.quantiles(each["counted"] / each["uncounted"] for each in rounds)
    name = "single-record POST, 64 connections, metrics and JSON log on"
    off = f"off {floor:,.0f}/s; half of the rounds {low:.2f} to {high:.2f}"
    return [Row(name, f"{ours:,.0f}/s", off, ratio, COUNTED_BAR)]


def _rate(request: bytes, url: str) -> float:
    """Requests a second, after a warm-up."""
    post(request, url, connections=64, requests=WARM_UP_REQUESTS)
    return post(request, url, connections=64, requests=SINGLE_REQUESTS).per_second


def _scraped(bench: Bench) -> list[Row]:
    holds = bench.directory / "holds"
    found = []
    with _agent(bench, "--holds", str(holds)) as agent:
        bench_topics.create_topic(agent.url, "many", PARTITIONS, 1)
        _wait_led(agent.url)
        for what, path in TEXTS.items():
            found += _scrape_rows(bench, agent, holds, f"scrape of {PARTITIONS:,} partitions, {what}", path)
    pieces_ms = sorted(_lone_piece_ms() for _ in range(LONE_PIECES))
    median_ms = statistics.median(pieces_ms)
    stalls = Row(
        f"the machine's stalls: longest of {LONE_PIECES:,} equal pieces in a lone process",
        f"{pieces_ms[-1]:.1f} ms of the processor",
        f"their median {median_ms:.2f} ms",
        pieces_ms[-1] / median_ms,
        None,
    )
    return [*found, stalls]


def _lone_piece_ms() -> float:
    """Milliseconds of the processor for a piece of a scrape's kind of work."""
    began_ns = time.thread_time_ns()
    numbers = {("many", str(number)): number for number in range(1_500)}
    "\n".join(f'x{{a="{a}",b="{b}"}} {value}' for (a, b), value in numbers.items())
    return (time.thread_time_ns() - began_ns) / 1e6


def _scrape_rows(
    bench: Bench, agent: cluster.AgentProcess, holds: pathlib.Path, name: str, path: str
) -> list[Row]:
    floors, scrapes, took_ms, size = [], [], [], 0
    bar = terminal.Bar("scrapes")
    count = bench.rounds * SCRAPES
    for number in range(count):
        floors.append(_told(agent, holds, signal.SIGUSR2))
        _told(agent, holds, signal.SIGUSR1)
        began = time.monotonic()
        size = len(_get(agent.url + path))
        took_ms.append((time.monotonic() - began) * 1_000)
        scrapes.append(_told(agent, holds, signal.SIGUSR1))
        bar.update((number + 1) / count, f"{scrapes[-1].longest.held_ns / 1e6:.1f} ms")
    held, took = (
        statistics.median(window.longest.held_ns for window in scrapes) / 1e6,
        statistics.median(took_ms),
    )
    own_ms, own = _longest_callback(scrapes, is_scrape=True)
    other_ms, other = _longest_callback([*scrapes, *floors], is_scrape=False)
    return [
        Row(
            f"{name}: longest hold",
            _rounds(scrapes),
            f"bar: {HOLD_BAR_MS:.0f} ms; other work in pieces of {PIECE_NS / 1e6:.0f} ms: {_rounds(floors)}",
            held / HOLD_BAR_MS,
            1.0,
            True,
        ),
        Row(
            f"{name}: its longest callback of {count} scrapes",
            f"{own_ms:.1f} ms of the processor ({own})",
            f"bar: {HOLD_BAR_MS:.0f} ms; meanwhile the agent's own {other_ms:.1f} ms ({other})",
            own_ms / HOLD_BAR_MS,
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


def _rounds(windows: list[Holds]) -> str:
    """The median of the windows' longest rounds, and the worst one with what it waited for."""
    held = [window.longest.held_ns for window in windows]
    worst = max(window.longest for window in windows)
    waited = max(0, worst.held_ns - worst.processor_ns - worst.queued_ns)
    return (
        f"{statistics.median(held) / 1e6:.1f} ms (worst {worst.held_ns / 1e6:.1f}: at work"
        f" {worst.processor_ns / 1e6:.1f}, without a processor {worst.queued_ns / 1e6:.1f},"
        f" for disk or threads {waited / 1e6:.1f}, collector {worst.collector_ns / 1e6:.1f})"
    )


def _longest_callback(windows: list[Holds], *, is_scrape: bool) -> tuple[float, str]:
    """Milliseconds of the processor, and whose."""
    found = [
        (hold.processor_ns / 1e6, name)
        for window in windows
        for name, hold in window.callbacks.items()
        if name.startswith(OF_A_SCRAPE) == is_scrape and not name.startswith(TELLER)
    ]
    return max(found)


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


def _told(agent: cluster.AgentProcess, holds: pathlib.Path, asked: signal.Signals) -> Holds:
    """Of the window that this ends: SIGUSR1 one that began when it was last told, SIGUSR2 one of other work,
    which it begins too."""
    return Holds.parse(_signal(agent, holds, asked))


def _signal(agent: cluster.AgentProcess, says: pathlib.Path, asked: signal.Signals = signal.SIGUSR1) -> str:
    """What the agent says in that file after the signal."""
    says.unlink(missing_ok=True)
    os.kill(agent.pid, asked)
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while not says.exists():
        if time.monotonic() > deadline:
            raise cluster.ClusterProblem(f"the agent does not answer a signal in {says.name}")
        time.sleep(0.001)
    return says.read_text()
