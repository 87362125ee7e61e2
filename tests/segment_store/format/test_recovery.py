"""What is a torn tail, what is damage, and what recovery does about each."""

import random
from collections.abc import Callable

import pytest
from memory_disk import MemoryDisk
from store_frames import IDENTITY, SMALL, contents, next_frame, open_log

from shoal.format.batch import LogIndex, Offset, Term
from shoal.segment_store import Damaged, PartitionLog
from shoal.segment_store.format.index import HEADER_BYTES, Entry, decode_index_file
from shoal.segment_store.format.recovery import (
    Chain,
    find_frame,
    find_tail_records,
    follow_chain,
    nonzero_end,
)
from shoal.segment_store.format.tail_record import TRAILER_BYTES, TailRecord, encode_trailer

SEGMENT = f"log/{1:020d}-{0:020d}.arrows"
INDEX = f"log/{1:020d}-{0:020d}.index"


async def _three(disk: MemoryDisk, *, close: bool = True) -> tuple[PartitionLog, list[bytes], list[int]]:
    """A log of three frames: the log, their bytes, and where each starts."""
    log = await open_log(disk)
    for _ in range(3):
        await log.append([next_frame(log, 2, value_bytes=300)])
    data = await contents(log)
    positions = [log.entry(LogIndex(index)).position for index in (1, 2, 3)]
    if close:
        await log.close()
    return log, data, positions


async def _write(disk: MemoryDisk, path: str, position: int, data: bytes) -> None:
    file = await disk.open(path)
    await file.write_and_sync(position, data)
    await file.close()


def _lose(disk: MemoryDisk) -> None:
    """The process dies: nothing is flushed, the page cache stays."""
    disk.epoch += 1


def _indexed(disk: MemoryDisk) -> list[Entry]:
    """The entries in the index file, however many blocks hold them."""
    return decode_index_file(disk.content(INDEX), LogIndex(1), Offset(0), IDENTITY).entries


async def _remove_index(disk: MemoryDisk) -> None:
    await disk.unlink(INDEX)


async def _shorten_index(disk: MemoryDisk) -> None:
    del disk._names[INDEX].content[HEADER_BYTES + 20 :]


async def _flip_index(disk: MemoryDisk) -> None:
    disk.damage(INDEX, HEADER_BYTES + 5)


async def _ragged_index(disk: MemoryDisk) -> None:
    """As after many small blocks, of which the first is bad: the same entries in one block are shorter."""
    disk._names[INDEX].content.extend(bytes(range(200)))
    disk.damage(INDEX, HEADER_BYTES + 5)


async def _half_replaced_index(disk: MemoryDisk) -> None:
    """As after a power failure while a bad one was being replaced."""
    await _ragged_index(disk)
    await (await disk.open(f"{INDEX}.tmp", create=True)).close()


async def _empty_index(disk: MemoryDisk) -> None:
    del disk._names[INDEX].content[:]


@pytest.mark.parametrize(
    "harm",
    [_remove_index, _shorten_index, _flip_index, _ragged_index, _half_replaced_index, _empty_index],
)
async def test_a_bad_index_file_is_rebuilt(harm: Callable[..., object]) -> None:
    """Missing, short, corrupt, empty: found again by reading, written again, and good at the next opening."""
    disk = MemoryDisk()
    _, data, _ = await _three(disk)
    before = _indexed(disk)
    await harm(disk)
    log = await open_log(disk)
    assert await contents(log) == data
    assert log.damage == ()
    assert log.recovery_notes != ()
    await log.close()
    assert _indexed(disk) == before
    log = await open_log(disk)
    assert log.recovery_notes == ()
    await log.close()


