"""Consumer groups: messages received and acknowledged, beside what the same agent does without groups.

Law of this file: consumers over HTTP and from outside, each row with its floor in the same run. The fail-over
is seen by Shoal's own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pathlib
import secrets
import signal
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import bench_topics
import cluster
import group_load
import load
import redis_streams
import terminal
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES, post
from row import Row

if TYPE_CHECKING:
    from shoal.client.subscribe.message import MessageBatch
    from shoal.client.subscribe.subscription import AsyncSubscription

JSON = "application/json"
CONSUMERS = 4
STORED = 1_000_000
ROUND_MESSAGES = 200_000
LONE_CONSUMERS = 16
LONE_MESSAGES = 10_000
HANDED = 400
PRODUCE_BATCHES = 1000
PER_SECOND_BAR = 50_000
KILLS = 10
KILLED_MESSAGES = 6_000_000
"""More than are received during all kills: each waits until consumers are at work again."""
OUTAGE_SECONDS = 6.0
"""After a kill, in which the longest time without a message is looked for."""
MEDIAN_BAR_SECONDS, WORST_BAR_SECONDS = 1.0, 2.0


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """All of them."""
    return [
        *throughput(bench),
        *lone(bench),
        handed_over(bench),
        idle_group(bench),
        acknowledged(bench),
        *failover(bench),
    ]


def _put(url: str, path: str, settings: dict[str, object] | None = None) -> None:
    body = json.dumps(settings or {}).encode()
    request = urllib.request.Request(  # noqa: S310
        url + path, body, {"Content-Type": JSON}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        assert answer.status in {200, 201}


def _fill(url: str, topic: str, records: int) -> None:
    bench_topics.create_topic(url, topic, 1, 1)
    target = f"{url}/v1/topics/{topic}/partitions/0/records"
    request = load.request_bytes("POST", target, bench_topics.arrow_body(), Content_Type=ARROW)
    post(request, url, connections=8, requests=records // BATCH_RECORDS)


def _consumed(
    url: str, topic: str, name: str, limit: int, media_type: str, consumers: int, messages: int
) -> float:
    """Messages a second, by a group that is made for it."""
    _put(url, f"/v1/topics/{topic}/groups/{name}")
    group = group_load.Group(url, topic, name, limit, media_type)
    return asyncio.run(group_load.consume(group, consumers=consumers, messages=messages)).per_second


def throughput(bench: Bench) -> list[Row]:
    """Messages received and acknowledged by four consumers, beside plain reads of as many."""
    found: list[Row] = []
    numbers = itertools.count()
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        _fill(url, "bench", STORED)
        path = f"{url}/v1/topics/bench/partitions/0/records"
        for media_type, limit, kind, messages in (
            (JSON, 100, "JSON", ROUND_MESSAGES),
            (ARROW, 1000, "Arrow", STORED),  # fewer are over in a fifth of a second
        ):

            def target(offset: int, limit: int = limit) -> str:
                return f"{path}?offset={offset}&limit={limit}&max_bytes={8 << 20}"

            def ours(media_type: str = media_type, limit: int = limit, messages: int = messages) -> float:
                name = f"group-{next(numbers)}"
                return _consumed(url, "bench", name, limit, media_type, CONSUMERS, messages)

            def floor(
                media_type: str = media_type,
                target: Callable[[int], str] = target,
                messages: int = messages,
            ) -> float:
                reading = group_load.read(target, url, media_type, connections=CONSUMERS, messages=messages)
                return asyncio.run(reading).per_second

            measured, floored = bench.alternate(ours, floor)
            name = f"receive + ack, {kind}, {limit} a request, {CONSUMERS} consumers"
            said, beside = f"{measured:,.0f} messages/s", f"reads with limit={limit} {floored:,.0f}/s"
            found.append(Row(name, said, beside, measured / floored, 0.50))
            if media_type == JSON:
                bar = f"bar: {PER_SECOND_BAR:,}/s"
                found.append(Row(name, said, bar, measured / PER_SECOND_BAR, 1.0))
    return found


def lone(bench: Bench) -> list[Row]:
    """One message a request, with the ack of the one before, beside single-record POSTs, and beside Redis
    Streams where they are installed."""
    numbers = itertools.count()
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        _fill(url, "bench", 100 * BATCH_RECORDS)
        bench_topics.create_topic(url, "posts", 1, 1)
        body = b"x" * RECORD_BYTES
        request = load.request_bytes(
            "POST", f"{url}/v1/topics/posts/records", body, Content_Type="text/plain"
        )

        def ours() -> float:
            return _consumed(url, "bench", f"group-{next(numbers)}", 1, JSON, LONE_CONSUMERS, LONE_MESSAGES)

        measured, floored = bench.alternate(
            ours, lambda: post(request, url, connections=LONE_CONSUMERS, requests=LONE_MESSAGES).per_second
        )
        if redis_streams.is_installed():
            measured_again, redis = bench.alternate(ours, lambda: _by_redis(bench))
    name, said = f"receive + ack, one a request, {LONE_CONSUMERS} consumers", f"{measured:,.0f} messages/s"
    found = [Row(name, said, f"single-record POSTs {floored:,.0f}/s", measured / floored, 0.20)]
    if redis_streams.is_installed():
        beside = f"Redis Streams, appendfsync always {redis:,.0f}/s"
        found.append(Row(name, f"{measured_again:,.0f} messages/s", beside, measured_again / redis, None))
    return found


def _by_redis(bench: Bench) -> float:
    with redis_streams.server(bench.directory / f"redis-{secrets.token_hex(4)}") as port:
        asyncio.run(redis_streams.fill(port, b"bench", LONE_MESSAGES, b"x" * RECORD_BYTES))
        work = redis_streams.consume(port, b"bench", consumers=LONE_CONSUMERS, messages=LONE_MESSAGES)
        return asyncio.run(work)


def handed_over(bench: Bench) -> Row:
    """From a POST begun to the message in a waiting consumer's hands, at the leader. Between two POSTs of its
    floor the same question is asked."""
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        for topic in ("bench", "posts"):
            bench_topics.create_topic(url, topic, 1, 1)
        _put(url, "/v1/topics/bench/groups/waiting")
        group = group_load.Group(url, "bench", "waiting", 1, JSON)
        body = b"x" * RECORD_BYTES
        to_group, alone = (
            load.request_bytes("POST", f"{url}/v1/topics/{topic}/records", body, Content_Type="text/plain")
            for topic in ("bench", "posts")
        )
        one_after_the_other = bench_topics.p50_us(alone, url, HANDED)
        ours, floor = bench.alternate(
            lambda: statistics.median(asyncio.run(group_load.hand_over_us(group, to_group, HANDED))),
            lambda: statistics.median(asyncio.run(group_load.posts_us(group, alone, HANDED))),
        )
    name = "POST begun to message in hand, at the leader, p50"
    beside = f"that POST alone {floor:.0f} us, one after the other {one_after_the_other:.0f} us"
    return Row(name, f"{ours:.0f} us", beside, ours / floor, 3.0, True)


def idle_group(bench: Bench) -> Row:
    """Appends to a topic with a group that nobody consumes, beside one without."""
    body = bench_topics.arrow_body()
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        requests = {}
        for topic in ("grouped", "plain"):
            bench_topics.create_topic(url, topic, 1, 1)
            target = f"{url}/v1/topics/{topic}/partitions/0/records"
            requests[topic] = load.request_bytes("POST", target, body, Content_Type=ARROW)
        _put(url, "/v1/topics/grouped/groups/idle")

        def rate(topic: str) -> float:
            return post(requests[topic], url, connections=8, requests=PRODUCE_BATCHES).per_second

        ours, floor = bench.alternate(lambda: rate("grouped"), lambda: rate("plain"))
    name = "Arrow produce to a topic with an idle group"
    said = f"{ours * BATCH_RECORDS / 1e6:.2f} M records/s"
    return Row(name, said, f"without {floor * BATCH_RECORDS / 1e6:.2f} M records/s", ours / floor, 0.97)


def acknowledged(bench: Bench) -> Row:
    """Arrow reads of a topic that was consumed, 100 a request, beside the same topic without groups."""
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        for topic in ("consumed", "plain"):
            _fill(url, topic, ROUND_MESSAGES)
        _consumed(url, "consumed", "all", 100, JSON, CONSUMERS, ROUND_MESSAGES)

        def rate(topic: str) -> float:
            path = f"{url}/v1/topics/{topic}/partitions/0/records?max_bytes={8 << 20}"
            reading = group_load.read(
                lambda offset: f"{path}&offset={offset}", url, ARROW, connections=2, messages=ROUND_MESSAGES
            )
            return asyncio.run(reading).per_second

        for topic in ("consumed", "plain"):
            rate(topic)
        ours, floor = bench.alternate(lambda: rate("consumed"), lambda: rate("plain"))
    name = "Arrow read of an acknowledged topic, 100 a request"
    said = f"{ours / 1e6:.2f} M records/s"
    return Row(name, said, f"without groups {floor / 1e6:.2f} M records/s", ours / floor, 0.70)


# ---- fail-over -----------------------------------------------------------------------------------


class Consumers:
    """Four subscriptions of Shoal's own client, and what they saw. `again`: messages that came although their
    acks had been answered."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.done: set[int] = set()
        self.again: set[int] = set()
        self.is_over = False

    async def consume(self, subscription: AsyncSubscription) -> None:
        """Until it is over: receive, ack, and wait until the acks are durable."""
        async with subscription:
            while not self.is_over:
                with contextlib.suppress(Exception):  # an agent is being killed: it is asked again
                    batch = await self._next(subscription)
                    if batch is None:
                        continue
                    offsets = batch.offsets
                    self.arrivals.append(time.monotonic())
                    self.again |= self.done.intersection(offsets)
                    batch.ack()
                    await subscription.flush(30)
                    self.done.update(offsets)

    async def _next(self, subscription: AsyncSubscription) -> MessageBatch | None:
        await subscription.wait_ready(1)
        return subscription.take_batch()

    def outage_seconds(self, began: float) -> float:
        """From then to the message after the longest time without one."""
        times = [began, *(time for time in self.arrivals if time >= began)]
        gaps = [(after - before, after) for before, after in itertools.pairwise(times)]
        return max(gaps)[1] - began if gaps else OUTAGE_SECONDS


