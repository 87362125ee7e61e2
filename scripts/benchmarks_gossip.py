"""What membership costs and how soon it sees a death, beside Serf's own agent in the same pool.

Law of this file: real sockets on loopback, real processes, memberlist's LAN profile on both sides; a pool of
1,000 is simulated. It runs in a network namespace of its own where one can be made, so that the interface's
counters are the pool's traffic and nothing else's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib
import json
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import environment
import serf_binary
import terminal
from row import Row

from shoal.membership.config import GossipConfig
from shoal.membership.interface import MemberEvent
from shoal.membership.net.gossip import Membership
from shoal.membership.serf_agent.rpc import RpcConnection, RpcError

COST_S = 20.0
SETTLE_S = 8.0  # joining is over, and the first exchanges of state are
KILLS_PER_POOL = 10
MIXED_POOLS = 2  # twenty kills in all
POLL_S = 0.02
START_TIMEOUT_S = 120.0
DEATH_TIMEOUT_S = 60.0
SIMULATED_MEMBERS = 1_000
SIMULATED_MS = 20_000
HEADER_BYTES = 28  # IPv4 and UDP: the interface counts them, the simulation does not
GOAL = 1.10
_PORTS = iter(range(20_000, 30_000))  # below those that the system gives out by itself
MEMBER = pathlib.Path(__file__).resolve().parent / "gossip_member.py"


@dataclasses.dataclass
class Cost:
    """Per member: share of a core, and bytes a second on the wire (sent; everything is received as well)."""

    cpu: float
    bytes_per_second: float

    def __str__(self) -> str:
        return f"{self.cpu * 1e3:.2f} ms CPU/s, {self.bytes_per_second:,.0f} B/s"


class Processes:
    """Everything that was started, ended by its own id."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[str]] = []

    def members(self, name: str, count: int, *, join: str = "", expect: int = 0) -> Any:
        """A process of our members; waits until it listens. Its answer's `ports`, and the process."""
        command = [
            sys.executable,
            str(MEMBER),
            "--name",
            name,
            "--count",
            str(count),
            "--expect",
            str(expect),
        ]
        process = subprocess.Popen(
            command + (["--join", join] if join else []), stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())["ports"]

    def serf(self, name: str, *, join: str = "") -> tuple[subprocess.Popen[str], int, int]:
        """A Serf agent: process, gossip port, RPC port."""
        port, rpc_port = free_port(), free_port()
        command = [str(serf_binary.ensure()), "agent", f"-node={name}", f"-bind=127.0.0.1:{port}"]
        command += [f"-rpc-addr=127.0.0.1:{rpc_port}", "-profile=lan", "-log-level=err"]
        command += [f"-retry-join={join}", "-retry-interval=1s"] if join else []
        log = (self._directory / f"{name}.log").open("w")
        process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        log.close()
        self._started.append(process)
        return process, port, rpc_port

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._started.clear()


def free_port() -> int:
    """The next port that is free for TCP and UDP; none is given out twice, for agents bind theirs late."""
    for port in _PORTS:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free any more")


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """All of them are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="shoal-gossip-") as directory:
        started = Processes(pathlib.Path(directory))
        try:
            yield started
        finally:
            started.end_all()


# ---- cost


def cpu_seconds(pid: int) -> float:
    """Time on a core, of all its threads. (/proc/PID/stat counts in ticks of ten milliseconds.)"""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def loopback_bytes() -> int:
    """What loopback has carried."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    raise OSError("there is no loopback interface")


def measure(pids: list[int], members: int) -> Cost:
    """A quiet pool for COST_S."""
    time.sleep(SETTLE_S)
    before, carried, began = sum(map(cpu_seconds, pids)), loopback_bytes(), time.monotonic()
    time.sleep(COST_S)
    seconds = time.monotonic() - began
    cpu, carried = sum(map(cpu_seconds, pids)) - before, loopback_bytes() - carried
    return Cost(cpu / seconds / members, carried / seconds / members)


def our_cost(members: int) -> Cost:
    """One process per member in a small pool, fifty to a process in a big one."""
    with processes() as started:
        if members <= 3:
            first, ports = started.members("first", 1, expect=members)
            join = f"127.0.0.1:{ports[0]}"
            pool = [first]
            pool += [
                started.members(f"m{number}", 1, join=join, expect=members)[0] for number in range(1, members)
            ]
        else:
            pool = [started.members("all", members, expect=members)[0]]
        for process in pool:
            assert process.stdout is not None
            json.loads(process.stdout.readline())
        return measure([process.pid for process in pool], members)


def serf_cost(members: int) -> Cost:
    """As many agents; their RPC is asked once, for whether all are there."""
    with processes() as started:
        first, port, rpc_port = started.serf("s0")
        pool = [first]
        pool += [started.serf(f"s{number}", join=f"127.0.0.1:{port}")[0] for number in range(1, members)]
        asyncio.run(_complete(rpc_port, members))
        return measure([process.pid for process in pool], members)


