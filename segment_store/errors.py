"""The store's errors as types: whose fault, whether the call took effect, whether to retry.

Faults only. A caller that breaks a rule of this package (a frame that does not continue the log) is met by
`ChainBroken` or `WrongLength`, because its frames may come from the network; everything else that cannot
happen is an assert.
"""

import errno

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class StoreError(Exception):
    """The root of every error this package raises by intent."""


class FormatError(StoreError):
    """Bytes of a tail record or an index block that are not one. The one error of both decoders.

    `reason` is one of "short", "magic", "checksum", "version", "invalid".
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class DiskFull(StoreError):
    """No space (ENOSPC, EDQUOT). Nothing of the refused call is in the log; reads go on; the same call may be
    made again later and succeeds when space is back."""


class DiskFailed(StoreError):
    """A write or an fsync failed: what the disk holds is unknown, so this log refuses every append for ever
    after. A failed fsync is never retried (the kernel may have dropped the dirty pages); recovery decides."""


class Damaged(StoreError):
    """Stored bytes that were once acknowledged and no longer verify. Never truncated, never served.

    `path` and `position` (bytes) say where, `first_index` to `last_index` which entries (0 when unknown),
    `offsets` (first, behind the last) and `length` (bytes) of those, None and 0 when nothing tells.
    """

    def __init__(
        self,
        path: str,
        position: int,
        detail: str,
        first_index: int = 0,
        last_index: int = 0,
        offsets: tuple[int, int] | None = None,
        length: int = 0,
    ) -> None:
        entries = f", entries {first_index} to {last_index}" if first_index else ""
        if offsets is not None:
            first, end = offsets
            entries += f", offsets {first} to {end - 1}" if end > first else ", no record"
        super().__init__(f"{path} at byte {position}{entries}: {detail}")
        self.path = path
        self.position = position
        self.detail = detail
        self.first_index = first_index
        self.last_index = last_index
        self.offsets = offsets
        self.length = length


class OffsetOutOfRange(StoreError):
    """An offset or index outside what the log holds; `start` and `end` (exclusive) say what it does hold."""

    def __init__(self, wanted: int, start: int, end: int) -> None:
        super().__init__(f"{wanted} is outside [{start}, {end})")
        self.wanted = wanted
        self.start = start
        self.end = end


class NotOwner(StoreError):
    """Another live process holds the directory."""


class ForeignIdentity(StoreError):
    """The files belong to another cluster, topic or partition. Nothing was changed."""


class WrongSchema(StoreError):
    """The log on the disk has other columns than the ones it was opened with. Nothing was changed."""


class ChainBroken(StoreError):
    """Frames offered to append do not continue the log (index, offset or previous term). Nothing was
    written."""


class WrongLength(StoreError):
    """A frame offered to append is longer than any may be, or not as long as its own head and stamp say.
    Nothing was written."""


class Overloaded(StoreError):
    """More bytes are waiting for the disk than the log's bound allows. Nothing was taken; retry later."""


class LogClosed(StoreError):
    """The log was closed or removed; the call did nothing."""


def is_no_space(error: OSError) -> bool:
    """Whether the disk was merely full. A sync that fails for want of space has lost data like any other."""
    return error.errno in _NO_SPACE and not isinstance(error, SyncFailed)


def disk_fault(error: OSError, directory: str) -> DiskFull | DiskFailed:
    """The store's error for an error of the operating system, of the log in `directory`."""
    kind = DiskFull if is_no_space(error) else DiskFailed
    return kind(f"{directory}: {error}")


class SyncFailed(OSError):
    """A sync did not succeed: which of the written bytes are on the disk is unknown, and asking again would
    lie."""
