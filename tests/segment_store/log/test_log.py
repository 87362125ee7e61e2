"""The log: append, group commit, rolling, truncation, reading, reopening, faults."""

import asyncio
import errno
import gc
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from memory_disk import Fault, MemoryDisk
from store_frames import IDENTITY, SMALL, contents, next_frame, open_log, read_whole

from shoal.format.batch import DEFAULT_SCHEMA, LogIdentity, LogIndex
from shoal.segment_store import (
    ChainBroken,
    DiskFailed,
    DiskFull,
    ForeignIdentity,
    LogClosed,
    LogConfig,
    OffsetOutOfRange,
    PartitionLog,
    WrongSchema,
    open_disk,
)
from shoal.segment_store.format.tail_record import TRAILER_BYTES
from shoal.segment_store.log.index_writer import ONLY_ENTRY_INTERVALS


async def test_an_empty_log() -> None:
    """Index 0, offset 0, nothing to read, no file made before the first frame."""
    disk = MemoryDisk()
    log = await open_log(disk)
    assert (log.first_index, log.last_index, log.last_term) == (1, 0, 0)
    assert (log.start_offset, log.end_offset, log.synced_index, log.size_bytes) == (0, 0, 0, 0)
    assert log.term_runs() == []
    assert log.term_at(1) is None
    assert not log.should_roll(2**30)
    with pytest.raises(OffsetOutOfRange):
        await log.read(1, 1, 100)
    with pytest.raises(OffsetOutOfRange):
        log.index_for_offset(0)
    await log.append([])
    assert await disk.list("log") == []
    await log.close()


async def test_the_planned_end_advances_in_the_call() -> None:
    """Frames may be stamped one after the other while the first is still on its way, and are readable at
    once."""
    log = await open_log(MemoryDisk())
    waiting = []
    for number in range(5):
        waiting.append(log.append([next_frame(log, 3)]))
        assert log.last_index == number + 1
        assert log.end_offset == 3 * (number + 1)
    assert log.synced_index == 0
    assert len(await log.read(1, 5, 2**20)) == 5
    await asyncio.gather(*waiting)
    assert log.synced_index == 5
    await log.close()


async def test_group_commit() -> None:
    """What is queued while a write is under way goes into one following write and sync."""
    disk = MemoryDisk(random.Random(1), pause_max=4)
    log = await open_log(disk, config=replace(SMALL, index_interval_ms=60_000))  # no index comes between
    await log.append([next_frame(log)])
    writes, syncs = log._writer.writes, log._writer.syncs
    tasks = [asyncio.ensure_future(log.append([next_frame(log)]))]
    while len(disk.trace.of("write")) < writes + 2:  # header, first frame, and now the second is under way
        await asyncio.sleep(0)
    tasks += [asyncio.ensure_future(log.append([next_frame(log)])) for _ in range(20)]
    await asyncio.gather(*tasks)
    assert (log._writer.writes - writes, log._writer.syncs - syncs) == (2, 2)
    assert len(await contents(log)) == 22
    await log.close()


async def test_frames_that_do_not_continue_are_refused() -> None:
    """Wrong index, offset, previous term or a falling term: nothing is taken, the log goes on."""
    log = await open_log(MemoryDisk())
    await log.append([next_frame(log, 2, term=3)])
    good = next_frame(log, 1)
    for change in ({"index": 3}, {"base_offset": 1}, {"previous_term": 2}, {"term": 2}):
        bad = good._replace(stamp=good.stamp._replace(**change))
        with pytest.raises(ChainBroken):
            await log.append([good, bad] if change == {} else [bad])
        assert log.last_index == 1
    await log.append([good])
    assert log.last_index == 2
    await log.close()


