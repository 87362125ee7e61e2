"""Segment files with an earlier life: used again, never under a reader, never believed."""

import asyncio
import dataclasses
import errno
import random
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from memory_disk import Fault, MemoryDisk
from power_loss import UNSYNCED, run_life
from store_frames import SMALL, contents, next_frame, open_log

from shoal.format.batch import Frame, LogIndex
from shoal.segment_store import Disk, DiskFull, LogConfig, OffsetOutOfRange, PartitionLog, open_disk
from shoal.segment_store.disk import system_calls
from shoal.segment_store.format.layout import SPARE_SUFFIX
from shoal.segment_store.log.shared import SharedFiles, SpareBudget
from shoal.segment_store.log.spare_files import MAX_SPARES, SpareFiles

FRAMES_PER_SEGMENT = 12


async def _fill(log: PartitionLog, segments: int, value_bytes: int = 5000) -> list[bytes]:
    """Whole segments, each begun by a flag; their frames' bytes."""
    frames: list[Frame] = []
    for segment in range(segments):
        for number in range(FRAMES_PER_SEGMENT):
            first = number == 0 and log.last_index > 0
            frame = next_frame(log, fill=segment % 250, value_bytes=value_bytes, first_of_segment=first)
            frames.append(frame)
            await log.append([frame])
    return [frame.data for frame in frames]


async def _trim(log: PartitionLog, keep: int) -> None:
    await log.trim(log.spans()[-keep].first_index)


def _names(disk: MemoryDisk, suffix: str) -> list[str]:
    return sorted(path for path in disk._names if path.endswith(suffix))


async def _log_with_a_spare() -> tuple[MemoryDisk, PartitionLog]:
    """One segment of three is left. Of the other two files one is a spare."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await _fill(log, 3)
    await _trim(log, 1)
    return disk, log


async def _refuse_then_append(disk: MemoryDisk, log: PartitionLog, frame: Frame) -> None:
    """The full disk refuses the frame, and the spares and their budget are gone. The next append takes it."""
    kept = await contents(log)
    with pytest.raises(DiskFull):
        await log.append([frame])
    assert _names(disk, SPARE_SUFFIX) == []
    assert log._files.shared.spare_budget.used_bytes == 0
    await log.append([frame])
    assert await contents(log) == [*kept, frame.data]
    await log.close()


@pytest.mark.parametrize("kind", ["memory", "ring", "threads"])
async def test_files_go_round(kind: str, tmp_path: Path) -> None:
    """Under retention the same few files serve for ever; what is read is what was written last, before and
    after reopening."""
    disk: Disk = (
        MemoryDisk() if kind == "memory" else await open_disk("ring" if kind == "ring" else "threads")
    )
    directory = "log" if kind == "memory" else str(tmp_path / "log")
    log = await open_log(disk, directory)
    kept = (await _fill(log, 3))[FRAMES_PER_SEGMENT:]
    await _trim(log, 2)
    for _ in range(6):
        kept = kept[FRAMES_PER_SEGMENT:] + await _fill(log, 1)
        await _trim(log, 2)
        assert len(await disk.list(directory)) <= 2 * 2 + MAX_SPARES
        assert await contents(log) == kept
        assert await log.verify() == []
    assert log._writer._spares.recycled == 6
    assert log._files.shared.spare_budget.used_bytes > 0
    await log.close()
    assert log._files.shared.spare_budget.used_bytes == 0
    log = await open_log(disk, directory)
    assert log.damage == ()
    assert await contents(log) == kept
    spares = [name for name in await disk.list(directory) if name.endswith(SPARE_SUFFIX)]
    assert len(spares) == 1
    kept += await _fill(log, 1)
    assert log._writer._spares.recycled == 1  # a spare of the earlier run
    assert await contents(log) == kept
    await log.close()
    await disk.close()


async def test_an_earlier_life_is_never_believed() -> None:
    """The process dies in a recycled segment, right after its beginning and after each frame: the old
    frames behind the end are intact, and none joins the log."""
    for frames_before in range(1, FRAMES_PER_SEGMENT):
        disk = MemoryDisk()
        log = await open_log(disk)
        await _fill(log, 3)
        await _trim(log, 1)
        kept = await contents(log)
        for number in range(frames_before):
            frame = next_frame(log, value_bytes=5000, fill=200, first_of_segment=number == 0)
            await log.append([frame])
            kept.append(frame.data)
        assert log._writer._spares.recycled == 1
        disk.epoch += 1  # the process is killed: what it wrote is there
        log = await open_log(disk)
        assert log.damage == ()
        assert await contents(log) == kept
        assert any("cleared" in note for note in log.recovery_notes)
        path = log._segments[-1].path
        end = log._segments[-1].planned_end
        assert not any(disk.content(path)[end + 80 :]), "the earlier life ends with the restart"
        await log.close()


@pytest.mark.parametrize("config", [SMALL, UNSYNCED], ids=["fsync", "no fsync"])
def test_power_loss_among_recycled_files(config: LogConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lives of the power-loss tests, with files that are kept whenever there is one to keep."""
    reused = 0
    real = SpareFiles.reuse

    async def counted(spares: SpareFiles, *arguments: object) -> bool:
        nonlocal reused
        did = await real(spares, *arguments)  # type: ignore[arg-type]
        reused += did
        return did

    monkeypatch.setattr(SpareFiles, "reuse", counted)
    monkeypatch.setattr("shoal.segment_store.log.spare_files._fits", lambda *_: True)
    for seed in range(1000, 1040):
        run_life(seed, dataclasses.replace(config, first_allocation_bytes=16 * 1024))
    assert reused > 30, reused


