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
from log_reader import events
from real_agents import leaders, run_shoal, wait_until

pytestmark = pytest.mark.slow
SEGMENT_BYTES = 2**20
VALUE = "x" * 20_000
TOPIC = "worn"


def ask(method: str, url: str, body: object) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=100) as answer:
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


def mend(agents: Any, victim: Any, topic_id: str, everything: list[int]) -> None:
    """Bits flip in the files of an agent that is down: in what it needs at its start, and in a sealed segment
    that nobody reads before it is asked to. It has the exact records again soon, and serves nothing wrong."""
    victim.signal(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive(), "the agent is gone")
    for number in (5, 40, everything[-12]):
        flip(pathlib.Path(agents.directory) / "data" / victim.name, topic_id, number)
    place = agents.agents.index(victim)
    agents.restart(victim)
    victim = agents.agents[place]
    end = everything[-10:]
    wait_until(lambda: numbers_at(victim.url, TOPIC, end[0]) == end, "its end is mended")
    wait_until(lambda: numbers_at(victim.url, TOPIC, 0) == everything, "what a read meets is mended")
    assert damaged(victim.url) == []
    wait_until(lambda: events(victim, "damage-repaired"), "its log says so")
    for event, level in (("damage-found", "error"), ("damage-repaired", "warning")):
        for line in events(victim, event):
            assert (line["level"], line["topic"], line["partition"]) == (level, TOPIC, 0)
    assert events(victim, "damage-found")


def destroy(agents: Any, *victims: Any) -> None:
    """kill -9, and the disks are gone."""
    for victim in victims:
        victim.signal(signal.SIGKILL)
    wait_until(lambda: not any(victim.is_alive() for victim in victims), "they are gone")
    for victim in victims:
        shutil.rmtree(pathlib.Path(agents.directory) / "data" / victim.name)


def recover(url: str) -> None:
    """Catalog and topic go on at the survivor, once that is said twice."""
    command = ("partition", "recover", "_catalog", "0", "--agent", url, "--unsafe")
    assert run_shoal(*command).returncode != 0
    wait_until(
        lambda: run_shoal(*command, "--yes-i-accept-data-loss").returncode == 0,
        "the catalog is recovered once nobody else leads it",
    )
    accepted = {"topic": TOPIC, "partition": 0, "accept_data_loss": True}
    wait_until(lambda: ask("POST", f"{url}/v1/agent/recover", accepted)["lost"], "and so is the topic")
    wait_until(lambda: leaders(url, TOPIC).get(0) == url, "the survivor leads")


def test_bits_heads_disks_and_majorities_are_lost(
    start_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One topic through all of it. Flipped bits are mended from peers. The head of the log is trimmed, an
    agent destroyed: a new one gets a copy and votes in its place. Two of three are destroyed: the third
    refuses to go on until it is told twice, and then has everything, takes more, and gives it to a new
    agent."""
    monkeypatch.setenv("SHOAL_REPLACE_AFTER", "1s")
    agents = start_cluster()
    survivor, second, third = agents.agents
    url = survivor.url
    settings = {"partitions": 1, "replication_factor": 3, "segment": {"bytes": SEGMENT_BYTES}}
    topic_id = ask("PUT", f"{url}/v1/topics/{TOPIC}", settings)["id"]
    wait_until(lambda: len(leaders(url, TOPIC)) == 1, "the partition is led")
    fill(url, TOPIC, 0, 120)
    wait_until(lambda: numbers_at(second.url, TOPIC, 0) == list(range(120)), "the second has caught up")
    mend(agents, second, topic_id, list(range(120)))

    trimmed = wait_until(
        lambda: ask("POST", f"{url}/v1/topics/{TOPIC}/partitions/0/trim", {"before": 70})["log_start_offset"],
        "every replica holds what is trimmed",
    )
    assert 0 < trimmed <= 70
    third_id = agent_id(third.url)
    destroy(agents, third)
    newcomer = agents.add("turbot")
    wait_until(
        lambda: agent_id(newcomer.url) in voters(url, TOPIC) and third_id not in voters(url, TOPIC),
        "the new agent votes in the dead one's place",
    )
    fill(url, TOPIC, 120, 10)
    wait_until(
        lambda: numbers_at(newcomer.url, TOPIC, trimmed) == list(range(trimmed, 130)),
        "the new replica serves everything from the trimmed head on",
    )

    wait_until(
        lambda: numbers_at(url, TOPIC, trimmed) == list(range(trimmed, 130)), "and so does the old one"
    )
    destroy(agents, agents.agents[1], newcomer)
    recover(url)
    fill(url, TOPIC, 130, 10)
    assert numbers_at(url, TOPIC, trimmed) == list(range(trimmed, 140))
    last = agents.add("brill")
    wait_until(lambda: agent_id(last.url) in voters(url, TOPIC), "a new agent votes")
    wait_until(lambda: numbers_at(last.url, TOPIC, trimmed) == list(range(trimmed, 140)), "and has it all")
