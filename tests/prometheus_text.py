"""A strict reader of Prometheus' text format 0.0.4, and of the names in PromQL: what a scraper would refuse,
or silently take for something else, is an AssertionError here, and so is what promtool warns of.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HEAD = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
KINDS = ("counter", "gauge", "histogram")
SUFFIXES = ("_bucket", "_sum", "_count")
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|Inf|NaN)")
KINDS_OF_NAMES = {"counter", "gauge", "histogram", "summary"}
NO_BASE_UNITS = {
    "s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d",
    "minutes", "hours", "days", "weeks", "bits", "percent", "percents", "kib", "mib", "gib", "tib",
}  # fmt: skip
PREFIXES = ("nano", "micro", "milli", "centi", "kilo", "mega", "giga", "tera", "kibi", "mebi", "gibi", "tebi")
UNITS = ("seconds", "bytes")
OF_TARGETS = ("job", "instance")
"""Labels that a scraper gives to every series."""
Labels = frozenset[tuple[str, str]]


@dataclass
class Exposed:
    """A family, with its samples by their names and labels."""

    help: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        """Of the one sample that has all these labels, whatever else it has."""
        wanted = set(labels.items())
        (found,) = [value for (_, has), value in self.samples.items() if wanted <= has]
        return found


def parse(text: str) -> dict[str, Exposed]:
    """Families by name. Each has help, then kind, then all its samples, and stands once."""
    assert text.endswith("\n"), "the last line has no end"
    families: dict[str, Exposed] = {}
    name = ""
    for line in text[:-1].split("\n"):
        if (head := HEAD.fullmatch(line)) is not None:
            what, named, rest = head.groups()
            if what == "HELP":
                assert named not in families, f"{named} stands twice"
                name = named
                families[name] = Exposed(rest)
            else:
                assert (named, families[name].kind, families[name].samples) == (name, "", {}), line
                assert rest in KINDS, line
                families[name].kind = rest
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, f"no sample, and no head: {line!r}"
        _take(families[name], name, *sample.groups())
    for name, family in families.items():
        _check(name, family)
    return families


def _take(family: Exposed, name: str, shown: str, labels: str | None, number: str) -> None:
    assert family.kind, f"{name} has no type"
    allowed = {name + suffix for suffix in SUFFIXES} if family.kind == "histogram" else {name}
    assert shown in allowed, f"{shown} stands below {name}"
    key = shown, _labels(labels)
    assert key not in family.samples, f"{key} stands twice"
    assert NUMBER.fullmatch(number), f"{key}: {number}"
    family.samples[key] = float(number)


def _labels(text: str | None) -> Labels:
    found: list[tuple[str, str]] = []
    position = 0
    while text is not None and position < len(text):
        label = LABEL.match(text, position)
        assert label is not None, text
        unescaped = re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), label[2])
        found.append((label[1], unescaped))
        position = label.end()
    assert text is None or (text and not text.endswith(",")), text
    assert len(dict(found)) == len(found), f"a label stands twice: {text}"
    return frozenset(found)


def _check(name: str, family: Exposed) -> None:
    assert family.kind, f"{name} has no type"
    assert (family.kind == "counter") == name.endswith("_total"), name
    assert not name.endswith(SUFFIXES), name
    _lint(name, family)
    if family.kind == "counter":
        assert all(value >= 0 for value in family.samples.values()), name
    if family.kind == "histogram":
        _check_histogram(name, family)


def _lint(name: str, family: Exposed) -> None:
    """What `promtool check metrics` has to say of names and labels. Source:
    https://prometheus.io/docs/practices/naming/"""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name), f"{name}: colons are for rules, capitals for nobody"
    parts = name.split("_")
    assert not NO_BASE_UNITS & set(parts), f"{name} is not in seconds, bytes or another base unit"
    assert not any(part.startswith(PREFIXES) and part.endswith(UNITS) for part in parts), name
    assert not KINDS_OF_NAMES & set(parts), f"{name} has a kind in its name"
    assert family.help.strip(), f"{name} has no help"
    assert re.fullmatch(r"(?:[^\\]|\\[\\n])*", family.help), f"{name}: {family.help!r}"
    for label in {label for _, labels in family.samples for label, _ in labels}:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label), f"{name}: {label}"
        assert label not in ("quantile", *OF_TARGETS), f"{name}: {label} belongs to others"
        assert label != "le" or family.kind == "histogram", name


def _check_histogram(name: str, family: Exposed) -> None:
    buckets = [
        (float(dict(labels)["le"]), value)
        for (shown, labels), value in family.samples.items()
        if shown == f"{name}_bucket"
    ]
    assert buckets == sorted(buckets), name
    assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
    assert buckets[-1][0] == float("inf"), name
    assert buckets[-1][1] == family.samples[f"{name}_count", frozenset()], name
    assert family.samples[f"{name}_sum", frozenset()] >= 0, name


def names_in(expression: str) -> set[str]:
    """The metrics of this project that a PromQL expression asks for, buckets and sums by their own names."""
    without_texts = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(?:shoal|process)_\w+", without_texts))


def family_of(name: str) -> str:
    """`x_bucket`, `x_sum` and `x_count` belong to `x`."""
    return re.sub(r"_(bucket|sum|count)$", "", name)
