"""How commands talk: data on stdout, everything else on stderr, one line per failure.

Law of this file: it knows terminals and formats, and neither agents nor topics. Tables are drawn by rich on a
terminal; piped, they are plain columns that awk can read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer

from shoal.agent.cli.terminal.options import Output

FOLDED_WIDTH_MIN = 8  # a column that is folded to fewer characters cannot be read


class CliError(Exception):
    """A failure: what is wrong, and what to do. Ends the command with `exit_code`."""

    def __init__(self, message: str, advice: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.exit_code = exit_code


class UsageError(CliError):
    """Options or arguments that cannot be used. Ends the command with 2."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, advice, exit_code=2)


def say(text: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    print(text, file=sys.stderr, flush=True)


def fail(message: str, advice: str = "") -> None:
    """The one line that says what is wrong and what to do."""
    line = f"shoal: {' '.join(message.split())}"
    join = " " if line.endswith("?") else "; "
    say(f"{line}{join}{advice}" if advice else line)


def show_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def tell(document: Any, output: Output, *lines: str) -> None:
    """A result: as JSON on stdout, or in words on stderr, without lines that are empty."""
    if output is Output.JSON:
        show_json(document)
        return
    for line in filter(None, lines):
        say(line)


def confirm(question: str, subject: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `yes` was given. `subject` says what is about to happen. Raises CliError."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{subject} needs a yes", "add --yes")
    typer.confirm(question, abort=True, err=True)


def show_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    whole: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """A table on stdout. Columns of numbers are aligned at the right. On a terminal that is too narrow,
    headers break behind a hyphen, and then the columns `spare` go, one after the other. At last cells are
    folded, except in the columns `whole`: people copy those. Where even they do not fit, lines are left to
    the terminal, which joins them again when they are copied."""
    cells = [[_text(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(headers))]
    if not sys.stdout.isatty():
        _show_plain(headers, cells, right)
        return
    width = shutil.get_terminal_size().columns
    titles, kept = _fitting(headers, cells, spare, width)
    left = [[row[i] for i in kept] for row in cells]
    aligned = [right[i] for i in kept]
    least = [
        max(len(row[i]) for row in cells) if headers[i] in whole and cells else FOLDED_WIDTH_MIN for i in kept
    ]
    if sum(least) + 2 * len(least) - 2 > width:
        _show_plain([headers[i] for i in kept], left, aligned)
    else:
        _show_rich([titles[i] for i in kept], left, aligned, [headers[i] in whole for i in kept])


def _show_plain(headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    for row in [headers, *cells]:
        aligned = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(aligned).rstrip())


def plural(count: int, noun: str) -> str:
    """`1 record`, `2 records`, with thousands set apart."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """The first of them with commas between, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def size_text(size_bytes: float) -> str:
    """A size for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def age_text(seconds: float) -> str:
    """A duration for people, in its largest whole unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def reopen_closed() -> None:
    """Replace streams that the caller has closed (`>&-`) by ones that discard."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- for the process's life
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def drop_stdout() -> None:
    """Discard all further output after a broken pipe, also the interpreter's own at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _text(cell: object) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _fitting(
    headers: Sequence[str], cells: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> tuple[list[str], list[int]]:
    """The headers, and the columns that fit into `width` characters: all, or without some of `spare`."""
    kept = list(range(len(headers)))
    titles = list(headers)

    def is_too_wide() -> bool:
        columns = [[*titles[i].split("\n"), *(row[i] for row in cells)] for i in kept]
        return sum(max(map(len, column)) + 2 for column in columns) - 2 > width

    if is_too_wide():
        titles = [header.replace("-", "-\n") for header in headers]
    for name in spare:
        if not is_too_wide():
            break
        kept = [i for i in kept if headers[i] != name]
    return titles, kept


def _show_rich(
    headers: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], whole: Sequence[bool]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for header, is_right, is_whole in zip(headers, right, whole, strict=True):
        table.add_column(header, justify="right" if is_right else "left", overflow="fold", no_wrap=is_whole)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
