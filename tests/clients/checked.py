"""What the tests with type checkers share: the mistakes of typed.py, and a directory outside of this project.

Outside, a checker takes `shoal` as users have it: an installed package whose py.typed says that it is typed.
"""

from __future__ import annotations

import pathlib
import re
import shutil

from tests.clients.generating import HERE

PROGRAM = "typed.py"
_MARK = re.compile(r"# wrong: (?P<mypy>\S+) (?P<pyright>\S+)$")


def mistakes(checker: str) -> set[tuple[int, str]]:
    """The number of each line with a mistake, and what `checker` calls it."""
    lines = (HERE / PROGRAM).read_text().splitlines()
    marked = [(number, _MARK.search(line)) for number, line in enumerate(lines, 1)]
    found = {(number, mark[checker]) for number, mark in marked if mark is not None}
    assert len(found) == sum("wrong: " in line for line in lines) >= 15
    return found


def copied(directory: pathlib.Path) -> None:
    """Put the program there."""
    shutil.copy(HERE / PROGRAM, directory)
