"""The campaign of mixed pools: real Serf agents and ours under load, one after the other.

Law of this file: what is run stands in tests/serf/mixed_pool.py; here it is repeated and judged. A finding
is a false suspicion, by anybody, or a pool that did not agree again after a loss.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pathlib
import tempfile
import time
import traceback
from typing import Protocol

import serf_binary
import terminal

LOAD_SECONDS = 60.0
# Of each pool: one of each kind dies, and one of each kind leaves.
LOSSES = 4


class Tally(Protocol):
    """campaigns.Outcome, as far as it is needed here."""

    next_seed: int
    faults: int
    findings: list[str]


def serf(outcome: Tally, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Pools until the deadline, or until the first finding."""
    os.environ[serf_binary.VARIABLE] = str(serf_binary.ensure())
    messages = 0
    while time.monotonic() < deadline and not outcome.findings:
        seconds = min(LOAD_SECONDS, max(1.0, deadline - time.monotonic()))
        try:
            with tempfile.TemporaryDirectory() as directory:
                messages += asyncio.run(_pool(pathlib.Path(directory), seconds, outcome.next_seed))
            outcome.faults += LOSSES
        except Exception as error:  # noqa: BLE001 -- a finding, whatever it is
            traceback.print_exc()
            outcome.findings.append(f"seed {outcome.next_seed}: {type(error).__name__}: {error}")
        outcome.next_seed += 1
        done = (time.monotonic() - started) / max(1e-9, deadline - started)
        bar.update(min(1.0, done), f"{messages} messages, {len(outcome.findings)} findings")


async def _pool(directory: pathlib.Path, seconds: float, seed: int) -> int:
    """One pool under load, then its losses; the number of messages."""
    mixed = importlib.import_module("tests.serf.mixed_pool")
    async with mixed.mixed_pool(directory, seed) as pool:
        await pool.load(seconds)
        pool.look_at_logs()
        stall = f"a process stood still for {pool.report.longest_stall_ms} ms"
        if pool.report.falsely_accused():
            raise AssertionError(f"suspected (by, whom): {pool.report.falsely_accused()}; {stall}")
        if pool.report.accused:
            terminal.line(f"seed {seed}: {len(pool.report.accused)} suspicions do not count, {stall}")
        await mixed.lose_and_find(pool)
        pool.look_at_logs()
        return int(pool.report.done.total())
