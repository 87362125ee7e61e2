"""What replication costs and how quickly it fails over: three agents on one machine.

Law of this file: agents as users start them, clients as users have them: a routing one, and one plain request
sent to a survivor. Every fault is undone and everybody has caught up before the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import bench_topics
import cluster
import environment
import floors
import load
import terminal
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES
from row import Row

PRODUCE_BATCHES = 1250
LATENCY_REQUESTS = 1500
WARM_UP_REQUESTS = 3000  # until what the interpreters specialize is specialized
BEST_PEER_RECORDS_PER_SECOND = (
    163_000  # without a sync; the best that was measured of others on such a machine
)
PAUSE_SECONDS = 3.0
"""Of a stopped or unplugged agent: longer than any fail-over that is good."""
FAILOVER_TIMEOUT_SECONDS = 30.0
STANDSTILL_LOOK_SECONDS = 0.02
STANDSTILL_SECONDS_MIN = 0.1  # less is a busy core, not a machine that does nothing
FAULT_SECONDS_MAX = 8.0
"""No more faults of a kind are begun after so long for each: all kinds take less than 23 minutes on any
machine."""
MEDIAN_BAR_SECONDS = 1.0
PARTITIONS = 1000
IDLE_SECONDS = 15.0
MADE_BAR_SECONDS, EMPTY_REPLICA_BAR_KIB = 3.0, 16.0
IDLE_BAR_PERCENT, MEMORY_BAR_MB, LED_AGAIN_BAR_SECONDS = 5.0, 200.0, 5.0
SETTLE_SECONDS = 45.0  # leadership is handed out evenly for a while; idle is what comes after
QUIET_PERCENT = 8.0
LED_POLL_SECONDS = 0.25  # a thousand routes are work for who is asked
AGENTS = 3


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """All of them."""
    return [*produce(bench), *latency(bench), *failover(bench), *thousand(bench)]


def produce(bench: Bench) -> list[Row]:
    """Batches of 1,000 records of 100 bytes, acks=all, beside the same on one agent."""
    body = bench_topics.arrow_body()
    with bench.agents(AGENTS) as agents, bench.agents(1) as alone:
        url, single = agents.agents[0].url, alone.agents[0].url
        bench_topics.create_topic(url, "bench", 1, AGENTS)
        bench_topics.create_topic(single, "bench", 1, 1)
        leader = bench_topics.wait_leader(url, "bench")
        path = "/v1/topics/bench/partitions/0/records"
        request = load.request_bytes("POST", leader + path, body, Content_Type=ARROW)
        lone = load.request_bytes("POST", single + path, body, Content_Type=ARROW)
        ours, floor = bench.alternate(
            lambda: bench_topics.post(request, leader, connections=8, requests=PRODUCE_BATCHES).per_second,
            lambda: bench_topics.post(lone, single, connections=8, requests=PRODUCE_BATCHES).per_second,
        )
    measured = f"{ours * BATCH_RECORDS / 1e6:.2f} M records/s"
    name = "Arrow produce, 3 agents, 3 replicas, acks=all"
    peers = ours * BATCH_RECORDS / BEST_PEER_RECORDS_PER_SECOND
    return [
        Row(name, measured, f"1 agent {floor * BATCH_RECORDS / 1e6:.2f} M records/s", ours / floor, 0.28),
        Row(name, measured, f"best peer, unsynced {BEST_PEER_RECORDS_PER_SECOND:,}/s", peers, 1.0),
    ]


def latency(bench: Bench) -> list[Row]:
    """One small record in flight, three replicas, beside what cannot be avoided."""
    body = b"x" * RECORD_BYTES
    with bench.agents(AGENTS) as agents, floors.empty_handler() as empty:
        bench_topics.create_topic(agents.agents[0].url, "bench", 1, AGENTS)
        url = bench_topics.wait_leader(agents.agents[0].url, "bench")
        target = f"{url}/v1/topics/bench/records"
        request = load.request_bytes("POST", target, body, Content_Type="text/plain")
        nothing = load.request_bytes("POST", empty, body, Content_Type="text/plain")
        for asked, of in ((request, url), (nothing, empty)):
            bench_topics.post(asked, of, connections=1, requests=WARM_UP_REQUESTS)

        ours, floor = bench.alternate(
            lambda: bench_topics.p50_us(request, url, LATENCY_REQUESTS),
            lambda: (
                bench_topics.p50_us(nothing, empty, LATENCY_REQUESTS)
                + floors.round_trip_us(LATENCY_REQUESTS)
                + 2 * floors.sync_latency_us(bench.directory, b"x" * 1024, LATENCY_REQUESTS)
            ),
        )
    name = "one record in flight, 3 replicas, acks=all, p50"
    beside = f"empty handler + round trip + 2 fdatasync {floor:.0f} us"
    return [Row(name, f"{ours:.0f} us", beside, ours / floor, 2.0, True)]


# ---- fail-over -----------------------------------------------------------------------------------


class RoutingClient:
    """Shoal's own client in a thread of its own, one record at a time."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._parts = contextlib.AsyncExitStack()
        self._producer: Any = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    async def _open(self) -> None:
        from shoal.client.async_client import AsyncClient

        client = await self._parts.enter_async_context(AsyncClient(self._urls))
        self._producer = await self._parts.enter_async_context(client.producer("bench", partition=0))

    def append(self) -> None:
        """Returns when the record is acknowledged."""
        self._run(self._append())

    async def _append(self) -> None:
        await self._producer.send(b"routed")
        await self._producer.flush()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(FAILOVER_TIMEOUT_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._run(self._parts.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Standstill:
    """For how long nothing ran on this machine: how much later than asked for a thread woke that only sleeps.
    A machine that is shared is sometimes put aside for a second, and no fail-over is quicker than that."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._over.wait(STANDSTILL_LOOK_SECONDS):
            late = time.monotonic() - began - STANDSTILL_LOOK_SECONDS
            self._seconds += late if late > STANDSTILL_SECONDS_MIN else 0.0
            began = time.monotonic()

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Faults(Protocol):
    """A kind of fault, and its end. `worst_bar_seconds`: for each time in which the machine did not stand
    still."""

    name: str
    times: int
    worst_bar_seconds: float

    def strike(self, agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None: ...
    def undo(self, agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None: ...


class Kill:
    """The process is gone."""

    name = "kill -9"
    times = 100
    worst_bar_seconds = 0.9

    def strike(self, _agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        agent.signal(signal.SIGKILL)

    def undo(self, agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        agents.restart(agent)


class Stop:
    """The process neither answers nor goes; its sockets stay open."""

    name = "SIGSTOP"
    times = 34
    worst_bar_seconds = 2.0

    def strike(self, _agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        agent.signal(signal.SIGSTOP)

    def undo(self, _agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        time.sleep(PAUSE_SECONDS)
        agent.signal(signal.SIGCONT)


class Unplug:
    """Its packets, in both directions, arrive nowhere."""

    name = "dropped packets"
    times = 34
    worst_bar_seconds = 2.0

    def strike(self, agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        assert isinstance(agents, HostedCluster)
        agents.link(agent, "down")

    def undo(self, agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
        assert isinstance(agents, HostedCluster)
        time.sleep(PAUSE_SECONDS)
        agents.link(agent, "up")


class HostedCluster(cluster.LocalCluster):
    """Each agent in a network namespace of its own, on one bridge. Needs root and `ip`."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        self._id = secrets.token_hex(3)
        rng = random.SystemRandom()
        self._prefix = f"10.{rng.randrange(64, 250)}.{rng.randrange(250)}"
        self._hosts: dict[str, int] = {}

    def connect(self, names: tuple[str, ...]) -> None:
        """Raises CalledProcessError where that cannot be done."""
        bridge = f"sb{self._id}"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._prefix}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host, name in enumerate(names, 1):
            self._hosts[name] = host
            space, outside, inside = self._space(name), f"v{self._id}{host}", f"w{self._id}{host}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", space, "name", "eth0")
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self._prefix}.{host}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")

    def disconnect(self) -> None:
        """Everything is taken away again."""
        for name in self._hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(name))
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"sb{self._id}")

    def _space(self, name: str) -> str:
        return f"shoal-{self._id}-{self._hosts[name]}"

    def link(self, agent: cluster.AgentProcess, state: str) -> None:
        """The host's end of its cable: the agent itself notices nothing."""
        _ip("link", "set", f"v{self._id}{self._hosts[agent.name]}", state)

    def _arguments(self, name: str) -> list[str]:
        address = f"{self._prefix}.{self._hosts[name]}"
        return [
            *("ip", "netns", "exec", self._space(name)),
            *super()._arguments(name),
            *(
                "--insecure",
                "--bind",
                address,
                "--expect",
                str(len(self._hosts)),
                "--join",
                f"{self._prefix}.1:7946",
            ),
        ]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def hosted_agents(bench: Bench, count: int) -> Iterator[cluster.LocalCluster]:
    """As Bench.agents, each on a host of its own. Raises CalledProcessError, OSError where none can be
    made."""
    agents = HostedCluster(bench.directory / secrets.token_hex(4))
    names = tuple(f"host-{number}" for number in range(count))
    try:
        agents.connect(names)
        agents.start(environment.command("shoal"), f"bench-{secrets.token_hex(4)}", names)
        bench_topics.wait_ready(agents)
        yield agents
    finally:
        agents.stop()
        agents.disconnect()
        shutil.rmtree(agents.directory, ignore_errors=True)


