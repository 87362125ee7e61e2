"""What one principal at ten times its quota costs another.

Law of this file: from outside, over HTTP. The greedy one asks in a process of its own, as often as it is told
to and whatever it is answered. The other one is measured alone and beside it by turns, on the same agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import urllib.parse
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import cluster
import load
import terminal
from bench_topics import RECORD_BYTES, post
from benchmarks_tokens import Reading, agent_with, ask, processor_us, until
from row import Row

from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

QUOTA = 200
"""Requests a second: a small part of what an agent does, so that a tenth of the other's rate is more."""
TIMES = 10
GREEDY_CONNECTIONS = 64
CONNECTIONS = 32
WARM_UP_REQUESTS = 3_000
REQUESTS = 10_000
TURNS = 4  # for each of the others' rounds
BAR = 0.9
TOPIC = "bench"
PATIENCE_S = 60.0


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path
    rounds: int


class Answers(NamedTuple):
    """A second, to the greedy one."""

    served: float
    refused: float


def rows(bench: Bench) -> list[Row]:
    """Single records of one principal beside another at ten times its quota, and beside the same without."""
    first = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES))
    asks = {"SHOAL_AUTHENTICATION": "on", "SHOAL_BOOTSTRAP_TOKEN_HASH": first.hash().hex()}
    with agent_with(bench, asks) as agent:
        admin = _administrator(agent.url, first.reveal())
        other = _request(agent.url, _principal(agent.url, admin, "other", {}))
        limited = _request(agent.url, _principal(agent.url, admin, "limited", {"requests": QUOTA}))
        free = _request(agent.url, _principal(agent.url, admin, "free", {}))
        return [
            *_rows(bench, agent, other, limited, "at ten times its quota of requests", BAR),
            *_rows(bench, agent, other, free, "that asks for as much without a quota", None),
        ]


def _rows(
    bench: Bench, agent: cluster.AgentProcess, other: bytes, greedy: bytes, words: str, bar: float | None
) -> list[Row]:
    alone: list[Reading] = []
    beside: list[Reading] = []
    told: list[Answers] = []
    bar_of_rounds = terminal.Bar("rounds")
    turns = TURNS * bench.rounds
    for number in range(turns):
        for is_alone in (True, False) if number % 2 else (False, True):
            if is_alone:
                alone.append(_reading(agent, other))
                continue
            with greed(agent.url, greedy) as answers:
                beside.append(_reading(agent, other))
            told.append(answers[0])
        ratio = beside[-1].per_second / alone[-1].per_second
        bar_of_rounds.update((number + 1) / turns, f"ratio {ratio:.2f}")
    pairs = list(zip(beside, alone, strict=True))
    served, refused = (statistics.median(kind) for kind in zip(*told, strict=True))
    ours, floor = (statistics.median(one.per_second for one in side) for side in (beside, alone))
    ours_us, floor_us = (statistics.median(one.processor_us for one in side) for side in (beside, alone))
    name = f"single-record POST, {CONNECTIONS} connections, beside a principal {words}"
    return [
        Row(
            name,
            f"{ours:,.0f}/s beside {served:,.0f}/s and {refused:,.0f}/s refused",
            f"alone {floor:,.0f}/s",
            statistics.median(one.per_second / other.per_second for one, other in pairs),
            bar,
        ),
        Row(
            f"{name}: requests for a second of the agent's processor",
            f"{1e6 / ours_us:,.0f}",
            f"alone {1e6 / floor_us:,.0f}",
            statistics.median(other.processor_us / one.processor_us for one, other in pairs),
            bar,
        ),
    ]


def _reading(agent: cluster.AgentProcess, request: bytes) -> Reading:
    """The processor of the agent is counted whole, the greedy one's part with it."""
    post(request, agent.url, connections=CONNECTIONS, requests=WARM_UP_REQUESTS)
    began_us = processor_us(agent.pid)
    rate = post(request, agent.url, connections=CONNECTIONS, requests=REQUESTS).per_second
    return Reading(rate, (processor_us(agent.pid) - began_us) / REQUESTS)


def _administrator(url: str, first: str) -> str:
    until(lambda: ask(url, "PUT", "/v1/principals/admin", {"roles": ["admin"]}, first))
    token: str = ask(url, "POST", "/v1/principals/admin/tokens", {}, first)["token"]
    ask(url, "PUT", f"/v1/topics/{TOPIC}", {"partitions": 1, "replication_factor": 1}, token)
    return token


def _principal(url: str, admin: str, name: str, quotas: dict[str, int]) -> str:
    """The token of a principal that may produce to the topic, which is there."""
    document = {"roles": [f"producer:{TOPIC}*"], "quotas": quotas}
    ask(url, "PUT", f"/v1/principals/{name}", document, admin)
    token: str = ask(url, "POST", f"/v1/principals/{name}/tokens", {}, admin)["token"]
    until(lambda: ask(url, "POST", f"/v1/topics/{TOPIC}/records", {"records": [{"value": "x"}]}, token))
    return token


def _request(url: str, token: str) -> bytes:
    target, body = f"{url}/v1/topics/{TOPIC}/records", b"x" * RECORD_BYTES
    return load.request_bytes(
        "POST", target, body, Content_Type="text/plain", Authorization=f"Bearer {token}"
    )


@contextlib.contextmanager
def greed(url: str, request: bytes) -> Iterator[list[Answers]]:
    """A process that asks meanwhile; in the end what it was answered."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=_ask_greedily, args=(there, url, request), daemon=True)
    process.start()
    answers: list[Answers] = []
    try:
        if not here.poll(PATIENCE_S):
            raise TimeoutError("the greedy process did not start")
        here.recv()
        yield answers
        here.send("enough")
        if not here.poll(PATIENCE_S):
            raise TimeoutError("the greedy process did not end")
        answers.append(here.recv())
    finally:
        process.kill()
        process.join(PATIENCE_S)


def _ask_greedily(there: Connection, url: str, request: bytes) -> None:
    asyncio.run(_greedily(there, url, request))


async def _greedily(there: Connection, url: str, request: bytes) -> None:
    """So many requests a second over all connections. One whose answer is late goes on with the next turn,
    as an impatient client: it waits for nothing that it is told."""
    loop = asyncio.get_running_loop()
    parts = urllib.parse.urlsplit(url)
    counts = {b"200": 0, b"429": 0}
    pause_s = GREEDY_CONNECTIONS / (TIMES * QUOTA)

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        turn_s = loop.time() + pause_s * number / GREEDY_CONNECTIONS
        while True:
            await asyncio.sleep(max(0.0, turn_s - loop.time()))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(row for row in head.split(b"\r\n") if row.lower().startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            counts[head[9:12]] += 1
            turn_s += pause_s * max(1.0, (loop.time() - turn_s) // pause_s)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(GREEDY_CONNECTIONS)]
        await asyncio.sleep(1.0)  # its first second is the one that it may have at once
        before, began_s = dict(counts), loop.time()
        there.send("asking")
        await loop.run_in_executor(None, there.recv)
        seconds = loop.time() - began_s
        for task in tasks:
            task.cancel()
    there.send(
        Answers((counts[b"200"] - before[b"200"]) / seconds, (counts[b"429"] - before[b"429"]) / seconds)
    )
