"""Runs seeds of the whole cluster, each in a process of its own, and says how they ended.

Law of this file: a seed's outcome is a line to print and a number.
"""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from cluster_sim import limits_met
from cluster_sim.coverage import Ran, Recorder, from_text, to_text
from cluster_sim.knobs import Knobs
from cluster_sim.processes import Processes
from cluster_sim.simulation import ClusterSimulation

LINE_BYTES_MAX = 60_000
COVERAGE_MARK = "\0"
"""Behind a seed's line: what it ran."""
LIMITS_MET = re.compile(r"limits met: ([^;]*);")
SUMMARY = re.compile(r"(\d+) faults, (\d+) records acknowledged")


@dataclass
class Outcome:
    """Of some seeds. `failures`: (seed, first line of what was found). `ran`: if that was asked for."""

    seeds: int = 0
    next_seed: int = 0
    faults: int = 0
    records: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    ran: Ran = field(default_factory=dict)
    limits_met: Counter[str] = field(default_factory=Counter)
    """Over all seeds."""


def run_seed(seed: int, *, trace: bool) -> str:
    """The line that ends the run: `seed N ok: ...` or `seed N FAILED: ...`."""
    simulation = ClusterSimulation(seed, print_line=print if trace else None)
    simulation.keep()
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is a finding
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        counts = " ".join(f"{name}={count}" for name, count in simulation.nemesis.counts.items())
        return (
            f"seed {seed} FAILED at {simulation.loop.elapsed_ms} ms: {type(error).__name__} {error} "
            f"(faults: {counts}; trace {simulation.trace_hash})"
        )
    return f"seed {seed} ok: {simulation.summary()}"


def _said(seed: int, *, trace: bool, coverage: bool) -> str:
    """The line, and behind it what ran if that was asked for."""
    if not coverage:
        return run_seed(seed, trace=trace)[:LINE_BYTES_MAX]
    recorder = Recorder()
    recorder.start()
    try:
        line = run_seed(seed, trace=trace)
    finally:
        ran = recorder.stop()
    return line[:LINE_BYTES_MAX] + COVERAGE_MARK + to_text(ran)


def _ended(
    seeds: Iterable[int], *, trace: bool, seconds: float | None, jobs: int, coverage: bool
) -> Iterator[tuple[int, str]]:
    """Seeds and their lines, in the order of the seeds, whichever ends first."""
    started = time.monotonic()
    waiting = iter(seeds)
    lines: dict[int, str] = {}
    order: deque[int] = deque()
    with Processes[int](partial(_said, trace=trace, coverage=coverage)) as processes:
        while True:
            while len(processes) < jobs and (seed := next(waiting, None)) is not None:
                if seconds is not None and time.monotonic() - started > seconds:
                    print(f"time is up: seeds from {seed} on were left out")
                    waiting = iter(())
                    break
                if trace:
                    print(f"seed {seed} {Knobs.of_seed(seed)}", flush=True)
                processes.begin(seed)
                order.append(seed)
            if not len(processes):
                return
            for ended in processes.wait():
                died = f"seed {ended.work} FAILED: its process died: {ended.death}"
                lines[ended.work] = died if ended.death else ended.said
            while order and order[0] in lines:
                seed = order.popleft()
                yield seed, lines.pop(seed)


def run_seeds(
    seeds: Iterable[int],
    *,
    trace: bool = False,
    seconds: float | None = None,
    jobs: int = 1,
    coverage: bool = False,
) -> Outcome:
    """Prints each seed with its knobs and its end; no seed is begun after `seconds`. `jobs`: how many run at
    once, which changes nothing in any of them."""
    outcome = Outcome()
    for seed, said in _ended(seeds, trace=trace, seconds=seconds, jobs=jobs, coverage=coverage):
        line, _, ran = said.partition(COVERAGE_MARK)
        for path, lines in from_text(ran).items() if ran else ():
            outcome.ran.setdefault(path, set()).update(lines)
        if not trace:
            print(f"seed {seed} {Knobs.of_seed(seed)}")
        print(line, flush=True)
        outcome.seeds += 1
        outcome.next_seed = seed + 1
        found = SUMMARY.search(line)
        if found is not None:
            outcome.faults += int(found[1])
            outcome.records += int(found[2])
        met = LIMITS_MET.search(line)
        if met is not None:
            outcome.limits_met.update(limits_met.from_text(met[1]))
        if f"seed {seed} ok" not in line:
            outcome.failures.append((seed, line))
            if not trace:
                print(f"replay: scripts/simulate --seed {seed}", flush=True)
    return outcome
