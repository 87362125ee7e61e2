"""`shoal config show`: each value with the place that it comes from, by the rules of `shoal agent`."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from shoal.agent.cli.agent import agent
from shoal.agent.cli.config import NO_SETTINGS
from shoal.agent.cli.main import app, main
from shoal.agent.config import SETTINGS
from shoal.agent.settings import Effect

FILE = """\
# everything but the flags
[agent]
data = "/var/lib/shoal"
cluster = "fish"
"election-timeout" = "2s"
gossip_key = "@/etc/shoal.key"
join = ["a:1", "b:2"]
name = "from-file"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for known in SETTINGS.values():
        monkeypatch.delenv(known.variable, raising=False)
    path = tmp_path / "shoal.toml"
    path.write_text(FILE)
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """By setting."""
    assert main(["config", "show", *arguments, "--json"]) == 0
    return {row["setting"]: row for row in json.loads(capsys.readouterr().out)["settings"]}


def test_each_value_has_its_place(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag over a variable over the file over the default; with line and key of the file."""
    monkeypatch.setenv("SHOAL_NAME", "from-environment")
    monkeypatch.setenv("SHOAL_CLUSTER", "from-environment")
    rows = shown(capsys, "--config", str(file), "--cluster", "from-flag", "--http-port", "0")
    assert list(rows) == list(SETTINGS)
    found = {name: (row["value"], row["origin"], row["place"]) for name, row in rows.items()}
    assert found["data"] == ("/var/lib/shoal", "file", f"{file}, line 3, key data")
    assert found["election_timeout"] == ("2s", "file", f"{file}, line 5, key election-timeout")
    assert found["join"] == (["a:1", "b:2"], "file", f"{file}, line 7, key join")
    assert found["name"] == ("from-environment", "environment", "SHOAL_NAME")
    assert found["cluster"] == ("from-flag", "flag", "--cluster")
    assert found["http_port"] == (0, "flag", "--http-port")
    assert found["weight"] == (100, "default", "")
    assert {row["effect"] for row in rows.values()} <= set(Effect)


def test_no_secret_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That one is set, and where, is none; nor does a refusal show it."""
    secrets = [name for name, known in SETTINGS.items() if known.is_secret]
    assert {"gossip_key", "serf_auth_key"} <= set(secrets)
    key = file.with_name("auth.key")
    key.write_text("hush\n")
    rows = shown(capsys, "--data", "d", "--gossip", "serf", "--serf-auth-key", f"@{key}")
    assert rows["serf_auth_key"]["value"] == "(set, not shown)"
    assert main(["config", "show", "--config", str(file)]) == 0
    table = capsys.readouterr().out
    assert "@/etc/shoal.key" not in table
    assert "(set, not shown)" in table
    for command in (["config", "show"], ["agent"], ["agent", "--check"]):
        for option in ("--gossip-key", "--serf-auth-key"):
            assert main([*command, "--data", "d", option, "bad-secret"]) == 2
            said = capsys.readouterr().err
            assert f"{option} takes @FILE: a key in a command line shows in every process list" in said
            assert "bad-secret" not in said
    assert main(["config", "show", "--data", "d", "--serf-auth-key", "@/nowhere/at/all"]) == 2
    assert "--serf-auth-key @/nowhere/at/all: No such file" in capsys.readouterr().err
    for words in (["install"], ["use"], ["remove"]):
        assert main(["keys", *words, "c3BhcmUgZ29zc2lwIGtleSBvZiAzMiBieXRlcyBoZXJl"]) == 2
        said = capsys.readouterr().err
        assert "a key in a command line shows in every process list: give @FILE" in said
        assert "c3Bhc" not in said
    file.write_text('data = "d"\ngossip_key = 4711\n')
    assert main(["config", "show", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert "gossip_key" in said
    assert "4711" not in said


def test_a_table_for_people_has_one_line_a_setting(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what a terminal and awk can read."""
    assert (
        main(["config", "show", "--config", str(file), "--allowed-hosts", "a", "--allowed-hosts", "b"]) == 0
    )
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["SETTING", "VALUE", "FROM", "TAKES", "EFFECT"]
    assert [line.split()[0] for line in lines] == list(SETTINGS)
    (hosts,) = (line for line in lines if line.startswith("allowed_hosts"))
    assert hosts.split() == ["allowed_hosts", "a", "b", "--allowed-hosts", "each", "start"]


def test_what_an_agent_would_not_take_is_refused_alike(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words and exit code; nothing is shown."""
    for arguments in (["--election-timeout", "1"], ["--cores", "0"], ["--config", f"{file}.missing"]):
        assert main(["config", "show", *arguments]) != 0
        assert capsys.readouterr().out == ""
    file.write_text("colour = 1\n")
    assert main(["config", "show", "--config", str(file)]) == 2
    assert "'colour', which is no setting" in capsys.readouterr().err


def test_it_takes_the_flags_of_an_agent() -> None:
    """All of them, those that come later too."""
    command: Any = typer.main.get_command(app)
    known = {one.name for one in command.commands["config"].commands["show"].params}
    assert set(inspect.signature(agent).parameters) - NO_SETTINGS <= known
    assert NO_SETTINGS.isdisjoint(known)
