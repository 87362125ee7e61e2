"""The view of a table: beside a dict, over restarts, crashes at every write, trims, damage and merges."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncIterator, Sequence

import polars
import pyarrow as pa
import pytest
from memory_disk import Fault, MemoryDisk

from shoal.agent.table import ScanRequest, TableRow
from shoal.agent.views import merge_plan
from shoal.agent.views.run_maker import RunMaker
from shoal.agent.views.table_memory import RecentRoom, TableMemory
from shoal.agent.views.table_order import may_have
from shoal.agent.views.upkeep.table_records import LogRows
from shoal.agent.views.view import ViewLimits, ViewNotReady
from shoal.format.batch import LogIndex, Offset
from tests.agent.views.table_desk import KEYS, SMALL_RUNS, TableDesk, random_puts
from tests.agent.views.view_desk import DIRECTORY, here


@pytest.fixture(autouse=True)
async def close_desks() -> AsyncIterator[None]:
    """Their logs end with the test."""
    yield
    while TableDesk.opened:
        await TableDesk.opened.pop().close()


async def desk_of(entries: int, seed: int = 0, limits: ViewLimits = SMALL_RUNS) -> TableDesk:
    """A desk with random entries, none of them in a run."""
    desk = TableDesk(MemoryDisk(), limits)
    await desk.open()
    rng = random.Random(seed)
    for _ in range(entries):
        await desk.append(random_puts(rng))
    return desk


def random_request(rng: random.Random) -> ScanRequest:
    """A range of keys, and small pages or one."""
    return ScanRequest(
        rng.choice((b"", b"k", b"k1", b"\xff", b"none")),
        rng.choice((None, rng.choice(KEYS))),
        rng.choice((1, 2, 7, 10_000)),
        rng.choice((1, 500, 2**20)),
    )


@pytest.mark.parametrize("seed", range(6))
async def test_the_view_has_what_a_dict_has(seed: int) -> None:
    """Rows got one by one and in pages, from memory, log and runs alike, while runs are made and merged, the
    log is trimmed and the agent starts again."""
    rng = random.Random(seed)
    desk = TableDesk(MemoryDisk())
    await desk.open()
    for _ in range(100):
        await desk.append(random_puts(rng))
        for _ in range(rng.choice((0, 0, 1, 5))):
            await desk.maker.work(expired_us=0, seal=rng.random() < 0.3)
        if rng.random() < 0.1:
            await desk.trim()
        if rng.random() < 0.1:
            await desk.open()
        desk.view.check_invariants()
        await desk.check(rng.sample(KEYS, 6))
        request = random_request(rng)
        assert await desk.scanned(request) == desk.expected(request)
    await desk.settle()
    assert max(entry.level for entry in desk.view.manifest.runs) >= 1
    await desk.check(KEYS)
    assert await desk.scanned() == desk.expected()
    assert desk.answered_at_once > 300
    desk.disk.resident = None
    await desk.open()
    assert all(desk.table.at_once(key) is None for key in desk.rows)


async def test_the_oldest_run_has_no_deleted_rows() -> None:
    """A merge of later runs keeps what ends rows of older ones; once nothing is older it goes."""
    desk = TableDesk(MemoryDisk(), SMALL_RUNS)
    await desk.open()
    await desk.append([(b"a", b"1"), (b"b", b"2")])
    await desk.maker.work(expired_us=0, seal=True)
    await desk.append([(b"a", None)])
    await desk.maker.work(expired_us=0, seal=True)
    assert [entry.rows for entry in desk.view.manifest.runs] == [2, 1]
    assert (await desk.records.get(b"a")).row is None
    for _ in range(6):
        await desk.append([(b"c", b"3")])
        await desk.maker.work(expired_us=0, seal=True)
    await desk.settle()
    assert [entry.rows for entry in desk.view.manifest.runs] == [2]
    await desk.check([b"a", b"b", b"c"])


async def test_a_merge_goes_on_behind_rows_that_all_go() -> None:
    """More than are sorted at once: those behind them stay."""
    desk = TableDesk(MemoryDisk(), ViewLimits())
    await desk.open()
    keys = [b"%06d" % number for number in range(80_000)]
    await desk.append([(key, b"") for key in keys])
    await desk.maker.work(expired_us=0, seal=True)
    await desk.append([(key, None) for key in keys[:70_000]])
    await desk.settle()
    assert [entry.rows for entry in desk.view.manifest.runs] == [10_000]
    assert (await desk.records.scan(ScanRequest())).rows.num_rows == 10_000


async def test_rows_that_come_during_a_merge_do_not_wait_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs are made of them between two pieces, each with a number of its own, and other views have their
    turn."""
    monkeypatch.setattr(merge_plan.merge_parts, "__defaults__", (2_000,))
    desk = await desk_of(30)
    others, made_meanwhile = 0, 0

    async def more() -> None:
        nonlocal others, made_meanwhile
        others += 1
        made_meanwhile += desk.view.saved.offset == desk.view.applied.offset
        if others < 20:
            await desk.append([(b"k%d" % number, b"v%d" % others * 40) for number in range(40)])
        assert await desk.scanned() == desk.expected()

    desk.maker = RunMaker(desk.view, desk.log, here, more)
    await desk.settle()
    assert others >= 20
    assert made_meanwhile >= 10
    names = [entry.name for entry in desk.view.manifest.runs]
    assert len({name.number for name in names}) == len(names)
    await desk.check(KEYS)
    await desk.open()
    assert await desk.scanned() == desk.expected()


