"""Help, usage errors, start-up time and exit codes: what every command owes its user."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import COMMAND_SECONDS, Ran, assert_one_line, run

from shoal.agent.cli.main import _json_defaults, main, root_command


def commands_below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group by what is typed, hidden ones too."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*words, name))


COMMANDS = dict(commands_below(root_command()))
SPARK = ("package", "init", "run")
JSON_FROM_FILES = {("agent",), ("dev",), ("help",), ("log", "export"), *(("spark", name) for name in SPARK)}
"""They run an agent or Spark, show help, or write files in another form."""


def run_here(capfd: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """The command in this process: enough for what ends before any work begins."""
    code = main(list(arguments))
    out, err = capfd.readouterr()
    return Ran(code, out, err)


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=lambda command: " ".join(command) or "shoal")
def test_every_command_has_help_with_an_example(
    command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """--help: exit code 0, a description, an example that names the command."""
    ran = run_here(capfd, *command, "--help")
    assert ran.code == 0
    assert "Example:" in ran.stdout
    assert f"shoal {' '.join(command)}".rstrip() in ran.stdout.partition("Example:")[2]
    assert ran.stderr == ""


COUNTING = """
import sys
calls = 0
def count(_frame, event, _argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
{code}
sys.setprofile(None)
print(calls, file=sys.stderr)
sys.exit(any(name in sys.modules for name in ("aiohttp", "pyarrow", "rich", "urllib.request")))
"""


def calls_of(code: str) -> int:
    """Of functions of Python, in an interpreter that runs it. Processor time would tell what others leave,
    and whether modules are kept compiled."""
    code = COUNTING.format(code=code)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stderr)


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    """`shoal --help` takes less than five times the calls that its parser and asyncio take alone: about
    two and a half times their processor time. And neither pyarrow nor aiohttp nor rich."""
    help_text = "from shoal.agent.cli.main import main; main(['--help'])"
    assert calls_of(help_text) < 5 * calls_of("import typer, asyncio")


def test_an_interruption_before_the_command_has_begun_is_quiet() -> None:
    """Ctrl-C while the commands are imported, which takes long on a busy machine: 130, and no trace."""
    code = """
import sys
class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interruption())
from shoal.agent.cli.start import run
run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_command_that_needs_no_records_imports_nothing_for_them() -> None:
    """Such commands start in two thirds of the time: here one that finds nobody."""
    code = (
        "import sys; from shoal.agent.cli.main import main; "
        "assert main(['members', '--agent', 'http://127.0.0.1:1']) == 1; "
        "sys.exit('pyarrow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prduce",), ("prduce", "produce")),
        (("produce",), ("TOPIC",)),
        (("produce", "t", "--acks", "two"), ("two",)),
        (("produce", "t", "--rate", "0"), ("--rate",)),
        (("consume", "t", "--output", "arow"), ("arow",)),
        (("consume", "t", "--from", "yesterday"), ("--from", "@2026-01-01")),
        (("consume", "t", "--format", "%q"), ("%q", "%k key")),
        (("consume", "t", "-f", "100%"), ("% stands for nothing", "%k key")),
        (("consume", "t", "-f", "-n", "5"), ("'-n' names no field", "--follow is -F")),
        (("consume", "t", "-f", "100%%"), ("names no field",)),
        (("consume", "t", "-f"), ("-f", "requires an argument")),
        (("consume", "t", "-F", "%k"), ("'%k' is no topic name", "--format or -f")),
        (("consume", "t", "--format", "%k", "-o", "json"), ("--output",)),
        (("produce", "t", "-k", "a", "--key-field", "b"), ("--key-field and --key",)),
        (("produce", "t", "--whole", "-K", ":"), ("--key-separator", "--whole")),
        (("produce", "t", "--format", "json", "-k", "a"), ("--format json",)),
        (("produce", "t", "--tombstone"), ("--key KEY",)),
        (("produce", "t", "-H", "trace"), ("--header 'trace'", "trace=af31")),
        (("produce", "t", "--rate", "inf"), ("--rate inf is no rate",)),
        (("produce", "t", "--rate", "nan"), ("--rate nan is no rate",)),
        (("members", "--wait", "2", "--timeout", "nan"), ("--timeout", "0")),
        (("consume", "t", "-f", "%k\\"), ("'%k\\\\': \\ stands for nothing",)),
        (("consume", "t", "--from", "1h"), ("'1h' is no place", "-1h", "@MILLISECONDS")),
        (
            ("topic", "trim", "t", "-y", "--before", "soon"),
            ("--before 'soon' is no end", "an offset, latest"),
        ),
        (("topic", "trim", "t", "-y", "--before", "earliest"), ("--before 'earliest' is no end",)),
        (("--agent", "", "status"), ("--agent is empty",)),
        (("bench", "--value-bytes", "0"), ("--value-bytes 0 is not from 1 to 1MiB",)),
        (("bench", "--value-bytes", "2MiB"), ("not from 1 to 1MiB", "4KiB")),
        (("bench", "--value-bytes", "none"), ("not from 1 to 1MiB",)),
        (("bench", "--value-bytes", "much"), ("'much' is no size",)),
        (("bench", "--records", "4"), ("--records", "5")),
        (("bench", "--seconds", "0"), ("--seconds", "0.5")),
        (("top", "--sort", "speed"), ("'speed' is no column", "RECORDS/S")),
        (("topic", "create", ""), ("'NAME'", "a name is empty")),
        (("topic", "delete", "..", "--yes"), ("'..' is no topic name",)),
        (("topic", "descrive", "t"), ("Did you mean 'describe'? `--help`",)),
        (("topic", "create", "t", "--partitions", "0"), ("--partitions", "1")),
        (("topic", "create", "t", "--replication-factor", "many"), ("many",)),
        (("topic", "delete", "t"), ("--yes",)),
        (("members", "--agent", "ftp://x"), ("ftp://x",)),
        (("members", "--agent", "unix:s"), ("unix:///run/shoal/http.sock",)),
        (("members", "--agent", ","), ("--agent",)),
        (("agent",), ("--data",)),
        (("agent", "--data", "x", "--http-port", "70000"), ("70000",)),
        (("agent", "--data", "x", "--config", "/nonexistent.toml"), ("/nonexistent.toml",)),
        (("agent", "--data", "x", "--gossip", "pigeons"), ("--gossip",)),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_fault(
    arguments: tuple[str, ...], words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback, no usage page, exit code not 0."""
    assert_one_line(run_here(capfd, *arguments), *words)


async def test_a_group_without_a_command_shows_its_commands() -> None:
    """On stderr: it is no data."""
    ran = await run("topic")
    assert (ran.code, ran.stdout) == (2, "")
    assert "describe" in ran.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=" ".join)
def test_every_answer_can_be_json(command: tuple[str, ...]) -> None:
    """By --json behind the command, and before it."""
    known = COMMANDS[command]
    if getattr(known, "commands", None) or command in JSON_FROM_FILES:
        return
    options = {option for parameter in known.params for option in parameter.opts}
    assert {"--json", "--output"} <= options
    before = _json_defaults(root_command())
    for word in command:
        before = before[word]
    assert before == {"output": "json"}


@pytest.mark.parametrize(
    "command", [("version",), ("keygen",), ("doctor",), ("config", "show", "--data", "d")]
)
def test_json_that_no_agent_is_asked_for(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """The option stands before or behind."""
    for words in ((*command, "--json"), ("--json", *command), (*command, "-o", "json")):
        ran = run_here(capfd, *words)
        assert isinstance(json.loads(ran.stdout), dict)


@pytest.mark.parametrize("word", ["--version", "-V", "-v", "version"])
def test_the_version_is_told(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    """For bug reports."""
    ran = run_here(capfd, word)
    assert ran.code == 0
    assert ran.stdout.startswith("shoal 0.")


@pytest.mark.parametrize("command", [(), ("topic",), ("topic", "create")])
def test_help_is_a_command_too(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """It shows what --help shows."""
    assert run_here(capfd, "help", *command) == run_here(capfd, *command, "--help")


def test_no_words_of_a_library_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    """`Value error, ` says nothing to whoever typed it."""
    ran = run_here(capfd, "produce", "t", "--acks", "maybe")
    assert_one_line(ran, "'maybe'")
    assert "Value error" not in ran.stderr


@pytest.mark.parametrize(
    "arguments", [("members",), ("status",), ("topic", "list"), ("produce", "t"), ("consume", "t")]
)
async def test_no_agent_is_one_line_that_says_what_to_do(arguments: tuple[str, ...]) -> None:
    """Nobody listens on port 1."""
    ran = await run(*arguments, agent="http://127.0.0.1:1")
    assert_one_line(ran, "http://127.0.0.1:1 cannot be reached", "shoal dev", "--agent")


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">/dev/full", 1, "shoal: the output cannot be written: No space left on device"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
async def test_output_that_cannot_be_written_is_one_line(redirection: str, code: int, says: str) -> None:
    """A full disk or a closed stream at the other end is no traceback."""
    process = await asyncio.create_subprocess_shell(
        f"exec {shlex.quote(sys.executable)} -m shoal.agent --version {redirection}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), COMMAND_SECONDS)
    assert (process.returncode, errors.decode().strip()) == (code, says)


async def test_completion_is_installed_without_a_failure(tmp_path: pathlib.Path) -> None:
    """Into the home of whoever asks, for the shell that runs it."""
    command = f"{shlex.quote(sys.executable)} -m shoal.agent"
    for option, expected in (("--install-completion", b"installed"), ("--show-completion", b"shoal")):
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"{command} {option}; exit $?"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        shown, errors = await asyncio.wait_for(process.communicate(), COMMAND_SECONDS)
        assert (process.returncode, errors) == (0, b"")
        assert expected in shown
    assert list((tmp_path / ".bash_completions").iterdir())


ROOT = pathlib.Path(__file__).resolve().parents[3]
PLACEHOLDERS = {"PARTITION": "0", "N": "3"}


def documented_commands() -> list[str]:
    """Every line of the documents that begins with `shoal`, without what explains it."""
    found = []
    written = ROOT / "docs" / "cli.md"  # by the commands themselves
    for page in (ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {written})):
        for line in page.read_text().splitlines():
            if line.startswith(("    shoal ", "shoal ")):
                found.append(re.split(r"  +| &(?: |$)| #| > ", line.strip())[0])
    return found


@pytest.mark.parametrize("line", sorted(set(documented_commands())))
def test_every_documented_command_is_understood(line: str) -> None:
    """The commands, options and arguments that the documents name are there; nothing is run."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]
    command = root_command()
    context = None
    while hasattr(command, "resolve_command"):
        context = command.make_context("shoal", words, parent=context)
        name, command, words = command.resolve_command(
            context, [*getattr(context, "_protected_args", ()), *context.args]
        )
        assert name is not None
        assert command is not None
    command.make_context(name, list(words), parent=context)


def test_the_documents_name_commands() -> None:
    """Were they written in another way, the test above would look at nothing."""
    assert len(documented_commands()) > 20
