"""How far a streaming query is behind its topics, by the progress that Spark reports. Pure; needs no PySpark.

The file is not called lag: a module of that name would stand in the place of the function in the package.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Ends: TypeAlias = "dict[tuple[str, int], int]"


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Records of a topic that a query has not read yet: of all partitions together, and the least, most and
    mean of a partition."""

    records: int
    least: int
    most: int
    mean: float


def lag(progress: Any) -> dict[str, TopicLag]:
    """The lag of a query by topic, at the time of its last look at the ends of the logs.

    `progress`: query.lastProgress, or a listener's event.progress; anything without topics has no lag, None
    too. Where several sources of the query read a partition, the one that is furthest behind counts. A
    partition that no micro-batch has begun with counts from its offset 0.
    """
    behind: Ends = {}
    for source in (progress or {}).get("sources") or ():
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for place, end in (latest if ends else {}).items():
            behind[place] = max(0, end - ends.get(place, 0), behind.get(place, 0))
    by_topic: dict[str, list[int]] = {}
    for (topic, _), records in sorted(behind.items()):
        by_topic.setdefault(topic, []).append(records)
    return {
        topic: TopicLag(sum(some), min(some), max(some), sum(some) / len(some))
        for topic, some in by_topic.items()
    }


def _offsets(document: Any) -> Ends:
    """Offsets as {topic: {partition: offset}} of a source that reads topics, or such JSON; of any other, and
    before the first micro-batch, none."""
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError:
            try:  # listeners before 4.2 have Python's words for it, and any the text None
                document = ast.literal_eval(document)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                return {}
    offsets: Ends = {}
    for topic, partitions in document.items() if isinstance(document, Mapping) else ():
        if not isinstance(partitions, Mapping):
            return {}
        for partition, offset in partitions.items():
            if not str(partition).isdecimal() or type(offset) is not int:
                return {}
            offsets[str(topic), int(partition)] = offset
    return offsets
