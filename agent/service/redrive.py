"""Dead letters that come again: messages for their own group, at the place where they were.

Law of this file: letters are taken in the order of their ordinals, from the topic that holds them. A message
that the source still has is freed: the group alone sees it again, under its own offset. One that retention
took since is appended anew, once, with its ordinal as sequence. A table does not take it: it would be its
key's newest row. How far a redrive has come stands in the fold: so a repeated one goes on there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.delivery.letter_sender import REFUSED
from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.entry import Free
from shoal.agent.groups.letters import (
    DUE_HEADER,
    HISTORY_HEADERS,
    LETTER_HEADER,
    LOST_HEADER,
    OFFSET_HEADER,
    redrive_producer_of,
)
from shoal.agent.groups.place import joined
from shoal.agent.host.free_space import MIN_FREE_BYTES
from shoal.agent.partition.plan import ViewKind
from shoal.agent.partition.replica import Replica
from shoal.agent.process.clock import Clock
from shoal.agent.receive import GroupKey, Range
from shoal.agent.service.letters import is_there
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, Message, Offset, ProducerStamp
from shoal.format.records import RecordColumns, columns_to_message
from shoal.format.timestamps import parse_time

LETTERS_AT_ONCE: Final = 1_000
"""Freed by one entry."""
KEPT_NAMED: Final = 16
"""Letters that an answer names; `kept` counts all."""
_OFFSETS_MAX: Final = 2**62


class RedriveHost(Protocol):
    """The agent's replicas: that of the partition where the messages died leads."""

    @property
    def clock(self) -> Clock: ...
    def keeper(self, group: GroupId, *, least_bytes: int = 0) -> GroupKeeper: ...
    def replica(self, group: GroupId) -> Replica: ...
    async def append(self, group: GroupId, submission: Submission) -> Appended: ...


ReadLetters = Callable[[Offset], Awaitable[tuple[Offset, list[pa.RecordBatch]]]]
"""Batches of the dead letters' partition from an offset on, and where to go on. Raises ShoalError."""


class KeptLetter(NamedTuple):
    """A letter that cannot come again. `offset`: where its message was. `reason`: `lost`, since it has no
    record. `trimmed`: of a table, whose row of today an old record would replace. Else the topic's error."""

    offset: int
    reason: str


class Redriven(NamedTuple):
    """`redriven`: letters that came again; `copied`: those of them that were appended anew. `kept`: letters
    that were passed over; `named`: the first KEPT_NAMED of these."""

    redriven: int
    copied: int
    kept: int
    named: tuple[KeptLetter, ...]


class StoredLetter(NamedTuple):
    """A letter as it stands in its topic."""

    ordinal: int
    offset: int
    due_us: int
    is_lost: bool
    row: dict[str, Any]