async def test_a_stale_index_file_is_completed() -> None:
    """An index that ends early is a start: the rest of the segment is read."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log)])
    await log._writer.index.write()
    stale = disk.content(INDEX)
    for _ in range(4):
        await log.append([next_frame(log)])
    data = await contents(log)
    await log.close()
    await disk.unlink(INDEX)
    file = await disk.open(INDEX, create=True)
    await file.write(0, stale)
    log = await open_log(disk)
    assert await contents(log) == data
    await log.close()


async def test_an_index_missing_for_a_sealed_segment() -> None:
    """The segment is read once; its successor proves that all of it was synced."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for number in range(6):
        await log.append([next_frame(log, 2, first_of_segment=number == 4)])
    data = await contents(log)
    await log.close()
    await disk.unlink(INDEX)
    log = await open_log(disk)
    assert await contents(log) == data
    assert any("completed" in note for note in log.recovery_notes)
    await log.close()


async def test_stale_frames_behind_the_tail_are_ignored_and_cleared() -> None:
    """A frame of the file's earlier life, perfectly plausible but behind the tail record, does not join the
    log."""
    disk = MemoryDisk()
    log, data, _ = await _three(disk, close=False)
    stale = next_frame(log, 1, fill=7).data
    end = log.entry(LogIndex(3)).end_position
    _lose(disk)
    await _write(disk, SEGMENT, end + TRAILER_BYTES + 8, stale)
    log = await open_log(disk)
    assert await contents(log) == data
    assert disk.content(SEGMENT)[end + TRAILER_BYTES :].strip(b"\0") == b""
    await log.close()


async def test_a_torn_tail_is_cleared() -> None:
    """The last write reached the disk in part and was never acknowledged: it goes, to the last byte."""
    disk = MemoryDisk()
    log, data, _ = await _three(disk, close=False)
    torn = next_frame(log, 5, value_bytes=900, fill=7)
    end = log.entry(LogIndex(3)).end_position
    _lose(disk)
    await _write(disk, SEGMENT, end, torn.data[:1024] + bytes(512) + torn.data[1536:])
    log = await open_log(disk)
    assert await contents(log) == data
    assert log.damage == ()
    assert disk.content(SEGMENT)[end + TRAILER_BYTES :].strip(b"\0") == b""
    await log.append([next_frame(log)])
    await log.close()


async def test_what_was_not_known_synced_is_written_again() -> None:
    """A frame that is only in the page cache when the process dies is durable once the log has opened
    (safety 11)."""
    disk = MemoryDisk()
    log, _, _ = await _three(disk, close=False)
    frame = next_frame(log, 1)
    end = log.entry(LogIndex(3)).end_position
    _lose(disk)
    file = await disk.open(SEGMENT)
    record = TailRecord(LogIndex(4), Term(1), end + len(frame.data), LogIndex(3), Offset(7), len(frame.data))
    await file.write(end, frame.data + encode_trailer(record, IDENTITY))
    await file.close()
    disk._names[SEGMENT].dirty.clear()  # as after a failed sync: the page cache believes it clean
    for _ in range(2):
        log = await open_log(disk)
        assert log.last_index == 4
        assert (await contents(log))[3] == frame.data
        disk.crash(random.Random(1))


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("entry", [1, 2])
async def test_damage_in_the_middle_is_reported_not_cut(entry: int, with_index: bool) -> None:
    """An acknowledged frame that no longer verifies: the log opens, names file and position, serves
    everything around it, goes on, and the bytes stay as they are for whoever repairs them."""
    disk = MemoryDisk()
    _, data, positions = await _three(disk)
    disk.damage(SEGMENT, positions[entry - 1] + 700)
    if not with_index:
        await disk.unlink(INDEX)
    log = await open_log(disk)
    assert (log.last_index, log.end_offset, log.term_runs()) == (3, 6, [(1, 1)])
    with pytest.raises(Damaged) as caught:
        await log.read(entry, 3, 2**20)
    assert (caught.value.path, caught.value.position) == (SEGMENT, positions[entry - 1])
    assert (caught.value.first_index, caught.value.last_index) == (entry, entry)
    for other in {1, 2, 3} - {entry}:
        frames = await log.read(other, 3, 2**20)
        assert frames[0].data == data[other - 1]
        assert all(frame.stamp.index != entry for frame in frames)
    assert [damage.first_index for damage in await log.verify()] == [entry]
    assert (log.damage == ()) is with_index
    await log.append([next_frame(log)])
    await log.close()
    stored = disk.content(SEGMENT)[positions[entry - 1] : positions[entry - 1] + len(data[0])]
    assert sum(a != b for a, b in zip(stored, data[entry - 1], strict=True)) == 1
    disk.damage(SEGMENT, positions[entry - 1] + 700)  # repaired by exact bytes
    log = await open_log(disk)
    assert await log.verify() == []
    await log.close()


