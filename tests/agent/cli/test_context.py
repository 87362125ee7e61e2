"""KnownClusters, and the credentials of commands: options, then variables, then the user's context."""

from __future__ import annotations

import io
import json
import os
import pathlib
from typing import Any

import pytest
from command_line import assert_one_line, run
from secure_cluster import TOKEN, Files, secure_cluster, server_context
from secure_cluster import files as files

from shoal.agent.cli.main import main
from shoal.agent.cli.terminal.connection import chosen
from shoal.agent.cli.terminal.contexts import (
    KnownCluster,
    KnownClusters,
    config_path,
    read_contexts,
    write_contexts,
)
from shoal.agent.cli.terminal.output import CliError

FISH = KnownCluster("https://fish:7070", "@/fish.token", "/fish.pem")
SECRET = TOKEN[15:40]


@pytest.fixture
def config(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The file, which is not there."""
    for name in list(os.environ):
        if name.startswith("SHOAL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return config_path(os.environ)


async def test_commands_ask_agents_with_tls_by_options_and_by_a_context(
    files: Files, tmp_path: pathlib.Path
) -> None:
    """One agent that asks for a token. The same command fails without, in one line that says what to do."""
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    async with secure_cluster(server_context(tmp_path)) as cluster:
        agent = cluster.urls[0]
        given = ("--token", files.token, "--ca", files.ca)
        ran = await run("produce", "t", *given, agent=agent, stdin=b"one\n")
        assert (ran.code, [bytes(v) for v in cluster.topics["t"].partitions[0].values()]) == (0, [b"one"])
        context = ("context", "set", "fish", "--agent", agent, *given)
        assert (await run(*context, **home)).code == 0
        ran = await run("consume", "t", **home)
        assert (ran.code, ran.stdout) == (0, "one\n")
        # A context's token goes to its own agents only, and its authority with it.
        ran = await run("topic", "list", agent=agent, **home)
        assert ran.code == 1
        assert_one_line(ran, "authority that is not known here", "--ca")
        ran = await run("topic", "list", "--ca", files.ca, agent=agent, SHOAL_TOKEN="shoal_other")
        assert ran.code == 1
        assert_one_line(ran, "the token is not known here (unauthenticated)", "--token @FILE or SHOAL_TOKEN")


def test_an_option_goes_before_a_variable_and_both_before_the_context(
    config: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where agents are named, nothing of the context counts."""
    nothing: dict[str, str | None] = {}
    assert chosen(None, nothing) == ("http://127.0.0.1:7070", KnownCluster())
    write_contexts(config, KnownClusters("fish", {"fish": FISH, "other": KnownCluster("http://o:1")}))
    assert chosen(None, nothing) == (FISH.agent, FISH)
    assert chosen("http://named:1", nothing) == ("http://named:1", KnownCluster())
    agent, found = chosen(None, {"token": "@mine", "certificate": "c.pem"})
    assert (agent, found) == (FISH.agent, KnownCluster(FISH.agent, "@mine", FISH.ca, "c.pem"))
    monkeypatch.setenv("SHOAL_CA", "/variable.pem")
    assert chosen(None, nothing)[1].ca == ""  # the client reads the variable
    assert chosen(None, {"ca": "mine"})[1].ca == "mine"
    monkeypatch.setenv("SHOAL_CONTEXT", "other")
    assert chosen(None, nothing)[0] == "http://o:1"
    monkeypatch.setenv("SHOAL_CONTEXT", "")
    assert chosen(None, nothing)[0] == "http://127.0.0.1:7070"
    monkeypatch.setenv("SHOAL_CONTEXT", "nobody")
    with pytest.raises(CliError, match="there is no context 'nobody' \\(known: fish, other\\)"):
        chosen(None, nothing)


def test_contexts_are_set_listed_used_and_removed_and_no_token_is_shown(
    config: pathlib.Path, files: Files, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is its owner's only."""
    monkeypatch.setattr("sys.stdin", io.StringIO(TOKEN + "\n"))
    assert main(["context", "set", "fish", "--agent", "https://a:1", "--token", "-", "--ca", files.ca]) == 0
    assert main(["context", "set", "other", "--agent", "http://b:1", "--token", files.token]) == 0
    assert config.stat().st_mode & 0o777 == 0o600
    assert read_contexts(config).known["fish"] == KnownCluster("https://a:1", TOKEN, files.ca)
    assert main(["context", "use", "other"]) == 0
    assert main(["context", "set", "fish", "--ca", ""]) == 0
    assert main(["context", "list", "--json"]) == 0
    listed: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["contexts"]
    assert [(one["name"], one["current"], one["token"], one["ca"]) for one in listed] == [
        ("fish", False, "(set, not shown)", None),
        ("other", True, files.token, None),
    ]
    for words in (["list"], ["show"], ["show", "fish"], ["show", "fish", "--json"]):
        assert main(["context", *words]) == 0
    assert main(["context", "remove", "other"]) == 0
    assert read_contexts(config) == KnownClusters("", {"fish": KnownCluster("https://a:1", TOKEN)})
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))  # of a command before the pipe that has failed
    assert main(["context", "set", "fish", "--token", "-"]) == 2
    shown = capfd.readouterr()
    assert "standard input has no token" in shown.err
    assert read_contexts(config).known["fish"].token == TOKEN
    assert SECRET not in shown.out + shown.err + repr(read_contexts(config))
    assert main(["context", "show"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = 3", "it has `current` and [contexts.NAME], and nothing else"),
        ('[contexts.a]\npassword = "x"', "context 'a': it has agent, token, ca, certificate, key"),
        ('[contexts.a]\nagent = ["x"]', "each a text"),
        (f"[contexts.a]\ntoken = {SECRET}", "it is not TOML"),
        (f'[contexts.a]\ntoken = "{SECRET}"', "holds a token, and others may read it; `chmod 600"),
        ("a = " + "[" * 5_000, "it is not TOML"),
        ("#" * (1 << 20) + "#", "it is no file of contexts"),
    ],
)
def test_a_file_that_is_none_is_told_and_its_token_is_not(
    text: str, said: str, config: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line with the file's name; nothing is asked."""
    config.parent.mkdir(parents=True)
    config.write_text(text)
    config.chmod(0o644)
    assert main(["topic", "list"]) == 1
    error = capfd.readouterr().err
    assert said in error
    assert str(config) in error
    assert SECRET not in error


@pytest.mark.parametrize("words", [["topic", "list"], ["context", "set", "x", "--agent", "http://a:1"]])
def test_a_token_in_a_command_line_is_refused_and_not_repeated(
    words: list[str], config: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It stood in the process list already: the user should hear of it."""
    assert main([*words, "--token", TOKEN]) == 2
    error = capfd.readouterr().err
    assert "a token in a command line shows in every process list" in error
    assert SECRET not in error
    assert not config.exists()


def test_names_and_values_that_the_file_cannot_hold_are_refused(config: pathlib.Path) -> None:
    """Nothing is written then."""
    for words in (["a.b", "--agent", "x"], ["", "--agent", "x"], ["a", "--agent", "http://x\n:1"], ["a"]):
        assert main(["context", "set", *words]) != 0 or words == ["a"]
    assert list(read_contexts(config).known) in ([], ["a"])
