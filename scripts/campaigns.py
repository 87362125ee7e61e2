"""The long versions of the tests that search: seeds until the time is up, and one row for the record.

Law of this file: what is searched stands in tests/; here it is repeated, counted and written down. A finding
names its seed, which the test beside it replays.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import importlib
import logging
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import environment
import terminal

RECORD = environment.ROOT / "docs" / "campaigns.md"
HEAD = """# Campaigns

Long runs of the tests that search, written down by `scripts/campaign` as they end. A finding names its seed.

| date | commit | what | seeds | hours | faults | findings |
| --- | --- | --- | --- | --- | --- | --- |
"""
PREFIX_OPERATIONS = 200
PREFIX_ORDERS = 5
KILLS = 20
# Each round begins with the next seed and does all kinds of work; lives are cheap, kills take real time.
LIVES_PER_ROUND = 50


@dataclasses.dataclass
class Outcome:
    """What a campaign did: faults are power failures and kills, findings are seeds that failed."""

    first_seed: int
    next_seed: int
    faults: int = 0
    findings: list[str] = dataclasses.field(default_factory=list)


def store(outcome: Outcome, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Power failures in lives and at every operation of a trace, and SIGKILL; seeds upwards until the
    deadline."""
    kills = importlib.import_module("kills")
    power = importlib.import_module("power_loss")
    crashes = 8
    while time.monotonic() < deadline and not outcome.findings:
        seed = outcome.next_seed
        try:
            for life in range(seed, seed + LIVES_PER_ROUND):
                power.run_life(life, power.SMALL, crashes)
                power.run_life(life, power.UNSYNCED, crashes)
                outcome.faults += 2 * crashes
            outcome.faults += power.run_prefixes(seed, PREFIX_OPERATIONS, PREFIX_ORDERS)
            for kind in ("ring", "threads"):
                with tempfile.TemporaryDirectory() as directory:
                    asyncio.run(kills.run_kills(f"{directory}/log", kind, KILLS, seed))
                outcome.faults += KILLS
        except Exception as error:  # noqa: BLE001 -- a finding, whatever it is
            traceback.print_exc()
            notes = "; ".join([*getattr(error, "__notes__", ()), f"round of seed {seed}"])
            outcome.findings.append(f"{type(error).__name__} ({notes})")
        outcome.next_seed = seed + LIVES_PER_ROUND
        done = (time.monotonic() - started) / max(1e-9, deadline - started)
        bar.update(min(1.0, done), f"{outcome.faults} faults, {len(outcome.findings)} findings")


CAMPAIGNS = {"store": store}


def record(what: str, outcome: Outcome, hours: float) -> None:
    """Append one row."""
    text = RECORD.read_text() if RECORD.exists() else HEAD
    git = ["git", "-C", str(environment.ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    seeds = f"{outcome.first_seed}-{outcome.next_seed - 1}"
    findings = "; ".join(outcome.findings).replace("|", "/") or "none"
    row = f"| {date} | {commit} | {what} | {seeds} | {hours:.2f} | {outcome.faults} | {findings} |\n"
    RECORD.write_text(text + row)


def main() -> int:
    """The exit status: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="scripts/campaign")
    parser.add_argument("what", choices=sorted(CAMPAIGNS))
    parser.add_argument("--hours", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, default=1000, metavar="N", help="the first seed (default 1000)")
    parser.add_argument("--no-record", action="store_true", help="leave docs/campaigns.md alone")
    options = parser.parse_args()
    if options.hours <= 0 or options.seed < 0:
        parser.error("--hours is above 0 and --seed at least 0")
    logging.disable(logging.ERROR)  # failing disks are what this is about
    sys.path.insert(0, str(pathlib.Path(environment.ROOT) / "tests" / "segment_store"))
    terminal.step(f"{options.what}: {options.hours:g} hours from seed {options.seed}")
    started = time.monotonic()
    outcome = Outcome(options.seed, options.seed)
    CAMPAIGNS[options.what](outcome, started + options.hours * 3600, terminal.Bar(options.what), started)
    hours = (time.monotonic() - started) / 3600
    if not options.no_record:
        record(options.what, outcome, hours)
    print(f"{outcome.faults} faults in {hours:.2f} h, findings: {'; '.join(outcome.findings) or 'none'}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        terminal.problem("interrupted: nothing was recorded")
        sys.exit(130)