def failover(bench: Bench) -> list[Row]:
    """Leaders lost by each kind of fault, as both kinds of client see it: a hundred killed, and others."""
    found: list[Row] = []
    with bench.agents(AGENTS) as agents:
        for fault in (Kill(), Stop()):
            found += _failovers(agents, fault)
    try:
        with hosted_agents(bench, AGENTS) as hosted:
            found += _failovers(hosted, Unplug())
    except (subprocess.CalledProcessError, PermissionError, FileNotFoundError) as error:
        terminal.problem(f"dropped packets are not measured: no network namespaces here ({error})")
    return found


def _failovers(agents: cluster.LocalCluster, fault: Faults) -> list[Row]:
    seconds: dict[str, list[float]] = {"routing client": [], "plain request": []}
    stood_still: list[float] = []
    bar = terminal.Bar(f"fail-over, {fault.name}")
    urls = [agent.url for agent in agents.agents]
    bench_topics.create_topic(urls[0], "bench", 1, AGENTS)
    deadline = time.monotonic() + fault.times * FAULT_SECONDS_MAX
    with RoutingClient(urls) as client, Standstill() as standstill:
        for number in range(fault.times):
            if time.monotonic() > deadline:
                terminal.problem(f"{fault.name}: out of time after {number} of {fault.times}")
                break
            routed, plain, still = _one_failover(agents, fault, client, standstill)
            stood_still.append(still)
            seconds["routing client"].append(routed)
            seconds["plain request"].append(plain)
            bar.update((number + 1) / fault.times, f"{routed:.2f} s, {plain:.2f} s")
    return [_failover_row(fault, who, times, stood_still) for who, times in seconds.items()]