async def test_a_run_is_an_arrow_stream_as_it_lies() -> None:
    """pyarrow and polars read the file, and pass over what stands behind the stream. Its filter knows its
    keys."""
    desk = await desk_of(40)
    await desk.settle()
    with desk.view.pinned() as runs:
        for run in runs:
            data = desk.disk.content(run.path)
            table = pa.ipc.open_stream(data).read_all()
            assert table.num_rows == run.entry.rows == len(polars.read_ipc_stream(io.BytesIO(data)))
            keys = table.column("key").to_pylist()
            assert keys == sorted(set(keys))
            assert all(may_have(run.filter, key) for key in keys)
            assert sum(may_have(run.filter, b"absent%d" % number) for number in range(1_000)) == 0


@pytest.mark.parametrize("seed", range(30))
async def test_a_crash_at_any_write_loses_nothing(seed: int) -> None:
    """The power fails in the middle of a run, a merge or a manifest: the next start has every row, and no
    file that belongs to nothing."""
    rng = random.Random(seed)
    desk = TableDesk(MemoryDisk(random.Random(seed), pause_max=2))
    await desk.open()
    for _ in range(6):
        for _ in range(rng.randrange(1, 12)):
            await desk.append(random_puts(rng))
        operation = rng.choice(("write", "sync", "open", "unlink", "sync_directory"))
        desk.disk.faults = [Fault(operation, 5, "view", skip=rng.randrange(12), times=1)]
        try:
            while await desk.maker.work(expired_us=0, seal=True):
                pass
        except OSError:
            if rng.random() < 0.5:  # the agent goes on with what it has
                assert await desk.scanned() == desk.expected()
                desk.disk.faults = []
                await desk.settle()
        desk.disk.faults = []
        desk.disk.crash(random.Random(rng.random()))
        await desk.open()
        await desk.check(KEYS)
        assert await desk.scanned() == desk.expected()
        files = set(await desk.disk.list(f"{DIRECTORY}/view"))
        assert files - {"manifest.a", "manifest.b"} == {entry.name.file for entry in desk.view.manifest.runs}


