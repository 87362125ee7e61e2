"""The table of producers in a gathered batch: which rows each request brought. Pure.

It is the control payload of a frame with Flag.GATHERED; docs/formats.md has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal.format.batch import BatchError, ProducerStamp

MAX_GATHERED_RANGES: Final = 2**16
"""Requests gathered into one batch: far more than one loop turn brings, and 2.3 MiB at most when decoded."""

_RANGE = struct.Struct("<16sIQII")  # producer id, epoch, sequence, first row, rows
_NO_PRODUCER: Final = bytes(16)


class GatheredRange(NamedTuple):
    """The rows that one request brought to a gathered batch."""

    producer: ProducerStamp
    first_row: int
    rows: int


def encode_producer_table(ranges: Sequence[GatheredRange]) -> bytes:
    """The control payload of a gathered batch: fixed-width entries, ascending by first row."""
    assert len(ranges) <= MAX_GATHERED_RANGES
    return b"".join(_RANGE.pack(*entry.producer[:3], entry.first_row, entry.rows) for entry in ranges)


def decode_producer_table(payload: bytes) -> list[GatheredRange]:
    """The opposite. Raises BatchError: length; invalid when ranges overlap or are out of order."""
    if len(payload) % _RANGE.size or len(payload) > MAX_GATHERED_RANGES * _RANGE.size:
        raise BatchError("length", "a producer table has a wrong length")
    ranges: list[GatheredRange] = []
    next_row = 0
    for producer_id, epoch, sequence, first_row, rows in _RANGE.iter_unpack(payload):
        if first_row < next_row or rows == 0 or producer_id == _NO_PRODUCER:
            raise BatchError("invalid", "a producer table's ranges are empty, overlap or are out of order")
        next_row = first_row + rows
        ranges.append(GatheredRange(ProducerStamp(producer_id, epoch, sequence), first_row, rows))
    return ranges
