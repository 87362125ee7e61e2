"""A message of a consumer group as its consumer sees it, and a batch of them.

Law of this file: it says what its user decided to the subscription that it came from, and decides nothing. A
message may be settled on any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from shoal.client.consume.fetch import Fetched
from shoal.client.consume.record import Record, records_of
from shoal.client.subscribe.ledger import ACK, RELEASE, HeldAnswer, MessagePiece, Word
from shoal.errors import ClientError
from shoal.unpicklable import LiveObject

Teller: TypeAlias = Callable[[HeldAnswer, Sequence[int], Word], None]
"""Hears the user's word about rows of an answer. Raises ClientClosed."""

MAX_REASON_BYTES: Final = 256
"""Of a nack; a longer one is cut."""


def shortened(reason: str) -> str:
    """The reason, as much of it as a group keeps."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def nack_of(delay_seconds: float | None, reason: str) -> Word:
    """Raises ClientError for a delay below zero."""
    if delay_seconds is not None and delay_seconds < 0:
        raise ClientError(f"a delay is 0 seconds or longer, not {delay_seconds}")
    delay_ms = None if delay_seconds is None else round(delay_seconds * 1_000)
    return Word("nack", delay_ms, shortened(reason))


class _InHand(LiveObject):
    """Rows of an answer about which one word is said: `with message:` acks them, or nacks them when its body
    raises."""

    def __init__(self, tell: Teller, answer: HeldAnswer, rows: Sequence[int]) -> None:
        self._tell = tell
        self._answer = answer
        self._rows = rows
        self.settled: str | None = None
        """ack, nack, release or reject; None while nothing was said."""

    @property
    def place(self) -> tuple[HeldAnswer, Sequence[int]]:
        """The rows of an answer that it is."""
        return self._answer, self._rows

    def ack(self) -> None:
        """It is done. The ack leaves soon, with others; `flush` of the subscription waits for it."""
        self._say(ACK)

    def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """It failed, and comes again: after `delay_seconds`, or after the group's growing delay."""
        self._say(nack_of(delay_seconds, reason))

    def release(self) -> None:
        """It was not begun: it comes again at once, here or elsewhere, and that counts as no attempt."""
        self._say(RELEASE)

    def reject(self) -> None:
        """It cannot succeed: to the dead letters, without further attempts."""
        self._say(Word("reject"))

    def extend(self, visibility_seconds: float) -> None:
        """Hold it, and the messages that came with it, so long from now on, and again and again while it is
        in hand. Without this it is held by the group's own visibility."""
        if not visibility_seconds > 0:
            raise ClientError(f"a visibility is longer than 0 seconds, not {visibility_seconds}")
        self._tell(self._answer, self._rows, Word("extend", round(visibility_seconds * 1_000)))

    def _say(self, word: Word) -> None:
        if self.settled is not None:
            raise ClientError(f"{self!r} was settled by {self.settled}() before")
        self.settled = word.kind
        try:
            self._tell(self._answer, self._rows, word)
        except BaseException:
            self.settled = None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self.settled is not None:
            return
        if error is None:
            self.ack()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The body that worked on it raised. An interrupted one (Ctrl-C, a cancelled task) has not failed:
        its message comes again without a delay."""
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        self._say(nack_of(None if isinstance(error, Exception) else 0, reason))


class GroupMessage(_InHand):
    """One message. `timestamp_us`: microseconds since the epoch; `attempt`: 1 when it is delivered for the
    first time; `deliver_at_us`: when it was due, on topics of kind timer."""

    def __init__(
        self,
        tell: Teller,
        answer: HeldAnswer,
        row: int,
        record: Record,
        piece: MessagePiece,
        rows: pa.RecordBatch,
    ) -> None:
        """`rows`: of the whole answer."""
        super().__init__(tell, answer, (row,))
        self._batch = rows
        self.record = record
        self.topic = record.topic
        self.partition = record.partition
        self.offset = record.offset
        self.timestamp_us = record.timestamp_us
        self.key = record.key
        self.value = record.value
        self.headers = record.headers
        self.attempt = piece.attempt
        self.deliver_at_us = piece.due_us or None

    @property
    def fetched(self) -> Fetched:
        """As one row of Arrow, for programs that write records."""
        row = self._batch.slice(self._rows[0], 1)
        return Fetched(self.partition, self.offset, row, self.offset + 1, 0)

    def json(self) -> Any:
        """The value as JSON; None for one without a value. Raises ValueError for a value that is no JSON."""
        return None if self.value is None else json.loads(self.value)

    def __repr__(self) -> str:
        return f"<GroupMessage {self.topic}/{self.partition} offset {self.offset}, attempt {self.attempt}>"


class MessageBatch(_InHand):
    """All messages of one answer that nobody has begun, as Arrow, settled by one word."""

    def __init__(
        self, tell: Teller, answer: HeldAnswer, rows: Sequence[int], batch: pa.RecordBatch, topic: str
    ) -> None:
        super().__init__(tell, answer, rows)
        self.topic = topic
        self.partition = answer.partition
        self.batch = batch

    @property
    def offsets(self) -> list[int]:
        """Of its rows, in their order. There may be gaps between them."""
        return [self._answer.piece_of(row)[1] for row in self._rows]

    @property
    def attempts(self) -> list[int]:
        """Of its rows, in their order."""
        return [self._answer.piece_of(row)[0].attempt for row in self._rows]

    def __repr__(self) -> str:
        return f"<MessageBatch of {self.topic}/{self.partition}, {self.batch.num_rows} messages>"


def messages_of(topic: str, tell: Teller, answer: HeldAnswer, rows: pa.RecordBatch) -> Iterator[GroupMessage]:
    """The rows of an answer as messages, in their order."""
    first = 0
    for piece in answer.pieces:
        fetched = Fetched(answer.partition, piece.first, rows.slice(first, piece.rows), 0, 0)
        for row, record in enumerate(records_of(topic, fetched), first):
            yield GroupMessage(tell, answer, row, record, piece, rows)
        first += piece.rows
