"""The README's first command, as a newcomer meets it: the whole show, its end, and Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import cluster as local
import pytest
from real_agents import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOW_TIMEOUT_SECONDS = 700.0


def start_show(directory: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    """The show itself, run by this interpreter: the installation before it is what started these tests."""
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "show.py"), "--directory", str(directory), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def processes_that_mention(directory: pathlib.Path) -> list[str]:
    """The command lines of all live processes that name the directory."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(directory) in command:
            found.append(command)
    return found


def test_the_show_runs_to_its_end_and_leaves_agents_that_can_be_stopped(tmp_path: pathlib.Path) -> None:
    """All flights arrive exactly once though a leader is killed; --stop then ends what was left running."""
    show = start_show(tmp_path, "--without-spark", "--rate", "50000")
    try:
        said, talk = show.communicate(timeout=SHOW_TIMEOUT_SECONDS)
        assert show.returncode == 0, talk
        assert "pyarrow read 336,776 records" in said
        assert "0 lost, 0 too often" in said
        assert "kill -9" in talk
        assert said.count("    curl ") == 4
        assert len(processes_that_mention(tmp_path / "data")) == 2
    finally:
        show.kill()
        stopped = start_show(tmp_path, "--stop")
        assert "stopped" in stopped.communicate(timeout=SHOW_TIMEOUT_SECONDS)[1]
    assert processes_that_mention(tmp_path) == []


def test_stop_needs_nothing_but_what_was_noted(tmp_path: pathlib.Path) -> None:
    """--stop ends what agents.json names, under whatever interpreter and though nothing is installed (or
    something else is, since setup.cfg changed)."""
    (tmp_path / "scripts").mkdir()
    for path in (ROOT / "scripts").iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / "scripts")
    home = tmp_path / "home"
    home.mkdir()
    agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        ticks = pathlib.Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()[19]
        noted = {"name": "herring", "pid": agent.pid, "start_ticks": int(ticks), "log": "none"}
        (home / "agents.json").write_text(json.dumps([noted]))
        command = [str(tmp_path / "scripts" / "quickstart"), "--stop", "--directory", str(home)]
        ran = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, agent.wait(60)) == (0, -signal.SIGTERM), ran.stderr
    finally:
        agent.kill()
        agent.wait()
    assert "stopped 1 agents" in ran.stderr
    assert not (home / "agents.json").exists()
    assert not (tmp_path / ".environment").exists()


def test_an_interrupted_show_leaves_no_process(tmp_path: pathlib.Path) -> None:
    """Ctrl-C while agents run and the producer streams: one line, exit code 130, nothing left behind."""
    show = start_show(tmp_path, "--without-spark", "--rate", "2000")
    try:

        def streaming() -> bool:
            path = tmp_path / "agents.json"
            url = json.loads(path.read_text())[0]["url"] if path.exists() else ""
            if not url:
                return False
            topics = local.get(url, "/v1/topics/flights/offsets")["partitions"]
            return sum(partition["high_watermark"] for partition in topics) > 0

        wait_until(streaming, "the stream has begun", seconds=200)
        show.send_signal(signal.SIGINT)
        _, talk = show.communicate(timeout=SHOW_TIMEOUT_SECONDS)
    finally:
        show.kill()
    assert show.returncode == 130
    assert talk.rstrip().endswith("interrupted; nothing is left running")
    assert "Traceback" not in talk
    assert processes_that_mention(tmp_path) == []
