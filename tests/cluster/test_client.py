"""The blocking client against real agents: kill -9 of a leader in mid-stream, replicas, finding agents."""

from __future__ import annotations

import collections
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from real_agents import leaders, wait_until

from shoal import Client, ClientError

pytestmark = pytest.mark.slow
SENDERS = 3
KEYS = 20


def test_single_records_survive_a_killed_leader_exactly_once(start_cluster: Callable[..., Any]) -> None:
    """Threads send while the busiest leader dies: every record is there once, each key's in its order."""
    agents = start_cluster()
    urls = [agent.url for agent in agents.agents]
    sent = [0] * SENDERS
    over = threading.Event()
    with Client(urls[0]) as client:
        client.create_topic("events", {"partitions": 4, "replication_factor": 3})
        wait_until(lambda: len(leaders(urls[0], "events")) == 4, "every partition has a leader")
        following = client.consumer("events", follow=True)

        def send(name: int) -> None:
            while not over.is_set():
                number = sent[name]
                client.send("events", b"%d %d" % (name, number), b"%d-%d" % (name, number % KEYS))
                sent[name] = number + 1
                if number % 100 == 0:
                    time.sleep(0.005)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(SENDERS)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: sum(end.high_watermark for end in client.offsets("events")) > 2_000, "stored")
            led = collections.Counter(leaders(urls[0], "events").values())
            victim = next(agent for agent in agents.agents if agent.url == led.most_common(1)[0][0])
            victim.signal(signal.SIGKILL)
            survivor = next(url for url in urls if url != victim.url)
            wait_until(
                lambda: (
                    len(leaders(survivor, "events")) == 4
                    and victim.url not in leaders(survivor, "events").values()
                ),
                "the survivors lead",
            )
            reached = sum(sent)
            wait_until(lambda: sum(sent) > reached + 1_000, "sending goes on")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        client.flush()
        assert client.leader_changes >= 1
        expected = {b"%d %d" % (name, number) for name in range(SENDERS) for number in range(sent[name])}
        records = list(client.consumer("events"))
        followed: collections.Counter[bytes | None] = collections.Counter()
        while followed.total() < len(expected):
            found = following.poll(20)
            assert found is not None, f"{followed.total()} of {len(expected)} were followed"
            followed.update(found.batch.column("value").to_pylist())
        assert followed == collections.Counter(expected)
        near = list(client.consumer("events", nearest=True))
    assert len(records) == len(expected)
    assert {record.value for record in records} == expected
    assert sorted(near) == sorted(records)
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(int((record.value or b"").split()[1]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def knows(client: Client, urls: set[str]) -> bool:
    """Whether a notebook that shows the client shows all agents."""
    return all(url in repr(client) for url in urls)


def test_agents_are_found_by_seeds_and_by_mdns(
    start_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gossip address, or the cluster's name, leads to every agent's URL; wrong ones to one clear error."""
    agents = start_cluster(2)
    urls = {agent.url for agent in agents.agents}
    with Client(agents.agents[0].url) as client:
        document = client.members()
    name, port = document["cluster"], document["members"][0]["gossip_port"]
    for way in ({"seeds": ["127.0.0.1:1", f"127.0.0.1:{port}"]}, {"mdns": name}):
        with Client(**way) as client:
            assert {member["url"] for member in client.members()["members"]} == urls
            wait_until(partial(knows, client, urls), "the client shows every agent")
    monkeypatch.setattr("shoal.client.http.discovery.LISTEN_SECONDS", 0.3)
    for wrong, words in (
        ({"seeds": ["127.0.0.1:1"]}, "no seed led to an agent: 127.0.0.1:1"),
        ({"seeds": ["a:b"]}, "is no gossip address"),
        ({"seeds": [f"127.0.0.1:{port}"], "gossip_key": "x"}, "gossip key is 16, 24 or 32 bytes"),
        ({"mdns": "nobody-is-called-so"}, "mDNS found no agent of cluster"),
    ):
        with pytest.raises(ClientError, match=words):
            Client(**wrong)
    with pytest.raises(ValueError, match="in one way"):
        Client("http://127.0.0.1:7070", mdns=True)