def _failover_row(fault: Faults, who: str, times: list[float], stood_still: list[float]) -> Row:
    """`stood_still`: of each of the times, for how many seconds the machine did. Those are shown, and not
    held against us."""
    median, worst = statistics.median(times), max(times)
    ours = max((time for time, still in zip(times, stood_still, strict=True) if not still), default=0.0)
    ratio = max(median / MEDIAN_BAR_SECONDS, ours / fault.worst_bar_seconds)
    name = f"fail-over, {fault.name}, {len(times)} times, {who}"
    measured = f"median {median:.2f} s, worst {ours:.2f} s"
    if count := sum(map(bool, stood_still)):
        measured += f" (machine stood still in {count} more, {sum(stood_still):.1f} s: worst {worst:.2f} s)"
    bars = f"bars: median {MEDIAN_BAR_SECONDS:g} s, worst {fault.worst_bar_seconds:g} s"
    return Row(name, measured, bars, ratio, 1.0, True)


def _one_failover(
    agents: cluster.LocalCluster, fault: Faults, client: RoutingClient, standstill: Standstill
) -> tuple[float, float, float]:
    """Seconds from the fault to the next acknowledged append: of the routing client, and of plain requests to
    a survivor; and for how many of them the machine stood still."""
    by_url = {agent.url: agent for agent in agents.agents}
    leader = by_url.pop(bench_topics.wait_leader(next(iter(by_url)), "bench"))
    survivor = next(iter(by_url))
    client.append()
    bench_topics.append_until_acknowledged(survivor)
    times: dict[str, float] = {}

    def timed(who: str, work: Callable[[], None]) -> None:
        work()
        times[who] = time.monotonic() - started

    threads = [
        threading.Thread(target=timed, args=("routed", client.append), daemon=True),
        threading.Thread(
            target=timed,
            args=("plain", lambda: bench_topics.append_until_acknowledged(survivor)),
            daemon=True,
        ),
    ]
    fault.strike(agents, leader)
    standstill.take()
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * FAILOVER_TIMEOUT_SECONDS)
    still = standstill.take()
    fault.undo(agents, leader)
    if len(times) < len(threads):
        raise cluster.ClusterProblem(f"no append was acknowledged after {fault.name}: only {sorted(times)}")
    bench_topics.wait_ready(agents)
    bench_topics.wait_caught_up(agents)
    return times["routed"], times["plain"], still


