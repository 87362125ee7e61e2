"""Pages of stored files that were verified, and have stayed in memory since: their bytes are given out again
without a copy and without another check.

Law of this file: a byte is lent only if it was verified in the memory it is sent from (safety 15). Of a
stretch of a sealed segment that is read for a second time the pages are mapped first (mapped_pages.py), then
it is read and verified as ever. When it is asked for again, the kernel puts references to the page cache's
pages into a pipe, and only then the mapping is asked: if every page is still present, then what is in the
pipe is what was verified, and goes on to the reader; if not, the pipe is thrown away, and the stretch is read
and verified again. A stretch whose mapping has lost a page is never trusted again.

References to pages may lie in a pipe, in a socket, and on this machine in the reader's socket too, long after
the answer is over, even after this process. So nothing may ever write other bytes over those that were lent.
These write into a segment's file:

- appends, their tail records and zeros: behind the last entry. Only committed entries are lent, each whole;
- truncation zeroes entries that were not committed. The same goes for what opening a log clears, and for
  giving reserved blocks back: behind the last entry that is kept;
- opening a log and mending write the very bytes that belong there; a header or a tail record is no entry.
  A segment in which damage was met is no longer trusted (`look_away`), nor one that is mended;
- using a file again for another segment writes over everything. So the file carries a note, an extended
  attribute, before the first of its pages is lent (`prepare`, `take`), and with a note it is deleted instead
  (`was_lent`; spare_files.py). The note is the inode's: it outlives the process as long as the pages may, it
  goes with the file, and renaming the file keeps it. It is not synced, since no socket outlives the machine.
  Where a file cannot take a note nothing of it is lent;
- any other program that writes into it changes its time of modification, which is compared.

The scrubber reads from the disk, so pages are let go of (`look_away`) before they are looked at: mapped ones
would stay. Knows files and pages, not sockets: the caller of `take` says where the bytes go.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import posixpath
import sys
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

from shoal.segment_store.disk.disk import File
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.lending.mapped_pages import PAGE_BYTES, MappedPages

MAX_MAPPED_BYTES = 2**30
"""Mapped at once, over all logs of an agent. They count as memory of the process, though the page cache has
them anyway; half a million of the kernel's page table entries are 2 MiB."""
STALE_AFTER = 4
"""A stretch that was not asked for makes room once so many times the mapped bytes were read. A reader that
reads more than fits, again and again, would otherwise push every stretch out just before its turn, and pay
for mapping all of it each time."""
MIN_STRETCH_BYTES = 64 * 2**10
"""A shorter one costs more to map and to ask about than to copy and to check. With it the mappings stay
below 33,000 areas, of which the kernel lets a process have 65,530."""
MAX_READ_FILES = 4096  # read once, or in part, so far: some 200 bytes each
PIPE_BYTES = 2**20  # the kernel gives every user as much: /proc/sys/fs/pipe-max-size
MIN_PIPE_BYTES = 2**18  # less at a time costs more than it saves
MAX_PIPES = 32
"""Answers with bytes in a pipe, mostly those of slow readers; others are given copies. Half of the 64 MiB
that the kernel lets an ordinary user have in pipes."""

LENT_NOTE = "user.shoal.lent"
"""The extended attribute of a file whose pages may be in sockets."""
REAL_DISKS = ("ring", "threads")
"""Kinds of disks whose files the kernel knows."""


class FileVersion(NamedTuple):
    """Which file it is, and when it was last written into."""

    device: int
    inode: int
    time_ns: int


class MappedStretch:
    """Bytes [start, stop) of a file, and the mapping of the pages that they lie in."""

    __slots__ = ("address", "length", "path", "start", "stop", "used_at", "written")

    def __init__(self, path: str, start: int, stop: int, written: FileVersion) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        self.written = written
        self.address = 0  # 0: unmapped
        self.used_at = 0  # bytes that had been read when it was read last
        self.length = stop + -stop % PAGE_BYTES - self.first_page(start)

    @staticmethod
    def first_page(position: int) -> int:
        return position - position % PAGE_BYTES


class _Pipe(NamedTuple):
    """Two descriptors, and how many bytes fit wherever they begin in a page."""

    reader: int
    writer: int
    room: int


