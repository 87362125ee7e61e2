"""The long versions of the tests that search: seeds until the time is up, and one row for the record.

Law of this file: what is searched stands in tests/; here it is repeated, counted and written down. A finding
names its seed, which the test beside it replays.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial

import dated_rows
import environment
import terminal
from campaign_openapi import openapi
from campaign_rounds import ROUNDS, search_store
from campaign_serf import serf
from campaign_spark import spark
from campaign_upgrade import UpgradeProblem, upgrade

RECORD = environment.ROOT / "lab" / "campaigns.csv"
COLUMNS = ("date", "commit", "campaign", "records", "seeds", "hours", "faults", "findings")
"""Records: acknowledged ones. Faults: power failures and kills (store), power failures and damage
(timers), SIGKILLs alone (kills), hostile inputs (decoders, credentials), histories of operations (states),
operations of consumer groups (groups), requests (openapi), agents that got another version (upgrade). A
finding names its seed."""

FINDING_CHARACTERS_MAX = 160
NEMESIS_CHUNK_SECONDS = 120.0  # of one start of agents: each chunk has a seed of its own
NEMESIS_LOADS = {
    "appends": ("--batch", "300"),
    "groups": ("--workload", "groups", "--batch", "3", "--pause-ms", "200"),
    "tables": ("--workload", "tables", "--pause-ms", "100"),
}
"""Consumers of three groups work on each message for some 50 ms: more would wait for ever."""
NEMESIS_RECORDS = {"appends": "acknowledged", "groups": "done", "tables": "rows"}
"""What a campaign counts as its records."""


@dataclasses.dataclass
class Outcome:
    """What a campaign did: faults of all kinds, records acknowledged to clients, findings are seeds that
    failed. notes: numbers for the record."""

    first_seed: int
    next_seed: int
    faults: int = 0
    records: int = 0
    findings: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def simulation(outcome: Outcome, deadline: float, bar: terminal.Bar, started: float, jobs: int) -> None:
    """Seeds of the whole cluster, some at once, until the deadline; it goes on after a finding."""
    seconds = max(1.0, deadline - time.monotonic())
    script = str(environment.ROOT / "scripts" / "simulate")
    command = [sys.executable, script, "--seed", str(outcome.first_seed), "--seeds", "1000000"]
    process = subprocess.Popen(
        [*command, "--quiet", "--jobs", str(jobs), "--seconds", f"{seconds:.0f}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        ended = re.match(r"seed (\d+) (ok: |FAILED)(.*)", line)
        if ended is None:
            continue
        outcome.next_seed = int(ended[1]) + 1
        counts = re.search(r"(\d+) faults, (\d+) records acknowledged", line)
        if counts is not None:
            outcome.faults += int(counts[1])
            outcome.records += int(counts[2])
        if ended[2] == "FAILED":
            outcome.findings.append(f"seed {ended[1]}{ended[3]}"[:FINDING_CHARACTERS_MAX])
            print(line, end="", flush=True)
        done = (time.monotonic() - started) / max(1e-9, deadline - started)
        text = f"{outcome.next_seed - outcome.first_seed} seeds, {len(outcome.findings)} findings"
        bar.update(min(1.0, done), text)
    if process.wait() != 0 and not outcome.findings:
        outcome.findings.append(f"the simulation itself ended with exit code {process.returncode}")


def nemesis(
    outcome: Outcome, deadline: float, bar: terminal.Bar, started: float, fault: str, workload: str
) -> None:
    """Real agents under one kind of fault, started anew for every chunk of time; those of odd seeds with TLS
    and tokens, some of which are revoked meanwhile. Of groups every message that
    was done counts as a record, of tables each request about a row with a known outcome."""
    program = str(environment.ROOT / "tests" / "cluster" / "nemesis.py")
    paths = [str(environment.ROOT), str(environment.ROOT / "tests" / "cluster")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    while time.monotonic() < deadline:
        seconds = min(NEMESIS_CHUNK_SECONDS, max(1.0, deadline - time.monotonic()))
        command = [sys.executable, program, "--fault", fault, "--seed", str(outcome.next_seed)]
        command += ["--seconds", f"{seconds:.0f}", *NEMESIS_LOADS[workload]]
        command += ["--secured"] if outcome.next_seed % 2 else []
        with tempfile.TemporaryDirectory() as directory:
            command += ["--directory", directory]
            done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        try:
            report = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            report = {
                "faults": 0,
                NEMESIS_RECORDS[workload]: 0,
                "anomalies": [done.stderr[-FINDING_CHARACTERS_MAX:]],
            }
        outcome.faults += report["faults"]
        outcome.records += report[NEMESIS_RECORDS[workload]]
        for anomaly in report["anomalies"]:
            outcome.findings.append(f"seed {outcome.next_seed}: {anomaly}"[:FINDING_CHARACTERS_MAX])
            print(f"seed {outcome.next_seed}: {anomaly}", flush=True)
        outcome.next_seed += 1
        share = (time.monotonic() - started) / max(1e-9, deadline - started)
        bar.update(min(1.0, share), f"{outcome.records} records, {len(outcome.findings)} findings")


def membership(outcome: Outcome, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Simulated pools of 3 to 1,000 members: chaos, deaths, hours of loss, slow members; share by share."""
    campaign = importlib.import_module("tests.membership.campaign")
    while time.monotonic() < deadline and not outcome.findings:
        for name, run in campaign.share(outcome.next_seed):
            try:
                outcome.faults += run()
            except Exception as error:  # noqa: BLE001 -- a finding, whatever it is
                traceback.print_exc()
                outcome.findings.append(f"{type(error).__name__} in {name}")
            done = (time.monotonic() - started) / max(1e-9, deadline - started)
            bar.update(min(1.0, done), f"{outcome.faults} faults, {len(outcome.findings)} findings, {name}")
        outcome.next_seed += campaign.CHAOS_PER_SHARE