async def test_rolling_by_flag() -> None:
    """A flagged frame starts a segment named by its index and offset; the flag on a segment's first frame
    is no second roll. Both segments open in pyarrow as they lie once sealed, and reopening finds
    everything."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log, 2, first_of_segment=True), next_frame_after(log, 3)])
    assert len(log.spans()) == 1
    first = [next_frame(log, 0, first_of_segment=True)]
    await log.append(first)
    await log.append([next_frame(log, 4, first_of_segment=True)])
    assert len(log.spans()) == 3
    names = [name for name in await disk.list("log") if name.endswith(".arrows")]
    assert names == [f"{index:020d}-{offset:020d}.arrows" for index, offset in ((1, 0), (3, 5), (4, 5))]
    assert [log.first_index_of_segment(index) for index in (1, 2, 3, 4)] == [1, 1, 3, 4]
    assert [log.index_for_offset(offset) for offset in range(9)] == [1, 1, 2, 2, 2, 4, 4, 4, 4]
    rows = [pa.ipc.open_stream(disk.content(f"log/{name}")).read_all().num_rows for name in names]
    assert rows == [5, 0, 4]
    before = await contents(log)
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == before
    assert log.recovery_notes == ()
    await log.close()


def next_frame_after(log, rows):
    """The frame behind the one next_frame gives (which has 2 rows and term 1)."""
    from store_frames import message

    from shoal.format.batch import stamp_message

    return stamp_message(
        message(rows), IDENTITY, base_offset=log.end_offset + 2, term=1, previous_term=1,
        index=log.last_index + 2, append_time_us=5,
    )  # fmt: skip


async def test_should_roll() -> None:
    """True once the next frame would take the segment past its size; never for an empty segment."""
    log = await open_log(MemoryDisk(), config=LogConfig(segment_bytes=8192, first_allocation_bytes=4096))
    while not log.should_roll(2000):
        await log.append([next_frame(log, 10)])
    assert 8192 - 2200 < log.size_bytes < 8192
    await log.append([next_frame(log, 0, first_of_segment=True)])
    assert not log.should_roll(2000)
    await log.close()


async def test_terms() -> None:
    """Runs, and the term of any entry, across segments and truncation."""
    log = await open_log(MemoryDisk())
    for term, rolls in ((1, False), (1, True), (4, False), (4, True), (7, False)):
        await log.append([next_frame(log, term=term, first_of_segment=rolls)])
    assert log.term_runs() == [(1, 1), (3, 4), (5, 7)]
    assert [log.term_at(index) for index in range(7)] == [None, 1, 1, 4, 4, 7, None]
    await log.truncate_suffix(4)
    assert log.term_runs() == [(1, 1), (3, 4)]
    assert log.last_term == 4
    await log.close()


@pytest.mark.parametrize("kind", ["memory", "ring", "threads"])
async def test_truncation_leaves_zeros_and_reopens(kind: str, tmp_path: Path) -> None:
    """Whole segments go, the rest of the cut one is zero behind its tail, and a new branch takes its
    place."""
    disk = MemoryDisk() if kind == "memory" else await open_disk(kind)
    root = "log" if kind == "memory" else str(tmp_path / "log")
    log = await open_log(disk, root)
    for number in range(12):
        await log.append([next_frame(log, 2, first_of_segment=number % 4 == 3, fill=1)])
    await log.truncate_suffix(6)
    assert (log.last_index, log.end_offset, len(log.spans())) == (5, 10, 2)
    name = f"{root}/{4:020d}-{6:020d}.arrows"
    file = await disk.open(name)
    data = await file.read(0, await file.size())
    await file.close()
    assert data.count(b"\x01" * 10) == 4
    kept = await contents(log)
    branch = next_frame(log, 1, term=9, fill=2)
    await log.append([branch])
    await log.close()
    log = await open_log(disk, root)
    assert await contents(log) == [*kept, branch.data]
    assert log.term_runs() == [(1, 1), (6, 9)]
    await log.truncate_suffix(1)
    assert (log.last_index, len(log.spans()), await disk.list(root)) == (0, 0, [])
    await log.append([next_frame(log)])
    await log.truncate_suffix(5)
    with pytest.raises(OffsetOutOfRange):
        await log.truncate_suffix(0)
    assert log.last_index == 1
    await log.remove()
    assert not await disk.exists(root)
    await disk.close()


async def test_truncation_is_ordered_behind_queued_appends() -> None:
    """append, truncate, append without waiting in between: the last branch is what the log holds."""
    disk = MemoryDisk(random.Random(5), pause_max=3)
    log = await open_log(disk)
    await log.append([next_frame(log) for _ in range(1)])
    pending = [log.append([next_frame(log, fill=1)]) for _ in range(4)]
    pending.append(log.truncate_suffix(3))
    assert log.last_index == 2
    pending += [log.append([next_frame(log, term=5, fill=2)]) for _ in range(2)]
    await asyncio.gather(*pending)
    assert log.synced_index == 4
    before = await contents(log)
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == before
    assert log.term_runs() == [(1, 1), (3, 5)]
    await log.close()


async def test_a_new_branch_is_readable_before_it_is_written() -> None:
    """Frames planned where written ones are about to be truncated come from memory, never from the old
    branch."""
    disk = MemoryDisk(random.Random(9), pause_max=3)
    log = await open_log(disk)
    for _ in range(10):
        await log.append([next_frame(log, fill=1)])
    pending = [log.truncate_suffix(8)]
    branch = []
    for _ in range(3):
        branch.append(next_frame(log, term=2, fill=2))
        pending.append(log.append(branch[-1:]))
    assert await log.read(8, 10, 2**20) == branch
    tasks = [asyncio.ensure_future(step) for step in pending]
    while not all(task.done() for task in tasks):
        assert (await log.read(7, 10, 2**20))[1:] == branch
    await asyncio.gather(*tasks)
    assert await log.read(8, 10, 2**20) == branch
    await log.close()


async def test_reads_during_truncations_see_one_branch_or_the_other() -> None:
    """Readers that run all the time never see damage, whatever is cut and written under them."""
    disk = MemoryDisk(random.Random(4), pause_max=4)
    log = await open_log(disk)
    for _ in range(12):
        await log.append([next_frame(log, 2)])
    running = True

    async def reader(rng: random.Random) -> int:
        reads = 0
        while running:
            first = rng.randrange(1, 12)
            try:
                frames = await log.read(first, min(first + 4, log.last_index), 2**20)
            except OffsetOutOfRange:
                continue
            finally:
                await asyncio.sleep(0)
            assert [frame.stamp.index for frame in frames] == list(range(first, first + len(frames)))
            reads += 1
        return reads

    readers = [asyncio.ensure_future(reader(random.Random(seed))) for seed in range(3)]
    for term in range(2, 30):
        cut = log.truncate_suffix(5 + term % 6)
        appends = []
        while log.last_index < 12:
            appends.append(log.append([next_frame(log, term % 3, term=term, first_of_segment=term % 4 == 0)]))
        await asyncio.gather(cut, *appends)
    running = False
    assert min(await asyncio.gather(*readers)) > 20
    assert await log.verify() == []
    await log.close()


async def test_truncations_queued_behind_each_other() -> None:
    """Each shortens the index to what all of them keep: the places behind already belong to the new
    branch."""
    disk = MemoryDisk(random.Random(3), pause_max=2)
    log = await open_log(disk)
    for _ in range(10):
        await log.append([next_frame(log, 3)])
    await log._writer.index.write()
    steps = [log.truncate_suffix(9), log.truncate_suffix(5)]
    steps += [log.append([next_frame(log, 1, term=2, value_bytes=100, fill=4)]) for _ in range(1)]
    await asyncio.gather(*steps)
    before = await contents(log)
    disk.crash(random.Random(2))
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == before
    assert log.term_runs() == [(1, 1), (5, 2)]
    await log.close()


async def test_reads_are_bounded_and_give_at_least_one() -> None:
    """max_bytes ends an answer, never empties it; ranges cross segments, cache and disk."""
    for cache_bytes in (0, 2500, 2**20):
        config = LogConfig(segment_bytes=8192, first_allocation_bytes=4096, tail_cache_bytes=cache_bytes)
        log = await open_log(MemoryDisk(), config=config)
        frames = []
        for number in range(10):
            frames.append(next_frame(log, 3, first_of_segment=number in (3, 7)))
            await log.append(frames[-1:])
        size = len(frames[0].data)
        assert await log.read(1, 10, 1) == frames[:1]
        assert await log.read(2, 10, 3 * size) == frames[1:4]
        assert await log.read(1, 10, 2**20) == frames
        assert await read_whole(log, 5, 6, 2**20) == ([frames[4].data, frames[5].data], 6)
        for first, last in ((0, 3), (5, 11), (11, 11), (4, 3)):
            with pytest.raises(OffsetOutOfRange):
                await log.read(first, last, 100)
        await log.close()
        with pytest.raises(LogClosed):
            await log.read(1, 1, 1)
        with pytest.raises(LogClosed):
            await log.append([])


async def test_append_times_never_fall() -> None:
    """max(previous, now), also after reopening."""
    disk = MemoryDisk()
    log = await open_log(disk)
    assert log.next_append_time_us(77) == 77
    await log.append([next_frame(log)])
    await log.close()
    log = await open_log(disk)
    assert log.next_append_time_us(1) == 5
    assert log.next_append_time_us(6) == 6
    await log.close()


async def test_a_failed_sync_is_fatal() -> None:
    """Nothing is acknowledged then or later, reads go on, and a new opening keeps what had been promised."""
    disk = MemoryDisk()
    log = await open_log(disk)
    promised = [next_frame(log, 2)]
    await log.append(promised)
    disk.faults.append(Fault("sync", errno.EIO, ".arrows"))
    doomed = [log.append([next_frame(log)]) for _ in range(2)]
    results = await asyncio.gather(*doomed, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFailed, DiskFailed]
    for _ in range(2):
        with pytest.raises(DiskFailed):
            await log.append([next_frame(log)])
    with pytest.raises(DiskFailed):
        await log.truncate_suffix(1)
    assert await log.read(1, 1, 100) == promised
    await log.close()
    disk.crash(random.Random(2))
    log = await open_log(disk)
    assert await contents(log) == [promised[0].data]
    await log.close()


@pytest.mark.parametrize("operation", ["write", "allocate"])
async def test_a_full_disk_refuses_then_heals(operation: str) -> None:
    """DiskFull for what was queued, the planned end goes back, reads go on, the same frames are taken
    later."""
    disk = MemoryDisk(random.Random(1), pause_max=3)
    log = await open_log(disk)
    first = next_frame(log, 2)
    await log.append([first])
    disk.faults.append(Fault(operation, errno.ENOSPC, ".arrows", times=2 if operation == "write" else 1))
    frames, calls = [], []
    for _ in range(3):
        frames.append(next_frame(log, 5, value_bytes=2000))
        calls.append(log.append(frames[-1:]))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [DiskFull] * 3
    assert (log.last_index, log.end_offset, log.synced_index) == (1, 2, 1)
    assert await contents(log) == [first.data]
    if operation == "write":
        with pytest.raises(DiskFull):
            await log.append(frames[:1])
    await log.append(frames)
    assert log.last_index == 4
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == [first.data, *(frame.data for frame in frames)]
    await log.close()


async def test_a_refused_write_leaves_nothing_behind() -> None:
    """A write that ran out of space halfway left whole frames: the next, shorter write clears them, or the
    second of them might one day be taken for its successor."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log)])
    disk.faults.append(Fault("write", errno.ENOSPC, ".arrows", partial_bytes=3000))
    refused = [log.append([next_frame(log, fill=9)]) for _ in range(6)]
    results = await asyncio.gather(*refused, return_exceptions=True)
    assert {type(result) for result in results} == {DiskFull}
    await log.append([next_frame(log, fill=3)])
    name = f"log/{1:020d}-{0:020d}.arrows"
    assert b"\x09" * 10 not in disk.content(name)
    assert disk.content(name)[log.size_bytes + TRAILER_BYTES :].strip(b"\0") == b""
    await log.close()


