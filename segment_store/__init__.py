"""The segment store: a partition's log on a disk that may lose power. See the code map in ARCHITECTURE.md."""

if __name__ != "shoal.segment_store":
    raise ImportError(
        "import this package as shoal.segment_store: the folder stands at the top, the name does not"
    )

from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk import Disk, File, SyncFailed, ThreadDisk, open_disk
from shoal.segment_store.errors import (
    ChainBroken,
    Damaged,
    DiskFailed,
    DiskFull,
    ForeignIdentity,
    FormatError,
    LogClosed,
    NotOwner,
    OffsetOutOfRange,
    Overloaded,
    StoreError,
    WrongLength,
    WrongSchema,
)
from shoal.segment_store.lock import DirectoryLock
from shoal.segment_store.log import LogStatistics, PartitionLog, SegmentSpan

__all__ = [
    "ChainBroken",
    "Damaged",
    "DirectoryLock",
    "Disk",
    "DiskFailed",
    "DiskFull",
    "File",
    "ForeignIdentity",
    "FormatError",
    "LogClosed",
    "LogConfig",
    "LogStatistics",
    "NotOwner",
    "OffsetOutOfRange",
    "Overloaded",
    "PartitionLog",
    "SegmentSpan",
    "StoreError",
    "SyncFailed",
    "ThreadDisk",
    "WrongLength",
    "WrongSchema",
    "open_disk",
]
