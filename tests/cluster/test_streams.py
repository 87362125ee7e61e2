"""Streams and waits over real agents while a leader is killed: nothing is missed, nothing comes twice."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import cluster as local
from real_agents import WAIT_SECONDS, leaders, wait_until

RECORDS = 60


class Reader(threading.Thread):
    """Follows a URL as server-sent events: ids and records, in order."""

    def __init__(self, url: str, **headers: str) -> None:
        super().__init__(daemon=True)
        sent = {"Accept": "text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
        self._request = urllib.request.Request(url, headers=sent)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.is_listening = threading.Event()

    def run(self) -> None:
        event_id = ""
        with urllib.request.urlopen(self._request, timeout=60) as answer:
            for raw in answer:
                line = raw.decode().rstrip("\n")
                self.is_listening.set()
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line.startswith("data: ") and event_id:
                    self.events.append((event_id, json.loads(line[6:])))

    def seen(self, partition: int | None = None) -> list[tuple[int, str]]:
        """Offsets and values, of one partition of a merged stream."""
        chosen = [data for _, data in self.events if data.get("partition") == partition]
        return [(data["offset"], data["value"]) for data in chosen]


def stored(url: str, partition: int) -> list[tuple[int, str]]:
    records = local.get(url, f"/v1/topics/t/partitions/{partition}/records?limit=10000")["records"]
    return [(record["offset"], record["value"]) for record in records]


def append(url: str, partition: int, value: str) -> bool:
    """Whether it was acknowledged; when not, it may be stored all the same."""
    path = f"{url}/v1/topics/t/partitions/{partition}/records"
    request = urllib.request.Request(path, value.encode(), {"Content-Type": "text/plain"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        return bool(answer.status == 200)
    return False


def test_streams_and_waits_survive_the_death_of_a_leader(start_cluster: Callable[..., Any]) -> None:
    """A partition's stream and a merged one at agents that stay, and offsets that wait at both; the merged
    one again from the middle, at the other agent."""
    agents = start_cluster(3)
    first = agents.agents[0].url
    body = json.dumps({"partitions": 2, "replication_factor": 3}).encode()
    request = urllib.request.Request(
        f"{first}/v1/topics/t", body, {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=100).close()
    led = wait_until(lambda: both if len(both := leaders(first, "t")) == 2 else None, "both are led")
    victim = next(agent for agent in agents.agents if agent.url == led[0])
    near, far = (agent.url for agent in agents.agents if agent is not victim)
    single, merged = Reader(f"{near}/v1/topics/t/partitions/0/records"), Reader(f"{far}/v1/topics/t/records")
    for reader in (single, merged):
        reader.start()
        assert reader.is_listening.wait(WAIT_SECONDS)
    acknowledged = 0
    for number in range(RECORDS):
        if number == RECORDS // 3:
            victim.signal(signal.SIGKILL)
        acknowledged += append((near, far)[number % 2], number % 2, str(number))
    assert acknowledged >= RECORDS - 6
    for partition in (0, 1):
        everything = wait_until(lambda p=partition: stored(near, p), "the log is served")
        wait_until(lambda p=partition, e=everything: merged.seen(p) == e, "the merged stream has it all")
        if partition == 0:
            wait_until(lambda e=everything: single.seen() == e, "the partition's stream has it all")
    middle, rest = merged.events[20][0], merged.events[21:]
    again = Reader(f"{near}/v1/topics/t/records", Last_Event_ID=middle)
    again.start()
    wait_until(lambda: again.events == rest, "the stream goes on behind its id")
    end = len(stored(near, 0))
    for url in (near, far):
        started = time.monotonic()
        waiting = threading.Timer(0.3, append, (near, 0, "news"))
        waiting.start()
        offsets = local.get(url, f"/v1/topics/t/offsets?after=0:{end},1:1000&wait=40s")["partitions"]
        assert offsets[0]["high_watermark"] == end + 1
        assert 0.25 < time.monotonic() - started < 30
        waiting.join()
        end += 1
