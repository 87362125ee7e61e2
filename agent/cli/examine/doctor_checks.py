"""The checks of `shoal doctor`: each tries a feature instead of asking for a version number.

Law of this file: a check puts back all that it changes, has a time limit and never raises. A check that
cannot tell returns a finding too.
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
import sys
import tempfile
import time
from collections.abc import Callable

from shoal.agent.cli.terminal.findings import Finding
from shoal.spark import java, pyspark_version
from shoal.spark.options.errors import SourceError
from shoal.spark.setup import check_worker_python

CHECK_SECONDS = 10.0
FREE_BYTES_LOW = 2 << 30  # a few segments and room to compact; below it agents soon answer disk-full
MEMLOCK_BYTES_LOW = 8 << 20  # kernels before 5.12 charge rings to it
SLOW_SYNC_MS = 20.0  # a disk that syncs slower than this limits every acknowledged append
SYNC_ROUNDS = 20
OPEN_FILES_LOW = 4_096


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
        check_pyspark,
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
        advice = "5.6 or newer has io_uring as agents use it; threads serve instead"
        return Finding("kernel", "note", release, advice)
    return Finding("kernel", "ok", release)


def check_disk_write(data: str) -> Finding:
    """Write and fdatasync, timed, in the data directory or its nearest parent."""
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
        advice = "every acknowledged append waits for it: use a local SSD for --data"
        return Finding("fdatasync", "note", found, advice)
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
        advice = "on kernels before 5.12 raise it: ulimit -l, or LimitMEMLOCK= in systemd"
        return Finding("memlock", "note", found, advice)
    return Finding("memlock", "ok", found)


def check_open_files() -> Finding:
    """Every partition keeps a few files open, and every client one socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_LOW:
        advice = "raise it: ulimit -n, or LimitNOFILE= in systemd"
        return Finding("open files", "note", f"{soft:,} (hard {hard:,})", advice)
    return Finding("open files", "ok", f"{soft:,}")


def check_disk_space(data: str) -> Finding:
    """Free space for the data directory."""
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


def check_pyspark() -> Finding:
    """Spark's data source runs in a PySpark that is there and new enough; nothing else here needs one."""
    there = pyspark_version.installed()
    problem = pyspark_version.problem()
    if there is None or problem is not None:
        found = "none" if there is None else f"{there.text} is too old"
        return Finding("pyspark", "note", found, f"only Spark needs it. {problem}")
    return Finding("pyspark", "ok", there.text)


def check_java() -> Finding:
    """Spark needs a Java runtime; nothing else here does."""
    try:
        runtime = java.choose(os.environ)
    except java.JavaNotFoundError as error:
        return Finding("java", "note", "none for Spark", f"only Spark needs it. {error}")
    return Finding("java", "ok", f"{runtime.version} at {runtime.home}")


def check_pyspark_python() -> Finding:
    """Spark starts its Python workers with PYSPARK_PYTHON: the driver's version, with pyarrow."""
    wanted = os.environ.get("PYSPARK_PYTHON")
    if not wanted:
        return Finding(
            "PYSPARK_PYTHON", "note", "not set", f"for Spark: export PYSPARK_PYTHON={sys.executable}"
        )
    try:
        check_worker_python(wanted)
    except SourceError as error:
        return Finding("PYSPARK_PYTHON", "note", str(error).removeprefix("PYSPARK_PYTHON: "))
    return Finding("PYSPARK_PYTHON", "ok", wanted)


def _existing(path: str) -> str:
    """The path, or its nearest parent that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
