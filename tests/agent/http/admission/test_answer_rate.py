"""Readers that take next to nothing are cut off, whatever the form of their answer; slow ones are not."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from http_fixtures import Agent, one_agent
from virtual_loop import run_virtually

from shoal.agent.http.admission.answer_rate import AnswerDeadline, SlowReader, StreamDeadline
from shoal.agent.http.admission.limits import KIB, MIB, HttpLimits

LIMITS = HttpLimits()
PARTITION = "/v1/topics/t/partitions/0/records"


async def take(step_bytes: int, pause_s: float, total_bytes: int, held_bytes: int) -> float:
    """Take so much at a time; the time when all was taken."""
    loop = asyncio.get_running_loop()
    async with AnswerDeadline(LIMITS, held_bytes) as patience:
        left = total_bytes
        while left > 0:
            await asyncio.sleep(pause_s)
            patience.took(min(left, step_bytes))
            left -= step_bytes
        patience.last()
    return loop.time()


@pytest.mark.parametrize(
    ("step_bytes", "pause_s", "held_bytes"),
    [(1, 1.0, 0), (1, 59.0, 0), (KIB, 1.1, 16 * KIB), (MIB, 8.0, 64 * MIB), (60 * KIB, 61.0, 0)],
)
def test_who_takes_too_little_is_cut_off(step_bytes: int, pause_s: float, held_bytes: int) -> None:
    """A byte a minute, less than 1 KiB a second, or less than an eighth a minute of the memory held."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(SlowReader, match="the reader took"):
            await take(step_bytes, pause_s, 64 * MIB, held_bytes)
        return loop.time()

    assert run_virtually(work()) <= 2.5 * LIMITS.send_stall_ms / 1000


@pytest.mark.parametrize(
    ("step_bytes", "pause_s", "total_bytes", "held_bytes"),
    [(64 * KIB, 50.0, 64 * MIB, 0), (KIB, 0.9, 2 * MIB, 16 * KIB), (MIB, 7.0, 64 * MIB, 64 * MIB)],
)
def test_who_takes_enough_gets_everything(
    step_bytes: int, pause_s: float, total_bytes: int, held_bytes: int
) -> None:
    """However long that takes in all."""
    took_s = run_virtually(take(step_bytes, pause_s, total_bytes, held_bytes))
    assert took_s == pytest.approx(total_bytes / step_bytes * pause_s)


def test_our_own_waits_are_not_the_readers() -> None:
    """A disk that takes its time again and again cuts nobody off."""

    async def work() -> None:
        async with AnswerDeadline(LIMITS) as patience:
            for _ in range(10):
                with patience.excused():
                    await asyncio.sleep(40)
                await asyncio.sleep(5)
                patience.took(60 * KIB)

    run_virtually(work())


class Response:
    """Takes a moment for every write."""

    async def write(self, data: bytes) -> None:
        del data
        await asyncio.sleep(30.0)


def test_a_stream_is_judged_by_what_was_waited_for() -> None:
    """Events that come seldom cut nobody off; a reader who is always waited for has to take."""

    async def work() -> None:
        response = Response()
        quick = StreamDeadline(LIMITS)
        for _ in range(20):
            await quick.write(response, bytes(60 * KIB))  # type: ignore[arg-type]
        slow = StreamDeadline(LIMITS)
        await slow.write(response, b"x")  # type: ignore[arg-type]
        await asyncio.sleep(3600)
        with pytest.raises(SlowReader, match="took 2 bytes in 60 s; at least 61440 were wanted"):
            await slow.write(response, b"x")  # type: ignore[arg-type]

    run_virtually(work())


async def test_an_answer_in_memory_is_not_held_by_a_trickle() -> None:
    """Over real sockets: a reader that takes 2 MiB of 32 a second, where 4 are wanted, does not get all, and
    nothing is held afterwards."""
    async with one_agent(HttpLimits(send_stall_ms=1_000)) as agent:
        agent.broker.cluster.create("t")
        for _ in range(32):
            await agent.post(PARTITION, bytes(MIB))
        received = await trickle(agent, f"{PARTITION}?max_bytes={64 * MIB}", 256 * KIB, 0.12)
        assert 0 < received < 32 * MIB
        async with asyncio.timeout(30):
            while agent.runner.context.gate.bytes_in_flight:
                await asyncio.sleep(0.01)


async def trickle(agent: Agent, path: str, step_bytes: int, pause_s: float) -> int:
    """How many bytes came until the end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        plain.setblocking(False)
        await loop.sock_connect(plain, ("127.0.0.1", agent.port))
        head = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.apache.arrow.stream\r\n\r\n"
        )
        await loop.sock_sendall(plain, head.encode())
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while received < 32 * MIB:
                step = 0
                while step < step_bytes:
                    piece = await loop.sock_recv(plain, step_bytes - step)
                    if not piece:
                        return received
                    step += len(piece)
                    received += len(piece)
                await asyncio.sleep(pause_s)
        return received
