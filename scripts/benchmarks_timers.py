"""Timer topics: what their views cost appends and memory, and how soon a message comes once it is due.

Law of this file: over HTTP and from outside, each row with its floor in the same run. Due times stand in the
values too, so that a consumer reads them in any form. All clocks are those of one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pathlib
import random
import re
import signal
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Protocol

import bench_topics
import bench_views
import cluster
import group_load
import load
import terminal
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES, post
from row import Row

JSON = "application/json"
DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000
BODIES = 64
"""Different ones, which are sent again and again: due times are spread over more than a batch."""
APPEND_BATCHES = 2500
PENDING = 10_000_000
MEMORY_BAR_MIB = 256.0
START_BAR_SECONDS = 5.0
DUE_A_SECOND = 5_000
ARRIVING_A_SECOND = 10_000
DUE_SECONDS = 20
LATE_BAR_MS = 100.0
IN_TIME_BAR = 0.99
STEP_SECONDS = 0.01
CONSUMERS = 4
FILLED_BATCHES = 2_700
"""Eight runs and some more: the eighth begins a merge."""
POSTS = 2_000
DUE = re.compile(rb"due=([0-9]{16});")


class Bench(Protocol):
    """What this file needs of a run."""

    rounds: int

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """All of them."""
    return [*appends(bench), *pending(bench), *due(bench), *posts(bench)]


def timer_body(due_us: list[int]) -> bytes:
    """An Arrow stream of one batch, a record for each due time."""
    return bench_topics.arrow_body(len(due_us), due_us=due_us)


def _pending_bodies() -> list[bytes]:
    """Of records that fall due tomorrow, in no order."""
    begin = time.time_ns() // 1_000 + DAY_US
    chance = random.Random(17)  # noqa: S311
    return [
        timer_body([begin + chance.randrange(HOUR_US) for _ in range(BATCH_RECORDS)]) for _ in range(BODIES)
    ]


def _requests(url: str, topic: str, bodies: Iterable[bytes]) -> list[bytes]:
    target = f"{url}/v1/topics/{topic}/partitions/0/records"
    return [load.request_bytes("POST", target, body, Content_Type=ARROW) for body in bodies]


def _create(url: str, topic: str, kind: str) -> None:
    bench_topics.create_topic(url, topic, 1, 1, {"kind": kind})


def appends(bench: Bench) -> list[Row]:
    """Arrow batches into a timer topic whose view is made meanwhile, beside the same into a log."""
    plain, timed = [bench_topics.arrow_body()], _pending_bodies()
    with bench.agents(1) as agents:
        url, data = agents.agents[0].url, agents.directory / "data"
        for topic, kind in (("log", "log"), ("timer", "timer")):
            _create(url, topic, kind)

        def rate(topic: str, bodies: list[bytes]) -> float:
            bench_views.wait_quiet(data)  # of the round before
            sent = _requests(url, topic, bodies)
            return post(sent, url, connections=8, requests=APPEND_BATCHES).per_second

        ours, floor = bench.alternate(lambda: rate("timer", timed), lambda: rate("log", plain))
        bench_views.wait_quiet(data)
        runs = len(bench_views.run_files(data))
    name = "Arrow produce to a timer topic, views made meanwhile"
    said = f"{ours * BATCH_RECORDS / 1e6:.2f} M records/s, {runs} runs at the end"
    return [Row(name, said, f"to a log {floor * BATCH_RECORDS / 1e6:.2f} M records/s", ours / floor, 0.60)]


# ---- ten million pending -------------------------------------------------------------------------


class Held:
    """What an agent with many records took. `memory_mib`: the most of before its end and after its start;
    `start_seconds`: until a group was given its first message."""

    def __init__(self, memory_mib: float, start_seconds: float) -> None:
        self.memory_mib = memory_mib
        self.start_seconds = start_seconds


def pending(bench: Bench) -> list[Row]:
    """Ten million pending records, beside the same records in a log: memory, and a start after kill -9."""
    plain = _held(bench, "log", [bench_topics.arrow_body()])
    timed = _held(bench, "timer", _pending_bodies())
    name = f"{PENDING // 1_000_000} million pending"
    more_mib, more_seconds = timed.memory_mib - plain.memory_mib, timed.start_seconds - plain.start_seconds
    return [
        Row(
            f"{name}: memory", f"{timed.memory_mib:.0f} MiB",
            f"the same in a log {plain.memory_mib:.0f} MiB, and {MEMORY_BAR_MIB:.0f} MiB",
            more_mib / MEMORY_BAR_MIB, 1.0, True,
        ),
        Row(
            f"{name}: first message after kill -9", f"{timed.start_seconds:.1f} s",
            f"the same in a log {plain.start_seconds:.1f} s, and {START_BAR_SECONDS:.0f} s",
            more_seconds / START_BAR_SECONDS, 1.0, True,
        ),
    ]  # fmt: skip


def _held(bench: Bench, kind: str, bodies: list[bytes]) -> Held:
    with bench.agents(1) as agents:
        (agent,) = agents.agents
        _create(agent.url, "bench", kind)
        _make_group(agent.url, "bench", "first")
        first = timer_body([time.time_ns() // 1_000]) if kind == "timer" else bodies[0]
        sent = _requests(agent.url, "bench", [first])
        post(sent, agent.url, connections=1, requests=1)
        sent = _requests(agent.url, "bench", bodies)
        post(sent, agent.url, connections=8, requests=PENDING // BATCH_RECORDS)
        bench_views.wait_quiet(agents.directory / "data")
        before = bench_topics.resident_mb(agent.pid)
        agent.signal(signal.SIGKILL)
        while agent.is_alive():
            time.sleep(cluster.POLL_SECONDS)
        began = time.monotonic()
        agents.restart(agent)
        (agent,) = agents.agents
        _wait_first(agent.url)
        seconds = time.monotonic() - began
        bench_views.wait_quiet(agents.directory / "data")
        held = Held(max(before, bench_topics.resident_mb(agent.pid)), seconds)
    terminal.line(f"{kind}: {held.memory_mib:.0f} MiB, first message after {seconds:.1f} s")
    return held


def _make_group(url: str, topic: str, name: str) -> None:
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/topics/{topic}/groups/{name}", b"{}", {"Content-Type": JSON}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        assert answer.status in {200, 201}


def _wait_first(url: str) -> None:
    """Until the group has its first message: the log is led, and the view is there."""
    group = group_load.Group(url, "bench", "first", 1, JSON)
    deadline = time.monotonic() + bench_topics.RUN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, EOFError, load.LoadProblem):
            if asyncio.run(_received(group)):
                return
        time.sleep(STEP_SECONDS)
    raise cluster.ClusterProblem("the group got no message after the start")


async def _received(group: group_load.Group) -> int:
    connection = await group_load.Connection.open(group.url)
    try:
        return group_load.messages_in(*await connection.ask(group.receive("bench", b"", 1)))[0]
    finally:
        connection.close()


# ---- due -----------------------------------------------------------------------------------------


class Deliveries:
    """How long after its due time each message was in a consumer's hands, in milliseconds."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.is_over = False

    async def consume(self, group: group_load.Group, number: int) -> None:
        """Receive and ack until it is over."""
        connection = await group_load.Connection.open(group.url)
        receipt = b""
        while not self.is_over:
            asked = group.receive(f"consumer-{number}", receipt, group.limit, wait="1s")
            head, body = await connection.ask(asked)
            now_us = time.time_ns() // 1_000
            self.late_ms += [(now_us - int(due)) / 1e3 for due in DUE.findall(body)]
            receipt = group_load.messages_in(head, body)[1]
        connection.close()


