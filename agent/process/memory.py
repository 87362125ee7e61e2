"""How the C library's allocator gives memory back: seldom.

Law of this file: one process-wide setting, made once before an agent starts; it changes speed, never results.

glibc returns the top of its heap to the kernel as soon as 128 KiB of it are free, and maps larger blocks one
by one. Request bodies are just of that size and come and go thousands of times a second: a tenth of an
append's time was page faults on memory that the process had held a moment ago.
"""

from __future__ import annotations

import ctypes
import os

# What may stay in the process although it is free: beside caches of some tens of megabytes not much.
KEPT_FREE_BYTES = 64 * 2**20
# Larger blocks are mapped and given back at once: one whole message is the largest that recurs.
MAPPED_FROM_BYTES = 32 * 2**20
# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Set glibc's thresholds; False where there is no glibc, or the environment sets them itself."""
    if any(
        name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))
