"""What security costs: a token on every request, in the open and over TLS, beside an agent that asks nobody.

Law of this file: from outside, over HTTP. Two agents run side by side, and are measured by turns, each first
in every other round: on a shared machine one round scatters more than the bar allows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import ssl
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import bench_topics
import cluster
import environment
import load
import terminal
from bench_topics import RECORD_BYTES, RUN_TIMEOUT_SECONDS, post
from row import Row
from secured import Secured

from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

SINGLE_REQUESTS = 20_000
WARM_UP_REQUESTS = 3_000
TURNS = 4  # for each of the others' rounds
TOKEN_BAR = 0.95
TLS_BAR = 0.50
TOPIC = "bench"


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path
    rounds: int


class Asked(NamedTuple):
    """What is sent to an agent, over TLS if there is a context."""

    request: bytes
    agent: cluster.AgentProcess
    tls: ssl.SSLContext | None = None


class Reading(NamedTuple):
    """Of one round of one agent."""

    per_second: float
    processor_us: float
    """Of the agent's process, for each request: it scatters less than the rate where others have work."""


def rows(bench: Bench) -> list[Row]:
    """Single records with a token, and with a token over TLS, beside the same where nobody is asked."""
    first = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES))
    asks = {"SHOAL_AUTHENTICATION": "on", "SHOAL_BOOTSTRAP_TOKEN_HASH": first.hash().hex()}
    directory = bench.directory / secrets.token_hex(4)
    made = Secured(directory)
    with agent_with(bench, {}) as free:
        ask(free.url, "PUT", f"/v1/topics/{TOPIC}", {"partitions": 1, "replication_factor": 1})
        bench_topics.wait_leader(free.url, TOPIC)
        plain = Asked(single(free.url), free)
        with agent_with(bench, asks) as asking:
            token, _ = tokens(asking.url, first.reveal())
            in_the_open = _by_turns(bench, Asked(single(asking.url, token), asking), plain)
        with agent_with(bench, asks | made.variables, made.cluster) as asking:
            token, _ = tokens(asking.url, first.reveal())
            ours = Asked(single(asking.url, token), asking, made.context())
            over_tls = _by_turns(bench, ours, plain)
    shutil.rmtree(directory, ignore_errors=True)
    name = "single-record POST, 64 connections, with a token"
    return [
        *beside(f"{name}, no TLS", in_the_open, "without authentication", TOKEN_BAR),
        *beside(f"{name}, TLS", over_tls, "without authentication", TLS_BAR),
    ]


def beside(name: str, found: list[tuple[Reading, Reading]], words: str, goal: float) -> list[Row]:
    """By the rate, and by the processor time of the agent. `words`: what the floors are."""
    ours, floor = (statistics.median(each.per_second for each in side) for side in zip(*found, strict=True))
    ratio = statistics.median(one.per_second / other.per_second for one, other in found)
    ours_us, floor_us = (
        statistics.median(each.processor_us for each in side) for side in zip(*found, strict=True)
    )
    less = statistics.median(other.processor_us / one.processor_us for one, other in found)
    return [
        Row(name, f"{ours:,.0f}/s", f"{words} {floor:,.0f}/s", ratio, goal),
        Row(
            f"{name}: requests for a second of the agent's processor",
            f"{1e6 / ours_us:,.0f}",
            f"{words} {1e6 / floor_us:,.0f}",
            less,
            goal,
        ),
    ]


@contextlib.contextmanager
def agent_with(bench: Bench, variables: Mapping[str, str], name: str = "") -> Iterator[cluster.AgentProcess]:
    """An agent with these settings, of a cluster of this name or of one that nobody has."""
    directory = bench.directory / secrets.token_hex(4)
    agents, shoal = cluster.LocalCluster(directory), environment.command("shoal")
    agents.install("bench-0", [shoal], variables)
    try:
        agents.start(shoal, name or f"bench-{secrets.token_hex(4)}", ("bench-0",))
        agent = agents.agents[0]
        until(lambda: ask(agent.url, "GET", "/readyz"))
        yield agent
    finally:
        agents.stop()
        shutil.rmtree(directory, ignore_errors=True)


def ask(url: str, method: str, path: str, body: object = None, token: str | None = None) -> Any:
    """The document of an answer. Raises urllib.error.URLError."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=RUN_TIMEOUT_SECONDS) as answer:  # noqa: S310
        return json.load(answer)


def until(succeeds: Any) -> Any:
    """An agent that is new takes a moment to be ready and at its level."""
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while True:
        try:
            return succeeds()
        except urllib.error.URLError as error:
            if time.monotonic() > deadline:
                raise cluster.ClusterProblem(f"the agent is not ready: {error}") from None
            time.sleep(cluster.POLL_SECONDS)


def tokens(url: str, first: str) -> tuple[str, str]:
    """Of a principal that may produce to the topic, which is there, and of one that may nothing."""
    until(lambda: ask(url, "PUT", "/v1/principals/admin", {"roles": ["admin"]}, first))
    admin = ask(url, "POST", "/v1/principals/admin/tokens", {}, first)["token"]
    ask(url, "PUT", f"/v1/topics/{TOPIC}", {"partitions": 1, "replication_factor": 1}, admin)
    ask(url, "PUT", "/v1/principals/bench", {"roles": [f"producer:{TOPIC}*"]}, admin)
    ask(url, "PUT", "/v1/principals/idle", {}, admin)
    token, idle = (
        str(ask(url, "POST", f"/v1/principals/{name}/tokens", {}, admin)["token"])
        for name in ("bench", "idle")
    )
    until(lambda: ask(url, "POST", f"/v1/topics/{TOPIC}/records", {"records": [{"value": "x"}]}, token))
    return token, idle


def single(url: str, token: str | None = None) -> bytes:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    target = f"{url}/v1/topics/{TOPIC}/records"
    return load.request_bytes("POST", target, b"x" * RECORD_BYTES, Content_Type="text/plain", **headers)


def _by_turns(bench: Bench, *both: Asked) -> list[tuple[Reading, Reading]]:
    """Readings of both, in each turn."""
    found = []
    bar = terminal.Bar("rounds")
    turns = TURNS * bench.rounds
    for number in range(turns):
        order = (0, 1) if number % 2 else (1, 0)
        read = {place: reading(both[place]) for place in order}
        found.append((read[0], read[1]))
        bar.update((number + 1) / turns, f"ratio {read[0].per_second / read[1].per_second:.2f}")
    return found


def reading(asked: Asked) -> Reading:
    """Of one agent, warmed up."""
    request, agent, tls = asked
    post(request, agent.url, connections=64, requests=WARM_UP_REQUESTS, tls=tls)
    began_us = processor_us(agent.pid)
    rate = post(request, agent.url, connections=64, requests=SINGLE_REQUESTS, tls=tls).per_second
    return Reading(rate, (processor_us(agent.pid) - began_us) / SINGLE_REQUESTS)


def processor_us(pid: int) -> float:
    """Of all threads of a process, in ticks of 10 ms (proc(5))."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")