def due(bench: Bench) -> list[Row]:
    """Messages fall due while twice as many arrive. Half of those that fall due lie in runs, and the others
    have come lately."""
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        _create(url, "bench", "timer")
        _make_group(url, "bench", "due")
        bodies = itertools.islice(itertools.cycle(_pending_bodies()), 1_000)
        post(_requests(url, "bench", bodies), url, connections=4, requests=1_000)
        seen = asyncio.run(_due(url, agents.directory / "data"))
    late = sorted(seen.late_ms)
    in_time = sum(item <= LATE_BAR_MS for item in late) / len(late)
    early = sum(item < 0 for item in late)
    name = f"{DUE_A_SECOND:,} due a second, {ARRIVING_A_SECOND:,} arrive"
    p50_ms, p99_ms = statistics.median(late), late[len(late) * 99 // 100]
    said = (
        f"{in_time:.2%} of {len(late):,} within {LATE_BAR_MS:.0f} ms, p50 {p50_ms:.0f}, p99 {p99_ms:.0f} ms"
    )
    return [
        Row(f"{name}: in time", said, f"bar: {IN_TIME_BAR:.0%}", in_time, IN_TIME_BAR),
        Row(f"{name}: early", f"{early} of {len(late):,}", "bar: none", early, 0.0, True),
    ]


async def _due(url: str, data: pathlib.Path) -> Deliveries:
    group = group_load.Group(url, "bench", "due", 1_000, ARROW)
    connection = await group_load.Connection.open(url)
    stored = DUE_A_SECOND // 2
    begin_us = time.time_ns() // 1_000 + 20_000_000
    for second in range(DUE_SECONDS):  # they are in a run by the time at which they fall due
        dues = [begin_us + 1_000_000 * second + 1_000_000 * at // stored for at in range(stored)]
        random.Random(second).shuffle(dues)  # noqa: S311
        await connection.ask(_requests(url, "bench", [timer_body(dues)])[0])
    fill = itertools.cycle(_requests(url, "bench", _pending_bodies()))
    for _ in range(300):  # the run is made once there is enough for one
        await connection.ask(next(fill))
    await asyncio.to_thread(bench_views.wait_quiet, data)
    await asyncio.sleep(max(begin_us / 1e6 - time.time(), 0))
    seen = Deliveries()
    consumers = [asyncio.create_task(seen.consume(group, number)) for number in range(CONSUMERS)]
    await _arrive(url, connection, begin_us)
    await asyncio.sleep(3)  # the last ones have fallen due, and are waited for
    seen.is_over = True
    await asyncio.gather(*consumers)
    connection.close()
    return seen


async def _arrive(url: str, connection: group_load.Connection, begin_us: int) -> None:
    """So many records a second, a quarter of them due within seconds."""
    chance = random.Random(23)  # noqa: S311
    each = round(ARRIVING_A_SECOND * STEP_SECONDS)
    bar = terminal.Bar("due")
    steps = round(DUE_SECONDS / STEP_SECONDS)
    for step in range(steps):
        at_us = begin_us + round(1_000_000 * STEP_SECONDS * step)
        await asyncio.sleep(max(at_us / 1e6 - time.time(), 0))
        now_us = time.time_ns() // 1_000
        soon = [now_us + chance.randrange(500_000, 2_000_000) for _ in range(each // 4)]
        late = [now_us + DAY_US + chance.randrange(HOUR_US) for _ in range(each - len(soon))]
        await connection.ask(_requests(url, "bench", [timer_body(soon + late)])[0])
        if step % 100 == 0:
            bar.update(step / steps)


# ---- single records beside it ---------------------------------------------------------------------


def posts(bench: Bench) -> list[Row]:
    """Single-record POSTs, one in flight, while a timer topic's view is made and merged, beside before."""
    return [posts_beside_view(bench, "timer", _pending_bodies())]


def posts_beside_view(bench: Bench, kind: str, bodies: list[bytes]) -> Row:
    """The 99th percentiles. Each round fills another topic, so that runs are made and merged once more."""
    numbers = itertools.count()
    merges = 0
    with bench.agents(1) as agents:
        url, data = agents.agents[0].url, agents.directory / "data"
        bench_topics.create_topic(url, "posts", 1, 1)
        single = load.request_bytes(
            "POST", f"{url}/v1/topics/posts/records", b"x" * RECORD_BYTES, Content_Type="text/plain"
        )

        def before() -> float:
            bench_views.wait_quiet(data)
            return _p99_us(post(single, url, connections=1, requests=POSTS).latencies_us)

        def meanwhile() -> float:
            nonlocal merges
            topic = f"{kind}-{next(numbers)}"
            _create(url, topic, kind)
            watcher = bench_views.Watcher(data)
            post(_requests(url, topic, bodies), url, connections=4, requests=FILLED_BATCHES)
            latencies: list[float] = []
            until_now = 0
            while not watcher.rests():
                if watcher.changed_now:
                    until_now = len(latencies)
                latencies += post(single, url, connections=1, requests=100).latencies_us
            merges += bench_views.merges(watcher.made)
            return _p99_us(latencies[:until_now])

        ours, floor = bench.alternate(meanwhile, before)
    if not merges:
        raise cluster.ClusterProblem("no runs were merged")
    name = f"single POST while a view is made and merged ({kind}), p99"
    return Row(name, f"{ours:.0f} us", f"before {floor:.0f} us", ours / floor, 2.0, True)


def _p99_us(latencies_us: list[float]) -> float:
    return sorted(latencies_us)[len(latencies_us) * 99 // 100]
