"""Two settings of the process that save memory and time: no numpy or pandas, and freed memory is kept.

Law of this file: each is made once, before an agent starts; it changes memory and speed, never results. This
file imports little, as every command does.

pyarrow imports numpy with itself, and pandas when it makes its first array: together 60 MB, and a fifth of a
second in which the loop does nothing else, while a leader should send its heartbeats.

glibc returns the top of its heap to the kernel as soon as 128 KiB of it are free, and maps larger blocks one
by one. Request bodies are just of that size and come and go thousands of times a second: a tenth of an
append's time was page faults on memory that the process had held a moment ago.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

UNWANTED = frozenset(("numpy", "pandas"))
# Free memory that may stay in the process: little beside caches of some tens of megabytes.
KEPT_FREE_BYTES = 64 * 2**20
# Larger blocks are mapped and given back at once: one whole message is the largest that recurs.
MAPPED_FROM_BYTES = 32 * 2**20
# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


class _Refusing(MetaPathFinder):
    """Finds nothing, and stops the search for unwanted packages."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in UNWANTED:
            raise ModuleNotFoundError(f"shoal does without {fullname}", name=fullname)


def import_no_frames() -> bool:
    """Call it before pyarrow is imported. False: numpy or pandas is there already, and nothing changes."""
    if UNWANTED & sys.modules.keys():
        return False
    sys.meta_path.insert(0, _Refusing())
    return True


def keep_freed_memory() -> bool:
    """Set glibc's thresholds; False where there is no glibc, or the environment sets them itself."""
    import ctypes

    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))
