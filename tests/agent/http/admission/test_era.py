"""How long whoever was let in is let in again."""

from __future__ import annotations

import asyncio

from shoal.agent.http.admission.era import Era


async def turn() -> None:
    """One of the loop, to its end."""
    await asyncio.sleep(0)


async def test_each_turn_looks_anew() -> None:
    """And finds the same era while nothing has changed."""
    era = Era(is_endless=False)
    assert era.now is None
    era.go_on(1.0)
    first = era.now
    assert first is not None
    await turn()
    assert era.now is None
    era.go_on(2.0)
    assert era.now is first


async def test_a_change_begins_another_at_once() -> None:
    """In the turn in which it is found, and in one before anybody has looked."""
    era = Era(is_endless=False)
    era.go_on(1.0)
    first = era.now
    era.begin()
    second = era.now
    assert second not in (None, first)
    await turn()
    era.begin()
    assert era.now is None
    era.go_on(2.0)
    assert era.now not in (None, first, second)


async def test_the_first_end_counts() -> None:
    """At its millisecond, once."""
    era = Era(is_endless=False)
    era.go_on(1.0)
    first = era.now
    for ends_ms in (30.0, 20.0, 25.0):
        era.lasts_until(ends_ms)
    await turn()
    era.go_on(19.0)
    assert era.now is first
    await turn()
    era.go_on(20.0)
    second = era.now
    assert second is not first
    await turn()
    era.go_on(40.0)
    assert era.now is second


async def test_where_nobody_is_asked_it_has_no_end() -> None:
    """And no turn begins with a look."""
    era = Era(is_endless=True)
    first = era.now
    await turn()
    assert era.now is first is not None


def test_without_a_loop_each_request_looks() -> None:
    """Nobody would end the turn."""
    era = Era(is_endless=False)
    era.go_on(1.0)
    assert era.now is None
