"""The view of a timer topic: beside a sorted list, over restarts, crashes at every write, damage and
merges."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncIterator

import polars
import pyarrow as pa
import pytest
from memory_disk import Fault, MemoryDisk

from shoal.agent.receive import DuePlace, Range
from shoal.agent.views import merge_plan
from shoal.agent.views.timer_view import END
from shoal.agent.views.view import ViewLimits, ViewNotReady
from tests.agent.views.view_desk import DIRECTORY, SMALL_RUNS, TimerDesk, each, random_dues

START = DuePlace(0, 0)


@pytest.fixture(autouse=True)
async def close_desks() -> AsyncIterator[None]:
    """Their logs end with the test."""
    yield
    while TimerDesk.opened:
        await TimerDesk.opened.pop().close()


async def desk_of(entries: int, seed: int = 0) -> TimerDesk:
    """A desk with random entries, none of them in a run."""
    desk = TimerDesk(MemoryDisk())
    await desk.open()
    rng = random.Random(seed)
    for number in range(entries):
        await desk.append(random_dues(rng), 100 + number)
    return desk


@pytest.mark.parametrize("seed", range(6))
async def test_the_view_gives_what_a_sorted_list_gives(seed: int) -> None:
    """Looks from any place to any other, from memory and runs alike, while runs are made and merged and the
    agent starts again."""
    rng = random.Random(seed)
    desk = TimerDesk(MemoryDisk())
    await desk.open()
    for step in range(120):
        await desk.append(random_dues(rng), 100 + step)
        for _ in range(rng.choice((0, 0, 1, 5))):
            await desk.maker.work(expired_us=0, seal=rng.random() < 0.3)
        if rng.random() < 0.1:
            await desk.open()
        desk.view.check_invariants()
        after, until = sorted(rng.sample([START, END, *desk.places], 2))
        assert await desk.due(after, until) == desk.expected(after, until)
        nearest = await desk.look(lambda place=after: desk.timers.nearest(place))
        assert nearest == min(desk.expected(after), default=None)
        await desk.look(lambda place=until: desk.timers.nearest(place))  # now the chunks of both are held
        assert desk.timers.count(after, until) == len(desk.expected(after, until))
    await desk.settle()
    assert max(entry.level for entry in desk.view.manifest.runs) >= 1
    assert await desk.due(START) == desk.expected(START)


async def test_rows_come_from_runs_as_they_were_appended() -> None:
    """Each record of a range with its own offset, key and value."""
    desk = await desk_of(60)
    await desk.settle()
    ranges = await desk.look(lambda: desk.timers.due(START, END, 10_000))
    found = await desk.timers.rows(ranges)
    offsets = [offset for rows in found for offset in rows.column("offset").to_pylist()]
    assert offsets == [place.offset for place in each(ranges)]
    assert [rows.num_rows for rows in found] == [piece.count for piece in ranges]
    assert {size for rows in found for size in map(len, rows.column("value").to_pylist())} == {8}


async def test_a_run_is_an_arrow_stream_as_it_lies() -> None:
    """pyarrow and polars read the file, and pass over what stands behind the stream."""
    desk = await desk_of(40)
    await desk.settle()
    with desk.view.pinned() as runs:
        for run in runs:
            data = desk.disk.content(run.path)
            table = pa.ipc.open_stream(data).read_all()
            assert table.num_rows == run.entry.rows == len(polars.read_ipc_stream(io.BytesIO(data)))
            assert table.column_names[:2] == ["offset", "append_time"]


async def test_a_start_goes_on_from_the_runs() -> None:
    """Entries that runs have are not read again; those behind them are."""
    desk = await desk_of(50)
    await desk.maker.work(expired_us=0, seal=True)
    saved = desk.view.saved
    assert 0 < saved.offset < desk.view.applied.offset
    await desk.open()
    assert desk.view.saved == saved
    assert desk.view.memory.rows == desk.view.applied.offset - saved.offset
    assert await desk.due(START) == desk.expected(START)


@pytest.mark.parametrize("seed", range(40))
async def test_a_crash_at_any_write_loses_nothing(seed: int) -> None:
    """The power fails in the middle of a run, a merge or a manifest: the next start has every row, and no
    file that belongs to nothing."""
    rng = random.Random(seed)
    desk = TimerDesk(MemoryDisk(random.Random(seed), pause_max=2))
    await desk.open()
    for round_ in range(6):
        for number in range(rng.randrange(1, 12)):
            await desk.append(random_dues(rng), 100 + 100 * round_ + number)
        operation = rng.choice(("write", "sync", "open", "unlink", "sync_directory"))
        desk.disk.faults = [Fault(operation, 5, "view", skip=rng.randrange(12), times=1)]
        try:
            while await desk.maker.work(expired_us=0, seal=True):
                pass
        except OSError:
            if rng.random() < 0.5:  # the agent goes on with what it has
                assert await desk.due(START) == desk.expected(START)
                desk.disk.faults = []
                await desk.settle()
        desk.disk.faults = []
        desk.disk.crash(random.Random(rng.random()))
        await desk.open()
        assert await desk.due(START) == desk.expected(START)
        files = set(await desk.disk.list(f"{DIRECTORY}/view"))
        assert files - {"manifest.a", "manifest.b"} == {entry.name.file for entry in desk.view.manifest.runs}


async def test_a_log_trimmed_up_to_the_runs_is_enough() -> None:
    """Whatever was saved needs the log no more."""
    desk = await desk_of(150)
    await desk.settle()
    spans = desk.log.spans()
    await desk.log.trim(spans[-1].first_index)
    assert desk.log.start_offset > 0
    await desk.open()
    assert await desk.due(START) == desk.expected(START)


@pytest.mark.parametrize("place", ["chunk", "index", "tail", "lost"])
async def test_a_damaged_run_is_made_again_from_the_log(place: str) -> None:
    """Found at the start or by a look; until it is mended nothing is read from the view."""
    desk = await desk_of(120)
    await desk.settle()
    with desk.view.pinned() as runs:
        run = max(runs, key=lambda item: item.entry.rows)
    size = len(desk.disk.content(run.path))
    if place == "lost":
        desk.disk.lose(run.path)
    else:
        first = run.index.chunk(0)  # at its end are values: nothing but its checksum knows them
        places = {"chunk": first.position + first.length - 16, "index": size - 80, "tail": -30}
        desk.disk.damage(run.path, places[place])
    if place == "chunk":
        with pytest.raises(ViewNotReady):
            await desk.due(START)
    await desk.open()
    if place != "chunk":
        assert not desk.view.is_whole
        with pytest.raises(ViewNotReady):
            await desk.due(START)
    else:
        with pytest.raises(ViewNotReady):
            await desk.due(START)
    assert await desk.maker.work(expired_us=0)
    desk.view.check_invariants()
    assert await desk.due(START) == desk.expected(START)
    await desk.open()
    assert desk.view.is_whole
    assert await desk.due(START) == desk.expected(START)


async def test_a_damaged_run_waits_where_the_log_is_gone() -> None:
    """Nothing is made up: the view says that it is not whole, and does nothing."""
    desk = await desk_of(150)
    await desk.settle()
    await desk.log.trim(desk.log.spans()[-1].first_index)
    with desk.view.pinned() as runs:
        desk.disk.damage(runs[0].path, runs[0].index.chunk(0).position + 40)
    with pytest.raises(ViewNotReady):
        await desk.due(START)
    assert not await desk.maker.work(expired_us=0)
    with pytest.raises(ViewNotReady):
        desk.timers.nearest(START)


@pytest.mark.parametrize("copies", [("a",), ("b",), ("a", "b")])
async def test_a_damaged_manifest_costs_at_most_the_runs(copies: tuple[str, ...]) -> None:
    """One copy is enough. Without both, the view is made again from the log."""
    desk = await desk_of(60)
    await desk.settle()
    for copy in copies:
        desk.disk.damage(f"{DIRECTORY}/view/manifest.{copy}", 20)
    saved = desk.view.saved
    await desk.open()
    assert (desk.view.saved == saved) == (len(copies) == 1)
    assert await desk.due(START) == desk.expected(START)


async def test_records_go_once_they_were_due_and_their_retention_is_over() -> None:
    """A run of which half the rows are past their retention is written again without them; pending rows stay,
    however old."""
    desk = TimerDesk(MemoryDisk())
    await desk.open()
    for number in range(40):
        await desk.append([1_000 + number, 10**12 + number, None], 100)
    await desk.settle()
    before = sum(entry.rows for entry in desk.view.manifest.runs)
    await desk.settle(expired_us=2_000)
    assert sum(entry.rows for entry in desk.view.manifest.runs) == before - 80
    assert await desk.due(START) == desk.expected(DuePlace(2_000, 0))
    await desk.open()
    assert await desk.due(START) == desk.expected(DuePlace(2_000, 0))
    assert await desk.timers.rows([Range(1_000, 0, 1)]) == [
        pa.RecordBatch.from_pylist([], schema=desk.view.order.schema)
    ]
    await desk.settle(expired_us=10**13)
    assert desk.view.manifest.runs == ()
    await desk.append([5], 10**14)
    assert len(await desk.due(START)) == 1


async def test_the_log_goes_only_as_far_as_runs_are_saved() -> None:
    """What was taken, and stands in no run yet, would be gone with the process."""
    desk = await desk_of(30)
    machine = desk.view.machine
    assert machine.next_offset() == desk.log.end_offset > 0
    assert machine.saved_offset() == 0
    await desk.settle()
    assert machine.saved_offset() == desk.log.end_offset
    saved = machine.saved_offset()
    await desk.append([1, 2, 3], 10_000)
    assert (machine.saved_offset(), machine.next_offset()) == (saved, saved + 3)


async def test_a_merge_in_many_pieces_keeps_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a piece leaves over come with the next one: of one run they lie far apart, of another
    together."""
    monkeypatch.setattr(merge_plan.merge_parts, "__defaults__", (3_000,))
    desk = TimerDesk(MemoryDisk(), SMALL_RUNS)
    await desk.open()
    for number in range(9):
        spread = (1, 1_000, 10**6)[number % 3]
        await desk.append([spread * row for row in range(400)], 100 + number, value_bytes=40)
        await desk.maker.work(expired_us=0, seal=True)
    await desk.settle()
    assert max(entry.level for entry in desk.view.manifest.runs) > 0
    assert sum(entry.rows for entry in desk.view.manifest.runs) == 9 * 400
    assert await desk.due(START) == desk.expected(START)


