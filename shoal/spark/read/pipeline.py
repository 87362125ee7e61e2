"""Many small GETs at once: requests go together over a few kept-alive connections, answers come in order.

http.client takes one request at a time and 0.17 ms of a core for each, ten times the cost of the exchange.
Answers that do not come this way are left out: callers ask for them one by one. Answers are not trusted to be
small or complete.
"""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from shoal.spark.read.http import IDLE_CONNECTIONS_MAX, Answer, ConnectionPool, MovedError

PIPELINED_MAX: Final = 32
"""Requests sent over a connection before its first answer is read. Their 8 KiB fit into a socket at once:
else both sides might wait for the other to read."""

CONNECTIONS_MAX: Final = IDLE_CONNECTIONS_MAX  # at once: those that the pool keeps
HEAD_BYTES_MAX: Final = 64 * 1024
HEAD_END: Final = b"\r\n\r\n"
RECEIVED_BYTES: Final = 64 * 1024
SECONDS_MIN: Final = 0.001  # of a wait whose time is up: a timeout of 0 means another thing to a socket

Request = tuple[str, str]
"""Base URL and path."""


class Headers(dict[str, str]):
    """Of an answer, by their names in any case of letters; None for a name that is not there."""

    def __getitem__(self, name: str) -> Any:
        return self.get(name.lower())


class _Sent(NamedTuple):
    base: str
    paths: Sequence[str]
    connection: http.client.HTTPConnection


def exchange(
    pool: ConnectionPool,
    requests: Sequence[Request],
    accept: str,
    remaining: Callable[[], float],
    admit: Callable[[int], None],
) -> dict[Request, Answer]:
    """The answers that came. `remaining`: seconds until all is given up; `admit`: as ConnectionPool.request,
    what it raises ends all."""
    by_base: dict[str, list[str]] = {}
    for base, path in requests:
        by_base.setdefault(base, []).append(path)
    shares = [
        (base, paths[first : first + PIPELINED_MAX])
        for base, paths in by_base.items()
        for first in range(0, len(paths), PIPELINED_MAX)
    ]
    answers: dict[Request, Answer] = {}
    for first in range(0, len(shares), CONNECTIONS_MAX):
        sent: list[_Sent] = []
        try:
            for base, paths in shares[first : first + CONNECTIONS_MAX]:
                taken = _send(pool, base, paths, accept, remaining)
                if taken is not None:
                    sent.append(_Sent(base, paths, taken))
            while sent:
                if _receive(sent[0], answers, remaining, admit):
                    pool.keep(sent[0].base, sent[0].connection)
                else:
                    sent[0].connection.close()
                sent.pop(0)
        finally:
            for one in sent:
                one.connection.close()
    return answers


def _send(
    pool: ConnectionPool, base: str, paths: Sequence[str], accept: str, remaining: Callable[[], float]
) -> http.client.HTTPConnection | None:
    """The connection that has taken the requests; None where no agent takes any."""
    seconds = max(SECONDS_MIN, remaining())
    host = urlsplit(base).netloc
    own = "".join(f"{name}: {value}\r\n" for name, value in pool.headers.items())
    head = f"Host: {host}\r\nAccept: {accept}\r\n{own}\r\n"
    text = "".join(f"GET {path} HTTP/1.1\r\n{head}" for path in paths)
    try:
        connection = pool.take(base, seconds) or pool.open(base, seconds)
    except MovedError:
        return None
    try:
        if connection.sock is None:
            connection.connect()
        connection.sock.sendall(text.encode())
    except OSError:
        connection.close()
        return None
    return connection


def _receive(
    sent: _Sent,
    answers: dict[Request, Answer],
    remaining: Callable[[], float],
    admit: Callable[[int], None],
) -> bool:
    """Read the answers of one connection into `answers`. Whether it may be used again."""
    receiver = _Receiver(sent.base, sent.connection.sock, remaining)
    try:
        for path in sent.paths:
            answer = answers[sent.base, path] = receiver.answer(admit)
            if answer.headers.get("connection", "").lower() == "close":
                return False
    except (OSError, MovedError, ValueError):  # callers ask for the rest one by one, and hear what is wrong
        return False
    return receiver.is_empty


class _Receiver:
    """Answers of one connection, one after the other."""

    def __init__(self, base: str, sock: socket.socket, remaining: Callable[[], float]) -> None:
        self._base = base
        self._sock = sock
        self._remaining = remaining
        self._received = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether all bytes that came belong to answers."""
        return not self._received

    def answer(self, admit: Callable[[int], None]) -> Answer:
        """The next one. Raises OSError, MovedError and ValueError for what is none, and what `admit` does."""
        end = self._received.find(HEAD_END)
        while end < 0:
            if len(self._received) > HEAD_BYTES_MAX:
                raise ValueError("an endless head")
            self._receive()
            end = self._received.find(HEAD_END)
        status, headers = read_head(bytes(self._received[:end]))
        length = int(headers["content-length"])
        admit(length)
        del self._received[: end + len(HEAD_END)]
        while len(self._received) < length:
            self._receive()
        body = bytes(self._received[:length])
        del self._received[:length]
        return Answer(status, headers, body)

    def _receive(self) -> None:
        self._sock.settimeout(max(SECONDS_MIN, self._remaining()))
        piece = self._sock.recv(RECEIVED_BYTES)
        if not piece:
            raise MovedError(f"{self._base} broke off within an answer")
        self._received += piece


def read_head(head: bytes) -> tuple[int, Headers]:
    """Status and headers of an answer. Raises ValueError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if version != "HTTP/1.1" or len(head) > HEAD_BYTES_MAX or not 200 <= int(status) <= 599:
        raise ValueError(f"no answer: {first[:80]!r}")
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"no header: {line[:80]!r}")
        headers[name.lower()] = value.strip()
    if not re.fullmatch("[0-9]{1,15}", headers.get("content-length", "")):
        raise ValueError("an answer without a length")
    return int(status), headers