async def test_several_damaged_frames_in_a_row() -> None:
    """A stretch of damage without an index is bridged as one; every entry in it is damaged, those around it
    are not."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for _ in range(6):
        await log.append([next_frame(log, 3, value_bytes=50)])
    positions = [log.entry(LogIndex(index)).position for index in range(1, 7)]
    await log.close()
    await disk.unlink(INDEX)
    for entry in (2, 3, 4):
        disk.damage(SEGMENT, positions[entry - 1] + 300, 3)
    log = await open_log(disk)
    assert (log.last_index, log.end_offset) == (6, 18)
    assert [(damage.first_index, damage.last_index) for damage in log.damage] == [(2, 4)]
    (damage,) = log.damage
    assert (damage.offsets, damage.length) == ((3, 12), positions[4] - positions[1])
    assert log.index_for_offset(Offset(12)) == 5
    for _ in range(2):
        (found,) = await log.verify()
        assert (found.first_index, found.last_index, found.position) == (2, 4, positions[1])
        assert (found.offsets, found.length) == (damage.offsets, damage.length)
        await log.close()
        log = await open_log(disk)  # the index written meanwhile has the guesses
    await log.close()


async def test_damage_over_a_change_of_terms_is_not_guessed() -> None:
    """Where neither side tells the terms of the lost entries, the log does not open rather than lie to
    Raft."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for term in (1, 1, 2, 3):
        await log.append([next_frame(log, term=term)])
    positions = [log.entry(LogIndex(index)).position for index in range(1, 5)]
    await log.close()
    await disk.unlink(INDEX)
    for entry in (2, 3):
        disk.damage(SEGMENT, positions[entry - 1] + 300, 3)
    before = disk.content(SEGMENT)
    with pytest.raises(Damaged, match="terms"):
        await open_log(disk)
    assert disk.content(SEGMENT) == before


async def test_a_missing_segment_is_damage() -> None:
    """A gap between segments is named, and nothing is changed."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for _ in range(3):
        await log.append([next_frame(log, 2, first_of_segment=True)])
    await log.close()
    await disk.unlink(f"log/{2:020d}-{2:020d}.arrows")
    with pytest.raises(Damaged) as caught:
        await open_log(disk)
    assert (caught.value.first_index, caught.value.last_index) == (2, 2)


async def test_a_damaged_header_is_written_again() -> None:
    """It follows from the log's identity and the frames prove that the file is ours."""
    disk = MemoryDisk()
    _, data, _ = await _three(disk)
    header = disk.content(SEGMENT)[:400]
    for position in (3, 150, 390):
        disk.damage(SEGMENT, position)
        log = await open_log(disk)
        assert await contents(log) == data
        await log.close()
        assert disk.content(SEGMENT)[:400] == header


async def test_an_interrupted_creation_leaves_no_segment() -> None:
    """A segment without an entry goes, so that another leader may write that entry without rolling."""
    disk = MemoryDisk()
    _, data, _ = await _three(disk)
    for content in (b"", b"\xff\xff\xff\xff half a header", bytes(4096)):
        file = await disk.open(f"log/{4:020d}-{6:020d}.arrows", create=True)
        await file.write(0, content)
        await file.close()
        log = await open_log(disk)
        assert len(log.spans()) == 1
        assert await contents(log) == data
        await log.close()


