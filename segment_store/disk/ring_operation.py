"""One operation of the ring, from its asking to its last completion: what a result means, and what is left to
do. Pure; it knows no ring."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from shoal.segment_store.disk.disk import Buffer, Done, after_prefix
from shoal.segment_store.disk.system_calls import TRANSIENT_ERRORS
from shoal.segment_store.disk.threads import ThreadFile


class OperationKind(Enum):
    READ = auto()
    WRITE = auto()
    WRITE_AND_SYNC = auto()
    SYNC = auto()
    ALLOCATE = auto()


@dataclass(slots=True, eq=False)
class Operation:
    """One thing asked of the ring: one submission entry, or two linked ones. Lives until all its
    completions are in, whatever became of the caller. `length`: bytes still to be read or written. `entries`:
    of the submission queue. `pieces`: of a write with sync that goes as a chain. `began_us`: of one that
    began with nothing beside it."""

    file: ThreadFile
    fd: int
    kind: OperationKind
    offset: int
    buffers: list[Buffer]
    length: int
    done: Done
    entries: int = 1
    vectors: Sequence[object] = ()
    pieces: Sequence[list[Buffer]] = ()
    began_us: int = 0
    error: OSError | None = None
    result: int = 0
    sync_result: int = 0
    interruptions: int = 0

    @property
    def sync_failed(self) -> bool:
        """Whether it was the sync that failed, not the write before it."""
        return self.kind is OperationKind.SYNC or (
            self.kind is OperationKind.WRITE_AND_SYNC and self.result == self.length
        )

    def cut(self, pieces: Sequence[list[Buffer]]) -> None:
        """It goes as a chain, of one write-back fewer than writes, and the sync; without pieces as a pair."""
        self.pieces = pieces
        self.entries = 2 * len(pieces) or 2


def problem_of(operation: Operation) -> int:
    """The errno the operation ended with, 0 for none. An interrupted sync counts as failed, never as
    transient: the kernel may have forgotten which pages were dirty."""
    if operation.result < 0:
        transient = -operation.result in TRANSIENT_ERRORS
        return errno.EIO if transient and operation.kind is OperationKind.SYNC else -operation.result
    if operation.result == 0 and operation.kind in (OperationKind.WRITE, OperationKind.WRITE_AND_SYNC):
        return errno.EIO  # no byte accepted: going on would spin
    if operation.kind is not OperationKind.WRITE_AND_SYNC or operation.result < operation.length:
        return 0  # a pair whose write was short: the rest goes again, with its sync
    sync_error = -operation.sync_result
    return errno.EIO if sync_error in TRANSIENT_ERRORS else sync_error


def advance(operation: Operation) -> bool:
    """Take the result in; True when nothing is left to do. `result` becomes the bytes not moved (a read met
    the end of the file)."""
    if operation.kind in (OperationKind.SYNC, OperationKind.ALLOCATE):
        operation.result = 0
        return True
    moved = operation.result
    operation.offset += moved
    operation.length -= moved
    if operation.length == 0 or moved == 0:
        operation.result = operation.length
        return True
    operation.buffers = after_prefix(operation.buffers, moved)
    return False
