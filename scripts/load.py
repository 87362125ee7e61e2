"""A load generator for HTTP/1.1 on loopback: prepared requests, bare sockets, nothing more.

Law of this file: it measures; it knows no more of Shoal than a URL. A connection has one request in flight;
every answer is read whole and must be a 2xx: a refused request is an error, never a fast success.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import ssl
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import cast

import load_tls

ANSWER_HEAD_BYTES_MAX = 64 * 1024


class LoadProblem(Exception):
    """The server refused or broke a request."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run saw."""

    requests: int
    seconds: float
    latencies_us: list[float]
    answer_bytes: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def request_bytes(method: str, url: str, body: bytes = b"", **headers: str) -> bytes:
    """One whole request, ready for the socket. Header names are written with underscores."""
    parts = urllib.parse.urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class _Connection(asyncio.Protocol):
    """Sends its request again as soon as the answer to the last one is complete."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._missing = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # or what has sealed its place
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        if self._run.take():
            self._sent_at = time.perf_counter()
            self._transport.write(next(self._run.requests))
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._run.answer_bytes += len(data)
        if self._missing:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finished()
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > ANSWER_HEAD_BYTES_MAX:
                self._run.fail("an answer's head has no end")
            return
        self._missing = _content_length(self._head[:end], self._run) - (len(self._head) - end - 4)
        if not self._head.startswith(b"HTTP/1.1 2"):
            self._run.fail(self._head[:800].decode(errors="replace"))
        self._head = b""
        if self._missing <= 0:
            self._finished()

    def _finished(self) -> None:
        self._missing = 0
        self._run.latencies_us.append((time.perf_counter() - self._sent_at) * 1e6)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.connection_ended(error)


def _content_length(head: bytes, run: _Run) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    run.fail("an answer has no Content-Length")
    return 0


class _Run:
    """What the connections of one run share."""

    def __init__(
        self, requests: int, connections: int, done: asyncio.Future[None], sent: Iterator[bytes]
    ) -> None:
        self.requests = sent
        self.latencies_us: list[float] = []
        self.answer_bytes = 0
        self._left = requests
        self._open = connections
        self._expected = requests
        self._done = done

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(LoadProblem(reason))

    def connection_ended(self, error: Exception | None) -> None:
        self._open -= 1
        if error is not None:
            self.fail(f"a connection broke: {error}")
        if self._open == 0 and not self._done.done():
            if len(self.latencies_us) == self._expected:
                self._done.set_result(None)
            else:
                self.fail(f"{len(self.latencies_us)} answers to {self._expected} requests")


async def measure(
    request: bytes | Iterable[bytes],
    url: str,
    *,
    connections: int,
    requests: int,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> Measured:
    """Sends `requests` requests over `connections` connections. `request`: each of them, or all, which are
    begun again when they end. `tls`: for https. Raises LoadProblem."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    sent = itertools.repeat(request) if isinstance(request, bytes) else itertools.cycle(request)
    run = _Run(requests, connections, done, sent)
    started = time.perf_counter()
    host = parts.hostname

    def connection() -> asyncio.Protocol:
        plain = _Connection(run)
        return plain if tls is None else load_tls.SealedConnection(tls, host, plain)

    for _ in range(connections):
        await loop.create_connection(connection, host, parts.port)
    await asyncio.wait_for(done, timeout_s)
    return Measured(requests, time.perf_counter() - started, run.latencies_us, run.answer_bytes)
