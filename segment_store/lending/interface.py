"""What the rest of the store asks of page lending, and the answer of a disk without it.

A log asks for one `Lender` for each answer. Code that reads the disk itself, writes into a segment's file or
takes it away calls the `Lending`. Knows files, neither logs nor sockets.
"""

from __future__ import annotations

from typing import Protocol

from shoal.segment_store.disk.disk import File
from shoal.segment_store.disk.open_files import OpenFiles


class Lent(Protocol):
    """Verified bytes on their way: nothing changes them. The length is what has not been written yet. Close
    it in the end."""

    def __len__(self) -> int: ...
    def write_to(self, descriptor: int) -> int:
        """Write to it what it takes at once: how many bytes. BlockingIOError: none now; or another
        OSError."""

    def close(self) -> None:
        """The bytes that were not written never will be."""


class Lender(Protocol):
    """What one answer is lent. Offsets in bytes of a file."""

    async def prepare(self, path: str) -> None:
        """Call it for each sealed file of an answer, before anything of it is taken."""

    def watch(self, file: File, start: int, stop: int, sealed_bytes: int) -> None:
        """[start, stop) of a sealed file, which has `sealed_bytes` of frames, is about to be read.
        `verified`, `damaged` or `stop` follows."""

    def verified(self, path: str, size: int) -> None:
        """What was to be read, `size` bytes, has verified."""

    def damaged(self, path: str) -> None:
        """It has not."""

    def stop(self) -> None:
        """It was not read, or not of a sealed file. Idempotent."""

    def knows(self, path: str, start: int) -> bool:
        """Whether the bytes there have verified: their memory may have gone since."""

    def has(self, path: str, start: int) -> bool:
        """Whether take() would give something from `start` on in this very moment."""

    def take(self, file: File, start: int, stop: int) -> Lent | None:
        """Of [start, stop) as much as is verified and fits, from its beginning on; None if that is
        nothing."""


class Lending(Protocol):
    """Of one agent's disk."""

    def lender(self, open_files: OpenFiles) -> Lender: ...
    def look_away(self, path: str, start: int = 0, stop: int = 2**63) -> None:
        """The bytes are about to be read from the disk itself, or written again: trust no earlier check."""

    async def was_lent(self, path: str) -> bool:
        """Whether bytes of the file may be on their way to a reader, from this process or an earlier one. The
        caller has made sure that nobody reads the file any more."""

    def forget(self, path: str) -> None:
        """The file is about to go."""

    def close(self, directory: str) -> None:
        """Forget the files in a directory."""


class NoLending:
    """Everything is read and checked each time. `Lending` and `Lender` in one."""

    def lender(self, _open_files: OpenFiles) -> Lender:
        return self

    async def prepare(self, path: str) -> None:
        """Nothing to note."""

    def watch(self, file: File, start: int, stop: int, sealed_bytes: int) -> None:
        """Nothing is kept."""

    def verified(self, path: str, size: int) -> None:
        """Nothing is kept."""

    def damaged(self, path: str) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """Nothing is kept."""

    def knows(self, _path: str, _start: int) -> bool:
        return False

    def has(self, _path: str, _start: int) -> bool:
        return False

    def take(self, _file: File, _start: int, _stop: int) -> Lent | None:
        return None

    def look_away(self, path: str, start: int = 0, stop: int = 2**63) -> None:
        """Nothing is kept."""

    async def was_lent(self, _path: str) -> bool:
        return False

    def forget(self, path: str) -> None:
        """Nothing is kept."""

    def close(self, directory: str) -> None:
        """Nothing is kept."""
