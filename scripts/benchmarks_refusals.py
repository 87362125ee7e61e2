"""What the refused cost others: a thousand requests a second, by a wrong token and by one without rules.

Law of this file: they ask at a steady pace, from a process of their own, whatever the agent does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import socket
import statistics
import time
import urllib.parse
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Protocol

import benchmarks_tokens
import load
import terminal
from benchmarks_tokens import Asked, Reading
from row import Row

from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

REFUSED_PER_SECOND = 1_000
BEAT_SECONDS = 0.01
BAR = 0.90
TURNS = 12  # for each of the others' rounds: they scatter from 0.5 to 1.1, and the bar is at 0.9
READ_BYTES = 64 * 1024
SOCKET_TIMEOUT_SECONDS = 5.0
START_TIMEOUT_SECONDS = 30.0


class Bench(benchmarks_tokens.Bench, Protocol):
    """What this file needs of a run."""


def rows(bench: Bench) -> list[Row]:
    """Single-record appends of a producer, beside themselves while nobody is refused. By the agent's
    processor too: the rate also has what the refused client takes of a small machine."""
    first = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES))
    asks = {"SHOAL_AUTHENTICATION": "on", "SHOAL_BOOTSTRAP_TOKEN_HASH": first.hash().hex()}
    unknown = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES)).reveal()
    with benchmarks_tokens.agent_with(bench, asks) as agent:
        token, idle = benchmarks_tokens.tokens(agent.url, first.reveal())
        asked = Asked(benchmarks_tokens.single(agent.url, token), agent)
        refused = [benchmarks_tokens.single(agent.url, other) for other in (unknown, idle)]
        found, sent = _by_turns(bench, asked, refused)
    name = f"single-record POST of others, {statistics.median(sent):,.0f} refused a second"
    rate, processor = benchmarks_tokens.beside(name, found, "nobody refused", BAR)
    # A thousand a second weigh more where others leave the agent less of a processor: no bar for that.
    return [rate, dataclasses.replace(processor, goal=None)]


def _by_turns(
    bench: Bench, asked: Asked, refused: list[bytes]
) -> tuple[list[tuple[Reading, Reading]], list[float]]:
    """Readings with and without, in each turn; and how many a second were refused."""
    found, sent = [], []
    bar = terminal.Bar("rounds")
    turns = TURNS * bench.rounds

    def beside() -> Reading:
        with refusals(asked.agent.url, refused) as rate:
            read = benchmarks_tokens.reading(asked)
            sent.append(rate())
        return read

    for number in range(turns):
        if number % 2:
            ours, floor = beside(), benchmarks_tokens.reading(asked)
        else:
            floor, ours = benchmarks_tokens.reading(asked), beside()
        found.append((ours, floor))
        bar.update((number + 1) / turns, f"ratio {ours.per_second / floor.per_second:.2f}")
    return found, sent


@contextlib.contextmanager
def refusals(url: str, requests: list[bytes]) -> Iterator[Callable[[], float]]:
    """Somebody who is refused meanwhile. What it gives ends them, and says how many a second they were."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_ask_on, args=(url, requests, there), daemon=True
    )
    process.start()
    try:
        if not here.poll(START_TIMEOUT_SECONDS):
            raise load.LoadProblem("nobody was refused in time")
        here.recv()

        def rate() -> float:
            here.send("enough")
            return float(here.recv())

        yield rate
    finally:
        process.kill()
        process.join(START_TIMEOUT_SECONDS)


def _ask_on(url: str, requests: list[bytes], there: Connection) -> None:
    """A beat's requests behind one another, each of the kinds in its turn, then their answers."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), SOCKET_TIMEOUT_SECONDS) as connection:
        each_beat = round(REFUSED_PER_SECOND * BEAT_SECONDS)
        beat = b"".join(requests[number % len(requests)] for number in range(each_beat))
        answered, started = 0, time.perf_counter()
        there.send("started")
        while not there.poll():
            connection.sendall(beat)
            answered += _refused(connection, each_beat)
            time.sleep(max(0.0, started + answered / REFUSED_PER_SECOND - time.perf_counter()))
        there.recv()
        there.send(answered / (time.perf_counter() - started))


def _refused(connection: socket.socket, count: int) -> int:
    """Read as many answers; each is a refusal. Raises LoadProblem."""
    seen = b""
    while (found := seen.count(b"HTTP/1.1 ")) < count or not seen.endswith(b"}\n"):
        more = connection.recv(READ_BYTES)
        if not more:
            raise load.LoadProblem("the agent closed the connection of who is refused")
        seen += more
    if seen.count(b"HTTP/1.1 401 ") + seen.count(b"HTTP/1.1 403 ") != found:
        raise load.LoadProblem(f"an answer is no refusal: {seen[:200]!r}")
    return found
