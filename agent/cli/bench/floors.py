"""Bare sockets, which every number of `shoal bench` stands beside: the same bytes, and nothing else.

Law of this file: it blocks, so it runs in a thread. Two threads of this process speak over loopback: the
network to a distant agent is not in it. A TCP handshake with the agent says how long that takes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from shoal.agent.cli.terminal.output import CliError

CHUNK_BYTES = 1 << 20
ANSWER_BYTES = 100  # about those of an append's answer
TIMEOUT_SECONDS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}
UNIX_SCHEME = "unix"


@contextmanager
def _beside(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """A connection over loopback whose other end `serve` has, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_SECONDS)

        def accept() -> None:
            with listener.accept()[0] as other:
                other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                serve(other)

        thread = threading.Thread(target=accept, name="bare-socket", daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname(), TIMEOUT_SECONDS) as here:
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield here
        thread.join(TIMEOUT_SECONDS)


def round_trips(count: int, sent_bytes: int) -> list[float]:
    """Seconds of each of `count` times so many bytes there, and a short answer back."""
    answer, sent = bytes(ANSWER_BYTES), bytes(sent_bytes)

    def serve(other: socket.socket) -> None:
        for _ in range(count):
            _receive(other, sent_bytes)
            other.sendall(answer)

    found = []
    with _beside(serve) as here:
        for _ in range(count):
            started = time.perf_counter()
            here.sendall(sent)
            _receive(here, ANSWER_BYTES)
            found.append(time.perf_counter() - started)
    return found


def _receive(from_socket: socket.socket, count: int) -> None:
    """Exactly so many bytes. Raises ConnectionError at an end before."""
    while count > 0:
        data = from_socket.recv(min(count, CHUNK_BYTES))
        if not data:
            raise ConnectionError("the bare socket ended")
        count -= len(data)


def copy_rate(total_bytes: int) -> float:
    """Bytes a second, one way, until the other end has all of them; at least one chunk."""
    chunks = max(1, round(total_bytes / CHUNK_BYTES))
    chunk = bytes(CHUNK_BYTES)

    def serve(other: socket.socket) -> None:
        _receive(other, chunks * CHUNK_BYTES)
        other.sendall(b"x")

    with _beside(serve) as here:
        started = time.perf_counter()
        for _ in range(chunks):
            here.sendall(chunk)
        _receive(here, 1)
        return chunks * CHUNK_BYTES / (time.perf_counter() - started)


def handshakes(url: str, count: int) -> list[float]:
    """Seconds of each of `count` connections to the agent, over TCP once there and back on the way to it.
    Raises CliError."""
    found = []
    try:
        family, address = _address_of(url)
        for _ in range(count):
            with socket.socket(family, socket.SOCK_STREAM) as one:
                one.settimeout(TIMEOUT_SECONDS)
                started = time.perf_counter()
                one.connect(address)
                found.append(time.perf_counter() - started)
    except OSError as error:
        raise CliError(
            f"{url} cannot be reached: {error.strerror or error}", "`shoal status` says more"
        ) from error
    return found


def _address_of(url: str) -> tuple[int, Any]:
    """Family and address of an agent's socket. Raises OSError for a name without an address."""
    parts = urlsplit(url)
    if parts.scheme == UNIX_SCHEME:
        return socket.AF_UNIX, parts.path
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    family, *_, address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)[0]
    return family, address


def is_here(url: str) -> bool:
    """Whether the agent shares this machine's processors with whoever measures it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == UNIX_SCHEME or host == "localhost" or host == "::1" or host.startswith("127.")
