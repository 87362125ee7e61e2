"""Results as data: `scripts/bench --record` appends rows; the table of docs/performance.md is made of them.

Law of this file: lab/results.csv is only appended to. The table shows the newest row of each measurement. Run
this file to write the table anew.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

import dated_rows
from row import Row

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "lab" / "results.csv"
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- table: scripts/performance_page.py writes it from lab/results.csv -->\n"
END = "<!-- end of table -->\n"
VARYING = re.compile(r"\d+(?= times| segments| kills| MiB$)|(?<=median of )\d+")
HEAD = ("what", "measured", "floor, or bar", "ratio", "goal", "run")


class ResultsError(ValueError):
    """lab/results.csv, or the page, is not as this file writes it. The text names the line or the mark."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of a run. `goal` is empty where there is no bar; `better` is `more` or `less`."""

    date: str
    commit: str
    rounds: int
    what: str
    measured: str
    floor: str
    ratio: float
    goal: str
    better: str

    @property
    def subject(self) -> str:
        """What is measured beside what, without the counts and times that differ from run to run."""
        floor = re.sub(r"[0-9][0-9.,]*", "#", self.floor.split("(")[0])
        return f"{VARYING.sub('#', self.what)} | {floor}"

    @property
    def is_missed(self) -> bool:
        if not self.goal:
            return False
        return self.ratio > float(self.goal) if self.better == "less" else self.ratio < float(self.goal)


FIELDS = tuple(field.name for field in dataclasses.fields(Result))


def read(path: pathlib.Path = RESULTS) -> list[Result]:
    """All rows, oldest first. Raises ResultsError."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise ResultsError(f"{path}: the columns are {', '.join(FIELDS)}")
        return [_result(path, number, fields) for number, fields in enumerate(reader, 2)]


def _result(path: pathlib.Path, number: int, fields: dict[str, str]) -> Result:
    try:
        datetime.date.fromisoformat(fields["date"])
        numbers = {"rounds": int(fields["rounds"]), "ratio": float(fields["ratio"])}
        if fields["goal"]:
            float(fields["goal"])
        if fields["better"] not in ("more", "less"):
            raise ValueError("`better` is more or less")
        return Result(**(fields | numbers))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ResultsError(f"{path}, line {number}: {error}") from None


def record(rows: Iterable[Row], rounds: int, path: pathlib.Path = RESULTS) -> None:
    """Append what one run measured, under today's date and this checkout's commit."""
    found = []
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:g}"
        better = "less" if row.lower_is_better else "more"
        found.append((rounds, row.name, row.measured, row.floor, f"{row.ratio:.4f}", goal, better))
    dated_rows.append(path, FIELDS, found)


def newest(results: Sequence[Result]) -> list[Result]:
    """The last result of each subject, in the order in which subjects first appeared."""
    return list({result.subject: result for result in results}.values())


def table(results: Sequence[Result]) -> str:
    """The newest results as a table of the page."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for one in newest(results):
        sign = "<=" if one.better == "less" else ">="
        goal = f"{sign} {float(one.goal):.2f}{', missed' if one.is_missed else ''}" if one.goal else ""
        run = f"{one.date}, {one.commit}"
        lines.append((one.what, one.measured, one.floor, f"{one.ratio:.2f}", goal, run))
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def render(page: str, results: Sequence[Result]) -> str:
    """The page with its table made anew. Raises ResultsError when its marks are gone."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{PAGE} lacks {BEGIN.strip()} or {END.strip()}")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(), read()))
    sys.stderr.write(f"{PAGE}: written\n")
