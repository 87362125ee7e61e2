"""Writes the table of feature levels into docs/formats.md, from the list that agents go by."""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shoal.agent.levels import ADDITIONS  # noqa: E402

PAGE = ROOT / "docs" / "formats.md"
BEGIN, END = "<!-- levels: python scripts/level_reference.py -->", "<!-- end of levels -->"


def render() -> str:
    """The table, between its two marks."""
    rows = [
        f"| {addition.level} | {addition.kind.value} | `{addition.name}` | {addition.sentence} |"
        for addition in sorted(ADDITIONS, key=lambda item: item.level)
    ]
    head = ["| level | what | name | it |", "| --- | --- | --- | --- |"]
    return "\n".join([BEGIN, "", *head, *rows, "", END])


def with_table(page: str) -> str:
    """The page with the table as the code has it. Raises ValueError for a page without its marks."""
    before, rest = page.split(BEGIN, 1)
    return before + render() + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
