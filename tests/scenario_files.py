"""Files of command scripts with printed outcomes: what a change does to a protocol is reviewed as a diff.

Law of this file: it reads blocks, has their commands run, and writes the outcomes of today into the files.
What a command means, the script knows that runs it.

A file is blocks separated by blank lines: comments with #, one or more commands, then ---- and the outcome.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Script(Protocol):
    """Runs the commands of one file, one after the other."""

    def run(self, command: str) -> list[str]:
        """The lines that the command prints."""


@dataclass
class Block:
    """Comment lines, commands, and the outcome that the file expects."""

    comments: list[str]
    commands: list[str]
    expected: list[str]

    def text(self, outcome: list[str]) -> str:
        """The block with that outcome."""
        return "\n".join([*self.comments, *self.commands, "----", *outcome])


def read_blocks(text: str) -> list[Block]:
    """The blocks of a file, in order."""
    blocks = []
    for part in text.strip().split("\n\n"):
        head, _, expected = (part + "\n").partition("----\n")
        lines = head.strip().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        blocks.append(Block(comments, commands, expected.splitlines()))
    return blocks


def play(path: pathlib.Path, make_script: Callable[[], Script]) -> tuple[list[Block], list[list[str]]]:
    """A file's blocks and what they print today."""
    script = make_script()
    blocks = read_blocks(path.read_text())
    outcomes = [[line for command in block.commands for line in script.run(command)] for block in blocks]
    return blocks, outcomes


def rewrite(directory: pathlib.Path, make_script: Callable[[], Script]) -> None:
    """Put the outcomes of today into every file."""
    for path in sorted(directory.glob("*.txt")):
        blocks, outcomes = play(path, make_script)
        pairs = zip(blocks, outcomes, strict=True)
        path.write_text("\n\n".join(block.text(outcome) for block, outcome in pairs) + "\n")
        print(f"rewrote {path.name}")
