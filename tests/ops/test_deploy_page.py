"""docs/operations/deploy.md: its commands are commands, and it names the files of ops/ that there are.

What the files bring about is shown by tests/cluster/test_deployments.py.
"""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any

import pytest
import typer.main

from shoal.agent.cli.main import app

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations" / "deploy.md"


def commands() -> list[str]:
    """Every indented line that runs `shoal`, without what a shell would do around it."""
    lines = re.findall(r"^    (?:\(umask 077; )?(shoal [^>&|)\n]*)", PAGE.read_text(), re.MULTILINE)
    return [line.strip() for line in lines]


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_page_is_one(line: str) -> None:
    """It exists and has these options and arguments; none is left over."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, line
        command = command.commands[name]
    command.make_context(name, words)


def test_the_page_has_commands_for_everything_that_it_describes() -> None:
    """Agents by name, configurations, sockets, draining, topics."""
    text = "\n".join(commands())
    for needed in (
        "--advertise",
        "config show",
        "unix://",
        "drain",
        "topic alter",
        "secure init",
        "--expect 3",
    ):
        assert needed in text, needed


def test_the_page_names_every_file_and_no_other() -> None:
    """Manifests in a table, examples of proxies and of a configuration as links."""
    text = PAGE.read_text()
    manifests = {path.name for path in (ROOT / "ops" / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    section = text.partition("## Kubernetes")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z]+\.yaml)`", section, re.MULTILINE)) == manifests
    linked = set(re.findall(r"\]\(\.\./\.\./(ops/[^)]+)\)", text))
    assert {"ops/nginx.conf", "ops/Caddyfile", "ops/shoal.toml"} <= linked
    assert [path for path in linked if not (ROOT / path).exists()] == []
