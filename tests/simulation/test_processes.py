"""Work in processes of its own: what it says, what it dies of, and that none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_sim.processes import Processes

MANY_BYTES = 3 << 20
"""More than any pipe holds."""


def kill_itself() -> str:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "killed"


def end_without_a_word() -> str:
    """As a library may, that believes it is alone."""
    os._exit(0)


def fail() -> str:
    """On the way to its word."""
    raise LookupError("no such thing")


@pytest.mark.parametrize(
    ("do", "said", "death"),
    [
        (lambda: "", "", ""),
        (lambda: "a word", "a word", ""),
        (lambda: "x" * MANY_BYTES, "x" * MANY_BYTES, ""),
        (lambda: "\udce9", "\\udce9", ""),
        (kill_itself, "", "signal 9, Killed"),
        (end_without_a_word, "", "exit status 0 without its whole word"),
        (fail, "", "exit status 1 without its whole word"),
    ],
)
def test_who_says_nothing_is_told_from_who_dies(do: Callable[[], str], said: str, death: str) -> None:
    """An empty word is a word."""
    with Processes[int](lambda _: do()) as processes:
        assert processes.wait() == []
        processes.begin(7)
        assert len(processes) == 1
        (ended,) = processes.wait()
        assert len(processes) == 0
    assert (ended.work, ended.said, ended.death) == (7, said, death)
    assert ended.processor_s >= 0


def test_what_a_process_dies_of_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """With its trace, since nobody else has it."""
    with Processes[int](lambda _: fail()) as processes:
        processes.begin(7)
        processes.wait()
    assert "LookupError: no such thing" in capfd.readouterr().err


def test_a_wait_ends_with_the_process_whatever_it_leaves_behind() -> None:
    """A process that it made lives on, and has the same files open."""

    def do(_: int) -> str:
        left = os.fork()
        if left == 0:
            signal.pause()
        return str(left)

    with Processes[int](do) as processes:
        processes.begin(7)
        (ended,) = processes.wait()
    os.kill(int(ended.said), signal.SIGKILL)


def test_whoever_runs_at_the_end_is_killed_and_reaped(tmp_path: Path) -> None:
    """Nothing of it is left, not even what the kernel keeps until somebody asks how it ended."""
    path = tmp_path / "pid"
    os.mkfifo(path)

    def do(_: int) -> str:
        path.write_text(str(os.getpid()))
        signal.pause()
        return ""

    with Processes[int](do) as processes:
        processes.begin(7)
        pid = int(path.read_text())
        os.kill(pid, 0)
    assert len(processes) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
