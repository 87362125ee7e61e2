"""What the store refuses: each with its own error, and not a byte on the disk is another afterwards."""

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from store_frames import IDENTITY, next_frame, open_log, read_whole

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    MAX_FRAME_BYTES,
    STAMP_BYTES,
    BatchError,
    Frame,
    LogIndex,
    Message,
    Offset,
    Term,
    parse_frame,
    stamp_message,
)
from shoal.segment_store import (
    ChainBroken,
    DirectoryLock,
    Disk,
    ForeignIdentity,
    LogConfig,
    NotOwner,
    OffsetOutOfRange,
    PartitionLog,
    WrongLength,
    WrongSchema,
    open_disk,
)

OTHER_SCHEMA = pa.schema([("value", pa.int64())])
RECORDS = 7


@dataclasses.dataclass
class Store:
    """A log with records, open, in a directory that this process holds."""

    disk: Disk
    directory: Path
    log: PartitionLog

    def frame(self, data: bytes) -> Frame:
        """What would come next, with other bytes under the same stamp."""
        return Frame(next_frame(self.log).stamp, data)


async def _open(store: Store, schema: pa.Schema, partition: int) -> None:
    identity = dataclasses.replace(IDENTITY, partition=partition)
    await PartitionLog.open(store.disk, store.log._files.directory, identity, schema, LogConfig())


async def _of_another_schema(store: Store) -> None:
    await _open(store, OTHER_SCHEMA, IDENTITY.partition)


async def _of_another_partition(store: Store) -> None:
    await _open(store, DEFAULT_SCHEMA, IDENTITY.partition + 1)


async def _second_opener(store: Store) -> None:
    DirectoryLock(str(store.directory)).acquire()


async def _shorter_than_it_says(store: Store) -> None:
    await store.log.append([store.frame(next_frame(store.log).data[:-8])])


async def _longer_than_it_says(store: Store) -> None:
    await store.log.append([store.frame(bytes(next_frame(store.log).data) + bytes(8))])


async def _a_head_that_lies(store: Store) -> None:
    data = bytearray(next_frame(store.log).data)
    data[5] ^= 1
    await store.log.append([store.frame(bytes(data))])


async def _behind_a_good_one(store: Store) -> None:
    """Neither is taken."""
    good = next_frame(store.log)
    stamp = good.stamp._replace(
        index=LogIndex(good.stamp.index + 1),
        base_offset=Offset(good.stamp.base_offset + 1),
        previous_term=good.stamp.term,
    )
    await store.log.append([good, Frame(stamp, good.data[:-8])])


async def _beyond_the_limit(store: Store) -> None:
    body = bytes(MAX_FRAME_BYTES)
    stamp = next_frame(store.log).stamp._replace(body_length=len(body))
    head = b"\xff" * 4 + (STAMP_BYTES + 8).to_bytes(4, "little") + bytes(STAMP_BYTES + 8)
    await store.log.append([Frame(stamp, head + body)])


async def _made_beyond_the_limit(store: Store) -> None:
    stamp_message(
        Message(bytes(8), bytes(MAX_FRAME_BYTES), 1, 0),
        IDENTITY,
        base_offset=store.log.end_offset,
        term=Term(1),
        previous_term=store.log.last_term,
        index=LogIndex(store.log.last_index + 1),
        append_time_us=5,
    )


async def _lying_bytes_from_a_peer(store: Store) -> None:
    data = bytearray(next_frame(store.log).data)
    data[4:8] = (2**31 - 8).to_bytes(4, "little")
    parse_frame(bytes(data), 0, IDENTITY)


async def _out_of_order(store: Store) -> None:
    stamp = next_frame(store.log).stamp
    await store.log.append([Frame(stamp._replace(index=LogIndex(stamp.index + 1)), b"")])


async def _an_offset_before_all(store: Store) -> None:
    await store.log.find_offset(Offset(-1))


async def _an_offset_behind_all(store: Store) -> None:
    await store.log.find_offset(store.log.end_offset)


async def _an_entry_before_all(store: Store) -> None:
    await store.log.read(LogIndex(0), LogIndex(1), 100)


async def _an_entry_behind_all(store: Store) -> None:
    await read_whole(store.log, LogIndex(1), LogIndex(store.log.last_index + 1), 100)


async def _truncated_before_all(store: Store) -> None:
    await store.log.truncate_suffix(LogIndex(0))


@pytest.mark.parametrize(
    ("attempt", "error", "match"),
    [
        (_of_another_schema, WrongSchema, "value"),
        (_of_another_partition, ForeignIdentity, "arrows"),
        (_second_opener, NotOwner, "in use by process"),
        (_shorter_than_it_says, WrongLength, "entry 8 cannot have"),
        (_longer_than_it_says, WrongLength, "entry 8 cannot have"),
        (_a_head_that_lies, WrongLength, "entry 8 cannot have"),
        (_behind_a_good_one, WrongLength, "entry 9 cannot have"),
        (_beyond_the_limit, WrongLength, "cannot have 17"),
        (_made_beyond_the_limit, BatchError, "limit"),
        (_lying_bytes_from_a_peer, BatchError, "length"),
        (_out_of_order, ChainBroken, "entry 9 where 8 belongs"),
        (_an_offset_before_all, OffsetOutOfRange, r"-1 is outside \[0, 7\)"),
        (_an_offset_behind_all, OffsetOutOfRange, r"7 is outside \[0, 7\)"),
        (_an_entry_before_all, OffsetOutOfRange, r"0 is outside \[1, 8\)"),
        (_an_entry_behind_all, OffsetOutOfRange, r"8 is outside \[1, 8\)"),
        (_truncated_before_all, OffsetOutOfRange, r"0 is outside \[1, 8\)"),
    ],
)
async def test_bad_input_has_its_error_and_writes_nothing(
    attempt: Callable[[Store], Awaitable[None]], error: type[Exception], match: str, tmp_path: Path
) -> None:
    """And the log goes on as if nothing had been asked."""
    disk = await open_disk()
    with DirectoryLock(str(tmp_path)):
        config = LogConfig(index_interval_ms=3_600_000)
        log = await open_log(disk, str(tmp_path / "topic" / "3"), config)
        for _ in range(RECORDS):
            await log.append([next_frame(log)])
        before = _held(tmp_path)
        with pytest.raises(error, match=match):
            await attempt(Store(disk, tmp_path, log))
        assert _held(tmp_path) == before
        assert log.last_index == RECORDS
        await log.append([next_frame(log)])
        assert len(await log.read(LogIndex(1), LogIndex(RECORDS + 1), 2**20)) == RECORDS + 1
        await log.close()
    await disk.close()


def _held(directory: Path) -> dict[str, bytes]:
    """Every file's bytes, by name."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
