"""The documents' examples, run as they stand against a real agent: what a newcomer copies must work.

An example is the indented block after a line `<!-- run: ... -->`; only the agent's address is replaced.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from real_agents import COMMAND_TIMEOUT_SECONDS, shoal_command

from tests.serf.real_serf import free_port

pytestmark = [pytest.mark.slow, pytest.mark.cold_start]
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_AGENT = "http://127.0.0.1:7070"


def examples(document: pathlib.Path, against: str) -> list[str]:
    """The commands of every block that is marked so, one per line."""
    commands = []
    for block in re.findall(rf"<!-- run: {against} -->\n((?:    .*\n|\n(?=    ))+)", document.read_text()):
        commands += [line.strip() for line in block.splitlines() if line.strip()]
    return commands


def program(document: pathlib.Path) -> str:
    """The Python of every block marked so, as one program: later blocks use what earlier ones made."""
    blocks = re.findall(r"<!-- run: python -->\n((?:    .*\n|\n(?=\n?    ))+)", document.read_text())
    return "\n".join(textwrap.dedent(block) for block in blocks)


def run_curl(command: str, url: str) -> tuple[int, str]:
    """The status and the body that one curl command gets, with the agent's real address."""
    words = shlex.split(command.replace(DEFAULT_AGENT, url))
    assert words[0] == "curl", command
    answer = subprocess.run(
        [*words, "--silent", "--show-error", "--write-out", "\n%{http_code}"],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=True,
    )
    body, _, status = answer.stdout.rpartition("\n")
    return int(status), body


def test_the_readme_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Every marked curl command of the README, in order, answers 2xx with JSON."""
    url = start_cluster(1).agents[0].url
    commands = examples(ROOT / "README.md", "against one agent")
    assert len(commands) >= 3
    for command in commands:
        status, body = run_curl(command, url)
        assert 200 <= status < 300, (command, status, body)
        assert json.loads(body), command


def test_the_readmes_python_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Its block, in a process of its own, prints the record."""
    url = start_cluster(1).agents[0].url
    text = program(ROOT / "README.md")
    assert text.count(DEFAULT_AGENT) == 1
    command = [sys.executable, "-W", "error", "-c", text.replace(DEFAULT_AGENT, url)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=True)
    assert (ran.stdout, ran.stderr) == ("0 b'hello'\n", "")


