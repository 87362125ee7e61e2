"""A small evaluator of PromQL: as much of it as ops/alerts.yml is written in, the rest is an AssertionError.

A rate is taken between the first and the last sample of its window; Prometheus extrapolates it to the ends of
the window besides. Names of metrics are no labels here. Source: https://prometheus.io/docs/prometheus/latest/
querying/operators, querying/functions, configuration/alerting_rules.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from math import inf, nan
from typing import Any, TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]
Series: TypeAlias = list[tuple[float, float | None]]
"""Seconds and values, in order; None: the scrape that did not find the series any more."""
History: TypeAlias = Mapping[str, Mapping[Labels, Series]]
Vector: TypeAlias = dict[Labels, float]
Windows: TypeAlias = dict[Labels, list[tuple[float, float]]]
Expression: TypeAlias = Callable[[History, float], Any]
"""Of a time: a number, a Vector, or Windows."""

LOOKBACK_S = 300
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
TOKEN = re.compile(r'\s*([0-9]+[smhd]\b|[0-9.]+|\w+|"[^"]*"|[=!<>]=|[=!]~|[-+*/<>(){}\[\],=])')
LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
"""Of operators, the loosest first."""
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge,
    "<=": operator.le,
}  # fmt: skip
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else nan
}  # fmt: skip
AGGREGATIONS: Mapping[str, Callable[[Collection[float]], float]] = {
    "sum": sum, "max": max, "min": min, "count": len
}  # fmt: skip


def parse(text: str) -> Expression:
    """The whole of it."""
    parser = _Parser(text)
    found = parser.operation(0)
    assert not parser.tokens, f"{parser.tokens[-1]!r} is left of {text!r}"
    return found


def firing(
    expression: Expression, hold_s: float, history: History, times: Iterable[float]
) -> dict[Labels, float]:
    """The alerts that fire at some of these times, and when each did first."""
    since: dict[Labels, float] = {}
    fired: dict[Labels, float] = {}
    for now in times:
        active = expression(history, now)
        since = {labels: since.get(labels, now) for labels in active}
        for labels, began in since.items():
            if now - began >= hold_s:
                fired.setdefault(labels, now)
    return fired


class _Parser:
    def __init__(self, text: str) -> None:
        found, position = [], 0
        while position < len(text.rstrip()):
            match = TOKEN.match(text, position)
            assert match is not None, f"{text[position:]!r} is none of ours"
            found.append(match[1])
            position = match.end()
        self.tokens = found[::-1]

    def _next(self, *wanted: str) -> str:
        assert self.tokens, f"ends where {wanted} should follow"
        token = self.tokens.pop()
        assert not wanted or token in wanted, f"{token!r} where {wanted} should follow"
        return token

    def _takes(self, *wanted: str) -> str | None:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in wanted else None

    def operation(self, level: int) -> Expression:
        """Of that level's operators, and of those that bind closer."""
        if level == len(LEVELS):
            return self._operand()
        left = self.operation(level + 1)
        while (sign := self._takes(*LEVELS[level])) is not None:
            on = self._names() if self._takes("on") else None
            left = _operation(sign, on, left, self.operation(level + 1))
        return left

    def _operand(self) -> Expression:
        token = self._next()
        if token == "(":
            inner = self.operation(0)
            self._next(")")
            return inner
        if re.fullmatch(r"[0-9.]+", token):
            number = float(token)
            return lambda history, now: number
        if token in AGGREGATIONS:
            by = self._names() if self._takes("by") else frozenset()
            (of,) = self._arguments()
            return _aggregation(AGGREGATIONS[token], by, of)
        if token in FUNCTIONS:
            return _call(FUNCTIONS[token], self._arguments())
        return self._selector(token)

    def _names(self) -> frozenset[str]:
        self._next("(")
        names = {self._next()}
        while self._next(",", ")") == ",":
            names.add(self._next())
        return frozenset(names)

    def _arguments(self) -> list[Expression]:
        self._next("(")
        found = [self.operation(0)]
        while self._next(",", ")") == ",":
            found.append(self.operation(0))
        return found

    def _selector(self, name: str) -> Expression:
        assert re.fullmatch(r"[a-z_]+", name), name
        wanted: list[tuple[str, str, str]] = []
        if self._takes("{"):
            while True:
                wanted.append((self._next(), self._next("=", "!=", "=~", "!~"), self._next()[1:-1]))
                if self._next(",", "}") == "}":
                    break
        window_s = None
        if self._takes("["):
            window_s = _seconds(self._next())
            self._next("]")
        offset_s = _seconds(self._next()) if self._takes("offset") else 0

        def at(history: History, now: float) -> Vector | Windows:
            of = {
                labels: series for labels, series in history.get(name, {}).items() if _matches(labels, wanted)
            }
            if window_s is not None:
                return _windows(of, now - offset_s, window_s)
            found = {labels: _last(series, now - offset_s) for labels, series in of.items()}
            return {labels: value for labels, value in found.items() if value is not None}

        return at


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * SECONDS[duration[-1]]


