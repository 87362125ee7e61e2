"""The main job with real agents: find each other, replicate, lose one to kill -9, lose no record."""

from __future__ import annotations

import collections
import json
import pathlib
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import cluster as local
import pytest
from real_agents import COMMAND_TIMEOUT_SECONDS, leaders, run_shoal, shoal_command, wait_until

pytestmark = pytest.mark.slow
RECORDS = 30_000


def write_records(path: pathlib.Path, count: int) -> list[str]:
    """NDJSON with a key of 50 values; every record is unique."""
    lines = [json.dumps({"user": f"user-{number % 50}", "number": number}) for number in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return lines


def committed(url: str, topic: str) -> int:
    partitions = local.get(url, f"/v1/topics/{topic}/offsets")["partitions"]
    return sum(partition["high_watermark"] for partition in partitions)


def create(url: str, topic: str, partitions: int = 6, replicas: int = 3) -> None:
    factors = ["--partitions", str(partitions), "--replication-factor", str(replicas)]
    made = run_shoal("topic", "create", topic, *factors, "--agent", url)
    assert made.returncode == 0, made.stderr
    wait_until(lambda: len(leaders(url, topic)) == partitions, "every partition has a leader")


def consume_all(url: str, topic: str) -> list[str]:
    read = run_shoal("consume", topic, "--agent", url)
    assert read.returncode == 0, read.stderr
    return read.stdout.splitlines()


def test_no_record_is_lost_or_doubled_when_a_leader_is_killed(
    start_cluster: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """kill -9 of the busiest leader in mid-stream: every record is there exactly once."""
    agents = start_cluster()
    url = agents.agents[0].url
    create(url, "events")
    path = tmp_path / "events.ndjson"
    lines = write_records(path, RECORDS)
    producer = subprocess.Popen(
        [
            shoal_command(),
            "produce",
            "events",
            str(path),
            "--key-field",
            "user",
            "--rate",
            "10000",
            "--agent",
            url,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: committed(url, "events") > RECORDS // 3, "a third of the stream is stored")
        led = collections.Counter(leaders(url, "events").values())
        victim = next(agent for agent in agents.agents if agent.url == led.most_common(1)[0][0])
        victim.signal(signal.SIGKILL)
        _, said = producer.communicate(timeout=COMMAND_TIMEOUT_SECONDS)
    finally:
        producer.kill()
    assert producer.returncode == 0, said
    survivor = agents.live()[0].url
    assert collections.Counter(consume_all(survivor, "events")) == collections.Counter(lines)
    wait_until(lambda: victim.url not in leaders(survivor, "events").values(), "the survivors lead")


def test_a_killed_agent_comes_back_and_catches_up(
    start_cluster: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """After kill -9 and a restart the agent holds all that was acknowledged while it was away."""
    agents = start_cluster()
    victim, survivor = agents.agents[0], agents.agents[1]
    create(survivor.url, "away", partitions=3)
    victim.signal(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive(), "the victim is gone")
    wait_until(lambda: victim.url not in leaders(survivor.url, "away").values(), "the leaders have moved")
    path = tmp_path / "away.ndjson"
    lines = write_records(path, 2000)
    produced = run_shoal("produce", "away", str(path), "--key-field", "user", "--agent", survivor.url)
    assert produced.returncode == 0, produced.stderr
    agents.restart(victim)

    def caught_up() -> bool:
        alive = local.get(survivor.url, "/v1/members?status=alive")["members"]
        held = [entry["partitions"] for entry in alive if entry["name"] == victim.name]
        ends = [
            entry["log_end_offset"] for partitions in held for entry in partitions if entry["topic"] == "away"
        ]
        return len(ends) == 3 and sum(ends) == len(lines)

    wait_until(caught_up, "the returned agent holds the whole log")


def test_everything_acknowledged_survives_the_death_of_all(
    start_cluster: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """kill -9 of all three at once, restart: every acknowledged record is there."""
    agents = start_cluster()
    url = agents.agents[0].url
    create(url, "all", partitions=3)
    path = tmp_path / "all.ndjson"
    lines = write_records(path, 3000)
    assert run_shoal("produce", "all", str(path), "--key-field", "user", "--agent", url).returncode == 0
    for agent in agents.agents:
        agent.signal(signal.SIGKILL)
    wait_until(lambda: not agents.live(), "all are gone")
    for agent in list(agents.agents):
        agents.restart(agent)
    url = agents.agents[0].url
    wait_until(lambda: len(leaders(url, "all")) == 3, "every partition is led again")
    wait_until(lambda: committed(url, "all") == len(lines), "the leaders have committed what they found")
    assert collections.Counter(consume_all(url, "all")) == collections.Counter(lines)


def test_sigterm_hands_leadership_over_and_leaves(start_cluster: Callable[..., Any]) -> None:
    """SIGTERM: the agent ends soon, the others see `left`, not `failed`, and lead its partitions."""
    agents = start_cluster()
    leaving, survivor = agents.agents[0], agents.agents[1]
    create(survivor.url, "graceful", partitions=6)
    leaving.signal(signal.SIGTERM)
    wait_until(lambda: not leaving.is_alive(), "the agent has ended")
    others = {agent.url for agent in agents.live()}
    assert len(others) == 2
    wait_until(lambda: set(leaders(survivor.url, "graceful").values()) <= others, "the others lead")

    def status() -> str:
        members = local.get(survivor.url, "/v1/members")["members"]
        return str(next(member["status"] for member in members if member["name"] == leaving.name))

    wait_until(lambda: status() == "left", "the member list says left")
