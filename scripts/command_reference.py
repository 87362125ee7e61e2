"""Writes docs/cli.md: every command with the help that it shows. Run it after changing a command.

Law of this file: it asks the command line itself; nothing of the page stands here but its frame.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import typer

from shoal.agent.cli.main import app

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100
INTRODUCTION = """\
# Command line

For everybody who types or scripts `shoal` commands: each command with the text of its `--help`.
`scripts/command_reference.py` writes this page from the code; a test fails when it is stale.

`--agent URL` and `--json` may also stand before a command. Exit codes: 0 success, 1 failure, 2 wrong usage,
130 interrupted. Data go to standard output, messages to standard error.
`shoal --install-completion` adds completion of commands, options, topics, groups and members to the shell.
"""


def commands(
    command: Any, words: tuple[str, ...] = ("shoal",), parent: Any = None
) -> Iterator[tuple[str, str]]:
    """Each command that is not hidden: what is typed, and its help."""
    context = type(command).context_class(
        command, parent=parent, info_name=words[-1], terminal_width=WIDTH, max_content_width=WIDTH
    )
    context.help_option_names = ["-h", "--help"]
    if not getattr(command, "commands", None):
        yield " ".join(words), command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from commands(below, (*words, name), context)


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for typed, text in commands(typer.main.get_command(app)):
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## {typed}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stderr.write(f"{PAGE}: written\n")