async def test_a_full_disk_at_a_roll() -> None:
    """The new segment is taken back, whole: the next leader may go on in the old one, or roll again."""
    for fault in (
        Fault("open", errno.ENOSPC, "002-"),
        Fault("write", errno.ENOSPC, "002-"),
        Fault("allocate", errno.ENOSPC, "002-"),
        Fault("write", errno.ENOSPC, "002-", skip=1),
    ):
        disk = MemoryDisk()
        log = await open_log(disk)
        await log.append([next_frame(log)])
        disk.faults.append(fault)
        with pytest.raises(DiskFull):
            await log.append([next_frame(log, first_of_segment=True)])
        assert (log.last_index, len(log.spans())) == (1, 1)
        plain = next_frame(log, term=2)
        await log.append([plain])
        await log.append([next_frame(log, first_of_segment=True)])
        assert len(log.spans()) == 2
        before = await contents(log)
        await log.close()
        log = await open_log(disk)
        assert await contents(log) == before
        await log.close()


async def test_truncation_works_on_a_full_disk() -> None:
    """A follower that must drop a suffix can, with no byte free."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for _ in range(6):
        await log.append([next_frame(log, 3)])
    await log._writer.index.write()
    disk.capacity_bytes = disk.used_bytes()
    await log.truncate_suffix(4)
    disk.capacity_bytes *= 2
    before = await contents(log)
    assert len(before) == 3
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == before
    await log.close()


async def test_without_fsync() -> None:
    """Appends answer before the disk has synced; closing syncs and says so in the index."""
    config = LogConfig(fsync=False, index_interval_ms=60_000)
    disk = MemoryDisk()
    log = await open_log(disk, config=config)
    for number in range(4):
        await log.append([next_frame(log, first_of_segment=number == 2)])
    assert log.synced_index == 2  # a roll syncs the old segment
    await log.truncate_suffix(4)
    await log.close()
    assert log.synced_index == 3
    disk.crash(random.Random(1))
    log = await open_log(disk, config=config)
    assert log.last_index == 3
    await log.close()


async def test_another_logs_files_are_refused() -> None:
    """Another partition, topic or cluster: an error, and not a byte changed."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log, 3)])
    await log.close()
    files = {name: disk.content(f"log/{name}") for name in await disk.list("log")}
    for other in (
        LogIdentity(b"c" * 16, b"t" * 16, 4),
        LogIdentity(b"c" * 16, b"u" * 16, 3),
        LogIdentity(b"d" * 16, b"t" * 16, 3),
    ):
        with pytest.raises(ForeignIdentity):
            await open_log(disk, identity=other)
        assert {name: disk.content(f"log/{name}") for name in await disk.list("log")} == files


