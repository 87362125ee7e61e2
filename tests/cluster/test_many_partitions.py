"""Many partitions on three real agents: idle they cost little, and a lost agent leaves none of them behind.

The whole thousand is measured by `scripts/bench replication`; this is a fifth of it, with room for a busy
machine.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import cluster as local
import pytest
from real_agents import leaders, wait_until

PARTITIONS = 200
IDLE_SECONDS = 3.0
IDLE_SHARE_MAX = 0.15
"""Of a core, each: a fifth of the bar for a thousand, and what an agent costs that holds nothing."""
LED_AGAIN_SECONDS = 20.0


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def create(url: str, topic: str) -> None:
    body = json.dumps({"partitions": PARTITIONS, "replication_factor": 3}).encode()
    request = urllib.request.Request(
        f"{url}/v1/topics/{topic}", body, {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201


@pytest.mark.cold_start
def test_many_partitions_are_quiet_and_led_again_soon(start_cluster: Callable[..., Any]) -> None:
    """Groups with nothing to say keep no timer; a killed leader of a third of them is replaced everywhere."""
    agents: local.LocalCluster = start_cluster(3)
    url = agents.agents[0].url
    create(url, "many")
    urls = {agent.url for agent in agents.agents}
    wait_until(lambda: len(leaders(url, "many")) == PARTITIONS, "every partition is led")

    def idle() -> bool:
        before = [cpu_seconds(agent.pid) for agent in agents.agents]
        time.sleep(IDLE_SECONDS)
        spent = [
            cpu_seconds(agent.pid) - seconds for agent, seconds in zip(agents.agents, before, strict=True)
        ]
        return max(spent) <= IDLE_SHARE_MAX * IDLE_SECONDS

    wait_until(idle, "the agents are idle")
    lost = agents.agents[2]
    lost.signal(signal.SIGKILL)
    rest = urls - {lost.url}
    wait_until(
        lambda: sum(leader in rest for leader in leaders(url, "many").values()) == PARTITIONS,
        "every partition is led again",
        LED_AGAIN_SECONDS,
    )
