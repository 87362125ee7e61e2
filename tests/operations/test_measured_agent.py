"""The agent of `scripts/bench metrics` is what the benchmark takes it for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rooms import ROOT

SWITCHED = """
import os, pathlib, signal, sys
import measured_agent
from shoal.agent.metrics.histogram import Histogram
from shoal.agent.metrics.measures import HttpMeasures

histogram, measures = Histogram(), HttpMeasures()
measured_agent.switch_counting(sys.argv[1])
for _ in range(3):
    histogram.observe(1)
    measures.answered("produce", 200)
    measures.appended(measures.requests["produce", 201], 1)
    answers = sum(item.count for item in measures.requests.values())
    print(histogram.count, measures.append.count, answers)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(pathlib.Path(sys.argv[1]).read_text())
"""
HELD = """
import asyncio, gc, os, pathlib, signal, sys, time
import holds
import measured_agent
from shoal.agent.process import event_loop

path = pathlib.Path(sys.argv[1])
measured_agent.tell_holds(sys.argv[1])

async def told(asked):
    await asyncio.sleep(0)
    path.unlink(missing_ok=True)
    os.kill(os.getpid(), asked)
    while not path.exists():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    return holds.Holds.parse(path.read_text())

def mine(told):
    # A window has one step of main() that ends in it. A round may be longer that the machine held up.
    assert told.longest.held_ns >= told.callbacks["main"].held_ns
    return told.callbacks["main"]

async def main():
    await told(signal.SIGUSR1)
    time.sleep(0.05)
    slept = mine(await told(signal.SIGUSR1))
    print("slept", slept.held_ns - slept.queued_ns >= 50_000_000 > slept.processor_ns)
    kept = [[] for _ in range(500_000)]
    gc.collect()
    collected = mine(await told(signal.SIGUSR1))
    print("collected", 1_000_000 < collected.collector_ns <= collected.held_ns)
    worked = await told(signal.SIGUSR2)
    print("worked", holds.PIECE_NS <= worked.callbacks["Teller._work"].processor_ns)
    await told(signal.SIGUSR1)
    end_ns = time.thread_time_ns() + 200_000_000
    while time.thread_time_ns() < end_ns:
        pass
    shared = mine(await told(signal.SIGUSR1))
    print("shared", shared.queued_ns >= 50_000_000 and shared.processor_ns >= 200_000_000)

os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
measured = os.getpid()
if (other := os.fork()) == 0:
    while os.getppid() == measured:
        pass
    os._exit(0)
with asyncio.Runner(loop_factory=event_loop.new_event_loop) as runner:
    runner.run(main())
os.kill(other, signal.SIGKILL)
os.waitpid(other, 0)
"""


def said(program: str, *arguments: str) -> list[str]:
    """What a process of its own prints: the benchmark's agent changes classes for good."""
    command = [sys.executable, "-c", program, *arguments]
    found = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


def test_counting_ends_and_begins_again(tmp_path: Path) -> None:
    """And all it replaces still exists under these names."""
    found = said(SWITCHED, str(tmp_path / "says"))
    assert found[:4] == ["1", "1", "2", "uncounted"]
    assert found[4:8] == ["1", "1", "2", "counted"]
    assert found[8:] == ["2", "2", "4", "uncounted"]


def test_a_hold_is_told(tmp_path: Path) -> None:
    """Whose callback it was since it was last asked for, and where its time went: asleep, in the collector,
    at work, or waiting for a processor that another process has half of the time. None is longer than the
    longest."""
    assert said(HELD, str(tmp_path / "holds")) == [
        "slept", "True", "collected", "True", "worked", "True", "shared", "True"
    ]  # fmt: skip
