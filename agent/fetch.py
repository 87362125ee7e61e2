"""The values of a read: what a front door asks of a log, and what it gets.

Law of this file: values and shapes only. How a log is read stands in agent/partition/reader.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from shoal.format.batch import Offset

Admit: TypeAlias = Callable[[int], Awaitable[None]]
"""Told how much memory reading will take, before it does; returns once that may be."""


class FetchRequest(NamedTuple):
    """Whole batches from the one that holds `offset`, at most to the one that holds the last of `limit`
    records. `local`: of the replica here, though it may lag. With `admit` a long fetch leaves the batches in
    the log, as pieces."""

    offset: Offset
    max_bytes: int
    wait_ms: int = 0
    local: bool = False
    limit: int | None = None
    admit: Admit | None = None


class Lent(Protocol):
    """Stored bytes that need no copy here; its length is what has not been written yet."""

    def __len__(self) -> int: ...

    def write_to(self, descriptor: int) -> int:
        """Write what it takes at once: how many bytes. BlockingIOError and other OSErrors."""

    def close(self) -> None: ...


class Pieces(Protocol):
    """Stored batches that are read while they are sent; `held_bytes` of memory meanwhile."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

    async def prepare_lending(self) -> None:
        """Call it once before `lend`, where the answer can send what is lent."""

    def lend(self) -> Lent | None:
        """The next piece, if it is known to be good without being read; None where it has to be."""

    def at_once(self) -> bytes | memoryview | None:
        """As `next`, if that takes no waiting and nothing is wrong; None where `next` has to be awaited."""

    async def next(self) -> bytes | memoryview | None:
        """Whole batches, in memory that the next call uses again; None behind the last. Raises ShoalError."""

    async def let_go(self) -> None:
        """Keep no file until the next call."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Whole stored batches, the first containing the wanted offset; control frames (no rows) may lie between.

    `base_offset`: of the first frame. `next_offset`: where to go on. No frames: nothing new in time, unless
    they are still in the log and come out of `pieces`.
    """

    schema: pa.Schema
    frames: Sequence[bytes | memoryview]
    base_offset: Offset
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    pieces: Pieces | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """Ends of one partition. `log_end_offset` counts what is not committed yet."""

    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
