"""Writes docs/operations/metrics.md: every metric with its kind, labels and meaning. Run it after a change.

Law of this file: names, kinds, labels and words are read from the code; nothing of the page stands here but
its frame.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

from shoal.agent.metrics.exposition import BOUNDS
from shoal.agent.metrics.families import SECTIONS, Family

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "operations" / "metrics.md"
INTRODUCTION = f"""\
# Metrics

For operators who build dashboards and alerts: every metric that `GET /metrics` exposes.
`scripts/metrics_reference.py` writes this page from the code; a test fails when it is stale. What to alert on
stands in [monitoring](monitoring.md#metrics).

Every agent reports on itself and on the replicas that it holds: scrape all agents. Counters begin at 0 with
the process. Histograms have the buckets {BOUNDS[0]} to {BOUNDS[-1]} seconds, three for each power of ten, and
`+Inf`.
"""
PARTITIONS = """\
These series are exposed by `GET /metrics?partitions=true` alone, one for each replica here: ten thousand
lines for a thousand partitions. The partition of the catalog has the topic `_catalog`.
"""


def table(families: tuple[Family, ...]) -> Iterator[str]:
    """The lines of one section."""
    yield "| metric | kind | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title, families in SECTIONS.items():
        parts.append(f"## {title}\n")
        if any(family.per_partition for family in families):
            parts.append(PARTITIONS)
        parts.append("\n".join(table(families)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stderr.write(f"{PAGE}: written\n")
