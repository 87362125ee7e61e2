"""The memory of requests: what each consumer was given last, so that a repeated receive gets the same again.

Law of this file: pure, and a part of the fold. A Deliver entry adds to it, and cutting that entry takes it
back. A full table forgets the consumer whose delivery is the oldest: that depends on entries alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from shoal.agent.groups.entry import decode_ranges
from shoal.agent.groups.place import OFFSETS_MAX, GroupWireError

MAX_CONSUMERS: Final = 1_024
"""A group and partition. A leader refuses more while the oldest request is younger than REQUEST_MEMORY_US."""
REQUEST_MEMORY_US: Final = 15 * 60 * 1_000_000
"""A receive may be repeated for so long, on the log's append time."""

_REQUEST = struct.Struct("<16s16sqq")  # consumer, request, delivery, time; then its ranges as in an entry

Undo: TypeAlias = Callable[[], object]
"""Takes one change of a group back. Changes are taken back in the reverse order."""


class Remembered(NamedTuple):
    """The answer to a request: the delivery that gave the messages, its entry's append time, and the
    messages, as `decode_ranges` reads them."""

    request: bytes
    delivery: int
    time_us: int
    ranges: bytes


class RequestMemory:
    """Of each consumer the last request that was answered. `size_bytes`: as encoded."""

    __slots__ = ("_kept", "size_bytes")

    def __init__(self) -> None:
        self._kept: dict[bytes, Remembered] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"RequestMemory(consumers={len(self._kept)} bytes={self.size_bytes})"

    def find(self, consumer: bytes, request: bytes) -> Remembered | None:
        """The answer to this request, if it is the consumer's last."""
        kept = self._kept.get(consumer)
        return kept if kept is not None and kept.request == request else None

    def consumers(self) -> dict[int, bytes]:
        """Of each remembered delivery the consumer."""
        return {answer.delivery: consumer for consumer, answer in self._kept.items()}

    def must_wait(self, consumer: bytes, append_us: int) -> bool:
        """Whether this consumer has no room yet: to remember it a young request would be forgotten."""
        if consumer in self._kept or len(self._kept) < MAX_CONSUMERS:
            return False
        return self._kept[self._oldest()].time_us > append_us - REQUEST_MEMORY_US

    def remember(self, consumer: bytes, answer: Remembered) -> Undo:
        """The consumer's last request is this one. In a full table the oldest consumer is forgotten."""
        before = {consumer: self._kept.get(consumer)}
        if before[consumer] is None and len(self._kept) >= MAX_CONSUMERS:
            oldest = self._oldest()
            before[oldest] = self._kept[oldest]
            self._set(oldest, None)
        self._set(consumer, answer)

        def undo() -> None:
            for changed, former in before.items():
                self._set(changed, former)

        return undo

    def _oldest(self) -> bytes:
        return min(self._kept, key=lambda consumer: self._kept[consumer].delivery)

    def _set(self, consumer: bytes, answer: Remembered | None) -> None:
        gone = self._kept.pop(consumer, None)
        if gone is not None:
            self.size_bytes -= _REQUEST.size + len(gone.ranges)
        if answer is not None:
            self._kept[consumer] = answer
            self.size_bytes += _REQUEST.size + len(answer.ranges)

    def to_bytes(self) -> bytes:
        """All, the oldest first."""
        order = sorted(self._kept.items(), key=lambda item: item[1].delivery)
        parts: list[bytes] = []
        for consumer, (request, delivery, time_us, ranges) in order:
            parts += (_REQUEST.pack(consumer, request, delivery, time_us), ranges)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> RequestMemory:
        """The opposite. Raises GroupWireError."""
        memory = cls()
        try:
            position = 0
            last = 0
            while position < len(data):
                consumer, request, delivery, time_us = _REQUEST.unpack_from(data, position)
                begin = position + _REQUEST.size
                _, position = decode_ranges(data, begin)
                if delivery <= last or consumer in memory._kept:
                    raise GroupWireError("requests out of order, or two of one consumer")
                if not 0 <= time_us < OFFSETS_MAX or delivery >= OFFSETS_MAX:
                    raise GroupWireError(f"a request answered by delivery {delivery} at {time_us}")
                last = delivery
                memory._set(consumer, Remembered(request, delivery, time_us, data[begin:position]))
        except struct.error as error:
            raise GroupWireError("requests that end too early") from error
        if len(memory) > MAX_CONSUMERS:
            raise GroupWireError(f"requests of {len(memory)} consumers")
        return memory

    def check_invariants(self) -> None:
        """As many as may be, and the size is right."""
        assert len(self._kept) <= MAX_CONSUMERS, self
        assert self.size_bytes == len(self.to_bytes()), self
