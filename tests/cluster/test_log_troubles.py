"""What a survivor's log says when its peers are killed, starved, and its own disk is filled: that, no more.

The disk is a small one in memory. Where this process may mount none, the disk stays as it is, which is said.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import cluster as local
import pytest
from log_reader import documents, events, lines, told
from real_agents import is_ready, leaders, run_shoal, shoal_command, wait_until
from small_disk import REASON, mount, unmount

pytestmark = pytest.mark.slow
LEFT_BYTES = 40 << 20
"""Below the 64 MiB at which appends are refused, above what the catalog needs."""
TROUBLES = {
    "member-suspected", "member-answers", "member-failed", "member-back", "leadership-gained",
    "leadership-lost", "partition-leaderless", "partition-led", "partition-under-replicated",
    "partition-whole", "disk-full", "disk-has-room-again", "link-failed",
}  # fmt: skip
START = {
    "founding-cluster", "joined-cluster", "listening", "waiting", "not-ready", "ready", "member-joined",
    "created-replicas", "recovered-replicas", "replicas-changing", "port-is-in-use", "level-raised",
}  # fmt: skip
"""What is said while a cluster forms and its catalog grows."""


@pytest.fixture
def agents(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Three; the first one's data stand on a small disk, where that can be."""
    started = local.LocalCluster(tmp_path / "cluster")
    disk = tmp_path / "cluster" / "data" / local.NAMES[0]
    if not REASON:
        assert mount(disk) == ""
    try:
        started.start(shoal_command(), f"test-{secrets.token_hex(4)}", local.NAMES)
        wait_until(lambda: all(is_ready(one.url, 3) for one in started.agents), "the agents are ready")
        yield started
    finally:
        started.stop()
        if not REASON:
            unmount(disk)


def fill(disk: pathlib.Path) -> pathlib.Path:
    """A file that leaves so little."""
    state = os.statvfs(disk)
    path = disk / "ballast"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - LEFT_BYTES)
    return path


def test_a_survivors_log_tells_of_killed_and_starved_peers_and_of_its_full_disk(agents: Any) -> None:
    """Each trouble and its end, by name, in the schema; and no line that is about something else."""
    survivor, killed, starved = agents.agents
    url = survivor.url
    made = run_shoal("--agent", url, "topic", "create", "orders", "--partitions", "3")
    assert made.returncode == 0, made.stderr
    wait_until(lambda: len(leaders(url, "orders")) == 3, "every partition is led")

    wait_until(lambda: starved.url in leaders(url, "orders").values(), "the one to starve leads too")
    starved.signal(signal.SIGSTOP)
    told(survivor, "agent does not answer and may have failed: ", what=starved.name)
    told(survivor, f"agent failed: {starved.name}")
    starved.signal(signal.SIGCONT)
    told(survivor, "agent is back: ", what=starved.name)
    told(starved, "leadership lost: ", what="orders/")
    wait_until(lambda: len(leaders(url, "orders")) == 3, "every partition is led again")

    if not REASON:
        ballast = fill(agents.directory / "data" / survivor.name)
        told(survivor, "disk full: ")
        ballast.unlink()
        told(survivor, "disk has room again: ")

    killed.signal(signal.SIGKILL)
    told(survivor, f"agent failed: {killed.name}")
    starved.signal(signal.SIGKILL)
    told(survivor, "no leader for 5 s: ")
    wait_until(lambda: len(lines(survivor, f"agent failed: {starved.name}")) == 2, "its second failure")
    agents.restart(killed)
    told(survivor, "led again: ")
    told(survivor, "agent is back: ", what=killed.name)

    said = {document["event"] for document in documents(survivor)}
    assert said <= TROUBLES | START, said - TROUBLES - START
    wanted = {"member-failed", "member-back", "partition-leaderless", "partition-led", "leadership-gained"}
    assert wanted <= said
    assert REASON or {"disk-full", "disk-has-room-again"} <= said
    failed = [tuple(document["members"]) for document in events(survivor, "member-failed")]
    assert sorted(failed) == sorted([(starved.name,), (killed.name,), (starved.name,)])
    assert [len(events(survivor, event)) for event in ("disk-full", "disk-has-room-again")] in (
        [1, 1],
        [0, 0],
    )
    assert len(lines(survivor)) < 200
    assert all(documents(one) for one in agents.agents), "every line of every agent is of the schema"