async def test_another_schema_is_refused() -> None:
    """Other columns, or the same of another type: an error that names them, and not a byte changed; other
    metadata are no difference."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log, 3)])
    await log.close()
    files = {name: disk.content(f"log/{name}") for name in await disk.list("log")}
    others = (
        pa.schema([*DEFAULT_SCHEMA, pa.field("extra", pa.int64())]),
        DEFAULT_SCHEMA.set(1, pa.field("key", pa.utf8())),
    )
    for other in others:
        with pytest.raises(WrongSchema, match="'timestamp', 'key'"):
            await PartitionLog.open(disk, "log", IDENTITY, other, SMALL)
        assert {name: disk.content(f"log/{name}") for name in await disk.list("log")} == files
    described = DEFAULT_SCHEMA.with_metadata({"by": "somebody"})
    log = await PartitionLog.open(disk, "log", IDENTITY, described, SMALL)
    assert log.last_index == 1
    await log.close()


async def test_the_index_file_follows_within_its_interval() -> None:
    """One interval after an append the active segment's index file holds it."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log)])
    for _ in range(200):
        await asyncio.sleep(0.001)
        if any(name.endswith(".index") for name in await disk.list("log")):
            break
    else:
        raise AssertionError("no index file was written")
    await log.close()


async def test_no_handle_leaks(tmp_path: Path) -> None:
    """Many segments read through one handle's worth of cache; after close no file is open."""
    from disk_suite import open_descriptors

    disk = await open_disk("ring")
    gc.collect()  # what former tests have left is not closed meanwhile
    before = open_descriptors()
    log = await open_log(disk, str(tmp_path / "log"), SMALL)
    for number in range(12):
        await log.append([next_frame(log, first_of_segment=number % 2 == 0)])
    await asyncio.gather(*(log.read(1, 12, 2**20) for _ in range(5)))
    # The active segment, one sealed one, and the index file and directory that are being synced.
    assert open_descriptors() <= before + 4
    await log.close()
    assert open_descriptors() == before
    await disk.close()


