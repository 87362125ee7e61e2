"""What clients saw of an upgrade, and how long each producer had to wait.

Law of this file: pure. Lines of library_clients.py become the operations of log_history.py, whose checker
gives the verdict about records; pauses are counted here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from log_history import Append, FinalLog, History, Poll

TROUBLE = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|\"level\": ?\"(error|critical)\"")
"""In an agent's log. No change of a version is a reason for one."""
TROUBLE_MAX = 3
"""Lines of one log that are named."""


class Pause(NamedTuple):
    """What a producer waited for an acknowledgement, with all repetitions. The time that its own process had
    no processor between two appends is not part of it."""

    seconds: float
    producer: str
    began_s: float


class Change(NamedTuple):
    """One agent taken from one version to another. Times in seconds of the clients' clock."""

    agent: str
    version: str
    began_s: float
    ended_s: float
    stop_seconds: float


@dataclass
class Notes:
    """What library_clients.py wrote."""

    history: History
    topic: str
    library: str | None = None
    """The file that it imported `shoal` from."""
    errors: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """One whole line. Raises ValueError for one that is none of these."""
        kind, *values = json.loads(line)
        match kind, values:
            case "library", [str(file)]:
                self.library = file
            case "error", [str(text)]:
                self.errors.append(text)
            case "append", [name, sequence, partition, items, began, ended, base]:
                place = (self.topic, int(partition))
                self.history.appends.append(
                    Append(name, sequence, place, tuple(items), began, ended, "ok", base)
                )
            case "poll", [name, nearest, partition, position, items, after, began, ended]:
                records = tuple((int(offset), str(value)) for offset, value in items)
                place = (self.topic, int(partition))
                self.history.polls.append(
                    Poll(name, place, position, records, after, began, not nearest, completed_at=ended)
                )
            case _:
                raise ValueError(f"a line of another kind: {line[:80]}")


def pauses(appends: Iterable[Append]) -> list[Pause]:
    """Of every append that was acknowledged."""
    return [
        Pause(item.completed_at - item.invoked_at, item.producer, item.invoked_at)
        for item in appends
        if item.outcome == "ok"
    ]


def longest(found: Sequence[Pause], began_s: float = 0.0, ended_s: float = float("inf")) -> Pause | None:
    """The longest that lies in this time, even in part."""
    inside = [item for item in found if item.began_s < ended_s and item.began_s + item.seconds > began_s]
    return max(inside, default=None)


def silent(appends: Iterable[Append], producers: Iterable[str], since_s: float) -> list[str]:
    """Those of the producers that have had no append acknowledged that began since then."""
    heard = {item.producer for item in appends if item.outcome == "ok" and item.invoked_at > since_s}
    return sorted(set(producers) - heard)


def trouble_in(log: str) -> list[str]:
    """The lines of an agent's log that say that something is broken."""
    return [line for line in log.splitlines() if TROUBLE.search(line)][:TROUBLE_MAX]


def copied_wrongly(source: Sequence[FinalLog], target: Sequence[FinalLog]) -> list[str]:
    """What a stream lost, doubled or made up: each value of the source stands once in the target."""
    wanted = {value for log in source for _, value in log.records}
    times: dict[str, int] = defaultdict(int)
    for log in target:
        for _, value in log.records:
            times[value] += 1
    kinds = {
        "missing": sorted(wanted - times.keys()),
        "twice": sorted(value for value, count in times.items() if count > 1),
        "from nowhere": sorted(times.keys() - wanted),
    }
    return [
        f"the stream's copy has {len(values)} records {kind}: {', '.join(values[:3])}"
        for kind, values in kinds.items()
        if values
    ]


def summary(changes: Sequence[Change], found: Sequence[Pause]) -> list[str]:
    """A line for people for each change."""
    lines = []
    for change in changes:
        pause = longest(found, change.began_s, change.ended_s)
        waited = "nobody waited" if pause is None else f"{pause.producer} waited {pause.seconds:.2f} s"
        times = f"{change.ended_s - change.began_s:.1f} s, stopped in {change.stop_seconds:.1f} s"
        lines.append(f"{change.agent} -> {change.version}: {times}; {waited}")
    return lines
