"""The agent of `scripts/bench metrics` is what the benchmark takes it for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rooms import ROOT

UNCOUNTED = """
import measured_agent
from shoal.agent.metrics.histogram import Histogram
from shoal.agent.metrics.measures import HttpMeasures

measured_agent.count_nothing()
histogram, measures = Histogram(), HttpMeasures()
histogram.observe(1)
measures.answered("produce", 200)
measures.appended(("produce", 200), 1)
print(histogram.count, measures.append.count, len(measures.requests))
"""
HELD = """
import asyncio, os, pathlib, signal, sys, time
import measured_agent
from shoal.agent.process import event_loop

measured_agent.tell_holds(sys.argv[1])

async def main():
    await asyncio.sleep(0)
    time.sleep(0.05)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0)
    print(int(pathlib.Path(sys.argv[1]).read_text()) >= 50_000_000)

with asyncio.Runner(loop_factory=event_loop.new_event_loop) as runner:
    runner.run(main())
"""


def said(program: str, *arguments: str) -> list[str]:
    """What a process of its own prints: the benchmark's agent changes classes for good."""
    command = [sys.executable, "-c", program, *arguments]
    found = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


def test_uncounted_means_that_nothing_is_counted() -> None:
    """And that all it replaces still exists under these names."""
    assert said(UNCOUNTED) == ["0", "0", "0"]


def test_a_hold_is_told(tmp_path: Path) -> None:
    """The longest since it was last asked for."""
    assert said(HELD, str(tmp_path / "holds")) == ["True"]