def _matches(labels: Labels, wanted: list[tuple[str, str, str]]) -> bool:
    has = dict(labels)
    return all(
        (re.fullmatch(value, has.get(label, "")) is not None if "~" in sign else has.get(label, "") == value)
        == (sign[0] == "=")
        for label, sign, value in wanted
    )


def _last(series: Series, now: float) -> float | None:
    index = bisect_right(series, now, key=lambda sample: sample[0])
    at, value = series[index - 1] if index else (-inf, None)
    return value if at > now - LOOKBACK_S else None


def _windows(of: Mapping[Labels, Series], now: float, window_s: float) -> Windows:
    found = {}
    for labels, series in of.items():
        first, end = (bisect_right(series, at, key=lambda sample: sample[0]) for at in (now - window_s, now))
        found[labels] = [(at, value) for at, value in series[first:end] if value is not None]
    return found


# ---- operators and functions -----------------------------------------------------------------------------


def _operation(sign: str, on: frozenset[str] | None, left: Expression, right: Expression) -> Expression:
    def at(history: History, now: float) -> Any:
        return _combined(sign, on, left(history, now), right(history, now))

    return at


def _combined(sign: str, on: frozenset[str] | None, left: Any, right: Any) -> Any:
    def key(labels: Labels) -> Labels:
        return labels if on is None else _only(labels, on)

    if sign in ("and", "or", "unless"):
        there, here = {key(labels) for labels in right}, {key(labels) for labels in left}
        if sign == "or":
            return left | {labels: value for labels, value in right.items() if key(labels) not in here}
        return {labels: value for labels, value in left.items() if (key(labels) in there) == (sign == "and")}
    if isinstance(left, dict) and isinstance(right, dict):
        assert on is None, "not of numbers"
        pairs = {labels: (value, right[labels]) for labels, value in left.items() if labels in right}
    elif isinstance(left, dict):
        pairs = {labels: (value, right) for labels, value in left.items()}
    else:
        assert not isinstance(right, dict), "a number on the left is not ours"
        return ARITHMETIC[sign](left, right)
    if sign in COMPARISONS:
        return {labels: pair[0] for labels, pair in pairs.items() if COMPARISONS[sign](*pair)}
    return {labels: ARITHMETIC[sign](*pair) for labels, pair in pairs.items()}


def _only(labels: Labels, names: Collection[str]) -> Labels:
    return frozenset(item for item in labels if item[0] in names)


def _aggregation(
    combine: Callable[[Collection[float]], float], by: frozenset[str], of: Expression
) -> Expression:
    def at(history: History, now: float) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in of(history, now).items():
            groups.setdefault(_only(labels, by), []).append(value)
        return {labels: combine(values) for labels, values in groups.items()}

    return at


def _call(function: Callable[..., Any], arguments: list[Expression]) -> Expression:
    return lambda history, now: function(now, *(argument(history, now) for argument in arguments))


def _increase(now: float, windows: Windows) -> Vector:
    """Needs two samples; a value below the one before it is that of a process that began anew."""
    found = {}
    for labels, samples in windows.items():
        if len(samples) >= 2:
            pairs = pairwise(value for _, value in samples)
            found[labels] = sum(after - before if after >= before else after for before, after in pairs)
    return found


def _rate(now: float, windows: Windows) -> Vector:
    return {
        labels: grown / (windows[labels][-1][0] - windows[labels][0][0])
        for labels, grown in _increase(now, windows).items()
    }


def _predict_linear(now: float, windows: Windows, ahead_s: float) -> Vector:
    """By least squares."""
    found = {}
    for labels, samples in windows.items():
        if len(samples) >= 2:
            middle_s = sum(at for at, _ in samples) / len(samples)
            middle = sum(value for _, value in samples) / len(samples)
            spread = sum((at - middle_s) ** 2 for at, _ in samples)
            slope = sum((at - middle_s) * (value - middle) for at, value in samples) / spread
            found[labels] = middle + slope * (now + ahead_s - middle_s)
    return found


def _max_over_time(now: float, windows: Windows) -> Vector:
    return {labels: max(value for _, value in samples) for labels, samples in windows.items() if samples}


def _histogram_quantile(now: float, quantile: float, buckets: Vector) -> Vector:
    """Between the bounds of a bucket its observations are spread evenly. NaN without observations."""
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        histograms.setdefault(frozenset(item for item in labels if item[0] != "le"), []).append(
            (bound, count)
        )
    return {labels: _quantile(quantile, sorted(counts)) for labels, counts in histograms.items()}


def _quantile(quantile: float, counts: list[tuple[float, float]]) -> float:
    assert counts[-1][0] == inf
    rank = quantile * counts[-1][1]
    if not counts[-1][1]:
        return nan
    below, counted = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            break
        below, counted = bound, count
    return below if bound == inf else below + (bound - below) * (rank - counted) / (count - counted)


FUNCTIONS: Mapping[str, Callable[..., Vector]] = {
    "rate": _rate,
    "increase": _increase,
    "predict_linear": _predict_linear,
    "max_over_time": _max_over_time,
    "histogram_quantile": _histogram_quantile,
}
