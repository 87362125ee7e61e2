"""HashiCorp's Serf for the tests of interoperability: found on this machine, or unpacked from Debian's.

Law of this file: standard library only; it never needs root and writes below `.environment/` alone. A machine
without Serf runs all other tests: then it says why these did not run, and never fails for it.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile

import environment

VARIABLE = "SHOAL_SERF"
# Why there is no binary, for the tests, which say it at the end of their run.
REASON_VARIABLE = "SHOAL_SERF_MISSING"
PACKAGE = "serf"
UNPACKED = environment.DIRECTORY / "serf"
BINARY = UNPACKED / "usr" / "bin" / "serf"
# 2.4 MB of package, and before that, on a machine that dropped its lists, some 10 MB of them.
DOWNLOAD_TIMEOUT_SECONDS = 120
ANSWER_TIMEOUT_SECONDS = 10


class SerfProblem(Exception):
    """There is no Serf agent to test with: one line that says why."""


def find() -> pathlib.Path | None:
    """The binary named by SHOAL_SERF, else the one on PATH, else the one unpacked here."""
    named = os.environ.get(VARIABLE)
    if named:
        return pathlib.Path(named)
    on_path = shutil.which("serf")
    if on_path:
        return pathlib.Path(on_path)
    return BINARY if BINARY.exists() else None


def ensure() -> pathlib.Path:
    """The binary, unpacked if need be and proven to run. Raises SerfProblem."""
    binary = find()
    if binary is None:
        _unpack()
        binary = BINARY
    _prove(binary)
    return binary


def _prove(binary: pathlib.Path) -> None:
    try:
        answer = subprocess.run(
            [str(binary), "version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SerfProblem(f"{binary} does not run: {error}") from None
    if "Agent Protocol" not in answer.stdout:
        raise SerfProblem(f"{binary} is not HashiCorp's Serf (it says {answer.stdout[:80]!r})")


def _unpack() -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SerfProblem(f"no `serf` on PATH, and no {tool} to fetch Debian's package with")
    environment.DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.DIRECTORY) as name:
        directory = pathlib.Path(name)
        package = _download(directory)
        _run(["dpkg", "-x", str(package), str(directory / "root")], directory)
        shutil.rmtree(UNPACKED, ignore_errors=True)
        (directory / "root").rename(UNPACKED)


def _download(directory: pathlib.Path) -> pathlib.Path:
    """With the machine's own package lists, or, where an image has dropped them, with lists fetched for this
    purpose alone: neither needs root."""
    fetch = ["apt-get", "-q", "download", PACKAGE]
    try:
        _run(fetch, directory)
    except SerfProblem:
        for folder in ("lists/partial", "cache/archives/partial"):
            (directory / folder).mkdir(parents=True)
        private = [
            "-o",
            f"Dir::State::lists={directory / 'lists'}",
            "-o",
            f"Dir::Cache={directory / 'cache'}",
        ]
        _run(["apt-get", "-q", *private, "update"], directory)
        _run([*fetch, *private], directory)
    found = sorted(directory.glob(f"{PACKAGE}_*.deb"))
    if not found:
        raise SerfProblem("apt-get download brought no package")
    return found[-1]


def _run(command: list[str], directory: pathlib.Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SerfProblem(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:", "dpkg"))]
        said = errors[0] if errors else f"exit code {done.returncode}"
        raise SerfProblem(f"`{' '.join(command[:3])}` failed ({said}): is there a network?")