class Redriver:
    """One redrive of one group in one partition."""

    def __init__(
        self, host: RedriveHost, read: ReadLetters, source: GroupId, key: GroupKey, timeout_ms: int
    ) -> None:
        self._host = host
        self._read = read
        self._source = source
        self._key = key
        self._timeout_ms = timeout_ms
        self._taken: list[tuple[StoredLetter, str]] = []  # with the reason why one does not come again
        self._redriven = self._copied = self._kept = 0
        self._named: list[KeptLetter] = []

    async def run(self, limit: int | None) -> Redriven:
        """Let at most `limit` letters come again. Raises ShoalError: some may have come then, and a repeated
        redrive brings the others."""
        offset, left = Offset(0), limit
        last, stored = self._keeper().letters_of(self._key)
        while last < stored and (left is None or left > 0):
            following, batches = await self._read(offset)
            if following <= offset:
                break
            offset = following
            for letter in (letter for batch in batches for letter in letters_in(batch)):
                if not last < letter.ordinal <= stored or left == 0:
                    continue
                last = letter.ordinal
                if await self._take(letter) and left is not None:
                    left -= 1
        await self._flush()
        return Redriven(self._redriven, self._copied, self._kept, tuple(self._named))

    def _keeper(self) -> GroupKeeper:
        return self._host.keeper(self._source, least_bytes=MIN_FREE_BYTES)

    async def _free(self, operation: Free) -> bool:
        deadline_ms = self._host.clock.now_ms() + self._timeout_ms
        return await self._keeper().change(self._key, operation, deadline_ms)

    async def _take(self, letter: StoredLetter) -> bool:
        """Whether the letter comes again."""
        reason = "lost" if letter.is_lost else ""
        if not reason and not await self._is_there(letter):
            if self._host.replica(self._source).plan.view is ViewKind.TABLE:
                reason = "trimmed"
            else:
                await self._flush()
                reason = await self._copy(letter)
                if not reason:
                    return True
        self._taken.append((letter, reason))
        if len(self._taken) >= LETTERS_AT_ONCE:
            await self._flush()
        return not reason

    async def _is_there(self, letter: StoredLetter) -> bool:
        """Whether retention has left the message where it was."""
        if letter.due_us == 0:
            return letter.offset >= self._host.replica(self._source).log.start_offset
        [rows] = await self._keeper().due_records([Range(letter.due_us, letter.offset, 1)])
        return bool(rows.num_rows)

    async def _flush(self) -> None:
        """Free those that were taken, and pass over the others. Void: another redrive has brought them, or
        some of them."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        there = [letter for letter, reason in taken if not reason]
        places = {(letter.due_us, letter.offset) for letter in there}  # a message may have died twice
        ranges = joined(Range(due_us, offset, 1) for due_us, offset in places)
        if await self._free(Free(taken[-1][0].ordinal, ranges)):
            kept = [KeptLetter(letter.offset, reason) for letter, reason in taken if reason]
            self._redriven += len(there)
            self._kept += len(kept)
            self._named = [*self._named, *kept][:KEPT_NAMED]

    async def _copy(self, letter: StoredLetter) -> str:
        """Append the letter's record; empty, or why the topic never takes it."""
        producer = ProducerStamp(redrive_producer_of(self._key, self._source.partition), 0, letter.ordinal)
        try:
            submission = Submission.of(
                [message_of(letter, self._host.replica(self._source).plan.schema)],
                timeout_ms=self._timeout_ms,
                producer=producer,
                consecutive=False,
            )
            await self._host.append(self._source, submission)
        except ShoalError as error:
            if error.code in REFUSED:
                return error.code
            if not is_there(error, letter.ordinal):  # another redrive was here, and is further
                raise
        if await self._free(Free(letter.ordinal, ())):
            self._redriven += 1
            self._copied += 1
        return ""


def letters_in(batch: pa.RecordBatch) -> list[StoredLetter]:
    """The letters among the records: anybody may append others to the topic."""
    found: list[StoredLetter] = []
    for row in batch.to_pylist():
        headers = {item["key"]: item["value"] for item in row["headers"] or () if item is not None}
        try:
            ordinal, offset = int(headers[LETTER_HEADER]), int(headers[OFFSET_HEADER])
            due_us = parse_time(headers[DUE_HEADER].decode()) if headers.get(DUE_HEADER) else 0
        except (KeyError, TypeError, ValueError, ShoalError):
            continue
        if 0 <= offset < _OFFSETS_MAX:
            found.append(StoredLetter(ordinal, offset, due_us, LOST_HEADER in headers, row))
    return found


def message_of(letter: StoredLetter, schema: pa.Schema = DEFAULT_SCHEMA) -> Message:
    """The message as it was, with the time of the letter; due at once."""
    kept = [
        (item["key"], item["value"])
        for item in letter.row["headers"]
        if item is not None and item["key"] not in HISTORY_HEADERS
    ]
    columns = RecordColumns([None], [letter.row["key"]], [letter.row["value"]], [kept or None])
    return columns_to_message(columns, int(letter.row["timestamp"].timestamp() * 1_000_000), schema)
