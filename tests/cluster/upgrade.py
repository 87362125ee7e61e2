"""A rehearsal of an upgrade: from a former version to this one, back, forward again, then the level raised.

Law of this file: one rehearsal; it says what it does line by line, and its last line is a JSON object with
what was done and every anomaly. `python upgrade.py --former CHECKOUT --directory D`; rehearsal.py does the
steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import cluster as local
from rehearsal import Rehearsal
from upgrade_report import longest, pauses, summary
from versions import ROOT, Version, VersionProblem, version_of

INTERRUPTED = 130
PAUSE_SECONDS_MAX = 2.0
"""Of any producer, from the first change on."""


@dataclass
class Report:
    """What one rehearsal did. `stall_seconds`: the longest that a process without work got no processor.
    `refused`: the last words of the former version after the level was raised."""

    changes: int = 0
    acknowledged: int = 0
    reads: int = 0
    pause_seconds: float = 0.0
    stall_seconds: float = 0.0
    refused: str = ""
    anomalies: list[str] = field(default_factory=list)


class Upgrade:
    """One rehearsal of the whole way."""

    def __init__(self, cluster: Rehearsal, former: Version, later: Version) -> None:
        self._cluster = cluster
        self._former = former
        self._later = later
        self.report = Report()

    async def run(self) -> None:
        for version in (self._later, self._former, self._later):
            print(f"to {version.name}, which understands levels {version.words}", flush=True)
            shown = len(self._cluster.changes)
            await self._cluster.roll(version)
            if version is self._later:
                await asyncio.to_thread(self._check_level, self._former.levels[1])
            self._show(shown)
        if self._later.levels[1] > self._former.levels[1]:
            await self._raise_level()
        else:
            print(f"both understand level {self._later.levels[1]}: there is nothing to raise")
        await self._cluster.judge()
        self._count()

    def _check_level(self, level: int) -> None:
        """Every agent says that level, that all understand what their versions do, and that all hold it."""
        for name in local.NAMES:
            document = self._cluster.wait_level(name, level)
            if not all(item["holds"] for item in document["members"]):
                self._cluster.anomalies.append(
                    f"{name} says that somebody does not hold the level: {document}"
                )

    async def _raise_level(self) -> None:
        """By hand, since the agents hold it; afterwards the former version is refused."""
        cluster, level = self._cluster, self._later.levels[1]
        raised = await asyncio.to_thread(
            self._later.run, "cluster", "raise-level", "--agent", cluster.urls[0]
        )
        if raised.returncode:
            cluster.anomalies.append(f"the level is not raised: {raised.stderr}")
            return
        print(f"raised: {(raised.stdout + raised.stderr).strip()}", flush=True)
        await asyncio.to_thread(self._check_level, level)
        await cluster.until_served()
        shown = len(cluster.changes)
        name = local.NAMES[-1]
        await asyncio.to_thread(cluster.stop_agent, name)
        await asyncio.to_thread(self._refuse_former, name)
        cluster.install(name, self._later, hold=False)
        await asyncio.to_thread(cluster.start_agent, name)
        await cluster.until_served()
        await cluster.change(local.NAMES[0], self._later, hold=False)
        self._show(shown)

    def _refuse_former(self, name: str) -> None:
        try:
            place = self._cluster.place(local.NAMES.index(name))
            refused = self._former.run("agent", *self._cluster.agents.options(name), **place)
        except subprocess.TimeoutExpired:
            self._cluster.anomalies.append(f"{self._former.name} goes on at a level that it does not know")
            return
        lines = refused.stderr.strip().splitlines()
        self.report.refused = lines[-1] if lines else ""
        print(f"{self._former.name} ends with {refused.returncode}: {self.report.refused}", flush=True)
        if refused.returncode == 0 or "Traceback" in refused.stderr:
            self._cluster.anomalies.append(
                f"{self._former.name} is not refused in one line: {refused.stderr}"
            )

    def _show(self, first: int) -> None:
        for line in summary(self._cluster.changes[first:], pauses(self._cluster.history.appends)):
            print(f"  {line}", flush=True)

    def _count(self) -> None:
        cluster, report = self._cluster, self.report
        report.changes = len(cluster.changes)
        report.acknowledged = cluster.history.acknowledged_records
        report.reads = len(cluster.history.polls)
        worst = longest(pauses(cluster.history.appends), cluster.changes[0].began_s)
        stall = longest(cluster.stalls, cluster.changes[0].began_s)
        assert worst is not None, "every producer was served after every change"
        assert stall is not None, "the clock was looked at"
        report.pause_seconds, report.stall_seconds = round(worst.seconds, 3), round(stall.seconds, 3)
        if worst.seconds > PAUSE_SECONDS_MAX:
            report.anomalies.append(f"{worst.producer} waited {worst.seconds:.2f} s")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="upgrade.py", description=__doc__)
    parser.add_argument("--former", type=pathlib.Path, required=True, help="a checkout of the former version")
    parser.add_argument("--name", default="former", help="what to call it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


async def rehearse(options: argparse.Namespace) -> Report:
    """The Spark stream uses the former library in runs of even seeds, and the later one in the others."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # what was started is stopped
    former, later = version_of(options.name, options.former), version_of("this version", ROOT)
    stream = None if options.without_spark else (former, later)[options.seed % 2]
    cluster = Rehearsal(options.directory, former, [former, later], seed=options.seed, stream=stream)
    report = Report()
    try:
        async with cluster:
            upgrade = Upgrade(cluster, former, later)
            report = upgrade.report
            await upgrade.run()
    except (RuntimeError, AssertionError, TimeoutError, local.ClusterProblem) as error:
        report.anomalies.append(f"{type(error).__name__} {error}")
    report.anomalies += cluster.anomalies
    return report


def main() -> int:
    """0 without an anomaly."""
    try:
        report = asyncio.run(rehearse(parse(sys.argv[1:])))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except VersionProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    print(json.dumps(vars(report)), flush=True)
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
