"""The values of an append: made once by a front door, and handed on as they are to the replica that leads.

Law of this file: values only. The meaning of a submission for the log stands in agent/partition/appender.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from shoal.format.batch import Message, Offset, ProducerStamp
from shoal.format.records import RecordColumns

Acks: TypeAlias = Literal["all", "leader", "none"]


class Submission(NamedTuple):
    """Records of one request for one partition, and how they are to be stored.

    `records`: columns, gathered with other submissions into one batch, or whole batches. `consecutive` False:
    the producer's sequences need only increase (safety 19). `size_bytes`: about what is stored.
    """

    records: RecordColumns | Sequence[Message]
    size_bytes: int
    timeout_ms: int
    producer: ProducerStamp | None
    consecutive: bool
    acks: Acks

    @classmethod
    def of(
        cls,
        records: RecordColumns | Sequence[Message],
        *,
        timeout_ms: int,
        producer: ProducerStamp | None = None,
        consecutive: bool = True,
        acks: Acks = "all",
    ) -> Submission:
        """Computes the size."""
        if isinstance(records, RecordColumns):
            size_bytes = records.size_bytes
        else:
            size_bytes = sum(len(message.body) for message in records)
        return cls(records, size_bytes, timeout_ms, producer, consecutive, acks)


class Appended(NamedTuple):
    """The place of a submission's records. `duplicate`: they were there before. `base_offset`: -1 where it is
    not known (acks=none)."""

    base_offset: Offset
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of an answer
    duplicate: bool = False


class Answer(Protocol):
    """The part of a future that an append needs: told once, at any time from begin_append on, unless it is
    `done()`. It raises nothing."""

    def done(self) -> bool: ...
    def set_result(self, result: Appended, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
