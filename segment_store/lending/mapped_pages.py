"""Which pages of a file have stayed in the page cache: the kernel says so of a mapping that is never touched.

Law of this file: a mapping is made, filled from the page cache once, asked about, and unmapped. It is never
read through, so that neither a failing disk nor a shorter file can end the process, and nothing but the one
filling puts a page into it. A page that leaves the page cache leaves every page table first. So a page that
is still present has been in the page cache, as the same memory, since before the filling returned. (Memory
that the kernel moves is not present meanwhile, and afterwards holds the same bytes.)

Each mapping is an area of its own: an unreadable page behind it keeps the kernel from joining two of the
same file, since a fault in one area also fills in what lies around it, up to the area's end. Huge pages are
refused it, because gathering them would fill in what was missing. Linux 5.14 and /proc/self/pagemap; asked
once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

PAGE_BYTES = mmap.PAGESIZE
_MAP_FIXED = 0x10  # asm-generic/mman-common.h, as the next ones
_MADV_NOHUGEPAGE = 15
_MADV_POPULATE_READ = 22
_ENTRY_BYTES = 8  # of /proc/self/pagemap; bit 63 says that the page is there (admin-guide/mm/pagemap.rst)
_PRESENT = bytes(range(128, 256))
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # the others of mincore(2) are reserved
_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_unmap = _libc.munmap
_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_advise = _libc.madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_in_core = _libc.mincore
_in_core.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


class MappedPages:
    """Mappings by address. Lengths in bytes, whole pages. No method raises: no answer is the cautious one."""

    def __init__(self) -> None:
        self._pagemap = -1

    def map(self, descriptor: int, offset: int, length: int) -> int:
        """The address of a mapping of that part of a file with nothing filled in; 0: there is none."""
        room = _map(None, length + PAGE_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if room is None or room == _FAILED:
            return 0
        shared = mmap.MAP_SHARED | _MAP_FIXED
        if _map(room, length, mmap.PROT_READ, shared, descriptor, offset) != room:
            self.unmap(room, length)
            return 0
        _advise(room, length, _MADV_NOHUGEPAGE)  # an error: a kernel that has none
        return int(room)

    def fill(self, address: int, length: int) -> bool:
        """Put in every page, if the page cache has them all: whether that was so. Once for a mapping."""
        count = length // PAGE_BYTES
        there = ctypes.create_string_buffer(count)
        if _in_core(address, length, there) or 0 in there.raw[:count].translate(_LOWEST_BIT):
            return False
        return not _advise(address, length, _MADV_POPULATE_READ)

    def are_present(self, address: int, length: int) -> bool:
        """Whether every page of this part of a mapping has stayed since it was filled in."""
        count = length // PAGE_BYTES
        try:
            if self._pagemap < 0:
                self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            entries = os.pread(self._pagemap, count * _ENTRY_BYTES, address // PAGE_BYTES * _ENTRY_BYTES)
        except OSError:
            return False
        highest = entries[7::8] if sys.byteorder == "little" else entries[::8]
        return len(highest) == count and not highest.translate(None, _PRESENT)

    def unmap(self, address: int, length: int) -> None:
        """The mapping and the page behind it."""
        _unmap(address, length + PAGE_BYTES)

    def close(self) -> None:
        """Let go of the descriptor; asked again, it is opened again."""
        if self._pagemap >= 0:
            os.close(self._pagemap)
            self._pagemap = -1

    def work(self) -> bool:
        """Whether this machine says the truth about a page that is there and one that was never filled in."""
        descriptor = -1
        try:
            descriptor = os.memfd_create("shoal-pages", os.MFD_CLOEXEC)
            os.write(descriptor, bytes(PAGE_BYTES))
            address = self.map(descriptor, 0, PAGE_BYTES)
            if not address:
                return False
            before = self.are_present(address, PAGE_BYTES)
            filled = self.fill(address, PAGE_BYTES)
            after = self.are_present(address, PAGE_BYTES)
            self.unmap(address, PAGE_BYTES)
            return (before, filled, after) == (False, True, True)
        except OSError:
            return False
        finally:
            self.close()
            if descriptor >= 0:
                os.close(descriptor)
