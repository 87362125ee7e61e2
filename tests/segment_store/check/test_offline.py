"""Examining a stopped log: everything good is found, everything bad is named, nothing is written."""

import os
from pathlib import Path

import pytest
from store_frames import IDENTITY, SMALL, contents, next_frame, open_log

from shoal.format.batch import Kind, LogIdentity
from shoal.segment_store import DirectoryLock, NotOwner, PartitionLog, ThreadDisk
from shoal.segment_store.check.examination import LogReport, StoredFrame
from shoal.segment_store.check.offline import describe_frame, examine_log, segment_names
from shoal.segment_store.disk.lock import ReaderLock

FLIP_PARTS = 4
"""Each test has its time; all bits together would take too long on a machine that is busy."""


async def _fill(directory: Path, shape: list[list[int]]) -> list[bytes]:
    """A closed log; `shape` says the rows of each frame of each segment. All frames' bytes."""
    disk = ThreadDisk(1)
    log = await open_log(disk, str(directory))
    for segment in shape:
        for place, rows in enumerate(segment):
            await log.append([next_frame(log, rows, fill=rows, first_of_segment=place == 0)])
    frames = await contents(log)
    await log.close()
    await disk.close()
    return frames


def _examine(directory: Path, identity: LogIdentity = IDENTITY) -> tuple[LogReport, list[StoredFrame]]:
    frames: list[StoredFrame] = []
    return examine_log(str(directory), identity, frames.append), frames


