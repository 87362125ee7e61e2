"""The fold of a log's own control entries, beside that of producers and configurations.

Law of this file: pure; a shape, and the one without entries. A fold is changed by log_state.py alone, follows
the log's end as that does, and knows nothing of a log. Each opening of a replica makes a new one.
"""

from typing import Protocol

from shoal.format.batch import LogIndex, Stamp


class EntryFold(Protocol):
    """Of GROUP_STATE entries, in the order of their indexes."""

    def fold(self, stamp: Stamp, control: bytes) -> None:
        """An entry at the log's end. Raises ValueError where it cannot be read; nothing has changed then."""

    def settle(self, index: LogIndex) -> None:
        """Entries up to here are committed: they are never undone."""

    def undo_from(self, index: LogIndex) -> None:
        """The log lost everything from here on."""

    def to_bytes(self) -> bytes:
        """For a checkpoint; empty while there is nothing to keep."""

    def restore(self, data: bytes) -> None:
        """As it was when `to_bytes` said so. Raises ValueError."""

    def check_invariants(self) -> None:
        """AssertionError where one does not hold."""


class NoFold:
    """Of a log that has no such entries."""

    def fold(self, stamp: Stamp, control: bytes) -> None:
        raise ValueError(f"an entry of kind {stamp.kind.name} in a log that has none")

    def settle(self, index: LogIndex) -> None:
        """Nothing was folded."""

    def undo_from(self, index: LogIndex) -> None:
        """Nothing was folded."""

    def to_bytes(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        raise ValueError("a checkpoint of entries that this log does not have")

    def check_invariants(self) -> None:
        """There is no state."""
