"""Rows of lab/*.csv: each begins with the day and the commit on which it was measured.

Law of this file: standard library only; a file is appended to, never rewritten.
"""

from __future__ import annotations

import csv
import datetime
import pathlib
import subprocess
from collections.abc import Iterable, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent


def append(path: pathlib.Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append `rows` behind today's date and this checkout's commit; a new file begins with `columns`."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(columns)
        writer.writerows((date, commit, *row) for row in rows)
