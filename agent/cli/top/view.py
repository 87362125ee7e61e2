"""The screen of `shoal top`: the table, its order, the chosen row, and what a key does.

Law of this file: pure. Keys and rows in, another view or lines of text out; screen.py draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from shoal.agent.cli.terminal.output import plural
from shoal.agent.cli.top.rows import ClusterRows
from shoal.agent.cli.top.tables import (
    COLUMNS,
    Order,
    Row,
    TableKind,
    cut,
    ordered,
    rate_text,
    rows_in,
    table,
)

KEYS_HELP: Final = "q quit  tab table  enter open  esc back  s sort  r reverse  arrows move"
SHORT_KEYS_HELP: Final = "q quit  tab  s sort"
HELP_HEIGHT_MIN: Final = 8  # on a lower screen rows are worth more


class Key(StrEnum):
    """The wish of the user, by the bytes that a terminal sends."""

    QUIT = "q"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    FIRST = "home"
    LAST = "end"
    OPEN = "enter"
    BACK = "esc"
    NEXT_TABLE = "tab"
    SORT = "s"
    REVERSE = "r"


_BYTES: Final = {
    b"q": Key.QUIT, b"Q": Key.QUIT, b"\x03": Key.QUIT, b"\x04": Key.QUIT,
    b"\x1b[A": Key.UP, b"\x1bOA": Key.UP, b"k": Key.UP,
    b"\x1b[B": Key.DOWN, b"\x1bOB": Key.DOWN, b"j": Key.DOWN,
    b"\x1b[5~": Key.PAGE_UP, b"\x1b[6~": Key.PAGE_DOWN, b" ": Key.PAGE_DOWN,
    b"\x1b[H": Key.FIRST, b"\x1bOH": Key.FIRST, b"\x1b[1~": Key.FIRST,
    b"\x1b[F": Key.LAST, b"\x1bOF": Key.LAST, b"\x1b[4~": Key.LAST,
    b"\r": Key.OPEN, b"\n": Key.OPEN, b"\x1b[C": Key.OPEN, b"\x1bOC": Key.OPEN, b"l": Key.OPEN,
    b"\x1b": Key.BACK, b"\x1b[D": Key.BACK, b"\x1bOD": Key.BACK, b"h": Key.BACK, b"\x7f": Key.BACK,
    b"\t": Key.NEXT_TABLE, b"s": Key.SORT, b"r": Key.REVERSE,
}  # fmt: skip
BY_RATE: Final = Order()
_LONGEST: Final = max(map(len, _BYTES))


def keys_of(data: bytes) -> list[Key]:
    """The keys in what a terminal sent. Bytes without a meaning are passed over, unknown sequences whole."""
    found, place = [], 0
    while place < len(data):
        sizes = range(min(_LONGEST, len(data) - place), 0, -1)
        size = next((size for size in sizes if data[place : place + size] in _BYTES), 1)
        key = _BYTES.get(data[place : place + size])
        if key is Key.BACK and data[place : place + 2] in (b"\x1b[", b"\x1bO"):
            key, size = None, 2  # a key that is not ours: its parameters, and the byte that ends it
            while place + size < len(data) and not 0x40 <= data[place + size] <= 0x7E:
                size += 1
            size += 1
        if key is not None:
            found.append(key)
        place += size
    return found


@dataclass(frozen=True, slots=True)
class ListView:
    """A table. `inside`: only the partitions of the topic or agent with this key, which is called `title`.
    `chosen`: the key of the row under the cursor; the first row where there is none of this key."""

    kind: TableKind = TableKind.TOPICS
    inside: str | None = None
    title: str = ""
    order: Order = BY_RATE
    chosen: str = ""


@dataclass(frozen=True, slots=True)
class TopView:
    """The table on the screen, and those below it to which Back returns."""

    shown: ListView = field(default_factory=ListView)
    below: tuple[ListView, ...] = ()

    def rows(self, cluster: ClusterRows) -> list[Row]:
        """The rows of the table in their order."""
        shown = self.shown
        return ordered(shown.kind, rows_in(shown.kind, cluster, shown.inside), shown.order)

    def pressed(self, key: Key, cluster: ClusterRows, page: int) -> TopView | None:
        """The view after a key; None to leave. `page`: rows on the screen."""
        match key:
            case Key.QUIT:
                return None
            case Key.BACK:
                return TopView(self.below[-1], self.below[:-1]) if self.below else self
            case Key.NEXT_TABLE:
                kinds = list(TableKind)
                kind = kinds[(kinds.index(self.shown.kind) + 1) % len(kinds)]
                return TopView(ListView(kind))
            case Key.SORT:
                titles = [column.title for column in COLUMNS[self.shown.kind]]
                place = titles.index(self.shown.order.title) + 1
                return self._with(order=Order(titles[place % len(titles)]))
            case Key.REVERSE:
                order = self.shown.order
                return self._with(order=order._replace(flipped=not order.flipped))
            case Key.OPEN:
                return self._opened(cluster)
            case _:
                return self._moved(key, cluster, page)

    def _with(self, **changes: Any) -> TopView:
        return replace(self, shown=replace(self.shown, **changes))

    def _opened(self, cluster: ClusterRows) -> TopView:
        """The partitions of the chosen topic or agent. Nothing lies deeper than a partition."""
        rows = self.rows(cluster)
        if self.shown.kind is TableKind.PARTITIONS or not rows:
            return self
        row = rows[place_of(rows, self.shown.chosen)]
        title = getattr(row, "name", row.key)
        inside = ListView(TableKind.PARTITIONS, row.key, title)
        return TopView(inside, (*self.below, replace(self.shown, chosen=row.key)))

    def _moved(self, key: Key, cluster: ClusterRows, page: int) -> TopView:
        rows = self.rows(cluster)
        if not rows:
            return self
        here, last = place_of(rows, self.shown.chosen), len(rows) - 1
        steps = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page, Key.FIRST: -last}
        there = min(last, max(0, here + steps.get(key, last)))
        return self._with(chosen=rows[there].key)


def place_of(rows: Sequence[Row], chosen: str) -> int:
    """The place of the row with this key; the first one where there is none."""
    return next((place for place, row in enumerate(rows) if row.key == chosen), 0)


class LineStyle(StrEnum):
    """How a line is drawn."""

    PLAIN = ""
    DIM = "dim"
    TITLE = "bold"
    CHOSEN = "reverse"
    TROUBLE = "bold red"


class StyledLine(NamedTuple):
    """A line of the screen."""

    text: str
    style: LineStyle = LineStyle.PLAIN


def summary(cluster: ClusterRows, width: int | None = None) -> str:
    """`cluster fish: 3 of 3 agents alive, 2 topics, 7 partitions, 1,234 records/s`, or what of it fits."""
    name = f"cluster {cluster.cluster}: " if cluster.cluster else ""
    alive = f"{cluster.alive:,} of {plural(len(cluster.agents), 'agent')} alive"
    counts = f"{plural(len(cluster.topics), 'topic')}, {plural(len(cluster.partitions), 'partition')}"
    rate = rate_text(cluster.rate)
    forms = (
        f"{name}{alive}, {counts}, {rate} records/s",
        f"{name}{alive}, {rate} records/s",
        f"{alive}, {rate} records/s",
        f"{cluster.alive}/{len(cluster.agents)} alive {rate}/s",
    )
    return next((form for form in forms if width is None or len(form) <= width), forms[-1])


def screen_lines(
    view: TopView, cluster: ClusterRows, news: Sequence[str], width: int, height: int
) -> list[StyledLine]:
    """The whole screen, in at most `height` lines of at most `width` characters. `news`: what is wrong with
    the answers."""
    shown, rows = view.shown, view.rows(cluster)
    titles, *lines = table(shown.kind, rows, width, shown.order.title)
    head = [StyledLine(summary(cluster, width), LineStyle.TITLE)]
    head += [StyledLine(text, LineStyle.TROUBLE) for text in (*news, cluster.trouble) if text]
    foot = []
    if height >= HELP_HEIGHT_MIN:
        of = f" of {shown.title}" if shown.inside is not None else ""
        flipped = ", reversed" if shown.order.flipped else ""
        head.append(StyledLine(f"{shown.kind}{of} by {shown.order.title.lower()}{flipped}", LineStyle.DIM))
        foot = [StyledLine(KEYS_HELP if len(KEYS_HELP) <= width else SHORT_KEYS_HELP, LineStyle.DIM)]
    head.append(StyledLine(titles, LineStyle.TITLE))
    room = max(1, height - len(head) - len(foot))
    chosen = place_of(rows, shown.chosen)
    first = max(0, min(chosen - room // 2, len(lines) - room))
    body = [
        StyledLine(line.ljust(width), LineStyle.CHOSEN) if place == chosen else StyledLine(line)
        for place, line in enumerate(lines)
    ][first : first + room]
    if not rows:
        body = [StyledLine(f"no {shown.kind}", LineStyle.DIM)]
    return [StyledLine(cut(line.text, width), line.style) for line in (*head, *body, *foot)][:height]


def page_rows(height: int) -> int:
    """How far a page key moves."""
    return max(1, height - 5)