def test_the_readmes_cluster_works_as_it_stands(
    start_cluster: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    """Its commands against three agents, in order; the last one follows, and prints what was produced."""
    url = start_cluster(3).agents[0].url
    orders = [json.dumps({"customer": f"c{number % 7}", "item": number}) for number in range(50)]
    (tmp_path / "orders.ndjson").write_text("".join(line + "\n" for line in orders))
    commands = [shlex.split(line) for line in examples(ROOT / "README.md", "against three agents")]
    assert len(commands) == 4
    environment = {**os.environ, "SHOAL_AGENT": url}
    for command in commands[:-1]:
        assert command[0] == "shoal"
        ran = subprocess.run(
            [shoal_command(), *command[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stderr)
    assert commands[-1][-1] == "--follow"
    with subprocess.Popen(
        [shoal_command(), *commands[-1][1:]], env=environment, stdout=subprocess.PIPE, text=True
    ) as following:
        try:
            assert following.stdout is not None
            assert sorted(following.stdout.readline().rstrip("\n") for _ in orders) == sorted(orders)
        finally:
            following.send_signal(signal.SIGINT)
            following.wait(COMMAND_TIMEOUT_SECONDS)
    assert following.returncode == 0  # who follows ends it like that


def test_the_client_page_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Every block of docs/clients.md, in order, in one process against one agent; it ends without a word on
    standard error."""
    url = start_cluster(1).agents[0].url
    text = program(ROOT / "docs" / "clients.md")
    assert text.count(DEFAULT_AGENT) == 2
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text.replace(DEFAULT_AGENT, url)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == "0 1002"  # after one, two and a thousand others
    assert lines[1] == "[(0, 1003), (0, 1004)]"
    assert lines[-1] == "b'from a coroutine'"


def test_the_page_of_consumer_groups_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Every block of docs/groups.md, in order: the Python in one process, then the commands of curl, each of
    which answers 2xx with JSON; the receive brings the message that the one before it has sent."""
    url = start_cluster(1).agents[0].url
    page = ROOT / "docs" / "groups.md"
    text = program(page)
    assert text.count(DEFAULT_AGENT) == 1
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text.replace(DEFAULT_AGENT, url)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "0 {'number': 0} 1", "1 {'number': 1} 1", "2 {'number': 2} 1", "b'a last one'"
    ]  # fmt: skip
    answers = {}
    for command in examples(page, "against one agent"):
        status, body = run_curl(command, url)
        assert 200 <= status < 300, (command, status, body)
        answers[command] = json.loads(body)
    assert len(answers) == 5
    (received,) = [answer for command, answer in answers.items() if "/receive" in command]
    assert [message["value"] for message in received["messages"]] == ["to: ann"]


def test_the_page_of_timers_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Every block of docs/timers.md: the commands of curl, of which the receive brings what is due, and the
    Python, whose second record comes first."""
    url = start_cluster(1).agents[0].url
    page = ROOT / "docs" / "timers.md"
    answers = {}
    for command in examples(page, "against one agent"):
        status, body = run_curl(command, url)
        assert 200 <= status < 300, (command, status, body)
        answers[command] = json.loads(body)
    assert len(answers) == 6
    (received,) = [answer for command, answer in answers.items() if "/receive" in command]
    assert received["messages"][0]["value"] == "one value"
    text = program(page)
    assert text.count(DEFAULT_AGENT) == 1
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text.replace(DEFAULT_AGENT, url)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["one value", "soon", "water boils", "tea is ready"]


def test_the_page_of_tables_works_as_it_stands(start_cluster: Callable[..., Any]) -> None:
    """Every block of docs/tables.md: the Python as one program, then the commands of curl, each of which
    answers 2xx; the condition holds, and the scan shows the row."""
    url = start_cluster(1).agents[0].url
    page = ROOT / "docs" / "tables.md"
    text = program(page)
    assert text.count(DEFAULT_AGENT) == 1
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text.replace(DEFAULT_AGENT, url)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    ada = """b'{"born": 1815}'"""
    assert ran.stdout.splitlines() == [
        f"{ada} {{'born': 1912}} None", "True [b'ada', b'alan']", "1", f"b'ada' {ada}",
        f"row b'ada' {ada}", "row b'visits' b'1'", "current b'' None",
    ]  # fmt: skip
    answers = {}
    for command in examples(page, "against one agent"):
        status, body = run_curl(command, url)
        assert 200 <= status < 300, (command, status, body)
        answers[command] = json.loads(body)
    assert len(answers) == 6
    (scanned,) = [answer for command, answer in answers.items() if "prefix=" in command]
    assert [row["value"] for row in scanned["rows"]] == ["<h1>Hi</h1>"]


TUTORIAL_TIMEOUT_SECONDS = 240.0  # a minute where nothing else runs


def test_the_tutorial_works_as_it_stands(tmp_path: pathlib.Path) -> None:
    """Its commands as one script, in order, with ports and a cluster of its own: what was written before and
    after the kill is read, once each, and nothing is left behind."""
    script = "\n".join(examples(ROOT / "docs" / "tutorial.md", "tutorial"))
    assert script.count("shoal agent ") == 4
    ports = {old: str(free_port()) for old in ("7070", "7072", "7074")}
    for old, new in ports.items():
        assert old in script
        script = script.replace(old, new)
    script = script.replace("--cluster tutorial", f"--cluster tutorial-{secrets.token_hex(4)}")
    environment = {**os.environ, "SHOAL_AGENT": f"http://127.0.0.1:{ports['7070']}"}
    environment["PATH"] = os.pathsep.join((os.path.dirname(shoal_command()), environment["PATH"]))
    with (
        open(tmp_path / "said", "w+") as said,
        open(tmp_path / "read", "w+") as read,
        subprocess.Popen(
            ["bash", "-eu", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=read,
            stderr=said,
            start_new_session=True,
        ) as shell,
    ):
        try:
            code = shell.wait(TUTORIAL_TIMEOUT_SECONDS)
        finally:
            _end_session(shell.pid)
        lines = (tmp_path / "read").read_text().splitlines()
        assert code == 0, (tmp_path / "said").read_text()[-2000:]
    values = [line for line in lines if line.startswith('{"customer":')]
    assert sorted(json.loads(line)["item"] for line in values) == sorted([1, 2, 3, 4] * 2)
    records = [json.loads(line) for line in lines if line.startswith("{") and '"offset"' in line]
    assert len({(record["partition"], record["offset"]) for record in records}) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read", "said"]


def _end_session(session: int) -> None:
    """What the script started and did not end, by the session that it is alone in."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (PermissionError, ProcessLookupError):
                continue


def test_the_quickstart_prints_commands_that_work(start_cluster: Callable[..., Any]) -> None:
    """The four curl commands at the end of the show answer 2xx with what they promise."""
    import show

    url = start_cluster(1).agents[0].url
    made = subprocess.run(
        ["curl", "-sf", "-X", "PUT", f"{url}/v1/topics/flights"], capture_output=True, timeout=100, check=True
    )
    assert json.loads(made.stdout)["name"] == "flights"
    commands = show.goodbye_commands(url)
    assert len(commands) == 4
    for command in commands:
        status, body = run_curl(command, url)
        assert 200 <= status < 300, (command, status, body)
    assert [record["value"] for record in json.loads(body)["records"]] == ["hi"]
