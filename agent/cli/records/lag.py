"""How far a reader is behind the end of each partition: a status line while it reads, lines at the end.

Law of this file: it counts what it is shown, and writes to stderr only. Lag is the high watermark less the
next offset to read; watermarks are those that came with the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.agent.cli.terminal.output import say
from shoal.agent.cli.terminal.progress import Progress

if TYPE_CHECKING:
    from shoal.client.async_client import Fetched

# In the status line: those furthest behind; the rest is in the sum.
SHOWN_PARTITIONS = 4


class LagMeter:
    """`shown` None: a status line on a terminal, nothing elsewhere; True: lines, and a summary; False:
    nothing.

    On a terminal that shows the records themselves (`beside_records`) it is silent unless it was asked for.
    """

    def __init__(self, shown: bool | None, *, beside_records: bool) -> None:
        self._summarises = shown is True
        self._progress = Progress(None, shown=False if shown is None and beside_records else shown)
        self._next: dict[int, int] = {}
        self._end: dict[int, int] = {}
        self._records = 0

    @property
    def summarises(self) -> bool:
        """Whether there will be a line for each partition: then all are to be named by `begins`."""
        return self._summarises

    def begins(self, partition: int, offset: int, end: int) -> None:
        """This partition is read from there; so far it ends there."""
        self._next[partition], self._end[partition] = offset, end

    def saw(self, found: Fetched) -> None:
        """These records have been written."""
        rows = found.batch.num_rows
        self._records += rows
        self._next[found.partition] = found.base_offset + rows
        self._end[found.partition] = found.high_watermark
        self._progress.update(self._records, 0, self.text())

    def text(self) -> str:
        """`lag 12 (3: 10, 0: 2)`: the sum, and who is furthest behind."""
        lags = {partition: max(0, end - self._next[partition]) for partition, end in self._end.items()}
        worst = sorted((partition for partition in lags if lags[partition]), key=lambda p: (-lags[p], p))
        named = ", ".join(f"{partition}: {lags[partition]:,}" for partition in worst[:SHOWN_PARTITIONS])
        more = ", ..." if len(worst) > SHOWN_PARTITIONS else ""
        return f"lag {sum(lags.values()):,}" + (f" ({named}{more})" if named else "")

    def clear(self) -> None:
        """Take the status line away."""
        self._progress.close()

    def summary(self) -> None:
        """If asked for, a line for each partition, with the end as it was when it was last heard of."""
        if not self._summarises:
            return
        for partition, position in sorted(self._next.items()):
            end = self._end[partition]
            lag = max(0, end - position)
            say(f"partition {partition}: next offset {position:,} of {end:,}, lag {lag:,}")
