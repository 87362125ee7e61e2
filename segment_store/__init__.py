"""The segment store: a log of one partition on a disk that may lose power."""

if __name__ != "shoal.segment_store":
    raise ImportError(
        "import this package as shoal.segment_store: the folder stands at the top, the name does not"
    )

from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk, File, open_disk
from shoal.segment_store.disk.lock import DirectoryLock
from shoal.segment_store.disk.threads import ThreadDisk
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
    SyncFailed,
    WrongLength,
    WrongSchema,
)
from shoal.segment_store.log.log import PartitionLog
from shoal.segment_store.log.segment import SegmentSpan

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