def _stored(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def _flip(path: str | Path, position: int, mask: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


async def test_a_sound_log_is_read_whole_and_left_alone(tmp_path: Path) -> None:
    """Every frame in order with its place; counts by segment; not one byte or name changes."""
    written = await _fill(tmp_path, [[1, 2, 0], [3], [2, 2]])
    before = _stored(tmp_path)
    report, frames = _examine(tmp_path)
    assert [frame.data for frame in frames] == written
    assert report.damage == []
    assert [note for segment in report.segments for note in segment.notes] == []
    assert [segment.sealed for segment in report.segments] == [True, True, False]
    assert [segment.entries for segment in report.segments] == [3, 1, 2]
    assert (report.entries, report.records) == (6, 10)
    first = report.segments[0]
    assert (first.last_index, first.end_offset, first.index_entries) == (3, 3, 3)
    assert first.kinds == {Kind.DATA: 2, Kind.NOOP: 1}
    assert describe_frame(frames[0].stamp) == "data, first of segment"
    for frame in frames:
        segment = next(s for s in reversed(report.segments) if s.name.first_index <= frame.entry.index)
        with open(segment.path, "rb") as file:
            file.seek(frame.entry.position)
            assert file.read(frame.entry.length) == frame.data
    assert _stored(tmp_path) == before


async def test_one_segment_alone(tmp_path: Path) -> None:
    """The middle of three, examined by itself."""
    written = await _fill(tmp_path, [[1, 2], [3, 1], [2]])
    frames: list[StoredFrame] = []
    middle = segment_names(str(tmp_path))[1]
    report = examine_log(str(tmp_path), IDENTITY, frames.append, middle)
    assert [frame.data for frame in frames] == written[2:4]
    assert report.damage == []


@pytest.mark.parametrize("part", range(FLIP_PARTS))
async def test_every_flipped_bit_of_a_three_batch_segment_is_found(part: int, tmp_path: Path) -> None:
    """Of a sealed one, from the header's first bit to the tail record's last: damage where the bit lies, no
    other batch lost, nothing of the bad one shown."""
    written = await _fill(tmp_path, [[1, 1, 1], [1]])
    name = segment_names(str(tmp_path))[0]
    path = tmp_path / name.segment_file
    report, frames = _examine(tmp_path)
    places = [frame.entry for frame in frames[:3]]
    end = report.segments[0].end_position
    sound = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, end + 72)  # without the preallocated zeros there is less to read, thousands of times
    for bit in range(part, (end + 72) * 8, FLIP_PARTS):
        position = bit // 8
        os.pwrite(fd, bytes([sound[position] ^ 1 << bit % 8]), position)
        seen: list[bytes] = []
        found = examine_log(str(tmp_path), IDENTITY, lambda frame, seen=seen: seen.append(frame.data), name)
        os.pwrite(fd, sound[position : position + 1], position)
        bad = [place for place, entry in enumerate(places) if entry.position <= position < entry.end_position]
        assert len(found.damage) == 1, (bit, found.damage)
        assert seen == [data for place, data in enumerate(written[:3]) if place not in bad], bit
        damage = found.damage[0]
        if bad:
            entry = places[bad[0]]
            assert damage.position == entry.position
            assert (damage.first_index, damage.end_index) == (entry.index, entry.index + 1)
            assert (damage.first_offset, damage.end_offset) == (entry.base_offset, entry.end_offset)
        else:
            assert damage.first_index == damage.end_index, bit
            assert damage.position == (end if position >= end else 0)
    os.close(fd)


async def test_damage_of_the_active_segment(tmp_path: Path) -> None:
    """Its index knows what was synced: a batch that no longer verifies is damage, at the end too."""
    await _fill(tmp_path, [[1, 2, 3]])
    _, frames = _examine(tmp_path)
    path = tmp_path / segment_names(str(tmp_path))[0].segment_file
    for place in (1, 2):
        _flip(path, frames[place].entry.position + 300)
        report, kept = _examine(tmp_path)
        _flip(path, frames[place].entry.position + 300)
        assert len(kept) == 2
        assert "checksum" in str(report.damage[0])
        assert f"entries {place + 1} to {place + 1}" in str(report.damage[0])
    assert report.damage[0].end_offset == 6  # of the last one, its tail record tells


async def test_an_incomplete_write_is_no_damage(tmp_path: Path) -> None:
    """Nobody was told of it: a note says that the next start clears it."""
    await _fill(tmp_path, [[1, 2]])
    report, frames = _examine(tmp_path)
    segment = report.segments[0]
    with open(segment.path, "r+b") as file:
        file.seek(segment.end_position)
        file.write(frames[0].data[:200])
    report, frames = _examine(tmp_path)
    assert (len(frames), report.damage) == (2, [])
    assert "incomplete write behind entry 2" in report.segments[0].notes[0]


async def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    """Which entries and offsets no file holds, once."""
    await _fill(tmp_path, [[1], [2, 2], [3]])
    name = segment_names(str(tmp_path))[1]
    (tmp_path / name.segment_file).unlink()
    report, frames = _examine(tmp_path)
    assert [frame.entry.index for frame in frames] == [1, 4]
    (damage,) = report.damage
    assert "no file holds" in damage.detail
    assert (damage.first_index, damage.end_index, damage.first_offset, damage.end_offset) == (2, 4, 1, 5)


async def test_index_files_are_compared(tmp_path: Path) -> None:
    """Missing or bad ones are noted; they hold nothing that the segment does not."""
    await _fill(tmp_path, [[1, 2], [3]])
    first, second = segment_names(str(tmp_path))
    (tmp_path / first.index_file).unlink()
    _flip(tmp_path / second.index_file, 50)
    report, frames = _examine(tmp_path)
    assert (len(frames), report.damage) == (3, [])
    assert report.segments[0].notes == ["there is no index file"]
    assert "good for 0 entries" in report.segments[1].notes[0]


async def test_a_damaged_header_does_not_hide_the_batches(tmp_path: Path) -> None:
    """Whether or not the index tells where they begin, in the first segment and in a later one."""
    written = await _fill(tmp_path, [[1, 2], [3]])
    for name in segment_names(str(tmp_path)):
        for with_index in (True, False):
            _flip(tmp_path / name.segment_file, 40)
            index = tmp_path / name.index_file
            if not with_index:
                index.rename(tmp_path / "aside")
            report, frames = _examine(tmp_path)
            assert [frame.data for frame in frames] == written
            assert [damage.position for damage in report.damage] == [0]
            if not with_index:
                (tmp_path / "aside").rename(index)
            _flip(tmp_path / name.segment_file, 40)


async def test_a_foreign_log_is_all_damage(tmp_path: Path) -> None:
    """Under another identity nothing verifies, and nothing is shown."""
    await _fill(tmp_path, [[1, 2], [3]])
    report, frames = _examine(tmp_path, LogIdentity(b"x" * 16, b"t" * 16, 3))
    assert frames == []
    assert report.damage


async def test_large_batches_cross_the_read_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames longer than a chunk, and damage among them."""
    monkeypatch.setattr("shoal.segment_store.check.offline.CHUNK_BYTES", 1000)
    disk = ThreadDisk(1)
    log: PartitionLog = await open_log(disk, str(tmp_path), SMALL)
    for size in (10, 5000, 20, 9000, 30):
        await log.append([next_frame(log, 1, value_bytes=size)])
    written = await contents(log)
    await log.close()
    await disk.close()
    report, frames = _examine(tmp_path)
    assert [frame.data for frame in frames] == written
    assert report.damage == []
    _flip(report.segments[0].path, frames[3].entry.position + 4000)
    report, frames = _examine(tmp_path)
    assert [frame.data for frame in frames] == [*written[:3], written[4]]
    assert [damage.first_index for damage in report.damage] == [4]


def test_a_reader_and_an_agent_exclude_each_other(tmp_path: Path) -> None:
    """Several readers at a time, or one agent."""
    lock = DirectoryLock(str(tmp_path))
    with lock, pytest.raises(NotOwner, match=str(os.getpid())), ReaderLock(str(tmp_path)):
        pass
    with (
        ReaderLock(str(tmp_path)),
        ReaderLock(str(tmp_path)),
        pytest.raises(NotOwner),
        DirectoryLock(str(tmp_path)),
    ):
        pass
    with lock:
        pass
