"""Clocks that differ: who hears of it, by name, once, and that it is over."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_loop import run_virtually

from shoal.agent.log_lines.names import Names
from shoal.agent.partition.clock_skew import PeerClocks

EPOCH_US = 1_700_000_000_000_000
HOUR_S = 3_600
TIMES = struct.Struct("<qq")
OWN, OTHERS = "own", ("herring", "cod")


class Clock:
    """The loop's time, and a wall clock that may be ahead."""

    def __init__(self, ahead_s: int) -> None:
        self.ahead_s = ahead_s

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1_000)

    def now_us(self) -> int:
        return EPOCH_US + self.now_ms() * 1_000 + self.ahead_s * 1_000_000


class World:
    """An agent with two peers, each with a wall clock, and what all of them believe: the right time."""

    def __init__(self, ahead_s: int) -> None:
        self.clock = Clock(ahead_s)
        self.ahead_s = dict.fromkeys(OTHERS, 0)
        replicas = [SimpleNamespace(agent_id=name, learner=False) for name in (OWN, *OTHERS)]
        group: Any = SimpleNamespace(
            core=SimpleNamespace(configuration=SimpleNamespace(replicas=replicas)),
        )
        links: Any = SimpleNamespace(handle_request=lambda *_: None, request=self._answer)
        self.clocks = PeerClocks(links, self.clock, OWN, lambda: [group], 5_000)

    async def _answer(self, peer: str, *_: object) -> bytes:
        right_us = EPOCH_US + self.clock.now_ms() * 1_000
        return TIMES.pack(right_us, right_us + self.ahead_s[peer] * 1_000_000)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Level, event and the first words of each line since the last look."""
    lines = [
        (one.levelname, str(vars(one)["event"]), one.getMessage().split(";")[0]) for one in caplog.records
    ]
    caplog.clear()
    return lines


Change = Callable[[World], None]
Said = list[tuple[str, str, str]]


def nothing(_: World) -> None:
    """No change."""


def set_own(ahead_s: int) -> Change:
    """This machine's clock."""
    return lambda world: setattr(world.clock, "ahead_s", ahead_s)


def set_cod(ahead_s: int) -> Change:
    """A peer's clock."""
    return lambda world: world.ahead_s.update(cod=ahead_s)


def live(
    caplog: pytest.LogCaptureFixture, *steps: tuple[Change, float], ahead_s: int = 0
) -> tuple[World, list[Said]]:
    """What is logged within so many seconds after each change. `ahead_s`: of this machine's clock at the
    start. Peers have their ids for names."""

    async def life() -> tuple[World, list[Said]]:
        world = World(ahead_s)
        task = asyncio.create_task(world.clocks.run())
        said = []
        for change, seconds in steps:
            change(world)
            await asyncio.sleep(seconds)
            said.append(told(caplog))
        task.cancel()
        return world, said

    names = Names()
    for name in OTHERS:
        names.learn_agent(name, name)
    with names.in_use(), caplog.at_level("INFO"):
        return run_virtually(life())


def test_a_peers_wrong_clock_is_told_with_its_name_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though the peer itself believes the others already: somebody has to set the clock."""
    world, (started, skewed, long_after, mended) = live(
        caplog, (nothing, 20), (set_cod(HOUR_S), 90), (nothing, 600), (set_cod(0), 90)
    )
    assert started == []
    assert skewed == [("WARNING", "clock-skew", "clock skew: the clock of cod differs by 3600 s")]
    assert long_after == []
    assert mended == [("INFO", "clock-skew-over", "clock skew is over: the clock of cod is right again")]
    assert world.clocks.wrong_peers == 0
    assert not world.clocks.is_doubted


def test_this_machines_wrong_clock_is_told_once_and_blames_no_peer(caplog: pytest.LogCaptureFixture) -> None:
    """The majority is right; the clock is believed again once it is set."""
    _, (started, skewed, mended) = live(caplog, (nothing, 20), (set_own(HOUR_S), 700), (set_own(0), 90))
    assert started == []
    ((level, event, text),) = skewed
    assert (level, event) == ("WARNING", "clock-skew")
    assert text.startswith("clock skew: this machine's clock jumped, or differs from its peers', by 3600 s.")
    assert [(level, event) for level, event, _ in mended] == [("INFO", "clock-skew-over")]


def test_a_clock_that_was_wrong_from_the_start_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """As after a boot without a battery: nothing has jumped since. No peer is blamed."""
    world, (started,) = live(caplog, (nothing, 30), ahead_s=HOUR_S)
    assert [line[:2] for line in started] == [("WARNING", "clock-skew")]
    assert "this machine's clock" in started[0][2]
    assert world.clocks.is_doubted
    assert world.clocks.wrong_peers == 0