async def test_pending_rows_stay_behind_many_that_go() -> None:
    """More rows are past their retention than are sorted at once; those behind them are none of these."""
    desk = TimerDesk(MemoryDisk(), ViewLimits())
    await desk.open()
    await desk.append([1_000] * 70_000 + [10**12] * 10, 100)
    await desk.settle()
    await desk.settle(expired_us=2_000)
    assert [entry.rows for entry in desk.view.manifest.runs] == [10]
    assert await desk.due(START) == desk.expected(DuePlace(2_000, 0))


async def test_a_reader_keeps_the_files_of_merged_runs() -> None:
    """A run that is merged while it is read goes when the reader lets go."""
    desk = TimerDesk(MemoryDisk(), SMALL_RUNS)
    await desk.open()
    for number in range(8):
        await desk.append([number] * 30, 100)
        await desk.maker.work(expired_us=0, seal=True)
    with desk.view.pinned() as runs:
        await desk.settle()
        assert len(desk.view.manifest.runs) == 1
        assert sum([(await run.chunk(0)).num_rows for run in runs]) == 240
    await desk.maker.work(expired_us=0)
    assert len(await desk.disk.list(f"{DIRECTORY}/view")) == 3


async def test_without_room_runs_are_made_and_none_are_merged() -> None:
    """A run lets the log go; a merge would take as much again for a while."""
    desk = TimerDesk(MemoryDisk(), SMALL_RUNS)
    await desk.open()
    for number in range(20):
        await desk.append([number] * 30, 100)
        while await desk.maker.work(expired_us=0, seal=True, has_room=False):
            pass
    assert [entry.level for entry in desk.view.manifest.runs] == [0] * 20
    assert desk.view.saved == desk.view.applied
    await desk.settle()
    assert len(desk.view.manifest.runs) < 10


async def test_equal_entries_give_equal_digests() -> None:
    """Replicas whose views go equally far compare one number; one that took other bytes differs."""
    one, two, other = await desk_of(30), await desk_of(30), await desk_of(30, seed=1)
    await one.settle()
    assert one.view.applied == two.view.applied
    await two.open()
    assert one.view.applied == two.view.applied
    assert one.view.applied.digest != other.view.applied.digest
