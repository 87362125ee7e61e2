"""An agent with much on its disk, killed and started again: how soon it serves, and what it holds.

Law of this file: from outside, as any user: HTTP, /proc and the sizes of files. The agent ends by kill -9, so
that nothing was put in order for the start that is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import pathlib
import signal
import time
import urllib.parse
from collections.abc import Callable
from typing import Protocol

import bench_topics
import cluster
import load
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES
from row import Row

MIB = 2**20
PARTITIONS = 1000
SEGMENTS = 300
SEGMENT_BYTES = MIB  # the least that a topic may have
START_BAR_SECONDS = 10.0
MEMORY_BAR_MB = 200.0
FILES_BAR = 1024 + 128  # segment files may stay open; connections and the agent's own
DISK_BAR_KIB = 80.0  # a partition: the first allocation, index, directory
READ_BAR_MIB = 16.0  # besides the program: headers, index files, and the active segment's end
POLL_SECONDS = 0.05
CPU_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Bench(Protocol):
    """What this file needs of a run."""

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...


@dataclasses.dataclass(frozen=True)
class Start:
    """What was seen once every partition was led again. `read_bytes`: by read calls, its program included;
    `disk_bytes`: blocks of everything under its directory."""

    seconds: float
    cpu_seconds: float
    memory_mb: float
    open_files: int
    read_bytes: int
    disk_bytes: int


def rows(bench: Bench) -> list[Row]:
    """A thousand partitions, and a partition of three hundred segments."""
    return [*_many_partitions(bench), *_many_segments(bench)]


def _many_partitions(bench: Bench) -> list[Row]:
    with bench.agents(1) as agents:
        agent = agents.agents[0]
        empty = _disk_bytes(agents.directory / "data")
        bench_topics.create_topic(agent.url, "many", PARTITIONS, 1)
        _wait_led(agent.url, "many")
        _append_to_each(agent.url, "many", PARTITIONS)
        start = _start_again(agents, "many")
    name = f"restart, {PARTITIONS:,} partitions"
    each_kib = (start.disk_bytes - empty) / PARTITIONS / 1024
    return [
        _start_row(name, start),
        _memory_row(f"{name}: memory", start),
        Row(
            f"{name}: open files",
            f"{start.open_files}",
            f"bar: {FILES_BAR:,}",
            start.open_files / FILES_BAR,
            1.0,
            True,
        ),
        Row(
            f"{name}: disk of each",
            f"{each_kib:.0f} KiB",
            f"bar: {DISK_BAR_KIB:.0f} KiB",
            each_kib / DISK_BAR_KIB,
            1.0,
            True,
        ),
    ]


def _many_segments(bench: Bench) -> list[Row]:
    with bench.agents(1) as agents:
        agent = agents.agents[0]
        program = _read_bytes(agent.pid)
        settings = {"segment": {"bytes": SEGMENT_BYTES}}
        bench_topics.create_topic(agent.url, "long", 1, 1, settings)
        body = bench_topics.arrow_body()
        target = f"{agent.url}/v1/topics/long/partitions/0/records"
        request = load.request_bytes("POST", target, body, Content_Type=ARROW)
        batches = SEGMENTS * SEGMENT_BYTES // (BATCH_RECORDS * RECORD_BYTES)
        bench_topics.post(request, agent.url, connections=8, requests=batches)
        start = _start_again(agents, "long")
        segments = len(list((agents.directory / "data").rglob("*.arrows"))) - 1  # the catalog's
        if segments < SEGMENTS:
            raise cluster.ClusterProblem(f"there are {segments} segments only")
    read = (start.read_bytes - program) / MIB
    name = f"restart, {segments} segments of 1 MiB"
    return [
        _start_row(name, start),
        _memory_row(f"{name}: memory", start),
        Row(
            f"{name}: read of {start.disk_bytes / MIB:.0f} MiB",
            f"{read:.1f} MiB",
            f"bar: {READ_BAR_MIB:.0f} MiB",
            read / READ_BAR_MIB,
            1.0,
            True,
        ),
    ]


def _start_row(name: str, start: Start) -> Row:
    said = f"all led after {start.seconds:.1f} s, {start.cpu_seconds:.1f} s of CPU"
    bar = f"bar: {START_BAR_SECONDS:.0f} s"
    return Row(name, said, bar, start.seconds / START_BAR_SECONDS, 1.0, True)


def _memory_row(name: str, start: Start) -> Row:
    bar = f"bar: {MEMORY_BAR_MB:.0f} MB"
    return Row(name, f"{start.memory_mb:.0f} MB", bar, start.memory_mb / MEMORY_BAR_MB, 1.0, True)


def _start_again(agents: cluster.LocalCluster, topic: str) -> Start:
    """Kill the only agent, start it, and wait until each partition of the topic is led."""
    (agent,) = agents.agents
    agent.signal(signal.SIGKILL)
    _wait(lambda: not agent.is_alive(), "the agent does not end")
    started = time.monotonic()
    agents.restart(agent)
    (agent,) = agents.agents
    _wait_led(agent.url, topic)
    seconds = time.monotonic() - started
    fields = pathlib.Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
    return Start(
        seconds,
        (int(fields[11]) + int(fields[12])) / CPU_TICKS_A_SECOND,
        bench_topics.resident_mb(agent.pid),
        len(os.listdir(f"/proc/{agent.pid}/fd")),
        _read_bytes(agent.pid),
        _disk_bytes(agents.directory / "data"),
    )


def _wait_led(url: str, topic: str) -> None:
    def is_led() -> bool:
        with contextlib.suppress(OSError, cluster.ClusterProblem):
            routes = cluster.get(url, f"/v1/routes?topic={topic}")["topics"].get(topic)
            return bool(routes) and all(entry["leader_url"] for entry in routes["partitions"])
        return False

    _wait(is_led, "there are partitions without a leader")


def _wait(done: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + bench_topics.RUN_TIMEOUT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise cluster.ClusterProblem(problem)
        time.sleep(POLL_SECONDS)


def _append_to_each(url: str, topic: str, partitions: int) -> None:
    """One record, acknowledged, in every partition."""
    host = urllib.parse.urlsplit(url).netloc
    with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
        for number in range(partitions):
            path = f"/v1/topics/{topic}/partitions/{number}/records"
            connection.request("POST", path, b"x" * RECORD_BYTES, {"Content-Type": "text/plain"})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != http.client.OK:
                raise cluster.ClusterProblem(f"{path}: {answer.status} {said[:200]!r}")


def _read_bytes(pid: int) -> int:
    """By read calls, from the page cache or the disk."""
    return int(pathlib.Path(f"/proc/{pid}/io").read_text().split()[1])


def _disk_bytes(directory: pathlib.Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))
