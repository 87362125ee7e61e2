"""Real agents and replicas that begin anew: a dead agent replaced although the head of the log is gone."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import cluster as local
import pytest
from real_agents import leaders, wait_until

pytestmark = pytest.mark.slow
SEGMENT_BYTES = 2**20
VALUE = "x" * 20_000


def ask(method: str, url: str, body: object) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def fill(url: str, topic: str, first: int, count: int) -> None:
    """Numbered records of 20 kB, fifty of which fill a segment."""
    for start in range(first, first + count, 10):
        records = [{"value": f"{number} {VALUE}"} for number in range(start, start + 10)]
        ask("POST", f"{url}/v1/topics/{topic}/partitions/0/records", {"records": records})


def voters(url: str, topic: str) -> set[str]:
    """Agent ids of the voters, as the leader claims them."""
    partition = local.get(url, f"/v1/topics/{topic}")["partitions"][0]
    return {item["id"] for item in partition["replicas"] if item["role"] != "learner"}


def agent_id(url: str) -> str:
    return str(local.get(url, "/v1/agent")["id"])


def numbers_at(url: str, topic: str, start: int) -> list[int]:
    """What that agent's own replica serves from an offset on."""
    found: list[int] = []
    while True:
        path = f"/v1/topics/{topic}/partitions/0/records?offset={start + len(found)}&consistency=local"
        records = local.get(url, path)["records"]
        if not records:
            return found
        found += [int(record["value"].partition(" ")[0]) for record in records]


def test_a_dead_agent_is_replaced_though_the_head_of_the_log_is_trimmed(
    start_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topic, trim, kill -9 and the disk gone: a new agent gets a copy and votes; the topic is whole again."""
    monkeypatch.setenv("SHOAL_REPLACE_AFTER", "1s")
    agents = start_cluster()
    victim, survivor = agents.agents[0], agents.agents[1]
    url = survivor.url
    settings = {"partitions": 1, "replication_factor": 3, "segment": {"bytes": SEGMENT_BYTES}}
    ask("PUT", f"{url}/v1/topics/worn", settings)
    wait_until(lambda: len(leaders(url, "worn")) == 1, "the partition is led")
    fill(url, "worn", 0, 200)
    trimmed = wait_until(
        lambda: ask("POST", f"{url}/v1/topics/worn/partitions/0/trim", {"before": 120})["log_start_offset"],
        "every replica holds what is trimmed",
    )
    assert 0 < trimmed <= 120
    victim_id = agent_id(victim.url)
    victim.signal(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive(), "the victim is gone")
    shutil.rmtree(pathlib.Path(agents.directory) / "data" / victim.name)
    newcomer = agents.add("turbot")
    wait_until(
        lambda: agent_id(newcomer.url) in voters(url, "worn") and victim_id not in voters(url, "worn"),
        "the new agent votes in the dead one's place",
    )
    fill(url, "worn", 200, 10)
    wait_until(
        lambda: numbers_at(newcomer.url, "worn", trimmed) == list(range(trimmed, 210)),
        "the new replica serves everything from the trimmed head on",
    )