CAMPAIGNS = ("membership", "openapi", "serf", "spark", "upgrade", *sorted(ROUNDS), "simulation", "nemesis")


def record(what: str, outcome: Outcome, hours: float, path: pathlib.Path = RECORD) -> None:
    """Append one row of COLUMNS."""
    seeds = f"{outcome.first_seed}-{outcome.next_seed - 1}"
    findings = "; ".join([*(outcome.findings or ["none"]), *outcome.notes]).replace("\n", " ")
    row = (what, outcome.records, seeds, f"{hours:.2f}", outcome.faults, findings)
    dated_rows.append(path, COLUMNS, [row])


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/campaign")
    parser.add_argument("what", choices=sorted(CAMPAIGNS))
    parser.add_argument("--hours", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--minutes", type=float, help="how long, in minutes")
    parser.add_argument("--fault", default="kill-one", help="of the nemesis: one of tests/cluster/nemesis.py")
    parser.add_argument(
        "--workload",
        choices=sorted(NEMESIS_LOADS),
        default="appends",
        help="of the nemesis (default appends)",
    )
    parser.add_argument("--seed", type=int, default=1000, metavar="N", help="the first seed (default 1000)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="of the simulation: seeds at once (default: one for each core)",
    )
    parser.add_argument("--from", dest="former", metavar="COMMIT", help="of the upgrade: the former version")
    parser.add_argument("--without-spark", action="store_true", help="of the upgrade: no Spark stream")
    parser.add_argument("--no-record", action="store_true", help="leave lab/campaigns.csv alone")
    options = parser.parse_args(arguments)
    if options.minutes is not None:
        options.hours = options.minutes / 60
    if options.hours <= 0 or options.seed < 0 or options.jobs < 1:
        parser.error("the time is above 0, --seed at least 0 and --jobs at least 1")
    if options.workload != "appends" and options.what != "nemesis":
        parser.error("--workload is of the nemesis")
    if (options.what == "upgrade") != (options.former is not None):
        parser.error("upgrade needs --from COMMIT, and nothing else has it")
    return options


def main() -> int:
    """The exit status: 0 if nothing was found."""
    options = parse(sys.argv[1:])
    logging.disable(logging.ERROR)  # failing disks are what this is about
    root = pathlib.Path(environment.ROOT)
    sys.path[:0] = [str(root), str(root / "tests" / "segment_store"), str(root / "tests" / "agent")]
    sys.path[:0] = [str(root / "tests" / name) for name in ("cluster", "spark", "simulation")]
    workload = "" if options.workload == "appends" else f" {options.workload}"
    details = {"nemesis": options.fault + workload, "upgrade": f"from {options.former}"}
    what = " ".join([options.what, *([details[options.what]] if options.what in details else [])])
    terminal.step(f"{what}: {options.hours:g} hours from seed {options.seed}")
    started = time.monotonic()
    deadline = started + options.hours * 3600
    outcome = Outcome(options.seed, options.seed)
    bar = terminal.Bar(options.what)
    if options.what == "nemesis":
        nemesis(outcome, deadline, bar, started, options.fault, options.workload)
    else:
        works: dict[str, Callable[..., None]] = {"membership": membership, "serf": serf, "spark": spark}
        works["openapi"] = openapi
        works["simulation"] = partial(simulation, jobs=options.jobs)
        works["upgrade"] = partial(upgrade, former=options.former, with_spark=not options.without_spark)
        works |= {name: partial(search_store, work) for name, work in ROUNDS.items()}
        works[options.what](outcome, deadline, bar, started)
    hours = (time.monotonic() - started) / 3600
    if not options.no_record:
        record(what, outcome, hours)
    said = "; ".join([*(outcome.findings or ["none"]), *outcome.notes])
    print(f"{outcome.faults} faults in {hours:.2f} h, findings: {said}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UpgradeProblem as problem:
        terminal.problem(str(problem))
        sys.exit(2)
    except KeyboardInterrupt:
        terminal.problem("interrupted: nothing was recorded")
        sys.exit(130)