@pytest.mark.parametrize("place", ["chunk", "index", "filter"])
async def test_a_damaged_run_is_made_again_from_the_log(place: str) -> None:
    """Until it is mended nothing is read from the view."""
    desk = await desk_of(80)
    await desk.settle()
    with desk.view.pinned() as runs:
        run = max(runs, key=lambda item: item.entry.rows)
    size = len(desk.disk.content(run.path))
    positions = {
        "chunk": run.index.chunk(0).position + 40,
        "index": size - 70 - len(run.filter),
        "filter": -70,
    }
    desk.disk.damage(run.path, positions[place])
    if place != "chunk":
        await desk.open()
    with pytest.raises(ViewNotReady):
        await desk.scanned()
    with pytest.raises(ViewNotReady):
        await desk.records.get(b"no such key")
    await desk.settle()
    assert desk.view.is_whole
    await desk.check(KEYS)
    assert await desk.scanned() == desk.expected()


async def test_a_page_is_of_one_moment() -> None:
    """Rows that come while it is read stand in the next one alone, in runs or not."""
    desk = await desk_of(40, limits=ViewLimits())
    before = desk.expected()

    class Slow:
        """Reads rows, and lets others write meanwhile."""

        async def rows(self, offsets: Sequence[int]) -> pa.RecordBatch:
            await desk.append([(b"k%d" % number, b"new") for number in range(40)] + [(b"", None)])
            await desk.maker.work(expired_us=0, seal=True)
            return await LogRows(desk.table, desk.log).rows(offsets)

    page = await desk.table.scan(ScanRequest(), Slow())
    assert page.rows.column("offset").to_pylist() == [row.offset for row in before]
    assert page.as_of < desk.view.applied.offset
    assert await desk.scanned() == desk.expected() != before


async def test_a_chunk_that_memory_has_damaged_is_not_told() -> None:
    """Each read of it is verified, also of one whose rows were looked at before."""
    desk = await desk_of(60)
    await desk.settle()
    [key] = random.Random(1).sample(sorted(desk.rows), 1)
    assert desk.table.at_once(key) is not None
    with desk.view.pinned() as runs:
        for run in runs:
            for number in range(len(run.index)):
                desk.disk.damage(run.path, run.index.place(number)[0] + 300)
    desk.table.forget_chunks()
    assert desk.table.at_once(key) is None
    assert not desk.view.is_whole
    await desk.settle()
    await desk.check(KEYS)


async def test_recent_records_share_their_room() -> None:
    """The older half of a table's goes where there is none; what runs have goes, and what a closed view
    had."""
    room = RecentRoom(40 * 2**10)
    one, two = TableMemory(room), TableMemory(room)
    desk = await desk_of(0, limits=ViewLimits())
    for number in range(12):
        await desk.append([(b"k%d" % number, b"v" * 1_000)])
    frames = await desk.log.read(LogIndex(1), desk.log.last_index, 2**20)
    for number, frame in enumerate(frames):
        (one if number % 3 else two).take(frame.stamp, desk.view.decoded(frame))
        assert room.used_bytes <= room.limit_bytes
    assert one.recent.row(b"k11", Offset(11)) == TableRow(b"k11", b"v" * 1_000, Offset(11), 7, ())
    assert two.recent.row(b"k9", Offset(9)) is not None
    assert [memory.recent.row(b"k1", Offset(1)) for memory in (one, two)] == [None, None]
    one.drop_before(Offset(11))
    assert one.recent.row(b"k10", Offset(10)) is None
    assert one.recent.row(b"k11", Offset(11)) is not None
    for memory in (one, two):
        memory.close()
    assert room.used_bytes == 0


async def test_memory_holds_keys_and_no_values() -> None:
    """Each once, whatever was written over it; a batch's values go with the batch, but for recent ones."""
    desk = await desk_of(0, limits=ViewLimits())
    for _ in range(20):
        await desk.append([(b"k%d" % number, b"v" * 2_000) for number in range(50)])
    memory = desk.view.memory
    assert isinstance(memory, TableMemory)
    assert (memory.rows, memory.size_bytes > 1_000) == (1_000, True)
    assert sum(map(len, memory.parts())) == memory.rows == 50
    assert memory.size_bytes < 1_000
    small = ViewLimits(held_bytes=200)
    full = await desk_of(40, limits=small)
    assert full.view.machine.is_full()
    await full.settle()
    assert not full.view.machine.is_full()
