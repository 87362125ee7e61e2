"""The run of all tests: however slow a machine is, what goes on is waited for, and what hangs is ended."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import environment
import pytest
from lanes import Lane, Lanes

SILENCE_S = 100.0
WAITS = """
import faulthandler, threading
faulthandler.enable()
print("begun", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def waiting(tmp_path: pathlib.Path) -> Iterator[Lane]:
    """Began at second 0, and goes on for ever."""
    with (tmp_path / "output").open("w+b") as output:
        process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=output, stderr=subprocess.STDOUT)
        lane = Lane("waits", process, output, 0.0)
        deadline = time.monotonic() + 60
        while not said(lane):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield lane
        lane.end(signal.SIGKILL)


def said(lane: Lane) -> str:
    return os.pread(lane.output.fileno(), 1 << 20, 0).decode()


def test_who_says_something_goes_on(waiting: Lane) -> None:
    """Ten times as long as it may be silent."""
    for turn in range(10):
        now_s = (turn + 1) * 0.99 * SILENCE_S
        os.pwrite(waiting.output.fileno(), b".", len(said(waiting)))
        waiting.look(now_s, SILENCE_S)
    assert waiting.process.poll() is None
    assert not waiting.hung


def test_who_says_nothing_is_ended_and_tells_where_it_was(waiting: Lane) -> None:
    """Not before its time; with the stack, in its output."""
    waiting.look(1.0, SILENCE_S)
    waiting.look(SILENCE_S, SILENCE_S)
    assert waiting.process.poll() is None
    waiting.look(SILENCE_S + 2.0, SILENCE_S)
    assert waiting.hung
    assert waiting.process.poll() == -signal.SIGABRT
    assert 'File "<string>", line 5' in said(waiting)


def test_outputs_come_whole_and_one_after_the_other(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those who failed are named."""
    programs = {
        "first": "print('one', flush=True); import time; time.sleep(0.5); print('two')",
        "wrong": "print('three'); raise SystemExit(1)",
        "last": "print('four')",
    }
    with Lanes(SILENCE_S) as lanes:
        for name, program in programs.items():
            lanes.start(name, [sys.executable, "-c", program], dict(os.environ), str(tmp_path))
        assert lanes.show() == ["wrong"]
    said = capfd.readouterr()
    assert said.out.split() == ["one", "two", "three", "four"]
    assert said.err.split() == ["==>", "first", "==>", "wrong", "==>", "last"]


def test_leaving_ends_what_still_runs(tmp_path: pathlib.Path) -> None:
    """An interrupted run leaves nothing behind."""
    with Lanes(SILENCE_S) as lanes:
        lanes.start("waits", [sys.executable, "-c", WAITS], dict(os.environ), str(tmp_path))
        process = lanes._lanes[0].process
    assert process.poll() is not None


FAMILY = """
import os, signal, subprocess, sys, time
grandchild = "import time; print('up', flush=True); time.sleep(600)"
others = [
    subprocess.Popen([sys.executable, "-c", grandchild], stdout=subprocess.PIPE, start_new_session=apart)
    for apart in (False, True)
]
for other in others:
    other.stdout.readline()
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print(*(process.pid for process in others), flush=True)
time.sleep(600)
"""
ENDED = """
import sys
sys.path.insert(0, "scripts")
import os, process_families, signal
from lanes import Lanes
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests: nohup ignores the one, and a shell
signal.signal(signal.SIGINT, signal.default_int_handler)  # without a terminal the other, of what it leaves
process_families.leave_on_signals()
family = [sys.executable, "-c", {family!r}, *sys.argv[2:]]
if sys.argv[1] == "alone":
    process_families.run(family, dict(os.environ), ".")
else:
    with Lanes(600.0) as running:
        running.start("family", family, dict(os.environ), ".")
        running.show()
"""


def is_running(process: int) -> bool:
    """It is there, and has not ended without being waited for."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def await_ends(processes: list[int]) -> None:
    """They were killed, which takes the system a moment; left alone they go on for ten minutes."""
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["lanes", "alone"])
def test_a_signal_to_the_run_alone_ends_all_that_it_started(kind: str, number: signal.Signals) -> None:
    """Processes of its processes too, in sessions of their own."""
    with run_of_a_family(kind) as (run, family):
        run.send_signal(number)
        run.wait(60)
        assert run.returncode in (128 + number, -signal.SIGINT)
        await_ends(family)


def test_those_that_do_not_listen_are_ended_by_force() -> None:
    """Within a time that is bounded; further signals do not cut it short."""
    with run_of_a_family("lanes", "stubborn") as (run, family):
        for _ in range(3):
            run.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        run.wait(60)
        await_ends(family)


@contextlib.contextmanager
def run_of_a_family(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program that runs a process with two of its own, and the ids of these."""
    with subprocess.Popen(
        [sys.executable, "-c", ENDED.format(family=FAMILY), *arguments],
        cwd=pathlib.Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None
        family = list(map(int, run.stdout.readline().split()))
        assert len(family) == 2
        assert all(map(is_running, family))
        try:
            yield run, family
        finally:
            run.kill()
            for process in filter(is_running, family):
                os.kill(process, signal.SIGKILL)


def test_a_run_in_integration_draws_the_examples_of_every_other_run() -> None:
    """Hypothesis looks for these variables, and would pass over the run's seed."""
    program = "import tests.conftest, hypothesis; print(hypothesis.settings().derandomize)"
    for variables in ({}, {"CI": "true"}, {"GITHUB_ACTIONS": "true"}):
        told = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | variables,
            cwd=pathlib.Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert told.stdout == "False\n"


def test_what_tests_start_keeps_what_it_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of hundreds of agents and commands compiles all it imports, where an image forbids to."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"],
        env=environment.clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert told.stdout == "False\n"
