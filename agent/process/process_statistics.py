"""The kernel's numbers of this process, under the names that Prometheus' clients gave them.

Law of this file: a few small reads of /proc, each known to be quick; where there is no /proc, there are no
numbers. Source: proc_pid_stat(5).
"""

from __future__ import annotations

import os
import resource
from functools import lru_cache
from typing import Final, NamedTuple

_AFTER_NAME: Final = b") "
# Fields of /proc/self/stat, counted from behind the name, which may hold anything.
_USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _VIRTUAL_BYTES, _RESIDENT_PAGES = 11, 12, 19, 20, 21


class ProcessStatistics(NamedTuple):
    """`start_time_seconds`: since the epoch. `max_fds`: the soft limit."""

    cpu_seconds: float
    start_time_seconds: float
    virtual_bytes: int
    resident_bytes: int
    open_fds: int
    max_fds: int


def process_statistics() -> ProcessStatistics | None:
    """As of now; None where the system does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(_AFTER_NAME)[2].split()
        started_s = _boot_time_seconds()
        # Linux 6.2 and later tell the number; before that the names are counted, of which one is this look's.
        open_fds = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return ProcessStatistics(
        (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / ticks_per_s,
        started_s + int(fields[_START_TICKS]) / ticks_per_s,
        int(fields[_VIRTUAL_BYTES]),
        int(fields[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
        open_fds,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


@lru_cache(maxsize=1)
def _boot_time_seconds() -> int:
    """/proc/stat has a line for each processor and each interrupt: it is read once."""
    with open("/proc/stat", "rb") as file:
        for line in file:
            if line.startswith(b"btime "):
                return int(line.split()[1])
    raise OSError("/proc/stat has no btime")
