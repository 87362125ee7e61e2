"""The lag of each partition: a status line while records are read, and a line for each partition at the end.

Law of this file: it counts, and writes to stderr only. Lag is the high watermark less the next offset to
read; watermarks come with the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.agent.cli.terminal.output import say
from shoal.agent.cli.terminal.progress import Progress

if TYPE_CHECKING:
    from shoal.client.consume.fetch import Fetched

SHOWN_PARTITIONS = 4  # in the status line, the furthest behind; the sum counts all


class LagMeter:
    """`shown` None: a status line on a terminal, nothing elsewhere; True: lines, a summary; False: nothing.

    The default shows nothing on a terminal that shows the records themselves (`beside_records`). Where there
    will be a summary (`summarises`), `begins` names all partitions. `with_topic`: partitions of several
    topics are told apart.
    """

    def __init__(self, shown: bool | None, *, beside_records: bool, with_topic: bool = False) -> None:
        self.summarises = shown is True
        self._progress = Progress(None, shown=False if shown is None and beside_records else shown)
        self._with_topic = with_topic
        self._next: dict[tuple[str, int], int] = {}
        self._end: dict[tuple[str, int], int] = {}
        self._records = 0

    def begins(self, partition: int, offset: int, end: int, topic: str = "") -> None:
        """Count a partition that is read from `offset` on, with the high watermark `end`."""
        self._next[topic, partition], self._end[topic, partition] = offset, end

    def saw(self, found: Fetched, topic: str = "") -> None:
        """Count records that have been written."""
        rows = found.batch.num_rows
        self._records += rows
        self._next[topic, found.partition] = found.base_offset + rows
        self._end[topic, found.partition] = found.high_watermark
        self._progress.update(self._records, 0, self.text())

    def text(self) -> str:
        """`lag 12 (3: 10, 0: 2)`: the sum, and the partitions furthest behind."""
        lags = {place: max(0, end - self._next[place]) for place, end in self._end.items()}
        worst = sorted((place for place in lags if lags[place]), key=lambda place: (-lags[place], place))
        named = ", ".join(f"{self._name(place)}: {lags[place]:,}" for place in worst[:SHOWN_PARTITIONS])
        more = ", ..." if len(worst) > SHOWN_PARTITIONS else ""
        return f"lag {sum(lags.values()):,}" + (f" ({named}{more})" if named else "")

    def clear(self) -> None:
        """Remove the status line."""
        self._progress.close()

    def summary(self) -> None:
        """With `summarises`: a line for each partition, with the last end that was heard."""
        if not self.summarises:
            return
        for place, position in sorted(self._next.items()):
            end = self._end[place]
            what = self._name(place) if self._with_topic else f"partition {place[1]}"
            say(f"{what}: next offset {position:,} of {end:,}, lag {max(0, end - position):,}")

    def _name(self, place: tuple[str, int]) -> str:
        return f"{place[0]}/{place[1]}" if self._with_topic else str(place[1])
