"""The room of answers: never more than it, small ones pass large ones, and nobody's bytes are lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from shoal.agent.http.admission.answer_room import SMALL_ANSWER_BYTES, AnswerReservation, AnswerRoom
from shoal.agent.http.admission.limits import MIB, Gate, HttpLimits
from shoal.errors import ShoalError


def a_room(room_bytes: int, bytes_in_flight: int = 2**40) -> tuple[AnswerRoom, Gate]:
    gate = Gate(HttpLimits(bytes_in_flight=bytes_in_flight))
    return AnswerRoom(gate, room_bytes), gate


async def test_large_ones_wait_in_turn_and_small_ones_do_not() -> None:
    """What is given back goes to whoever waits longest."""
    room, gate = a_room(16 * MIB)
    first, second, third, small = (AnswerReservation(room, 60_000) for _ in range(4))
    await first.add(14 * MIB)
    waiting = [asyncio.create_task(holding.add(6 * MIB, may_wait=True)) for holding in (second, third)]
    await asyncio.sleep(0)
    await small.add(SMALL_ANSWER_BYTES)
    with pytest.raises(ShoalError) as refused:
        await small.add(MIB)
    assert refused.value.code == "overloaded"
    assert (second.size_bytes, small.size_bytes) == (0, SMALL_ANSWER_BYTES)
    first.drop(7 * MIB)
    await waiting[0]
    assert (second.size_bytes, third.size_bytes) == (6 * MIB, 0)
    second.release()
    await waiting[1]
    for holding in (first, second, third, small):
        holding.release()
    assert room.held_bytes == gate.bytes_in_flight == 0


async def test_one_record_may_be_as_large_as_the_room() -> None:
    """Alone: else its reader would never get on."""
    room, _ = a_room(16 * MIB)
    holding, other = AnswerReservation(room, 1), AnswerReservation(room, 1)
    await holding.add(64 * MIB)
    with pytest.raises(ShoalError, match="do not fit"):
        await other.add(MIB, may_wait=True)
    holding.release()
    await other.add(MIB)
    other.release()


async def test_what_the_gate_refuses_is_not_held() -> None:
    """Bodies may have taken the bytes that the room still has."""
    room, gate = a_room(16 * MIB, bytes_in_flight=2 * MIB)
    holding = AnswerReservation(room, 1)
    with pytest.raises(ShoalError, match="in flight"):
        await holding.add(3 * MIB)
    assert (room.held_bytes, gate.bytes_in_flight, holding.size_bytes) == (0, 0, 0)


def test_a_share_leaves_room_for_others() -> None:
    """However much is asked for; at least 1 MiB."""
    room, _ = a_room(128 * MIB)
    assert room.share(64 * MIB) == 16 * MIB
    assert room.share(5) == 5
    room.held_bytes = 125 * MIB
    assert room.share(64 * MIB) == MIB


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_lost_whoever_gives_up(seed: int) -> None:
    """Waits that are cancelled, also just when they are granted, and times that are up."""
    rng = random.Random(seed)
    room, gate = a_room(16 * MIB)

    async def one() -> None:
        holding = AnswerReservation(room, rng.choice((0, 1, 60_000)))
        try:
            await holding.add(rng.randrange(6 * MIB), may_wait=True)
            await asyncio.sleep(0)
        finally:
            holding.release()

    tasks = []
    for _ in range(60):
        tasks.append(asyncio.create_task(one()))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        assert room.held_bytes <= 16 * MIB
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        assert error is None or isinstance(error, asyncio.CancelledError | ShoalError), error
    assert room.held_bytes == gate.bytes_in_flight == 0