async def test_the_only_entry_of_a_log_is_indexed_later_and_the_second_in_time() -> None:
    """A thousand logs may have begun at once; whatever follows the first entry waits no longer than ever."""
    log = await open_log(MemoryDisk(random.Random(1)), config=replace(SMALL, index_interval_ms=60_000))
    loop = asyncio.get_running_loop()

    def due_s() -> float:
        timer = log._writer.index._timer
        assert timer is not None
        return timer.when() - loop.time()

    await log.append([next_frame(log)])
    assert 60 < due_s() <= 60 * ONLY_ENTRY_INTERVALS
    await log.append([next_frame(log)])
    second_s = due_s()
    assert second_s <= 60
    await log.append([next_frame(log)])
    assert due_s() <= second_s, "it is not put off again"
    await log.close()


async def test_what_is_written_while_the_index_is_reaches_it_too() -> None:
    """The last append before a rest comes while the index is being written: its entry is indexed within the
    next interval all the same, or nothing but itself would prove it from then on (safety 9)."""
    log = await open_log(MemoryDisk(random.Random(1)))
    await log.append([next_frame(log)])
    active = log._segments[-1]
    while log._writer.index._task is not None or log._writer.index._timer is not None:
        await asyncio.sleep(0.001)
    held, proper = asyncio.Event(), active.write_index

    async def write_late(upto: LogIndex) -> None:
        await held.wait()
        await proper(upto)

    active.write_index = write_late  # type: ignore[method-assign]
    await log.append([next_frame(log)])
    while log._writer.index._task is None:
        await asyncio.sleep(0.001)
    await log.append([next_frame(log)])
    held.set()
    for _ in range(200):
        if active.indexed_index == 3:
            break
        await asyncio.sleep(0.005)
    assert active.indexed_index == 3
    await log.close()


async def test_a_checkpoint_larger_than_a_segment_is_not_written_for_each_append() -> None:
    """As much comes behind it first."""
    log = await open_log(MemoryDisk(), config=LogConfig(segment_bytes=4096, first_allocation_bytes=4096))
    await log.append([next_frame(log, value_bytes=20_000)])
    assert not log.should_roll(4_000)
    rolls = 0
    for _ in range(60):
        if log.should_roll(1_000):
            rolls += 1
            await log.append([next_frame(log, value_bytes=20_000, first_of_segment=True)])
        await log.append([next_frame(log, value_bytes=1_000)])
    assert 2 <= rolls <= 4
    await log.close()
