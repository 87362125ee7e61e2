"""Many that were let go in one instant pass a few at a time, and everybody else gets a turn in between."""

import asyncio
from itertools import pairwise

import pytest

from shoal.agent.process.pace import Pace


async def test_a_few_pass_in_each_round_in_their_order() -> None:
    """Whoever else is on the loop sees them in pieces."""
    pace, passed = Pace(4), []

    async def go(number: int) -> None:
        await pace.pass_one()
        passed.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(18)]
    seen = [0]
    while len(passed) < 18:
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert max(later - sooner for sooner, later in pairwise(seen)) == 4
    assert passed == list(range(18))
    await asyncio.gather(*tasks)


async def test_whoever_comes_alone_does_not_wait() -> None:
    """And leaves nothing planned behind for ever."""
    pace = Pace(2)
    for _ in range(5):
        with pytest.raises(StopIteration):
            pace.pass_one().send(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not pace._planned


async def test_who_was_cancelled_takes_nobodys_turn() -> None:
    """It left the queue."""
    pace = Pace(1)
    passes, gone, waits = (asyncio.create_task(pace.pass_one()) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(waits, 10)
    assert passes.done()
    assert gone.cancelled()
