"""The tables of `shoal top`: their columns, how rows are ordered, and how a table fits a width.

Law of this file: pure. Rows in, lines of text out. A narrow table has fewer columns; it is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from shoal.agent.cli.terminal.output import size_text
from shoal.agent.cli.top.kinds import TableKind as TableKind
from shoal.agent.cli.top.rows import AgentRow, ClusterRows, PartitionRow, TopicRow

GAP: Final = "  "
NAME_WIDTH_MIN: Final = 8  # a name is not cut to less as long as a column beside it can go
WHOLE_NAME_COLUMNS: Final = 3  # no name is cut for a column beyond these
UNKNOWN: Final = "-"


class TopColumn(NamedTuple):
    """A column. `value`: what it is sorted by; `text`: what is shown. Of a narrow table the columns with the
    largest `rank` go first."""

    title: str
    rank: int
    value: Callable[[Any], Any]
    text: Callable[[Any], str]
    is_number: bool = True


def rate_text(rate: float | None) -> str:
    """`12,345`, `3.5`, or `-`."""
    if rate is None:
        return UNKNOWN
    return f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def _number(title: str, rank: int, value: Callable[[Any], int | None]) -> TopColumn:
    def text(row: Any) -> str:
        number = value(row)
        return UNKNOWN if number is None else f"{number:,}"

    return TopColumn(title, rank, value, text)


def _word(title: str, rank: int, value: Callable[[Any], str | None]) -> TopColumn:
    return TopColumn(title, rank, value, lambda row: value(row) or UNKNOWN, is_number=False)


_RATE: Final = TopColumn("RECORDS/S", 1, lambda row: row.rate, lambda row: rate_text(row.rate))
_LAG: Final = _number("LAG", 3, lambda row: row.lag)
_TOPIC_COLUMNS: Final = (
    _word("TOPIC", 0, lambda row: row.name),
    _RATE,
    TopColumn(
        "BYTES/S",
        5,
        lambda row: row.bytes_rate,
        lambda row: UNKNOWN if row.bytes_rate is None else size_text(row.bytes_rate),
    ),
    _LAG,
    _number("RECORDS", 4, lambda row: row.records),
    TopColumn("SIZE", 6, lambda row: row.size_bytes, lambda row: size_text(row.size_bytes)),
    _number("PARTITIONS", 7, lambda row: row.partitions),
    _word("TROUBLE", 2, lambda row: row.trouble),
)
_AGENT_COLUMNS: Final = (
    _word("AGENT", 0, lambda row: row.name),
    _word("STATUS", 2, lambda row: row.status),
    _RATE,
    _LAG,
    _number("LEADS", 4, lambda row: row.led),
    _number("HOLDS", 5, lambda row: row.held),
    _word("URL", 6, lambda row: row.url),
)
_PARTITION_COLUMNS: Final = (
    TopColumn(
        "PARTITION", 0, lambda row: (row.topic, row.partition), lambda row: str(row.key), is_number=False
    ),
    _RATE,
    _LAG,
    _word("LEADER", 2, lambda row: row.leader or "none"),
    _number("END", 4, lambda row: row.end),
    _number("REPLICAS", 5, lambda row: len(row.holders)),
    _number("TERM", 6, lambda row: row.term),
)
COLUMNS: Final[dict[TableKind, tuple[TopColumn, ...]]] = {
    TableKind.TOPICS: _TOPIC_COLUMNS,
    TableKind.AGENTS: _AGENT_COLUMNS,
    TableKind.PARTITIONS: _PARTITION_COLUMNS,
}
Row = AgentRow | TopicRow | PartitionRow


class Order(NamedTuple):
    """By which column rows are sorted. Numbers come largest first, words from a to z; `flipped`: the other
    way."""

    title: str = "RECORDS/S"
    flipped: bool = False


def column_of(kind: TableKind, title: str) -> TopColumn | None:
    """The column with this title, in any case."""
    return next((column for column in COLUMNS[kind] if column.title == title.upper()), None)


def ordered(kind: TableKind, rows: Sequence[Row], order: Order) -> list[Row]:
    """The rows in this order; those without a value last, equals by their names."""
    column = column_of(kind, order.title) or COLUMNS[kind][0]
    name = COLUMNS[kind][0].value
    found = sorted(rows, key=name)
    known = [row for row in found if column.value(row) is not None]
    unknown = [row for row in found if column.value(row) is None]
    return sorted(known, key=column.value, reverse=column.is_number != order.flipped) + unknown


def rows_in(kind: TableKind, shown: ClusterRows, inside: str | None) -> Sequence[Row]:
    """The rows of a table. `inside`: only the partitions of the topic or agent with this key."""
    if kind is TableKind.TOPICS:
        return shown.topics
    if kind is TableKind.AGENTS:
        return shown.agents
    if inside is None:
        return shown.partitions
    return shown.of_topic(inside) or shown.of_agent(inside)


def table(kind: TableKind, rows: Sequence[Row], width: int, sorted_by: str = "") -> list[str]:
    """The titles, and a line for each row, none wider than `width`. Columns go until the table fits: the name
    and the column that it is sorted by stay longest. Then names are cut."""
    columns = COLUMNS[kind]
    texts = [[column.title, *(column.text(row) for row in rows)] for column in columns]
    widths = [max(map(len, cells)) for cells in texts]
    kept = list(range(len(columns)))
    name_width_min = max(NAME_WIDTH_MIN, len(columns[0].title))

    def beside_name() -> int:
        return sum(len(GAP) + widths[place] for place in kept[1:])

    def importance(place: int) -> int:
        return 0 if columns[place].title == sorted_by else columns[place].rank

    while len(kept) > 1:
        least = widths[0] if len(kept) > WHOLE_NAME_COLUMNS else min(widths[0], name_width_min)
        if least + beside_name() <= width:
            break
        kept.remove(max(kept[1:], key=importance))
    widths[0] = max(1, min(widths[0], width - beside_name()))
    shown = [
        [cell.rjust(widths[place]) for cell in texts[place]]
        if columns[place].is_number
        else [cut(cell, widths[place]).ljust(widths[place]) for cell in texts[place]]
        for place in kept
    ]
    return [GAP.join(cells).rstrip()[:width] for cells in zip(*shown, strict=True)]


def cut(text: str, width: int) -> str:
    """The text, or its beginning and a sign that there is more."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}~"[: max(0, width)]