async def _complete(rpc_port: int, members: int) -> None:
    connection = await open_rpc(rpc_port)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while sum(member.status == "alive" for member in await connection.members()) < members:
                await asyncio.sleep(0.2)
    finally:
        await connection.close()


def simulated_cost() -> Cost:
    """A thousand members of our core in virtual time; the CPU is that of the simulated network, too."""
    sys.path.insert(0, str(environment.ROOT))
    simulation = importlib.import_module("tests.membership.pool")
    simulation.MAX_CODED_NODES = SIMULATED_MEMBERS  # type: ignore[attr-defined]
    pool = simulation.Pool(SIMULATED_MEMBERS, 1, profile=GossipConfig.lan, check_every=10**9, acquainted=True)
    pool.run_for(1_000)
    packets, carried, began = pool.packets, pool.packet_bytes + pool.stream_bytes, time.process_time()
    pool.run_for(SIMULATED_MS)
    cpu = time.process_time() - began
    carried = pool.packet_bytes + pool.stream_bytes - carried + HEADER_BYTES * (pool.packets - packets)
    scale = SIMULATED_MS / 1_000 * SIMULATED_MEMBERS
    return Cost(cpu / scale, carried / scale)


# ---- detection


async def open_rpc(rpc_port: int) -> RpcConnection:
    """Once the agent listens."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                return await RpcConnection.open("127.0.0.1", rpc_port)
            except (RpcError, OSError):
                await asyncio.sleep(0.1)


class OurObserver:
    """A member in this process, that notes when it shows whom as what."""

    def __init__(self, name: str) -> None:
        self.seen: dict[tuple[str, str], float] = {}
        config = GossipConfig.lan(name=name, tags={"role": "observer"})
        self._member = Membership(config, rng=random.Random(), on_event=self._note)  # noqa: S311

    def _note(self, event: MemberEvent) -> None:
        self.seen.setdefault((event.member.name, event.member.status), time.monotonic())

    async def start(self, join: str) -> str:
        await self._member.start()
        if join:
            host, _, port = join.rpartition(":")
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    try:
                        await self._member.join([(host, int(port))])
                        break
                    except OSError:
                        await asyncio.sleep(0.1)
        return f"127.0.0.1:{self._member.port}"

    async def stop(self) -> None:
        await self._member.stop()


class SerfObserver:
    """A Serf agent, asked every 20 ms: its own event stream is a second late by design (coalescing)."""

    def __init__(self, name: str, started: Processes) -> None:
        self.seen: dict[tuple[str, str], float] = {}
        self._name = name
        self._started = started
        self._connection: RpcConnection | None = None
        self._polling: asyncio.Task[None] | None = None

    async def start(self, join: str) -> str:
        _, port, rpc_port = self._started.serf(self._name, join=join)
        self._connection = await open_rpc(rpc_port)
        self._polling = asyncio.create_task(self._poll(self._connection))
        return f"127.0.0.1:{port}"

    async def _poll(self, connection: RpcConnection) -> None:
        while True:
            for member in await connection.members():
                self.seen.setdefault((member.name, member.status), time.monotonic())
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()


@dataclasses.dataclass
class Detection:
    """Seconds from the kill until each side's observers showed it, on average, one number a kill."""

    ours: list[float] = dataclasses.field(default_factory=list)
    serf: list[float] = dataclasses.field(default_factory=list)


async def kill_in_pool(
    label: str, ours: int, serfs: int, started: Processes, bar: terminal.Bar, done: list[int], total: int
) -> Detection:
    """KILLS_PER_POOL members of a pool are killed one after the other: ours and Serf's by turns, where the
    pool has both."""
    our_observers = [OurObserver(f"{label}-ours-{number}") for number in range(ours)]
    serf_observers = [SerfObserver(f"{label}-serf-{number}", started) for number in range(serfs)]
    observers: list[OurObserver | SerfObserver] = [*our_observers, *serf_observers]
    detection, join = Detection(), ""
    try:
        for observer in observers:
            address = await observer.start(join)
            join = join or address
        for number in range(KILLS_PER_POOL):
            kill_serf = bool(serfs) and (not ours or number % 2 == 1)
            times = await _one_kill(f"{label}-victim-{number}", kill_serf, join, observers, started)
            if ours:
                detection.ours.append(statistics.mean(times[:ours]))
            if serfs:
                detection.serf.append(statistics.mean(times[ours:]))
            done[0] += 1
            bar.update(done[0] / total, f"{statistics.mean(times):.2f} s")
    finally:
        for observer in observers:
            await observer.stop()
    return detection


