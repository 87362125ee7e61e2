"""Dead letters of a partition's groups, on their way into the dead-letter topics.

Law of this file: one letter of a group at a time and in their order, while this replica leads. A group whose
letters nobody takes holds up no other. The entry by which a message died is committed before its letter is
sent. A letter is appended under its ordinal as sequence. So it may be sent again by any leader, however late,
and stands in the topic once. The fold forgets it by an entry of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from shoal.agent.delivery.one_record import read_one
from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.entry import Lettered
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.letters import LOST_HEADER, headers_of, producer_of, sequence_of
from shoal.agent.groups.place import Letter
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.appender import UNSTORABLE
from shoal.agent.partition.pending import Waiter
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, GroupKey
from shoal.agent.submission import Appended
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.view import ViewNotReady
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import Message, Offset, ProducerStamp
from shoal.format.records import RecordColumns, columns_to_message
from shoal.segment_store.errors import Damaged, OffsetOutOfRange, StoreError

LETTERS_AT_ONCE: Final = 64
"""Then the fold forgets them by one entry."""
STORE_TIMEOUT_MS: Final = 10_000
AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 5.0
"""Between two attempts; the dead-letter topic may have no leader for a while."""
REFUSED: Final[frozenset[ErrorCode]] = frozenset(("bad-request", "too-large"))
"""A letter that the topic never takes as it is: it is told of without its record."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class LetterPost(Protocol):
    """The cluster, as a sender of letters has to know it."""

    def topic(self, source: GroupId) -> str:
        """The topic's name. Raises ShoalError while it is not known."""

    async def store(
        self, source: GroupId, group: str, producer: ProducerStamp, message: Message, timeout_ms: int
    ) -> None:
        """Return once the letter is committed in the dead-letter topic of the group, now or long ago. Raises
        ShoalError; it may have been stored all the same."""


class LetterBox:
    """One per agent. `post`: once it is in its cluster; letters wait until then."""

    def __init__(self) -> None:
        self.post: LetterPost | None = None


class _Record(NamedTuple):
    timestamp_us: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


LOST: Final = _Record(None, None, None, [(LOST_HEADER, b"true")])


class LetterSender:
    """One per keeper. `change`: lets an operation happen, until a deadline. Raises
    ShoalError. `timers`: of a timer topic's view."""

    def __init__(
        self,
        replica: Replica,
        fold: GroupFold,
        box: LetterBox,
        change: Callable[[GroupKey, Lettered, int], Awaitable[bool]],
        timers: TimerView | None = None,
    ) -> None:
        self._replica = replica
        self._fold = fold
        self._box = box
        self._change = change
        self._timers = timers
        self._tasks: dict[GroupKey, asyncio.Task[None]] = {}

    def look(self) -> None:
        """There may be letters now, or this replica may lead."""
        post = self._box.post
        if post is None or not self._replica.is_leader:
            return
        for key in self._fold.groups:
            if key not in self._tasks and self._last_of(key) is not None:
                self._tasks[key] = asyncio.create_task(self._run(post, key))

    def _last_of(self, key: GroupKey) -> int | None:
        """The last letter of a group that has some, and whose name is known."""
        group = self._fold.groups.get(key)
        if group is None or not group.letters or key not in self._replica.plan.groups.groups:
            return None
        return group.letters_given if self._replica.is_leader else None

    async def _run(self, post: LetterPost, key: GroupKey) -> None:
        pause_s = AGAIN_MIN_S
        try:
            while (ordinal := self._last_of(key)) is not None:
                try:
                    await self._committed()
                    await self._send(post, key, ordinal)
                    pause_s = AGAIN_MIN_S
                except ShoalError as error:
                    plan = self._replica.plan.groups.groups.get(key)
                    log = seldom.info if error.retriable else seldom.warning  # that one needs an operator
                    name = key.hex() if plan is None else plan.name
                    log("%s: dead letters of group %s wait: %s", self._replica.group, name, error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_MAX_S)
        finally:
            del self._tasks[key]

    async def _committed(self) -> None:
        """Everything that the log has now is committed: no letter of it can be taken back."""
        replica = self._replica
        index = replica.state.tail.last_index
        if index <= replica.state.committed.last_index:
            return
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        deadline_ms = replica.host.clock.now_ms() + STORE_TIMEOUT_MS
        replica.waiting.add(Waiter(index, answer, Appended(Offset(-1), 0), deadline_ms))
        await answer

    async def _send(self, post: LetterPost, key: GroupKey, ordinal: int) -> None:
        """Some of the group's letters, up to that one."""
        sent = 0
        for _ in range(LETTERS_AT_ONCE):
            group = self._fold.groups.get(key)
            plan = self._replica.plan.groups.groups.get(key)
            letter = None if group is None else next((it for it in group.letters if it.ordinal > sent), None)
            if plan is None or letter is None or letter.ordinal > ordinal or not self._replica.is_leader:
                break
            record = await self._record(letter)
            await self._post(post, key, plan.name, letter, record)
            sent = letter.ordinal
        if sent:
            deadline_ms = self._replica.host.clock.now_ms() + STORE_TIMEOUT_MS
            await self._change(key, Lettered(sent), deadline_ms)

    async def _post(self, post: LetterPost, key: GroupKey, name: str, letter: Letter, found: _Record) -> None:
        source = self._replica.group
        producer = ProducerStamp(producer_of(key, source.partition), 0, sequence_of(letter))
        history = headers_of(letter, post.topic(source), source.partition, name)
        try:
            message = _message(letter, found, history)
            await post.store(source, name, producer, message, STORE_TIMEOUT_MS)
        except ShoalError as error:
            if error.code not in REFUSED:
                raise
            logger.error(
                "%s: the dead letter of offset %d cannot be stored as it is, and goes without its record: %s",
                source, letter.offset, error,
            )  # fmt: skip
            await post.store(source, name, producer, _message(letter, LOST, history), STORE_TIMEOUT_MS)

    async def _record(self, letter: Letter) -> _Record:
        """The record that died, or LOST if nobody can read it any more. Raises ShoalError while it cannot be
        read."""
        replica = self._replica
        try:
            batch = await read_one(replica, self._timers, DuePlace(letter.due_us, letter.offset))
        except OffsetOutOfRange:
            return LOST  # trimmed
        except Damaged as error:
            replica.met(error)
            raise ShoalError("damaged", f"the record at offset {letter.offset} is damaged here") from error
        except (StoreError, ViewNotReady, OSError) as error:
            raise ShoalError("internal", f"the record cannot be read: {error}") from error
        if not batch.num_rows:
            return LOST
        (row,) = batch.to_pylist()
        timestamp = batch.column("timestamp").cast(pa.int64())[0].as_py()
        headers = [(item["key"], item["value"]) for item in row["headers"] or () if item is not None]
        return _Record(timestamp, row["key"], row["value"], headers)

    async def stop(self) -> None:
        """Send nothing more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _message(letter: Letter, found: _Record, history: list[tuple[str, bytes]]) -> Message:
    columns = RecordColumns([found.timestamp_us], [found.key], [found.value], [[*found.headers, *history]])
    try:
        return columns_to_message(columns, letter.died_us)
    except UNSTORABLE as error:
        raise ShoalError("bad-request", f"with its history it is no record: {error}") from error