async def test_a_file_that_is_read_is_not_used_again() -> None:
    """Its reader finishes with what the file held; the directory forgets it."""
    disk = MemoryDisk()
    log = await open_log(disk)
    old = await _fill(log, 3)
    segment = log._segments[0]
    async with log._files.open_files.pin(segment.path) as file:
        await _trim(log, 1)
        assert not [path for path in _names(disk, SPARE_SUFFIX) if segment.name.stem in path]
        assert len(_names(disk, SPARE_SUFFIX)) == 1  # the other one's
        await _fill(log, 3)
        assert log._writer._spares.recycled == 1
        position = len(segment.header)
        assert await file.read(position, len(old[0])) == old[0]
    await log.close()


async def test_a_file_being_opened_counts_as_read() -> None:
    """Between the decision to read and the open file nothing may take it."""
    disk = MemoryDisk(random.Random(2), pause_max=6)
    log = await open_log(disk)
    await _fill(log, 2)
    path = log._segments[0].path
    await log._files.open_files.close("log")
    opening = asyncio.ensure_future(log._files.open_files.acquire(path))
    await asyncio.sleep(0)
    assert log._files.open_files.is_pinned(path)
    await _trim(log, 1)
    handle = await opening
    assert _names(disk, SPARE_SUFFIX) == []
    assert not log._files.open_files.is_pinned(path)  # the handle is its reader's alone
    await log._files.open_files.release(handle)
    assert handle.closed
    await log.close()


async def test_reads_while_everything_is_trimmed_and_reused() -> None:
    """Readers of the oldest entries, all the time: each answer is what was appended under that index, or
    that it is gone."""
    disk = MemoryDisk(random.Random(5), pause_max=4)
    log = await open_log(disk)
    appended = dict(enumerate(await _fill(log, 3), start=1))
    answers = 0

    async def read() -> None:
        nonlocal answers
        while len(appended) < 12 * FRAMES_PER_SEGMENT:
            first = log.first_index
            try:
                frames = await log.read(first, LogIndex(first + 3), 2**20)
            except OffsetOutOfRange:
                continue
            for frame in frames:
                assert frame.data == appended[frame.stamp.index]
            answers += 1

    readers = [asyncio.ensure_future(read()) for _ in range(3)]
    while len(appended) < 12 * FRAMES_PER_SEGMENT:
        start = log.last_index + 1
        appended.update(enumerate(await _fill(log, 1), start=start))
        await _trim(log, 2)
    await asyncio.gather(*readers)
    assert answers > 20
    assert log._writer._spares.recycled > 0
    await log.close()


async def test_a_full_disk_gets_the_spares() -> None:
    """An append that finds no space takes the spare files' first; the next one succeeds."""
    disk, log = await _log_with_a_spare()
    assert len(_names(disk, SPARE_SUFFIX)) == 1
    disk.faults.append(Fault("write", errno.ENOSPC, ".arrows"))
    frame = next_frame(log)
    await _refuse_then_append(disk, log, frame)


@pytest.mark.parametrize("operation", ["write", "rename", "open"])
async def test_a_full_disk_at_a_recycled_roll(operation: str) -> None:
    """Refused, and nothing of the spare, its file and its place in the budget is lost sight of."""
    disk, log = await _log_with_a_spare()
    frame = next_frame(log, first_of_segment=True)
    disk.faults.append(Fault(operation, errno.ENOSPC, SPARE_SUFFIX))
    await _refuse_then_append(disk, log, frame)


async def test_the_budget_is_the_agents() -> None:
    """Logs that share it keep no more among them; who closes gives back what it counted."""
    disk = MemoryDisk()
    shared = SharedFiles(disk, max_open_files=3, max_spare_bytes=100 * 1024)
    logs = []
    for number in range(3):
        log = await open_log(disk, f"log{number}", shared=shared)
        await _fill(log, 3)
        await _trim(log, 2)
        logs.append(log)
    assert len(_names(disk, SPARE_SUFFIX)) == 1
    assert 0 < shared.spare_budget.used_bytes <= 100 * 1024
    assert len(shared.open_files) <= 3
    for log in logs:
        await log.close()
    assert shared.spare_budget.used_bytes == 0
    assert len(shared.open_files) == 0


