"""What this machine can do without Shoal: the floors that every number stands beside.

Law of this file: each floor does the least that the measured thing cannot do without: the same bytes written
and synced, the same body read by the same HTTP server, the same bytes through a socket.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pathlib
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from aiohttp import web

SEGMENT_BYTES = 64 * 2**20
ALLOCATION_STEP_BYTES = 8 * 2**20
START_TIMEOUT_SECONDS = 20.0
SOCKET_CHUNK_BYTES = 2**20


def synced_writes(directory: pathlib.Path, body: bytes, count: int) -> float:
    """Seconds for `count` times write + fdatasync of `body`, on files preallocated as segments are."""
    started = time.perf_counter()
    written = SEGMENT_BYTES
    descriptor, allocated, number = -1, 0, 0
    try:
        for _ in range(count):
            if written + len(body) > SEGMENT_BYTES:
                if descriptor >= 0:
                    os.close(descriptor)
                path = directory / f"floor-{number}"
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                number, written, allocated = number + 1, 0, 0
            if written + len(body) > allocated:
                os.posix_fallocate(descriptor, allocated, ALLOCATION_STEP_BYTES)
                allocated += ALLOCATION_STEP_BYTES
            os.write(descriptor, body)
            os.fdatasync(descriptor)
            written += len(body)
    finally:
        os.close(descriptor)
    seconds = time.perf_counter() - started
    for path in directory.glob("floor-*"):
        path.unlink()
    return seconds


def sync_latency_us(directory: pathlib.Path, body: bytes, count: int) -> float:
    """The median microseconds of one write + fdatasync, one at a time."""
    path = directory / "floor-latency"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, len(body) * count)
        latencies = []
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, body)
            os.fdatasync(descriptor)
            latencies.append((time.perf_counter() - started) * 1e6)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(latencies)


async def _read_body(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"{}", content_type="application/json")


def _serve(pipe: Connection) -> None:
    async def serve() -> None:
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_post("/empty", _read_body)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await runner.cleanup()

    asyncio.run(serve())


def round_trip_us(count: int) -> float:
    """The median microseconds of one byte there and back over loopback, to another thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        with listener.accept()[0] as other:
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := other.recv(1):
                other.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    latencies = []
    with listener, socket.create_connection(listener.getsockname()) as here:
        here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            started = time.perf_counter()
            here.sendall(b"x")
            here.recv(1)
            latencies.append((time.perf_counter() - started) * 1e6)
    thread.join()
    return statistics.median(latencies)


@contextmanager
def empty_handler() -> Iterator[str]:
    """The URL of an aiohttp handler, in a process of its own, that reads a body and does nothing with it."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        if not here.poll(START_TIMEOUT_SECONDS):
            raise TimeoutError("the empty handler did not start")
        yield f"http://127.0.0.1:{here.recv()}/empty"
    finally:
        here.send("stop")
        process.join(START_TIMEOUT_SECONDS)
        if process.is_alive():
            process.kill()


def socket_copy_bytes_per_second(total_bytes: int) -> float:
    """Bytes a second through one loopback connection, sender and receiver in two threads."""
    listener = socket.create_server(("127.0.0.1", 0))
    chunk = bytes(SOCKET_CHUNK_BYTES)

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as sender:
            for _ in range(total_bytes // SOCKET_CHUNK_BYTES):
                sender.sendall(chunk)

    thread = threading.Thread(target=send)
    started = time.perf_counter()
    thread.start()
    received, buffer = 0, bytearray(SOCKET_CHUNK_BYTES)
    with listener, listener.accept()[0] as receiver:
        while count := receiver.recv_into(buffer):
            received += count
    thread.join()
    return received / (time.perf_counter() - started)
