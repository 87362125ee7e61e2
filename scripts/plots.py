"""Draws lab/curves.csv as SVG, one file a plot, for people who would rather look than read.

Law of this file: drawing is pure, from points to text. Run it to draw all plots anew from the newest run.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import dated_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAB = ROOT / "lab"
CURVES = LAB / "curves.csv"
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 44, 56
COLOURS = ("#1f6feb", "#d1495b", "#2e8b57", "#8a5cd0")
Scale = Callable[[float], float]
COLUMNS = ("date", "commit", "load", "plot", "line", "x", "y")
"""Load: the machine's one-minute load average before the run; above 1 others had work for its cores."""


class Point(NamedTuple):
    """One point of a line of a plot."""

    plot: str
    line: str
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Plot:
    """How one plot is drawn. Logarithmic axes have ticks at powers of two (x) or ten (y)."""

    name: str
    title: str
    x_label: str
    y_label: str
    x_is_log: bool = False
    y_is_log: bool = False
    steps: bool = False


PLOTS = (
    Plot(
        "throughput", "Single-record POSTs, fdatasync each", "connections", "records a second", x_is_log=True
    ),
    Plot(
        "latency",
        "Latency of a single-record POST",
        "connections",
        "milliseconds",
        x_is_log=True,
        y_is_log=True,
    ),
    Plot(
        "fail-over",
        "From kill -9 of the leader to the next acknowledged append",
        "seconds",
        "percent of kills",
        steps=True,
    ),
)


def record(points: Iterable[Point], machine_load: float, path: pathlib.Path = CURVES) -> None:
    """Append the points of one run, under today's date and this checkout's commit."""
    rows = [(f"{machine_load:.1f}", p.plot, p.line, f"{p.x:.4g}", f"{p.y:.4g}") for p in points]
    dated_rows.append(path, COLUMNS, rows)


def newest(path: pathlib.Path = CURVES) -> tuple[str, list[Point]]:
    """Date, commit and load of the last run in the file, and its points."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = tuple(rows[-1][name] for name in COLUMNS[:3])
    of_run = [row for row in rows if tuple(row[name] for name in COLUMNS[:3]) == last]
    points = [Point(row["plot"], row["line"], float(row["x"]), float(row["y"])) for row in of_run]
    return f"{last[0]}, {last[1]}, load {last[2]} before", points


def ticks(low: float, high: float, is_log: bool) -> list[float]:
    """Where an axis is labelled: powers of ten over `low` to `high`, or four to eight round steps from 0."""
    if is_log:
        return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10.0 ** math.floor(math.log10(high / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 8)
    return [step * number for number in range(math.ceil(high / step) + 1)]


def draw(plot: Plot, points: Sequence[Point], run: str) -> str:
    """One plot as an SVG document, with a title and description for those who do not see it."""
    mine = [point for point in points if point.plot == plot.name]
    assert mine, plot.name
    xs = sorted({point.x for point in mine})
    x_ticks = xs if plot.x_is_log else ticks(0, max(xs), False)
    y_ticks = ticks(min(p.y for p in mine), max(p.y for p in mine), plot.y_is_log)

    def place(value: float, marks: Sequence[float], is_log: bool, start: float, end: float) -> float:
        low, high, at = (math.log(v) if is_log else v for v in (marks[0], marks[-1], value))
        return start + (end - start) * (at - low) / ((high - low) or 1)

    def x_of(value: float) -> float:
        return place(value, x_ticks, plot.x_is_log, LEFT, WIDTH - RIGHT)

    def y_of(value: float) -> float:
        return place(value, y_ticks, plot.y_is_log, HEIGHT - BOTTOM, TOP)

    parts = [_head(plot, run), *_axes(plot, x_ticks, y_ticks, x_of, y_of)]
    lines = list(dict.fromkeys(point.line for point in mine))
    for number, line in enumerate(lines):
        path = [(x_of(p.x), y_of(p.y)) for p in mine if p.line == line]
        parts.append(_line(path, COLOURS[number % len(COLOURS)], plot.steps))
        parts.append(_legend(line, COLOURS[number % len(COLOURS)], number))
    return "\n".join([*parts, "</svg>\n"])


def _head(plot: Plot, run: str) -> str:
    title = escape(plot.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        ' font-family="sans-serif" font-size="12">\n'
        f"<title>{title}</title>\n<desc>{escape(f'{plot.y_label} over {plot.x_label}, {run}')}</desc>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>\n'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 14}" text-anchor="end" fill="#666666">{escape(run)}</text>'
    )


def _axes(
    plot: Plot, x_ticks: Sequence[float], y_ticks: Sequence[float], x_of: Scale, y_of: Scale
) -> Iterable[str]:
    bottom = HEIGHT - BOTTOM
    for value in y_ticks:
        y = y_of(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>'
    for value in x_ticks:
        x = x_of(value)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#333333"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:.10g}</text>'
    yield f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#333333"/>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(plot.x_label)}</text>'
    turned = f'transform="translate(16 {(TOP + bottom) / 2:.0f}) rotate(-90)"'
    yield f'<text {turned} text-anchor="middle">{escape(plot.y_label)}</text>'


def _line(path: Sequence[tuple[float, float]], colour: str, steps: bool) -> str:
    drawn = [f"M{path[0][0]:.1f} {path[0][1]:.1f}"]
    drawn += [(f"H{x:.1f} V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}") for x, y in path[1:]]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in path)
    return f'<path d="{" ".join(drawn)}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _legend(line: str, colour: str, number: int) -> str:
    y = TOP + 14 + 18 * number
    mark = f'<rect x="{LEFT + 12}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
    return f'{mark}<text x="{LEFT + 28}" y="{y}">{escape(line)}</text>'


def render(path: pathlib.Path = CURVES) -> dict[str, str]:
    """File name and text of every plot of the newest run."""
    run, points = newest(path)
    return {f"{plot.name}.svg": draw(plot, points, run) for plot in PLOTS}


if __name__ == "__main__":
    for name, text in render().items():
        (LAB / name).write_text(text)
        sys.stderr.write(f"{LAB / name}: written\n")
