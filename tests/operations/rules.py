"""ops/alerts.yml, read as strictly as it is written: a subset of YAML in which every line has one meaning.

A line that this reader does not know is an AssertionError. promtool reads the file by YAML's whole grammar
where it is installed (test_promtool.py).
"""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALERTS = ROOT / "ops" / "alerts.yml"
DASHBOARD = ROOT / "ops" / "grafana.json"
KEY = re.compile(r'( *)(- )?([a-z]+):(?: (?:"((?:[^"\\])*)"|([^"#].*)))?')
DURATION = re.compile(r"[1-9][0-9]*[smhd]")


class Alert(NamedTuple):
    """One rule. `hold`: how long it must be true, empty for not at all."""

    name: str
    expression: str
    hold: str
    labels: dict[str, str]
    annotations: dict[str, str]


def alerts(text: str) -> list[Alert]:
    """All rules of all groups, in order."""
    found: list[Alert] = []
    block: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = KEY.fullmatch(line)
        assert match is not None, f"line {number}: {line!r}"
        indent, item, key, quoted, plain = match.groups()
        value = quoted if quoted is not None else plain or ""
        # In plain text these would begin something else.
        assert quoted is not None or not re.search(r": | #", value), f"line {number}: {line!r}"
        depth = len(indent), item is not None
        if depth in ((0, False), (2, True), (4, False)):
            assert (key, bool(value)) in (("groups", False), ("name", True), ("rules", False)), line
        elif depth == (6, True):
            assert key == "alert", line
            found.append(Alert(value, "", "", {}, {}))
        elif depth == (8, False):
            found[-1] = _with(found[-1], key, value)
            block = found[-1].labels if key == "labels" else found[-1].annotations
        else:
            assert depth == (10, False), f"line {number} stands nowhere: {line!r}"
            assert key not in block, line
            block[key] = value
    return found


def _with(alert: Alert, key: str, value: str) -> Alert:
    match key:
        case "expr":
            assert not alert.expression, alert
            return alert._replace(expression=value)
        case "for":
            assert DURATION.fullmatch(value), value
            return alert._replace(hold=value)
        case "labels" | "annotations":
            assert not value, value
            return alert
    raise AssertionError(f"{alert.name} has {key}")


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric that is asked for, and the labels by which."""
    found = []
    for match in re.finditer(r"\b((?:shoal|process)_\w+)(?:\{([^}]*)\})?", expression):
        labels = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", match[2] or "")
        found.append((match[1], set(labels)))
    return found


def grouped_by(expression: str) -> set[str]:
    """The labels that aggregations keep."""
    return {
        label.strip()
        for match in re.finditer(r"\b(?:by|on) \(([^)]*)\)", expression)
        for label in match[1].split(",")
    }