async def test_every_flipped_bit_of_a_segment_is_found() -> None:
    """Three frames after a clean close: whichever bit of them flips, verify names the entry it lies in; in
    the header it is mended."""
    disk = MemoryDisk()
    log, data, positions = await _three(disk)
    rng = random.Random(7)
    spots = [(position, rng.randrange(8)) for position in range(positions[0], positions[2] + len(data[2]), 7)]
    log = await open_log(disk)
    for position, bit in spots:
        disk.damage(SEGMENT, position, 1 << bit)
        expected = 1 + sum(position >= start for start in positions[1:])
        assert [damage.first_index for damage in await log.verify()] == [expected], (position, bit)
        disk.damage(SEGMENT, position, 1 << bit)
    await log.close()


async def test_recovery_reads_in_bounded_pieces() -> None:
    """A tail of megabytes is followed through a small window, whatever the frames' sizes."""
    disk = MemoryDisk(capacity_bytes=2**30)
    log = await open_log(disk)
    for number in range(12):
        await log.append([next_frame(log, 1, value_bytes=1 if number % 2 else 300_000)])
    data = await contents(log)
    await log.close()
    await disk.unlink(INDEX)
    before = len(disk.trace.operations)
    log = await open_log(disk)
    assert await contents(log) == data
    assert len(disk.trace.operations) - before > 20
    await log.close()


class TestPure:
    """recovery.py without a disk."""

    def test_follow_chain_says_why_it_stopped(self) -> None:
        """Short, no frame, wrong place in the chain."""
        chain = Chain(LogIndex(1), Offset(0), Term(0))
        assert follow_chain(b"", 0, chain, IDENTITY).reason == "short"
        assert follow_chain(bytes(64), 0, chain, IDENTITY).reason == "magic"
        stretch = follow_chain(bytes(64), 800, chain, IDENTITY)
        assert (stretch.end_position, stretch.entries, stretch.chain) == (800, [], chain)

    def test_tail_records_are_found_only_where_they_belong(self) -> None:
        """At their own position and alignment, verifying under this log's identity."""
        record = TailRecord(LogIndex(4), Term(2), 4096, LogIndex(3), Offset(8))
        trailer = encode_trailer(record, IDENTITY)
        assert find_tail_records(trailer, 4096, IDENTITY) == [record]
        assert find_tail_records(b"x" * 16 + trailer, 4080, IDENTITY) == [record]
        assert find_tail_records(trailer, 8192, IDENTITY) == []
        assert find_tail_records(trailer[:-1], 4096, IDENTITY) == []
        assert find_frame(trailer, 4096, 72, Chain(LogIndex(1), Offset(0), Term(0)), IDENTITY) is None

    def test_nonzero_end(self) -> None:
        """Behind the last byte that is not zero, as a position."""
        assert nonzero_end(b"", 5) is None
        assert nonzero_end(bytes(9), 5) is None
        assert nonzero_end(b"\0\0ab\0c\0", 100) == 106


async def test_config_of_the_tests_is_small() -> None:
    """The cases above rely on several reads per segment."""
    assert SMALL.read_chunk_bytes == 4096


@pytest.mark.parametrize("length", [0, 1, 8, 65_535, 65_536, 65_537, 200_000])
def test_where_bytes_are_not_zero(length: int) -> None:
    """Behind the last one, wherever it is in blocks; None when there are none."""
    assert nonzero_end(bytes(length), 100) is None
    rng = random.Random(length)
    places = sorted({0, length - 1, *(rng.randrange(max(1, length)) for _ in range(6))})
    for first in places:
        for last in places:
            if 0 <= first <= last < length:
                data = bytearray(length)
                data[first] = data[last] = 7
                assert nonzero_end(data, 100) == 101 + last
