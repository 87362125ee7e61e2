"""Prometheus' text format 0.0.4: a reading of numbers becomes lines, and lines become pieces of bounded work.

Law of this file: pure. It knows names, kinds and help texts from families.py and invents none. Other work
may be done between two pieces. The lines of one histogram are made at once, so that they agree.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from math import isnan
from typing import Final, TypeAlias

from shoal.agent.metrics.families import FAMILIES, Family
from shoal.agent.metrics.histogram import BOUNDS_US, NS_PER_S, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PIECE_LINES: Final = 500
"""Lines made in one go: less than a millisecond of work."""
Number: TypeAlias = int | float
Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = Number | Histogram | Mapping[Labels, Number]
Reading: TypeAlias = Mapping[str, Value]
"""By the name of a family: its one number, its histogram, or its numbers by the values of its labels."""


def pieces(reading: Reading) -> Iterator[bytes]:
    """The whole text, in the order of the table, at most PIECE_LINES lines at a time. A family that the
    reading lacks is left out."""
    strangers = reading.keys() - {family.name for family in FAMILIES}
    assert not strangers, f"not in the table of metrics: {sorted(strangers)}"
    lines = chain.from_iterable(
        _family_lines(family, reading[family.name]) for family in FAMILIES if family.name in reading
    )
    while made := list(islice(lines, PIECE_LINES)):
        yield ("\n".join(made) + "\n").encode()


def _family_lines(family: Family, value: Value) -> Iterator[str]:
    name = family.name
    yield f"# HELP {name} {family.help}"
    yield f"# TYPE {name} {family.kind}"
    if isinstance(value, Histogram):
        assert not family.labels
        yield from _histogram_lines(name, value)
    elif isinstance(value, Mapping):
        for labels, number in value.items():
            pairs = zip(family.labels, labels, strict=True)
            shown = ",".join([f'{label}="{_escaped(text)}"' for label, text in pairs])
            yield f"{name}{{{shown}}} {_number(number)}"
    else:
        assert not family.labels
        yield f"{name} {_number(value)}"


def _histogram_lines(name: str, histogram: Histogram) -> list[str]:
    """Made at once: between two lines nothing may be counted."""
    *below, count = histogram.cumulative()
    lines = [f'{name}_bucket{{le="{bound}"}} {n}' for bound, n in zip(BOUNDS, below, strict=True)]
    lines.append(f'{name}_bucket{{le="+Inf"}} {count}')
    lines.append(f"{name}_sum {_number(histogram.sum_ns / NS_PER_S)}")
    lines.append(f"{name}_count {count}")
    return lines


BOUNDS: Final = tuple(f"{bound_us / 1_000_000:.6f}".rstrip("0").rstrip(".") for bound_us in BOUNDS_US)
"""As `le` shows them, in seconds."""


def _number(value: Number) -> str:
    if isinstance(value, int):
        return str(int(value))
    if isnan(value):
        return "NaN"
    return repr(value).replace("inf", "Inf")


@lru_cache(maxsize=8_192)
def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
