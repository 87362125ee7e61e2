"""Real agents that lose things: bits, the head of a log, a disk, a majority."""

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
from real_agents import leaders, run_shoal, wait_until

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


def flip(data: pathlib.Path, topic_id: str, number: int) -> None:
    """One bit in the middle of the batch that holds a record, in the files of an agent."""
    mark = f"{number} {VALUE[:50]}".encode()
    for segment in data.glob(f"topics/{topic_id}/0/*.arrows"):
        at = segment.read_bytes().find(mark)
        if at >= 0:
            with open(segment, "r+b") as file:
                file.seek(at + 1_000)
                byte = file.read(1)
                file.seek(at + 1_000)
                file.write(bytes([byte[0] ^ 0x10]))
            return
    raise AssertionError(f"record {number} is not in {data}")


def damaged(url: str) -> list[Any]:
    return list(local.get(url, "/v1/agent")["damage"])


def test_flipped_bits_are_mended_and_a_lost_majority_is_recovered_by_force(
    start_cluster: Callable[..., Any],
) -> None:
    """Bits flip in what an agent needs at its start and in what it reads later: it has the exact records
    again soon. Then two of three agents are destroyed: the third refuses to go on until it is told twice,
    and then has everything, takes more, and gives it to a new agent."""
    agents = start_cluster()
    survivor, second, third = agents.agents
    url = survivor.url
    settings = {"partitions": 1, "replication_factor": 3, "segment": {"bytes": SEGMENT_BYTES}}
    topic_id = ask("PUT", f"{url}/v1/topics/hurt", settings)["id"]
    wait_until(lambda: len(leaders(url, "hurt")) == 1, "the partition is led")
    fill(url, "hurt", 0, 80)
    data = pathlib.Path(agents.directory) / "data"
    everything = list(range(80))
    wait_until(lambda: numbers_at(survivor.url, "hurt", 0) == everything, "the survivor has caught up")
    second.signal(signal.SIGKILL)
    wait_until(lambda: not second.is_alive(), "the second agent is gone")
    for number in (5, 40, 68):  # a sealed segment, and the one that is folded at the start
        flip(data / second.name, topic_id, number)
    agents.restart(second)
    second = agents.agents[1]
    wait_until(lambda: numbers_at(second.url, "hurt", 70) == everything[70:], "its end is mended")
    wait_until(lambda: numbers_at(second.url, "hurt", 0) == everything, "what a read meets is mended")
    assert damaged(second.url) == []
    assert "mended" in pathlib.Path(second.log).read_text()
    for agent in (second, third):
        agent.signal(signal.SIGKILL)
    wait_until(lambda: not (second.is_alive() or third.is_alive()), "two of three are gone")
    for agent in (second, third):
        shutil.rmtree(data / agent.name)
    command = ("partition", "recover", "_catalog", "0", "--agent", url, "--unsafe")
    assert run_shoal(*command).returncode != 0
    wait_until(
        lambda: run_shoal(*command, "--yes-i-accept-data-loss").returncode == 0,
        "the catalog is recovered once nobody else leads it",
    )
    accepted = {"topic": "hurt", "partition": 0, "accept_data_loss": True}
    wait_until(lambda: ask("POST", f"{url}/v1/agent/recover", accepted)["lost"], "and so is the topic")
    wait_until(lambda: leaders(url, "hurt").get(0) == url, "the survivor leads")
    fill(url, "hurt", 80, 10)
    assert numbers_at(url, "hurt", 0) == list(range(90))
    newcomer = agents.add("turbot")
    wait_until(lambda: agent_id(newcomer.url) in voters(url, "hurt"), "a new agent votes")
    wait_until(lambda: numbers_at(newcomer.url, "hurt", 0) == list(range(90)), "and has everything")
