"""The campaign of rolling upgrades: agents of a former commit become agents of this checkout, and back.

Law of this file: it unpacks the former commit, repeats tests/cluster/upgrade.py from seed to seed, and counts
what that says. Nothing of the former commit is installed: it runs from its own directory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Protocol

import environment
import terminal

PROGRAM = environment.ROOT / "tests" / "cluster" / "upgrade.py"
PATHS = (".", "scripts", "tests", "tests/cluster", "tests/spark")
FINDING_CHARACTERS_MAX = 160
COMMIT_CHARACTERS = 7


class UpgradeProblem(Exception):
    """The rehearsal cannot begin. One line that says what to do."""


class Tally(Protocol):
    """campaigns.Outcome, as far as it is needed here."""

    next_seed: int
    faults: int
    records: int
    findings: list[str]
    notes: list[str]


def commit_of(name: str) -> str:
    """The full id of a commit, branch or tag. Raises UpgradeProblem."""
    git = ["git", "-C", str(environment.ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if found.returncode or name.startswith("-"):
        raise UpgradeProblem(f"--from {name}: no such commit in this checkout; `git fetch` may bring it")
    return found.stdout.strip()


def unpack(commit: str, directory: pathlib.Path) -> None:
    """The commit's files. Raises UpgradeProblem where it holds no agent."""
    git = ["git", "-C", str(environment.ROOT), "archive", "--format=tar", commit]
    directory.mkdir(parents=True)
    archive = subprocess.run(git, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    if not (directory / "agent" / "__main__.py").is_file():
        raise UpgradeProblem(f"commit {commit[:COMMIT_CHARACTERS]} holds no agent that can be started")


def upgrade(
    outcome: Tally, deadline: float, bar: terminal.Bar, started: float, *, former: str, with_spark: bool
) -> None:
    """Rehearsals until the deadline, at least one, or until the first finding. Raises UpgradeProblem."""
    commit = commit_of(former)
    if with_spark and importlib.util.find_spec("pyspark") is None:
        raise UpgradeProblem("Spark is not installed here: add --without-spark to rehearse without a stream")
    worst = stall = 0.0
    directory = pathlib.Path(tempfile.mkdtemp(prefix="shoal-upgrade-"))
    try:
        unpack(commit, directory / "former")
        while not outcome.findings:
            own = directory / f"run-{outcome.next_seed}"
            report = rehearse(directory / "former", commit, own, outcome.next_seed, with_spark=with_spark)
            outcome.faults += report["changes"]
            outcome.records += report["acknowledged"]
            worst = max(worst, report["pause_seconds"])
            stall = max(stall, report["stall_seconds"])
            for anomaly in report["anomalies"]:
                outcome.findings.append(f"seed {outcome.next_seed}: {anomaly}"[:FINDING_CHARACTERS_MAX])
                print(f"seed {outcome.next_seed}: {anomaly}", flush=True)
            outcome.next_seed += 1
            share = (time.monotonic() - started) / max(1e-9, deadline - started)
            bar.update(min(1.0, share), f"{outcome.faults} changes, {len(outcome.findings)} findings")
            if time.monotonic() >= deadline:
                break
    finally:
        if outcome.findings:
            print(f"what agents and clients said is in {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    outcome.notes.append(f"longest pause of a producer {worst:.2f} s, stall of the machine {stall:.2f} s")
    outcome.notes.append("with a Spark stream" if with_spark else "without Spark")


def rehearse(
    former: pathlib.Path, commit: str, directory: pathlib.Path, seed: int, *, with_spark: bool
) -> dict[str, Any]:
    """One run of the program, which prints what it does; its report."""
    paths = os.pathsep.join(str(environment.ROOT / path) for path in PATHS)
    command = [sys.executable, str(PROGRAM), "--former", str(former), "--seed", str(seed)]
    command += ["--name", commit[:COMMIT_CHARACTERS], "--directory", str(directory)]
    command += [] if with_spark else ["--without-spark"]
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if last:
                    print(last, end="", flush=True)
                last = line
        except KeyboardInterrupt:
            process.wait()  # it stops its agents
            raise
    try:
        report: dict[str, Any] = json.loads(last)
    except ValueError:
        print(last, end="", flush=True)
        said = f"the rehearsal itself ended with exit code {process.returncode}"
        numbers = dict.fromkeys(("changes", "acknowledged", "pause_seconds", "stall_seconds"), 0)
        report = {**numbers, "anomalies": [said]}
    return report
