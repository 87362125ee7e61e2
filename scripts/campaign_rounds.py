"""What one round of a campaign does: over the segment store, sorted views, groups, or hostile credentials.

Law of this file: a round takes seconds to a minute, adds its faults as they are survived, and raises what it
finds; time, record and the other campaigns are campaigns.py's.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Protocol

import environment
import terminal

PREFIX_OPERATIONS = 200
PREFIX_ORDERS = 5
KILLS = 20
LIVES_PER_ROUND = 50  # lives are cheap, kills take real time
FUSE_LIVES, FUSE_FAILURES = 15, 6
MUTATIONS = 5_000  # of each decoder
CREDENTIALS = 10_000  # hostile ones, of all kinds
HISTORIES, HISTORY_STEPS = 40, 40
WALK_STEPS = 2_000  # operations of consumer groups in one log
VIEW_STEPS = 150  # entries of a timer topic, each followed by work or a fault


class Outcome(Protocol):
    """What a campaign counts."""

    next_seed: int
    faults: int
    records: int
    findings: list[str]


Round = Callable[[int, Outcome], int]
"""From a seed; how many seeds it has used."""


def store(seed: int, outcome: Outcome) -> int:
    """Power failures in lives, at every operation of a trace, and on a real file system; SIGKILL."""
    kills = importlib.import_module("kills")
    power = importlib.import_module("power_loss")
    crashes = 8
    for life in range(seed, seed + LIVES_PER_ROUND):
        power.run_life(life, power.SMALL, crashes)
        power.run_life(life, power.UNSYNCED, crashes)
        outcome.faults += 2 * crashes
    outcome.faults += power.run_prefixes(seed, PREFIX_OPERATIONS, PREFIX_ORDERS)
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        outcome.faults += _on_a_real_file_system(seed)
    for kind in ("ring", "threads"):
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(kills.run_kills(f"{directory}/log", kind, KILLS, seed))
        outcome.faults += KILLS
    return LIVES_PER_ROUND


def _on_a_real_file_system(seed: int) -> int:
    program = environment.ROOT / "tests" / "segment_store" / "fuse_scenarios.py"
    numbers = [str(seed), str(FUSE_LIVES), str(FUSE_FAILURES)]
    command = [sys.executable, str(program), *numbers, "--power-only"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    problems = [problem for _, problem in outcomes if problem is not None]
    if run.returncode or problems or len(outcomes) != 2:
        raise AssertionError("\n".join([*problems, run.stderr]))
    return len(outcomes) * FUSE_LIVES * FUSE_FAILURES


def kills(seed: int, outcome: Outcome) -> int:
    """SIGKILL alone, of a process that appends on either disk: every acknowledged batch is there."""
    run_kills = importlib.import_module("kills").run_kills
    for kind in ("ring", "threads"):
        with tempfile.TemporaryDirectory() as directory:
            outcome.records += asyncio.run(run_kills(f"{directory}/log", kind, KILLS, seed))
        outcome.faults += KILLS
    return 1


def decoders(seed: int, outcome: Outcome) -> int:
    """Hostile bytes for every decoder of what is stored."""
    fuzz = importlib.import_module("tests.agent.decoder_fuzz")
    for target in fuzz.targets():
        fuzz.fuzz(target, seed, MUTATIONS)
        outcome.faults += MUTATIONS
    return 1


def credentials(seed: int, outcome: Outcome) -> int:
    """Hostile tokens, headers, JWTs, key sets, certificates and handshakes, beside an independent reader."""
    run_round = importlib.import_module("tests.agent.credential_fuzz.rounds").run_round

    def counted(cases: int) -> None:
        outcome.faults += cases

    run_round(seed, CREDENTIALS, counted)
    return 1


def states(seed: int, outcome: Outcome) -> int:
    """Histories of the whole log beside a list, chosen by Hypothesis."""
    hypothesis = importlib.import_module("hypothesis")
    stateful = importlib.import_module("hypothesis.stateful")
    machine = importlib.import_module("tests.segment_store.log.test_log_states").LogMachine
    chosen = hypothesis.settings(
        max_examples=HISTORIES,
        stateful_step_count=HISTORY_STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    stateful.run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=chosen)
    outcome.faults += HISTORIES
    return 1


def groups(seed: int, outcome: Outcome) -> int:
    """Logs of random entries of consumer groups beside a model, cut and restored at every place."""
    walk = importlib.import_module("tests.agent.groups.fold_walk").walk
    walk(seed, WALK_STEPS)
    outcome.faults += WALK_STEPS
    return 1


def timers(seed: int, outcome: Outcome) -> int:
    """The view of a timer topic beside a sorted list, under failing disks, power failures and damage."""
    walk = importlib.import_module("tests.agent.views.view_walk").walk
    outcome.faults += asyncio.run(walk(seed, VIEW_STEPS))
    return 1


ROUNDS: dict[str, Round] = {
    "store": store,
    "kills": kills,
    "decoders": decoders,
    "credentials": credentials,
    "states": states,
    "groups": groups,
    "timers": timers,
}


def search_store(what: Round, outcome: Outcome, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Rounds from seeds upwards until the deadline, or the first finding."""
    while time.monotonic() < deadline and not outcome.findings:
        seed = outcome.next_seed
        used = 1
        try:
            used = what(seed, outcome)
        except Exception as error:  # noqa: BLE001 -- a finding, whatever it is
            traceback.print_exc()
            notes = "; ".join([*getattr(error, "__notes__", ()), f"round of seed {seed}"])
            outcome.findings.append(f"{type(error).__name__} ({' '.join(notes.split())[:500]})")
        outcome.next_seed = seed + used
        done = (time.monotonic() - started) / max(1e-9, deadline - started)
        bar.update(min(1.0, done), f"{outcome.faults} faults, {len(outcome.findings)} findings")
