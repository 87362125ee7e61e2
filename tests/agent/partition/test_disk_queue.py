"""The order of a replica's disk work: nobody hears of a segment's first entry before something outside the
log knows of it, and no truncation goes below what is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from shoal.agent.partition.disk_queue import DiskOrder
from shoal.format.batch import Flag, Frame, LogIndex
from shoal.replication.state.ready import Ready

STARTS = Flag.FIRST_OF_SEGMENT


class World:
    """A log and a hard state that do what they are told when the test lets them; `done` is what happened."""

    def __init__(self, floor: int = 0) -> None:
        self.done: list[str] = []
        self.writes: list[Callable[[], None]] = []
        self.saves: list[asyncio.Future[None]] = []
        self.order = DiskOrder(
            cast("Any", self),
            self.save_hard_state,
            LogIndex(floor),
            self.save_floor,
            lambda ready: self.done.append(f"durable {ready.append[-1] if ready.append else 'cut'}"),
            lambda error: self.done.append(f"failed {error}"),
        )

    async def save_hard_state(self, _: object) -> None:
        self.done.append("hard state")

    async def save_floor(self, floor: LogIndex) -> None:
        saved = asyncio.get_running_loop().create_future()
        self.saves.append(saved)
        await saved
        self.done.append(f"floor {floor}")

    def begin_append(self, frames: list[Frame], answer: Callable[[None], None]) -> None:
        self.writes.append(lambda: answer(None))

    async def truncate_suffix(self, from_index: LogIndex) -> None:
        self.done.append(f"cut {from_index}")

    def append(self, *entries: tuple[int, Flag], cut: int | None = None) -> None:
        """Hand in a ready with these entries."""
        frames = [SimpleFrame((SimpleNamespace(index=index, flags=flags), b"..")) for index, flags in entries]
        ready = SimpleNamespace(
            hard_state=None,
            truncate_from=cut,
            must_sync=True,
            append=[index for index, _ in entries],
        )
        self.order.submit(cast("Ready", ready), cast("list[Frame]", frames))

    async def turn(self) -> list[str]:
        """Let everything run that can; what has happened since."""
        for _ in range(10):
            await asyncio.sleep(0)
        done, self.done = self.done, []
        return done

    async def save(self) -> list[str]:
        """The oldest note is on the disk."""
        self.saves.pop(0).set_result(None)
        return await self.turn()


class SimpleFrame(tuple[Any, bytes]):
    """Unpacks as a frame does."""

    @property
    def data(self) -> bytes:
        return self[1]


async def test_a_segments_first_entry_is_noted_before_anybody_hears_of_it() -> None:
    """And so of what follows; entries inside a segment wait for no note."""
    world = World()
    world.append((1, STARTS), (2, Flag.NONE))
    world.append((3, Flag.NONE))
    for write in world.writes:
        write()
    assert await world.turn() == []
    assert await world.save() == ["floor 1", "durable 2", "durable 3"]
    world.append((4, Flag.NONE))
    world.writes[-1]()
    assert await world.turn() == ["durable 4"]


async def test_the_first_entry_of_a_log_is_noted_whatever_it_is() -> None:
    """Forced recovery of an empty replica begins the log with a configuration, which has no flag."""
    world = World()
    world.append((1, Flag.NONE), (2, Flag.NONE))
    world.writes[0]()
    assert await world.turn() == []
    assert await world.save() == ["floor 1", "durable 2"]
    world.append((1, Flag.NONE), cut=1)
    assert await world.turn() == []
    assert await world.save() == ["floor 0", "cut 1"]
    world.writes[1]()
    assert await world.turn() == []
    assert await world.save() == ["floor 1", "durable 1"]


async def test_a_noted_entry_is_not_noted_again() -> None:
    """After a restart the first of the newest segment is known already."""
    world = World(floor=5)
    world.append((5, STARTS))
    world.writes[0]()
    assert await world.turn() == ["durable 5"]


async def test_a_truncation_lowers_the_note_first() -> None:
    """A crash between the two leaves a log that reaches further than noted, never one that looks lost."""
    world = World(floor=5)
    world.append((4, Flag.NONE), cut=4)
    assert await world.turn() == []
    assert await world.save() == ["floor 3", "cut 4"]
    world.append((5, STARTS))
    for write in world.writes:
        write()
    await world.turn()
    assert (await world.save())[-1] == "durable 5"


async def test_what_is_cut_while_it_is_written_is_not_noted() -> None:
    """Its write ends after the truncation was asked for: a note would outlive the entry. What came before the
    cut in the same write is noted."""
    world = World(floor=1)
    world.append((7, STARTS), (8, Flag.NONE), (9, STARTS))
    world.append((8, Flag.NONE), cut=8)
    assert await world.turn() == ["cut 8"]
    world.writes[0]()
    world.writes[1]()
    await world.turn()
    assert await world.save() == ["floor 7", "durable 9", "durable 8"]


async def test_the_end_waits_for_a_note_under_way() -> None:
    """The hard states are closed after that."""
    world = World()
    world.append((1, STARTS))
    world.writes[0]()
    end = asyncio.ensure_future(world.order.drain())
    await world.turn()
    assert not end.done()
    await world.save()
    assert end.done()
