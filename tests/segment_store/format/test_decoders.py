"""The store's decoders on hostile bytes: each accepts or raises its one error. And the lock, and names."""

import os
import random
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_frames import IDENTITY

from shoal.format.batch import END_OF_STREAM, LogIdentity, LogIndex, Offset, Term
from shoal.segment_store import DirectoryLock, FormatError, LogConfig, NotOwner
from shoal.segment_store.format.index import (
    MAX_BLOCK_ENTRIES,
    NO_TIME_US,
    UNKNOWN_TIME_US,
    Entry,
    IndexReleased,
    SegmentIndex,
    decode_block,
    decode_index_file,
    encode_blocks,
)
from shoal.segment_store.format.layout import SegmentName, next_allocation, parse_name, sort_directory
from shoal.segment_store.format.tail_record import TRAILER_BYTES, TailRecord, decode_trailer, encode_trailer

RECORD = TailRecord(LogIndex(7), Term(3), 4096, LogIndex(6), Offset(11), 800)


def _entries(count: int) -> list[Entry]:
    return [
        Entry(
            LogIndex(5 + at),
            Offset(10 + 2 * at),
            776 + 800 * at,
            800,
            2,
            Term(1 + at // 3),
            1000 + at,
            7 - at,
        )
        for at in range(count)
    ]


def _block_of_version_1(entries: list[Entry]) -> bytes:
    body = b"".join(struct.pack("<QQQIIQQ", *entry[:-1]) for entry in entries)
    header = struct.pack("<HHIIQ", 1, 0, len(entries), 0, entries[0].index)
    checksum = crc32c.crc32c(body, crc32c.crc32c(header, IDENTITY.seed))
    return b"ShoalIdx" + struct.pack("<I", checksum) + header + body


class TestTail:
    """The tail record."""

    def test_round_trip(self) -> None:
        """Marker first, so that Arrow readers stop there; the record behind it."""
        trailer = encode_trailer(RECORD, IDENTITY)
        assert len(trailer) == TRAILER_BYTES
        assert trailer.startswith(END_OF_STREAM)
        assert decode_trailer(b"12345678" + trailer, 8, IDENTITY) == RECORD

    def test_every_flipped_bit_is_found(self) -> None:
        """Each of them, and the wrong identity."""
        trailer = encode_trailer(RECORD, IDENTITY)
        for bit in range(len(trailer) * 8):
            bad = bytearray(trailer)
            bad[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FormatError):
                decode_trailer(bad, 0, IDENTITY)
        with pytest.raises(FormatError):
            decode_trailer(trailer, 0, LogIdentity(b"c" * 16, b"t" * 16, 4))

    @settings(max_examples=200)
    @given(st.binary(max_size=100), st.integers(0, 120))
    def test_any_bytes(self, data: bytes, position: int) -> None:
        """Nothing but FormatError, whatever the bytes."""
        with pytest.raises(FormatError):
            decode_trailer(data, position, IDENTITY)


class TestIndex:
    """Blocks and files of index entries."""

    def test_round_trip(self) -> None:
        """Many entries make several blocks, and come back."""
        entries = _entries(MAX_BLOCK_ENTRIES + 10)
        blocks = encode_blocks(entries, IDENTITY)
        assert len(blocks) == 2
        data = b"".join(blocks)
        loaded = decode_index_file(data, LogIndex(5), Offset(10), IDENTITY)
        assert (loaded.entries, *loaded[1:]) == (entries, len(data), None)
        assert encode_blocks([], IDENTITY) == []

    def test_blocks_of_version_1_are_read(self) -> None:
        """As an earlier version wrote them, in front of new ones: their entries come back, and do not know
        their timestamps; those without records need none."""
        entries = _entries(4)
        control = entries[1]._replace(record_count=0)
        behind = [entry._replace(base_offset=Offset(entry.base_offset - 2)) for entry in entries[2:]]
        data = _block_of_version_1([entries[0], control]) + encode_blocks(behind, IDENTITY)[0]
        loaded = decode_index_file(data, LogIndex(5), Offset(10), IDENTITY)
        assert loaded.problem is None
        old = [
            entries[0]._replace(max_timestamp_us=UNKNOWN_TIME_US),
            control._replace(max_timestamp_us=NO_TIME_US),
        ]
        assert loaded.entries == [*old, *behind]
        assert all(
            there.agrees_with(entry)
            for there, entry in zip(loaded.entries, [entries[0], *old[1:], *behind], strict=True)
        )
        assert not behind[0].agrees_with(behind[0]._replace(max_timestamp_us=1_000))

    def test_a_later_version_is_told(self) -> None:
        """A good block of a version that this code does not know."""
        block = bytearray(encode_blocks(_entries(2), IDENTITY)[0])
        block[12] = 3
        block[8:12] = crc32c.crc32c(block[12:], IDENTITY.seed).to_bytes(4, "little")
        with pytest.raises(FormatError) as caught:
            decode_block(bytes(block), 0, IDENTITY)
        assert caught.value.reason == "version"

    @given(st.lists(st.integers(-5, 5), max_size=3_000), st.integers(-6, 6), st.data())
    def test_the_first_entry_of_a_time(self, times: list[int], time_us: int, data: st.DataObject) -> None:
        """As a plain look from the place on finds it; also once the columns were released, as far as that is
        known then."""
        index = SegmentIndex(LogIndex(1))
        for at, newest_us in enumerate(times):
            index.append(Entry(LogIndex(1 + at), Offset(at), 8 * at, 8, 1, Term(1), 0, newest_us))
        begin = data.draw(st.integers(0, max(0, len(times) - 1)))
        expected = next((1 + at for at in range(begin, len(times)) if times[at] >= time_us), None)
        assert index.first_reaching(time_us, LogIndex(1 + begin)) == expected
        index.release()
        if index.is_released and max(times) >= time_us:
            with pytest.raises(IndexReleased):
                index.first_reaching(time_us, LogIndex(1 + begin))
        else:
            assert index.first_reaching(time_us, LogIndex(1 + begin)) == expected

    def test_a_bad_block_ends_the_file(self) -> None:
        """Flip any bit: what stands before its block is kept, nothing of it or behind it."""
        blocks = [encode_blocks([entry], IDENTITY)[0] for entry in _entries(4)]
        data = b"".join(blocks)
        for bit in range(len(data) * 8):
            bad = bytearray(data)
            bad[bit // 8] ^= 1 << bit % 8
            loaded = decode_index_file(bytes(bad), LogIndex(5), Offset(10), IDENTITY)
            good = bit // 8 // len(blocks[0])
            assert loaded.entries == _entries(4)[:good]
            assert loaded.good_bytes == good * len(blocks[0])
            assert loaded.problem

    def test_blocks_that_do_not_continue_are_refused(self) -> None:
        """A gap, a repetition, another segment's first entry."""
        blocks = [encode_blocks([entry], IDENTITY)[0] for entry in _entries(4)]
        for order, kept in (((0, 2), 1), ((0, 0), 1), ((1, 2), 0), ((0, 1, 3), 2)):
            data = b"".join(blocks[at] for at in order)
            loaded = decode_index_file(data, LogIndex(5), Offset(10), IDENTITY)
            assert len(loaded.entries) == kept
            assert loaded.problem is not None

    @pytest.mark.parametrize(
        "change", [{"length": 0}, {"position": 9}, {"term": 0}, {"base_offset": 13}, {"index": 9}]
    )
    def test_entries_that_contradict_each_other(self, change: dict[str, int]) -> None:
        """A checksum that holds does not excuse them."""
        entries = _entries(3)
        entries[1] = entries[1]._replace(**change)
        with pytest.raises(FormatError) as caught:
            decode_block(encode_blocks(entries, IDENTITY)[0], 0, IDENTITY)
        assert caught.value.reason == "invalid"

    @settings(max_examples=200)
    @given(st.binary(max_size=200), st.integers(0, 250))
    def test_any_bytes(self, data: bytes, position: int) -> None:
        """Nothing but FormatError; a file of any bytes has no entries."""
        with pytest.raises(FormatError):
            decode_block(data, position, IDENTITY)
        assert decode_index_file(data, LogIndex(1), Offset(0), IDENTITY).entries == []

    def test_mutations(self) -> None:
        """A thousand random cuts, insertions and flips of a good file: a prefix of its entries, no other
        error."""
        rng = random.Random(11)
        entries = _entries(20)
        data = b"".join(encode_blocks([entry], IDENTITY)[0] for entry in entries)
        for _ in range(1000):
            bad = bytearray(data)
            at = rng.randrange(len(bad))
            bad[at : at + rng.randrange(60)] = rng.randbytes(rng.randrange(60))
            loaded = decode_index_file(bytes(bad), LogIndex(5), Offset(10), IDENTITY)
            assert loaded.entries == entries[: len(loaded.entries)]

    def test_columns(self) -> None:
        """In memory: entries come back, offsets are found, runs are counted, cuts forget."""
        index = SegmentIndex(LogIndex(5))
        for entry in _entries(6):
            index.append(entry)
        assert list(index) == _entries(6)
        assert [index.index_for_offset(Offset(offset)) for offset in (10, 11, 12, 21)] == [5, 5, 6, 10]
        assert index.term_runs() == [(5, 1), (8, 2)]
        index.truncate(LogIndex(7))
        assert (len(index), index.last_index) == (2, 6)
        index.truncate(LogIndex(1))
        assert (len(index), index.last_index) == (0, 4)


class TestLayout:
    """Names and growth."""

    def test_names(self) -> None:
        """Sorted by number and by text alike; what is not ours is left alone."""
        name = SegmentName(LogIndex(42), Offset(7))
        assert name.segment_file == "00000000000000000042-00000000000000000007.arrows"
        assert parse_name(name.segment_file) == name
        for other in (
            "lock",
            "42-7.arrows",
            name.index_file,
            f"{0:020d}-{0:020d}.arrows",
            f"{2**63}-{0:020d}.arrows",
        ):
            assert parse_name(other) is None
        first = SegmentName(LogIndex(1), Offset(0))
        files = [
            name.segment_file,
            "notes.txt",
            first.segment_file,
            name.index_file,
            f"{3:020d}-{3:020d}.index",
            "x.tmp",
        ]
        assert sort_directory(files) == ((first, name), (f"{3:020d}-{3:020d}.index", "x.tmp"), ())

    def test_growth(self) -> None:
        """64 KiB, doubling, then steps of 8 MiB, not beyond the segment unless a frame needs it."""
        kib, mib = 2**10, 2**20
        steps = [0]
        while steps[-1] < 64 * mib:
            steps.append(next_allocation(steps[-1], steps[-1] + 1, 64 * kib, 8 * mib, 64 * mib))
        assert steps[1:9] == [64 * kib << at for at in range(8)]
        assert {after - before for before, after in pairwise(steps[8:])} == {8 * mib}
        assert next_allocation(64 * mib, 64 * mib + 5, 64 * kib, 8 * mib, 64 * mib) == 64 * mib + 5

    def test_config_rules(self) -> None:
        """Each impossible value is named."""
        for wrong in (
            {"segment_bytes": 10},
            {"first_allocation_bytes": 2**24},
            {"index_interval_ms": 0},
            {"read_chunk_bytes": 4097},
            {"max_open_files": 0},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
                LogConfig(**wrong)


class TestLock:
    """One process per directory."""

    def test_a_second_opener_is_told_who_holds_it(self, tmp_path: Path) -> None:
        """By process id, across processes; released with the process."""
        with DirectoryLock(str(tmp_path)):
            code = (
                "import sys\nfrom shoal.segment_store import DirectoryLock, NotOwner\n"
                "try: DirectoryLock(sys.argv[1]).acquire()\nexcept NotOwner as error: print(error)\n"
            )
            run = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100
            )
            assert f"{tmp_path} is in use by process {os.getpid()}" in run.stdout
            with pytest.raises(NotOwner):
                DirectoryLock(str(tmp_path)).acquire()
        lock = DirectoryLock(str(tmp_path))
        lock.acquire()
        lock.release()
        lock.release()