class PipedBytes:
    """Verified bytes on their way, in a pipe: nothing changes them. The length is what has not been written
    yet. Close it in the end: what was not written by then never will be."""

    __slots__ = ("_left", "_lending", "_pipe")

    def __init__(self, lending: LentPages, pipe: _Pipe, size: int) -> None:
        self._lending = lending
        self._pipe = pipe
        self._left = size

    def __len__(self) -> int:
        return self._left

    def write_to(self, descriptor: int) -> int:
        """Write to it what it takes at once: how many bytes. BlockingIOError: none now; or another
        OSError."""
        count = os.splice(self._pipe.reader, descriptor, self._left, flags=os.SPLICE_F_NONBLOCK)
        self._left -= count
        return count

    def close(self) -> None:
        self._lending.take_back(self._pipe, is_empty=not self._left)
        self._left = 0


class _FileStretches:
    """Of one file, in order; none overlaps another."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stretches: list[MappedStretch] = []

    def overlapping(self, start: int, stop: int) -> list[MappedStretch]:
        first = max(0, bisect_right(self.starts, start) - 1)
        found = self.stretches[first : bisect_left(self.starts, stop)]
        return [stretch for stretch in found if stretch.stop > start]

    def covering(self, start: int, stop: int) -> list[MappedStretch]:
        """Adjoining ones from the one that holds `start` on, as far as there are any below `stop`."""
        found: list[MappedStretch] = []
        for stretch in self.overlapping(start, stop):
            if stretch.start > start:
                break
            found.append(stretch)
            start = stretch.stop
        return found

    def put(self, stretch: MappedStretch) -> None:
        place = bisect_left(self.starts, stretch.start)
        self.starts.insert(place, stretch.start)
        self.stretches.insert(place, stretch)

    def remove(self, stretch: MappedStretch) -> None:
        place = bisect_left(self.starts, stretch.start)
        del self.starts[place], self.stretches[place]


class LentPages:
    """The pages of one agent's logs that may be lent. A log takes a lender for each answer. Code that reads
    the disk itself, writes into a segment's file or takes it away calls `look_away`, `was_lent`, `forget` and
    `close`. One event loop. No plain call waits for the disk, unless the disk has just lost a page that it
    had in memory. A disk that is not `real` lends nothing."""

    def __init__(
        self,
        max_mapped_bytes: int = MAX_MAPPED_BYTES,
        pages: MappedPages | None = None,
        *,
        real: bool = True,
    ) -> None:
        self._max_mapped_bytes = max_mapped_bytes
        self._pages = pages or MappedPages()
        self._real = real
        self._works = None if real else False  # found out when first asked for
        self._read: OrderedDict[str, int] = OrderedDict()  # bytes read of a file
        self._noted: set[str] = set()  # files with a note, of those that are there
        self._files: dict[str, _FileStretches] = {}
        self._kept: OrderedDict[MappedStretch, None] = OrderedDict()  # the least recently used first
        self._idle_pipes: list[_Pipe] = []
        self._pipes = 0
        self._read_bytes = 0  # since the start, checked or lent
        self.mapped_bytes = 0
        self.lent_bytes = 0  # since the start

    def lender(self, open_files: OpenFiles) -> PageLender:
        """For one answer."""
        return PageLender(self, open_files)

    # ---- before and after a stretch is verified

    def wants_note(self, path: str) -> bool:
        """Whether something of the file could be lent, had it a note."""
        return path in self._files and path not in self._noted

    async def write_note(self, path: str, open_files: OpenFiles) -> None:
        """Have the file carry its note. Where that fails it is not lent."""
        try:
            handle = await open_files.acquire(path)
        except OSError:
            return  # the reader meets it
        try:
            # A descriptor of its own: a cancelled caller does not end the call.
            await asyncio.to_thread(_write_note, os.dup(handle.file.descriptor()))
            if not handle.stale:
                self._noted.add(path)
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOSYS, errno.EPERM):
                self._works = False  # no file of this disk takes one
                for known in list(self._files):
                    self.look_away(known)
        finally:
            await open_files.release(handle)

    async def was_lent(self, path: str) -> bool:
        """Whether bytes of the file may be on their way to a reader, from this process or an earlier one. The
        caller has made sure that the file has no reader any more. A file that cannot be asked counts as
        lent."""
        if not self._real:
            return False
        try:
            await asyncio.to_thread(os.getxattr, path, LENT_NOTE)
        except OSError as error:
            return error.errno not in (errno.ENODATA, errno.ENOTSUP, errno.ENOSYS)
        return True

    def watch(self, file: File, start: int, stop: int, sealed_bytes: int) -> MappedStretch | None:
        """Call it before [start, stop) is read to be verified, then keep() or drop() what it gives. None:
        the file, with `sealed_bytes` of frames, has not been read once as a whole, or it cannot be lent
        from."""
        if self._read.get(file.path, 0) < sealed_bytes or stop - start < MIN_STRETCH_BYTES:
            return None
        try:
            descriptor = file.descriptor()
            stretch = MappedStretch(file.path, start, stop, _written(descriptor))
        except OSError:
            return None
        if self._works is None:
            self._works = self._pages.work()
        if not self._works or not self._has_room(stretch.length):
            return None
        stretch.address = self._pages.map(descriptor, stretch.first_page(start), stretch.length)
        if not stretch.address:
            return None
        self.mapped_bytes += stretch.length
        if not self._pages.fill(stretch.address, stretch.length):
            self.drop(stretch)
            return None
        return stretch

    def _has_room(self, length: int) -> bool:
        """Within the bound, or in the place of a stretch that was not asked for in a long time."""
        if self.mapped_bytes + length <= self._max_mapped_bytes:
            return True
        oldest = next(iter(self._kept), None)
        return (
            oldest is not None
            and length <= self._max_mapped_bytes
            and self._read_bytes - oldest.used_at > STALE_AFTER * self._max_mapped_bytes
        )

    def note(self, path: str, size: int) -> None:
        """So many bytes of the file have been read and verified without a watch."""
        self._read_bytes += size
        self._read[path] = self._read.get(path, 0) + size
        self._read.move_to_end(path)
        if len(self._read) > MAX_READ_FILES:
            self._read.popitem(last=False)

    def keep(self, stretch: MappedStretch) -> None:
        """All of the stretch has been verified, as it was read after watch()."""
        stretches = self._files.setdefault(stretch.path, _FileStretches())
        for other in stretches.overlapping(stretch.start, stretch.stop):
            self._lose(other)
        self._files[stretch.path] = stretches
        stretches.put(stretch)
        self._kept[stretch] = None
        self._read_bytes += stretch.stop - stretch.start
        stretch.used_at = self._read_bytes
        while self.mapped_bytes > self._max_mapped_bytes and len(self._kept) > 1:
            self._lose(next(iter(self._kept)))

    def drop(self, stretch: MappedStretch) -> None:
        """The stretch has not been verified after all."""
        self._pages.unmap(stretch.address, stretch.length)
        stretch.address = 0
        self.mapped_bytes -= stretch.length

    # ---- giving it out

    def knows(self, path: str, start: int) -> bool:
        """Whether the bytes there were verified; their memory may have gone since."""
        stretches = self._files.get(path)
        return stretches is not None and bool(stretches.covering(start, start + 1))

    def has(self, path: str, start: int) -> bool:
        """Whether take() would give something from `start` on in this very moment."""
        stretches = self._files.get(path)
        covering = stretches.covering(start, start + 1) if stretches is not None else []
        return bool(covering) and self._all_present(covering, start, covering[0].stop)

    def take(self, file: File, start: int, stop: int) -> PipedBytes | None:
        """Of [start, stop) as much as is verified, and fits a pipe, from its beginning on; None if that is
        nothing. An error of the disk is none here: the read that follows meets it."""
        if file.path not in self._noted:
            return None
        stretches = self._files.get(file.path)
        covering = stretches.covering(start, min(stop, start + PIPE_BYTES)) if stretches is not None else []
        if not covering:
            return None
        pipe = self._pipe()
        if pipe is None:
            return None
        stop = min(stop, covering[-1].stop, start + pipe.room)
        size = 0
        try:
            # Asked before, so that nothing is waited for; asked afterwards, because only that proves it.
            if self._all_present(covering, start, stop):
                size = os.splice(
                    file.descriptor(), pipe.writer, stop - start, start, flags=os.SPLICE_F_NONBLOCK
                )
                if not self._are_as_verified(file, covering, start, start + size):
                    return None
        except OSError:
            return None
        else:
            if size:
                lent = PipedBytes(self, pipe, size)
                pipe = None
                self._read_bytes += size
                for stretch in covering:
                    self._kept.move_to_end(stretch)
                    stretch.used_at = self._read_bytes
                self.lent_bytes += size
                return lent
        finally:
            if pipe is not None:
                self.take_back(pipe, is_empty=not size)
        return None

    def _are_as_verified(self, file: File, stretches: list[MappedStretch], start: int, stop: int) -> bool:
        """Whether no program has written into the file, and [start, stop) lies where it was verified."""
        written = _written(file.descriptor())
        if any(stretch.written != written for stretch in stretches):
            self.look_away(file.path)
            return False
        return self._all_present(stretches, start, stop)

    def _all_present(self, stretches: list[MappedStretch], start: int, stop: int) -> bool:
        missing = [
            item for item in stretches if item.start < stop and not self._is_present(item, start, stop)
        ]
        for stretch in missing:
            self._lose(stretch)
        return not missing

    def _is_present(self, stretch: MappedStretch, start: int, stop: int) -> bool:
        if not stretch.address:
            return False
        first = stretch.first_page(max(start, stretch.start))
        last = min(stop, stretch.stop)
        at = stretch.address + first - stretch.first_page(stretch.start)
        return self._pages.are_present(at, last + -last % PAGE_BYTES - first)

    # ---- pipes

    def _pipe(self) -> _Pipe | None:
        if self._idle_pipes:
            return self._idle_pipes.pop()
        if self._pipes >= MAX_PIPES:
            return None
        try:
            reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        room = 0
        with contextlib.suppress(OSError):  # more than its share: too small then
            room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        pipe = _Pipe(reader, writer, room - PAGE_BYTES)  # a place for each page, the last one in part too
        self._pipes += 1
        if room < MIN_PIPE_BYTES:
            self.take_back(pipe, is_empty=False)
            return None
        return pipe

    def take_back(self, pipe: _Pipe, *, is_empty: bool) -> None:
        """The pipe is used no more; bytes that are still in it go with it."""
        if is_empty and self._kept:
            self._idle_pipes.append(pipe)
            return
        self._pipes -= 1
        os.close(pipe.reader)
        os.close(pipe.writer)

    # ---- ending it

    def _lose(self, stretch: MappedStretch) -> None:
        if not stretch.address:
            return
        self.drop(stretch)
        del self._kept[stretch]
        stretches = self._files[stretch.path]
        stretches.remove(stretch)
        if not stretches.starts:
            del self._files[stretch.path]
        if not self._kept:  # an agent that lends nothing holds nothing open
            self._pages.close()
            while self._idle_pipes:
                self.take_back(self._idle_pipes.pop(), is_empty=True)

    def look_away(self, path: str, start: int = 0, stop: int = sys.maxsize) -> None:
        """The bytes are about to be read from the disk itself, or written again: trust nothing that was
        verified so far of what lies in their pages."""
        stretches = self._files.get(path)
        if stretches is not None:
            for stretch in stretches.overlapping(MappedStretch.first_page(start), stop + -stop % PAGE_BYTES):
                self._lose(stretch)

    def forget(self, path: str) -> None:
        """The file is about to go: its space is free only once it is unmapped."""
        self.look_away(path)
        self._read.pop(path, None)
        self._noted.discard(path)

    def close(self, directory: str) -> None:
        """Forget the files in a directory."""
        for path in {*self._files, *self._read, *self._noted}:
            if posixpath.dirname(path) == directory:
                self.forget(path)


class PageLender:
    """The pages that one answer is lent. Offsets in bytes of a file."""

    def __init__(self, lending: LentPages, open_files: OpenFiles) -> None:
        self._lending = lending
        self._open_files = open_files
        self._stretch: MappedStretch | None = None  # that is about to be read
        self.knows = lending.knows
        self.has = lending.has
        self.take = lending.take

    async def prepare(self, path: str) -> None:
        """Call it for each sealed file of an answer, before anything of it is taken."""
        if self._lending.wants_note(path):
            await self._lending.write_note(path, self._open_files)

    def watch(self, file: File, start: int, stop: int, sealed_bytes: int) -> None:
        """[start, stop) of a sealed file, which has `sealed_bytes` of frames, is about to be read.
        `verified`, `damaged` or `stop` follows."""
        stretch = self._stretch
        if stretch is not None:
            if (stretch.path, stretch.start, stretch.stop) == (file.path, start, stop):
                return  # the reading that was begun is going on
            self.stop()
        self._stretch = self._lending.watch(file, start, stop, sealed_bytes)

    def verified(self, path: str, size: int) -> None:
        """The `size` bytes that were to be read have verified."""
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            self._lending.note(path, size)
        else:
            self._lending.keep(stretch)

    def damaged(self, path: str) -> None:
        """They have not."""
        self.stop()
        self._lending.look_away(path)

    def stop(self) -> None:
        """They were not read, or not of a sealed file. Idempotent."""
        if self._stretch is not None:
            self._lending.drop(self._stretch)
            self._stretch = None


def _write_note(descriptor: int) -> None:
    try:
        os.setxattr(descriptor, LENT_NOTE, b"")
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> FileVersion:
    status = os.fstat(descriptor)
    return FileVersion(status.st_dev, status.st_ino, status.st_mtime_ns)
