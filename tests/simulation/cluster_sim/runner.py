"""Runs seeds of the whole cluster, each in a process of its own, and says how they ended.

Law of this file: a seed's outcome is a line to print and a number; a process for each, so that what one run
leaves (coroutines that were killed and never ended) cannot reach the next.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster_sim.knobs import Knobs
from cluster_sim.simulation import ClusterSimulation

SUMMARY = re.compile(r"(\d+) faults, (\d+) records acknowledged")


@dataclass
class Outcome:
    """Of some seeds. `failures`: (seed, first line of what was found)."""

    seeds: int = 0
    next_seed: int = 0
    faults: int = 0
    records: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


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


def run_apart(seed: int, *, trace: bool) -> str:
    """The same, in a process of its own, which ends without cleaning up."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            line = run_seed(seed, trace=trace)
            sys.stdout.flush()
            os.write(writing, line.encode()[:60_000])
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        line = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return line or f"seed {seed} FAILED: its process died"


def run_seeds(seeds: Iterable[int], *, trace: bool = False, seconds: float | None = None) -> Outcome:
    """Prints each seed with its knobs and its end; no seed is begun after `seconds`."""
    started = time.monotonic()
    outcome = Outcome()
    for seed in seeds:
        if seconds is not None and time.monotonic() - started > seconds:
            print(f"time is up: seeds from {seed} on were left out")
            break
        print(f"seed {seed} {Knobs.of_seed(seed)}", flush=True)
        line = run_apart(seed, trace=trace)
        print(line, flush=True)
        outcome.seeds += 1
        outcome.next_seed = seed + 1
        found = SUMMARY.search(line)
        if found is not None:
            outcome.faults += int(found[1])
            outcome.records += int(found[2])
        if f"seed {seed} ok" not in line:
            outcome.failures.append((seed, line))
            if not trace:
                print(f"replay: scripts/simulate --seed {seed}", flush=True)
    return outcome
