"""Log lines about the cluster: the changes that become lines, and how often.

Law of this file: pure. Members and partitions come in by their names, lines come out. Lines of one event are
at least INTERVAL_MS apart, however many members or partitions change: a line names a few and counts the rest.
A change that is undone before it was told is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

INTERVAL_MS = 1_000
NAMED_MAX = 4
LEADERLESS_MS = 5_000
"""Longer than a few elections one after the other."""
SUSPICION_INTERVAL_MS = 60_000
"""Of one member: on a busy machine each is suspected often."""

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "member-joined": ("info", "agent joined: {}"),
    "member-suspected": ("info", "agent does not answer and may have failed: {}"),
    "member-answers": ("info", "agent answers again: {}"),
    "member-failed": ("warning", "agent failed: {}; restart it with the same --data"),
    "member-back": ("info", "agent is back: {}"),
    "member-left": ("info", "agent left: {}"),
    "leadership-gained": ("info", "leadership gained: {}"),
    "leadership-lost": ("info", "leadership lost: {}"),
    "partition-leaderless": ("warning", "no leader for 5 s: {}; `shoal status` says which agents are needed"),
    "partition-led": ("info", "led again: {}"),
    "partition-under-replicated": ("warning", "under-replicated: {}"),
    "partition-whole": ("info", "fully replicated again: {}"),
}
"""Level and text of each event, in the order in which they are logged."""
BESIDE: Final[Mapping[str, str]] = {"leadership-lost": "led by", "partition-under-replicated": "missing"}
_OPPOSITES = (
    ("member-suspected", "member-answers"),
    ("leadership-gained", "leadership-lost"),
    ("partition-leaderless", "partition-led"),
    ("partition-under-replicated", "partition-whole"),
)
_OPPOSITE: Final = dict(_OPPOSITES) | {second: first for first, second in _OPPOSITES}


class Line(NamedTuple):
    """`event`, `names` (the first NAMED_MAX), `total` and `term` are for programs. term: of the leader, where
    the line is about one partition's."""

    level: str
    event: str
    text: str
    names: tuple[str, ...]
    total: int
    term: int | None = None


class PartitionView(NamedTuple):
    """A partition as this agent sees it. is_mine: this agent leads it. missing: agents that are gone and have
    a replica of it. is_concern: this agent tells when there is no leader. term: the newest that was heard
    of."""

    leader: str | None
    is_mine: bool
    missing: tuple[str, ...]
    is_concern: bool
    term: int


class _Beside(NamedTuple):
    """The text about one member or partition."""

    names: tuple[str, ...]
    term: int | None


class ClusterNews:
    """One per agent; to be asked for lines() at deadline_ms() at the latest."""

    def __init__(self) -> None:
        self._untold: dict[str, dict[str, _Beside]] = {event: {} for event in TEXTS}
        """By event: names, with what to say beside each."""
        self._told_ms: dict[str, int] = {}
        self._statuses: dict[str, str] = {}
        self._suspected_ms: dict[str, int] = {}
        self._told_suspected: set[str] = set()
        self._mine: set[str] = set()
        self._missing: dict[str, tuple[str, ...]] = {}
        self._leaderless_ms: dict[str, int] = {}
        self._told_leaderless: set[str] = set()

    @property
    def leaderless(self) -> int:
        """Partitions of this agent's concern that nobody leads, told or not."""
        return len(self._leaderless_ms)

    @property
    def under_replicated(self) -> int:
        """Partitions that this agent leads, and whose replicas are partly on agents that are gone."""
        return len(self._missing)

    def member(self, agent_id: str, name: str, status: str, now_ms: int) -> None:
        """Its status by gossip now: alive, suspect, leaving, failed or left."""
        before = self._statuses.get(agent_id)
        self._statuses[agent_id] = status
        if status == before:
            return
        was_told_suspected = agent_id in self._told_suspected
        self._told_suspected.discard(agent_id)
        if status in ("failed", "left"):
            self._note(f"member-{status}", name)
        elif status == "suspect":
            if now_ms - self._suspected_ms.get(agent_id, -SUSPICION_INTERVAL_MS) >= SUSPICION_INTERVAL_MS:
                self._suspected_ms[agent_id] = now_ms
                self._told_suspected.add(agent_id)
                self._note("member-suspected", name)
        elif before is None:
            self._note("member-joined", name)
        elif before in ("failed", "left"):
            self._note("member-back", name)
        elif was_told_suspected:
            self._note("member-answers", name)

    def forget_member(self, agent_id: str) -> None:
        """Gossip does not list it any more."""
        self._statuses.pop(agent_id, None)
        self._suspected_ms.pop(agent_id, None)
        self._told_suspected.discard(agent_id)

    def partition(self, where: str, view: PartitionView, now_ms: int) -> None:
        """As it is now; one that is deleted has no leader, and is nobody's concern."""
        if view.is_mine != (where in self._mine):
            (self._mine.add if view.is_mine else self._mine.discard)(where)
            self._note(
                "leadership-gained" if view.is_mine else "leadership-lost",
                where,
                (view.leader,) if view.leader else (),
                view.term,
            )
        missing = view.missing if view.is_mine else ()
        if missing and missing != self._missing.get(where):
            self._missing[where] = missing
            self._note("partition-under-replicated", where, missing)
        elif not missing and self._missing.pop(where, ()) and view.is_mine:
            self._note("partition-whole", where)
        if view.leader is None and view.is_concern:
            self._leaderless_ms.setdefault(where, now_ms)
            return
        self._leaderless_ms.pop(where, None)
        if where in self._told_leaderless:
            self._told_leaderless.discard(where)
            if view.leader is not None:
                self._note("partition-led", where, term=view.term)

    def _note(self, event: str, name: str, beside: tuple[str, ...] = (), term: int | None = None) -> None:
        opposite = self._untold.get(_OPPOSITE.get(event, ""), {})
        if opposite.pop(name, None) is None:
            self._untold[event][name] = _Beside(beside, term)

    def deadline_ms(self) -> int | None:
        """When there will be something to tell; None while nothing waits."""
        times = [self._told_ms.get(event, 0) for event, names in self._untold.items() if names]
        waiting = [
            since for where, since in self._leaderless_ms.items() if where not in self._told_leaderless
        ]
        if waiting:
            times.append(min(waiting) + LEADERLESS_MS)
        return min(times, default=None)

    def lines(self, now_ms: int) -> list[Line]:
        """The lines that are due."""
        for where, since_ms in self._leaderless_ms.items():
            if now_ms - since_ms >= LEADERLESS_MS and where not in self._told_leaderless:
                self._told_leaderless.add(where)
                self._note("partition-leaderless", where)
        due = [
            event for event, names in self._untold.items() if names and now_ms >= self._told_ms.get(event, 0)
        ]
        return [self._line(event, now_ms) for event in due]

    def _line(self, event: str, now_ms: int) -> Line:
        self._told_ms[event] = now_ms + INTERVAL_MS
        untold, self._untold[event] = self._untold[event], {}
        level, text = TEXTS[event]
        named = _listed(list(untold))
        beside = sorted({name for item in untold.values() for name in item.names})
        if beside and event in BESIDE:
            named += f" ({BESIDE[event]}: {_listed(beside)})"
        term = next(iter(untold.values())).term if len(untold) == 1 else None
        return Line(level, event, text.format(named), tuple(untold)[:NAMED_MAX], len(untold), term)


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