async def _one_kill(
    name: str,
    kill_serf: bool,
    join: str,
    observers: list[OurObserver | SerfObserver],
    started: Processes,
) -> list[float]:
    if kill_serf:
        victim, shown = started.serf(name, join=join)[0], name
    else:
        victim, shown = (await asyncio.to_thread(started.members, name, 1, join=join))[0], f"{name}-0"
    await _all_show(observers, shown, "alive")
    await asyncio.sleep(random.uniform(1, 3))  # noqa: S311 -- anywhere in a round of probes
    killed = time.monotonic()
    await asyncio.to_thread(started.kill, victim)
    await _all_show(observers, shown, "failed")
    return [observer.seen[shown, "failed"] - killed for observer in observers]


async def _all_show(observers: list[OurObserver | SerfObserver], name: str, status: str) -> None:
    async with asyncio.timeout(DEATH_TIMEOUT_S):
        while not all((name, status) in observer.seen for observer in observers):
            await asyncio.sleep(POLL_S)


async def detect(with_serf: bool) -> tuple[Detection, Detection]:
    """In pools of both kinds, and in pools of one kind each; all at once, they know nothing of each other."""
    plans = [("pure", 3, 0)]
    if with_serf:
        plans += [("hashi", 0, 3), *((f"mixed{number}", 2, 2) for number in range(MIXED_POOLS))]
    bar, done, total = terminal.Bar("kills"), [0], KILLS_PER_POOL * len(plans)
    with processes() as started:
        runs = await asyncio.gather(*(kill_in_pool(*plan, started, bar, done, total) for plan in plans))
    mixed, pure = Detection(), Detection()
    for (label, _, _), run in zip(plans, runs, strict=True):
        into = mixed if label.startswith("mixed") else pure
        into.ours += run.ours
        into.serf += run.serf
    return mixed, pure


# ---- the table


def cost_row(members: int, serf: bool) -> Row:
    ours = our_cost(members)
    name = f"gossip: {members} members, each"
    if not serf:
        return Row(name, str(ours), "no serf here", 1.0, None)
    theirs = serf_cost(members)
    ratio = ours.bytes_per_second / theirs.bytes_per_second
    return Row(name, str(ours), f"Serf: {theirs}", ratio, None)


def detection_rows(mixed: Detection, pure: Detection) -> list[Row]:
    """Ratios of medians, lower is better."""
    rows = []
    for name, detection, goal in (
        ("gossip: kill -9 seen, Serf in the same pool", mixed, GOAL),
        ("gossip: kill -9 seen, pools of one kind", pure, GOAL),
    ):
        if detection.ours and detection.serf:
            ours, theirs = statistics.median(detection.ours), statistics.median(detection.serf)
            measured = f"median of {len(detection.ours)}: {ours:.2f} s, worst {max(detection.ours):.2f} s"
            floor = f"Serf's: {theirs:.2f} s, worst {max(detection.serf):.2f} s"
            rows.append(Row(name, measured, floor, ours / theirs, goal, True))
        elif detection.ours:
            ours = statistics.median(detection.ours)
            rows.append(
                Row(name, f"median of {len(detection.ours)}: {ours:.2f} s", "no serf here", 1.0, None)
            )
    return rows


def measure_all() -> list[Row]:
    """In this process and its namespace."""
    with_serf = True
    try:
        serf_binary.ensure()
    except serf_binary.SerfProblem as problem:
        terminal.problem(f"nothing to compare with: {problem}")
        with_serf = False
    rows = detection_rows(*asyncio.run(detect(with_serf)))
    for members in (3, 50):
        terminal.step(f"gossip: cost at {members} members")
        rows.append(cost_row(members, with_serf))
    terminal.step(f"gossip: {SIMULATED_MEMBERS} simulated members")
    rows.append(
        Row(f"gossip: {SIMULATED_MEMBERS} members simulated, each", str(simulated_cost()), "", 1.0, None)
    )
    return rows


def rows() -> list[Row]:
    """In a namespace of its own if the machine allows it, here otherwise."""
    with tempfile.TemporaryDirectory(prefix="shoal-gossip-") as directory:
        result = pathlib.Path(directory) / "rows.json"
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--result", str(result)]
        with contextlib.suppress(serf_binary.SerfProblem):
            serf_binary.ensure()  # while there is a network to fetch it from
        if shutil.which("unshare") and shutil.which("ip") and _may_unshare():
            inner = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
            command = ["unshare", "--map-root-user", "--user", "--net", *inner]
        else:
            terminal.problem("no network namespace here: the bytes counted are everybody's on loopback")
        subprocess.run(command, check=True)
        return [Row(**fields) for fields in json.loads(result.read_text())]


def _may_unshare() -> bool:
    probe = ["unshare", "--map-root-user", "--user", "--net", "ip", "link", "set", "lo", "up"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=pathlib.Path, required=True)
    written = [dataclasses.asdict(row) for row in measure_all()]
    parser.parse_args().result.write_text(json.dumps(written))