def failover(bench: Bench) -> list[Row]:
    """kill -9 of the leader under four consumers: the next message, and none again that was acknowledged."""
    with bench.agents(3) as agents:
        url = agents.agents[0].url
        bench_topics.create_topic(url, "bench", 1, 3)
        leader = bench_topics.wait_leader(url, "bench")
        path = f"{leader}/v1/topics/bench/partitions/0/records"
        request = load.request_bytes("POST", path, bench_topics.arrow_body(), Content_Type=ARROW)
        post(request, leader, connections=8, requests=KILLED_MESSAGES // BATCH_RECORDS)
        consumers = Consumers()
        outages = asyncio.run(_killed(agents, consumers))
    median, worst = statistics.median(outages), max(outages)
    name = f"next message after kill -9 of the leader, {len(outages)} kills, {CONSUMERS} consumers"
    again = f"{len(consumers.again)} of {len(consumers.done):,} acknowledged again"
    return [
        Row(f"{name}, median", f"{median:.2f} s", "bar: 1 s", median / MEDIAN_BAR_SECONDS, 1.0, True),
        Row(f"{name}, worst", f"{worst:.2f} s", "bar: 2 s", worst / WORST_BAR_SECONDS, 1.0, True),
        Row("acknowledged messages that came again", again, "bar: none", len(consumers.again), 0.0, True),
    ]


async def _killed(agents: cluster.LocalCluster, consumers: Consumers) -> list[float]:
    from shoal.client.async_client import AsyncClient

    outages: list[float] = []
    bar = terminal.Bar("fail-over")
    async with AsyncClient([agent.url for agent in agents.live()]) as client:
        await client.create_group("bench", "killed")
        tasks = [
            asyncio.create_task(consumers.consume(client.subscribe("bench", group="killed")))
            for _ in range(CONSUMERS)
        ]
        for number in range(KILLS):
            outages.append(await _kill(agents, consumers))
            bar.update((number + 1) / KILLS, f"{outages[-1]:.2f} s")
        consumers.is_over = True
        await asyncio.gather(*tasks)
    return outages


async def _kill(agents: cluster.LocalCluster, consumers: Consumers) -> float:
    seen = len(consumers.arrivals)
    while len(consumers.arrivals) < seen + 20:  # all of them are at work
        await asyncio.sleep(0.05)
    by_url = {agent.url: agent for agent in agents.live()}
    url = await asyncio.to_thread(bench_topics.wait_leader, next(iter(by_url)), "bench")
    began = time.monotonic()
    by_url[url].signal(signal.SIGKILL)
    await asyncio.sleep(OUTAGE_SECONDS)
    outage = consumers.outage_seconds(began)
    await asyncio.to_thread(_restored, agents, by_url[url])
    return outage


def _restored(agents: cluster.LocalCluster, agent: cluster.AgentProcess) -> None:
    agents.restart(agent)
    bench_topics.wait_ready(agents)
    bench_topics.wait_caught_up(agents)
