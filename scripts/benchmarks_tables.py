"""Tables: rows by key beside requests that do less, and what a table that is overwritten takes of the disk.

Law of this file: over HTTP and from outside, each row with its floor in the same run. Where the level of the
agents has no topics of kind table, nothing is measured, and that is said.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import pathlib
import random
import time
import urllib.error
from collections.abc import Callable
from typing import Protocol

import bench_topics
import bench_views
import benchmarks_timers
import cluster
import floors
import load
import terminal
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES, post
from row import Row

KEYS = 1_000_000
CONNECTIONS = 64
REQUESTS = 20_000
TIMES_WRITTEN = 10
REST_SECONDS = 60.0
DISK_BAR = 2.5


class Bench(Protocol):
    """What this file needs of a run."""

    rounds: int

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """All of them; none where there are no tables yet."""
    with bench.agents(1) as agents:
        try:
            bench_topics.create_topic(agents.agents[0].url, "bench", 1, 1, {"kind": "table"})
        except urllib.error.HTTPError as error:
            if error.code not in (http.client.BAD_REQUEST, http.client.CONFLICT):
                raise
            terminal.line("tables are not measured: the level of these agents has no topics of kind table")
            return []
    beside = benchmarks_timers.posts_beside_view(bench, "table", _bodies(range(64)))
    return [*gets_and_puts(bench), beside, disk(bench)]


def _key(number: int) -> bytes:
    return b"key-%07d" % number


def _bodies(batches: range) -> list[bytes]:
    """Batches of random keys among all; the same number gives the same keys."""
    found = []
    for batch in batches:
        chance = random.Random(batch)  # noqa: S311
        keys = [_key(chance.randrange(KEYS)) for _ in range(BATCH_RECORDS)]
        found.append(bench_topics.arrow_body(keys=keys))
    return found


def _write_all(url: str, topic: str) -> int:
    """Every key once, in no order; the bytes that were sent."""
    order = list(range(KEYS))
    random.Random(len(order)).shuffle(order)  # noqa: S311
    target = f"{url}/v1/topics/{topic}/partitions/0/records"
    sent_bytes = 0
    for first in range(0, KEYS, 64 * BATCH_RECORDS):
        begins = range(first, min(first + 64 * BATCH_RECORDS, KEYS), BATCH_RECORDS)
        bodies = [
            bench_topics.arrow_body(keys=[_key(number) for number in order[begin : begin + BATCH_RECORDS]])
            for begin in begins
        ]
        sent_bytes += sum(map(len, bodies))
        sent = [load.request_bytes("POST", target, body, Content_Type=ARROW) for body in bodies]
        post(sent, url, connections=4, requests=len(sent))
    return sent_bytes


def gets_and_puts(bench: Bench) -> list[Row]:
    """Random rows of a million, linearizable, beside an empty handler; puts beside single-record POSTs."""
    chance = random.Random(5)  # noqa: S311
    keys = [_key(chance.randrange(KEYS)).decode() for _ in range(REQUESTS)]
    body = b"x" * RECORD_BYTES
    with bench.agents(1) as agents, floors.empty_handler() as empty:
        url, data = agents.agents[0].url, agents.directory / "data"
        bench_topics.create_topic(url, "bench", 1, 1, {"kind": "table"})
        bench_topics.create_topic(url, "posts", 1, 1)
        _write_all(url, "bench")
        bench_views.wait_quiet(data)
        path = f"{url}/v1/tables/bench"
        gets = [load.request_bytes("GET", f"{path}/{key}") for key in keys]
        puts = [load.request_bytes("PUT", f"{path}/{key}", body) for key in keys]
        nothing = load.request_bytes("POST", empty, body, Content_Type="text/plain")
        single = load.request_bytes("POST", f"{url}/v1/topics/posts/records", body, Content_Type="text/plain")

        def rate(sent: bytes | list[bytes], where: str) -> float:
            return post(sent, where, connections=CONNECTIONS, requests=REQUESTS).per_second

        got, empties = bench.alternate(lambda: rate(gets, url), lambda: rate(nothing, empty))
        put, posted = bench.alternate(lambda: rate(puts, url), lambda: rate(single, url))
    name = f"table get, {KEYS:,} keys, {CONNECTIONS} connections"
    return [
        Row(name, f"{got:,.0f}/s", f"empty handler {empties:,.0f}/s", got / empties, 0.60),
        Row(
            f"table put, {CONNECTIONS} connections", f"{put:,.0f}/s",
            f"single-record POSTs {posted:,.0f}/s", put / posted, 0.90,
        ),
    ]  # fmt: skip


def disk(bench: Bench) -> Row:
    """All keys written ten times: everything that the agent has on the disk a minute later, beside the rows
    as they were sent once."""
    bar = terminal.Bar("disk")
    live_bytes = 0
    with bench.agents(1) as agents:
        url, data = agents.agents[0].url, agents.directory / "data"
        empty_bytes = _disk_bytes(data)
        bench_topics.create_topic(url, "bench", 1, 1, {"kind": "table"})
        for number in range(TIMES_WRITTEN):
            live_bytes = _write_all(url, "bench")
            bar.update((number + 1) / TIMES_WRITTEN)
        time.sleep(REST_SECONDS)
        taken_bytes = _disk_bytes(data) - empty_bytes
        runs = bench_views.run_files(data)
    name = f"{KEYS:,} keys written {TIMES_WRITTEN} times: disk after a minute"
    said = f"{taken_bytes / 1e6:.0f} MB, {len(runs)} runs of {sum(runs.values()) / 1e6:.0f} MB"
    return Row(
        name,
        said,
        f"live data {live_bytes / 1e6:.0f} MB",
        taken_bytes / live_bytes,
        DISK_BAR,
        lower_is_better=True,
    )


def _disk_bytes(directory: pathlib.Path) -> int:
    found = 0
    for path in itertools.chain((directory,), directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a merge has removed it
            found += path.lstat().st_blocks * 512
    return found