# ---- a thousand partitions -----------------------------------------------------------------------


def thousand(bench: Bench) -> list[Row]:
    """Idle they cost next to nothing, and one lost agent leaves none of them without a leader for long."""
    with bench.agents(AGENTS) as agents:
        urls = [agent.url for agent in agents.agents]
        disk_before = _disk_kib(bench.directory)
        created = time.monotonic()
        bench_topics.create_topic(urls[0], "many", PARTITIONS, AGENTS)
        _wait_led(urls[0], set(urls))
        creation = time.monotonic() - created
        deadline = time.monotonic() + SETTLE_SECONDS
        while max(_busy_percent(agents, 2.0)) > QUIET_PERCENT and time.monotonic() < deadline:
            continue
        percent = max(_busy_percent(agents, IDLE_SECONDS))
        memory = max(bench_topics.resident_mb(agent.pid) for agent in agents.agents)
        disk = (_disk_kib(bench.directory) - disk_before) / (PARTITIONS * AGENTS)
        lost, survivor = agents.agents[0], agents.agents[1].url
        lost.signal(signal.SIGKILL)
        started = time.monotonic()
        _wait_led(survivor, set(urls[1:]))
        seconds = time.monotonic() - started
    name = f"{PARTITIONS:,} partitions on 3 agents"
    bar = f"bar: {IDLE_BAR_PERCENT:.0f} % of a core"
    return [
        Row(
            f"{name}, made",
            f"all led after {creation:.1f} s",
            f"bar: {MADE_BAR_SECONDS:.0f} s",
            creation / MADE_BAR_SECONDS,
            1.0,
            True,
        ),
        Row(
            f"{name}, disk",
            f"{disk:.1f} KiB an empty replica",
            f"bar: {EMPTY_REPLICA_BAR_KIB:.0f} KiB",
            disk / EMPTY_REPLICA_BAR_KIB,
            1.0,
            True,
        ),
        Row(f"{name}, idle", f"{percent:.1f} % of a core each", bar, percent / IDLE_BAR_PERCENT, 1.0, True),
        Row(
            f"{name}, memory",
            f"{memory:.0f} MB each",
            f"bar: {MEMORY_BAR_MB:.0f} MB",
            memory / MEMORY_BAR_MB,
            1.0,
            True,
        ),
        Row(
            f"{name}, one killed",
            f"all led again after {seconds:.1f} s",
            f"bar: {LED_AGAIN_BAR_SECONDS:.0f} s",
            seconds / LED_AGAIN_BAR_SECONDS,
            1.0,
            True,
        ),
    ]


def _wait_led(url: str, leaders: set[str]) -> None:
    deadline = time.monotonic() + bench_topics.RUN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        entries = cluster.get(url, "/v1/routes?topic=many")["topics"]["many"]["partitions"]
        if all(entry["leader_url"] in leaders for entry in entries):
            return
        time.sleep(LED_POLL_SECONDS)
    raise cluster.ClusterProblem("there are partitions without a leader")


def _busy_percent(agents: cluster.LocalCluster, seconds: float) -> list[float]:
    """Of one core, by each agent."""
    before = [_ticks(agent.pid) for agent in agents.agents]
    started = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    scale = 100.0 / os.sysconf("SC_CLK_TCK") / elapsed
    return [(_ticks(agent.pid) - ticks) * scale for agent, ticks in zip(agents.agents, before, strict=True)]


def _disk_kib(directory: pathlib.Path) -> float:
    """What everything below it takes on the disk."""
    paths = [directory, *directory.rglob("*")]
    return sum(path.lstat().st_blocks for path in paths) / 2


def _ticks(pid: int) -> int:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
