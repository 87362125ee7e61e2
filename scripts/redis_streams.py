"""Redis Streams as a queue, where redis-server is installed: one message a request, each acked with the next.

Law of this file: bare sockets, as group_load.py; the server listens on 127.0.0.1, syncs its log before each
answer, writes below a directory of its own, and is ended by its own process id.
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

START_TIMEOUT_SECONDS = 10.0
STOP_TIMEOUT_SECONDS = 10.0
GROUP = b"workers"
PIPELINED = 100
"""Messages that are added by one write."""


class RedisProblem(Exception):
    """The server did not start, or answered with an error."""


def is_installed() -> bool:
    """Whether there is a redis-server to measure."""
    return shutil.which("redis-server") is not None


@contextmanager
def server(directory: pathlib.Path) -> Iterator[int]:
    """A fresh server that syncs every command, and its port."""
    directory.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    settings = {
        "--bind": "127.0.0.1", "--port": str(port), "--dir": str(directory), "--save": "",
        "--appendonly": "yes", "--appendfsync": "always",
    }  # fmt: skip
    arguments = ["redis-server", *(word for pair in settings.items() for word in pair)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_listens(process, port)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RedisProblem(f"redis-server does not listen on port {port}")


def command(*words: bytes) -> bytes:
    """One command as its protocol has it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Connection:
    """Commands and their answers. Raises RedisProblem for an answer that is an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """To the server on 127.0.0.1."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        """Whole commands; each has one answer."""
        self._writer.write(data)

    async def answer(self) -> object:
        """The next one: bytes, a number, None or a list of these."""
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RedisProblem(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"+" or rest == b"-1":
            return rest if kind == b"+" else None
        if kind == b"$":
            return (await self._reader.readexactly(int(rest) + 2))[:-2]
        return [await self.answer() for _ in range(int(rest))]

    def close(self) -> None:
        """Both directions."""
        self._writer.close()


async def fill(port: int, stream: bytes, messages: int, value: bytes) -> None:
    """A stream with so many messages, and a group at its begin."""
    connection = await Connection.open(port)
    connection.send(command(b"XGROUP", b"CREATE", stream, GROUP, b"0", b"MKSTREAM"))
    await connection.answer()
    for begin in range(0, messages, PIPELINED):
        count = min(PIPELINED, messages - begin)
        connection.send(command(b"XADD", stream, b"*", b"value", value) * count)
        for _ in range(count):
            await connection.answer()
    connection.close()


async def consume(port: int, stream: bytes, *, consumers: int, messages: int) -> float:
    """Messages a second: each consumer reads one, and acks it in the write that asks for the next."""
    seen = 0

    async def one(number: int) -> None:
        nonlocal seen
        connection = await Connection.open(port)
        name, acknowledge = b"consumer-%d" % number, b""
        read = command(b"XREADGROUP", b"GROUP", GROUP, name, b"COUNT", b"1", b"STREAMS", stream, b">")
        while True:
            connection.send(acknowledge + read)
            if acknowledge:
                await connection.answer()
            found = await connection.answer()
            if not found:
                break
            assert isinstance(found, list)
            ((_, ((message, _),)),) = found
            acknowledge = command(b"XACK", stream, GROUP, message)
            seen += 1
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(consumers)))
    seconds = time.perf_counter() - began
    if seen != messages:
        raise RedisProblem(f"{seen} of {messages} messages came")
    return seen / seconds