def test_the_budget_is_the_smaller_of_its_bounds() -> None:
    """Bytes, and a hundredth of the disk."""
    budget = SpareBudget(1000)
    assert not budget.take(501, 50_000)
    assert budget.take(500, 50_000)
    assert not budget.take(501, 2**40)
    assert budget.take(500, 2**40)
    budget.give_back(1000)
    assert budget.used_bytes == 0


async def test_a_nearly_full_disk_keeps_no_spares() -> None:
    """Space is worth more than speed there."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await _fill(log, 3)
    disk.capacity_bytes = disk.used_bytes() + disk.used_bytes() // 20
    await _trim(log, 1)
    assert _names(disk, SPARE_SUFFIX) == []
    await log.close()


@pytest.mark.parametrize("kind", ["ring", "threads"])
@pytest.mark.parametrize(("free_percent", "spares"), [(11, 1), (9, 0)])
async def test_a_real_disk_is_asked_how_full_it_is(
    kind: Literal["ring", "threads"],
    free_percent: int,
    spares: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With less than a tenth free no spare file is kept, nor taken over from an earlier run."""

    def is_free(percent: int) -> None:
        monkeypatch.setattr(system_calls, "free_bytes", lambda _: (2**40 * percent // 100, 2**40))

    async def kept() -> int:
        return sum(name.endswith(SPARE_SUFFIX) for name in await disk.list(str(tmp_path)))

    disk = await open_disk(kind)
    is_free(free_percent)
    log = await open_log(disk, str(tmp_path))
    await _fill(log, 3)
    await _trim(log, 1)
    assert await kept() == spares
    await log.close()
    is_free(9)
    await (await open_log(disk, str(tmp_path))).close()
    assert await kept() == 0
    await disk.close()


async def test_spares_of_a_log_that_is_gone_are_not_trusted() -> None:
    """With no segment beside them nothing says that what they hold is older than what will be written."""
    disk, log = await _log_with_a_spare()
    await log.close()
    for path in [*_names(disk, ".arrows"), *_names(disk, ".index")]:
        await disk.unlink(path)
    log = await open_log(disk)
    assert _names(disk, SPARE_SUFFIX) == []
    await log.append([next_frame(log)])
    assert log._writer._spares.recycled == 0
    await log.close()


async def test_a_sealed_recycled_segment_opens_as_it_lies(tmp_path: Path) -> None:
    """For Arrow's reader the file ends at its marker, whatever lies behind it."""
    disk = await open_disk("threads")
    log = await open_log(disk, str(tmp_path))
    await _fill(log, 3)
    await _trim(log, 1)
    for number in range(FRAMES_PER_SEGMENT - 3):  # shorter than the file's earlier life
        await log.append([next_frame(log, value_bytes=5000, fill=77, first_of_segment=number == 0)])
    path = log._segments[-1].path
    await log.append([next_frame(log, first_of_segment=True)])
    assert log._writer._spares.recycled == 1
    await log.close()
    await disk.close()
    table = pa.ipc.open_stream(path).read_all()
    assert table.num_rows == FRAMES_PER_SEGMENT - 3
    assert set(table["value"].to_pylist()) == {bytes([77]) * 5000}


class _SlowToGrow(MemoryDisk):
    """Takes much longer to allocate blocks than for anything else."""

    async def begin(self, operation: str, path: str) -> None:
        for _ in range(60 if operation == "allocate" else 0):
            await asyncio.sleep(0)
        await super().begin(operation, path)


@pytest.mark.parametrize("seed", range(6))
async def test_files_do_not_grow_behind_a_seal(seed: int) -> None:
    """Blocks are reserved while a write runs; whatever comes next, roll, truncation, trim or a full disk,
    they are counted once, and with the log's end not at all."""
    disk = _SlowToGrow(random.Random(seed))
    shared = SharedFiles(disk)
    config = dataclasses.replace(SMALL, segment_bytes=2**20, max_allocation_step_bytes=128 * 1024)
    log = await open_log(disk, config=config, shared=shared)
    reserved = 0
    for number in range(24):
        frame = next_frame(log, value_bytes=40_000, first_of_segment=number % 5 == 4)
        await log.append([frame])
        reserved += log._writer.preallocator.is_busy
        if number % 7 == 6:
            await log.truncate_suffix(log.last_index)
        if log._writer.preallocator.is_busy and number % 5 < 3:  # all of a segment
            await log.truncate_suffix(log.spans()[-1].first_index)
        if number == 15:
            disk.faults.append(Fault("write", errno.ENOSPC, ".arrows"))
            with pytest.raises(DiskFull):
                await log.append([next_frame(log, value_bytes=40_000)])
        if number == 20:
            await _trim(log, 2)
    assert reserved >= 4
    held = [segment for segment in log._segments if segment.unused_bytes]
    assert sum(segment.unused_bytes for segment in held) == shared.reserved.unused_bytes
    await log.close()
    assert shared.reserved.unused_bytes == 0
    assert shared.spare_budget.used_bytes == 0
