"""The consumer groups of one replica as people, operators and metrics see them: nothing is changed here.

Law of this file: it reads the fold, the leaders' memory and the log. All of it is true of the log's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

import pyarrow as pa

from shoal.agent.delivery.group_upkeep import first_of
from shoal.agent.delivery.key_feed import KeyFeed
from shoal.agent.delivery.led_groups import LedGroups
from shoal.agent.delivery.log_feed import LogFeed
from shoal.agent.delivery.one_record import read_one
from shoal.agent.delivery.view_feed import ViewFeed
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.group_leader import GroupLeader
from shoal.agent.groups.place import START, MessageSpan, SpanState
from shoal.agent.groups.settings import GroupPlan, GroupPlans
from shoal.agent.partition.reader import damaged
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, GroupKey, GroupNumbers, Range
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.upkeep.timer_records import read_records
from shoal.agent.views.view import ViewNotReady
from shoal.errors import ShoalError
from shoal.format.batch import KEY_COLUMN, Offset
from shoal.segment_store.errors import Damaged, OffsetOutOfRange, StoreError

STOPPED_NAMED: Final = 16
"""Offsets of stopped messages in a group's document; their number says whether there are more."""
KEY_BYTES_SHOWN: Final = 1_024
"""A longer key is shown by its hash and its offset alone."""
STATE_FIELD: Final = MessageSpan._fields.index("state")


class GroupInspection:
    """The answers of a keeper about its groups. `timers`: of a timer topic's view."""

    def __init__(self, replica: Replica, fold: GroupFold, timers: TimerView | None) -> None:
        self._replica = replica
        self._fold = fold
        self._timers = timers
        self._plans: GroupPlans = replica.plan.groups
        self._feed = LogFeed(replica, self._wake) if timers is None else ViewFeed(replica, self._wake, timers)
        self._keys = KeyFeed(replica, self._wake) if not isinstance(self._feed, ViewFeed) else self._feed
        self._led = LedGroups(fold, replica.group.partition, self._feed, self._keys)

    def _wake(self) -> None:
        """There is something to decide: a turn soon."""
        self._replica.agenda.groups_ms = self._replica.host.clock.now_ms()
        self._replica.host.schedule(self._replica)

    def has_begun(self, key: GroupKey) -> bool:
        """Whether the group has begun here, at the log's end."""
        return key in self._fold.groups

    async def due_records(self, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
        """Messages of a timer topic, in the columns of runs: each range's by itself, without those that are
        past their retention. Raises ShoalError not-ready, damaged, internal."""
        assert self._timers is not None
        replica = self._replica
        try:
            return await read_records(self._timers, replica.log, ranges)
        except Damaged as error:
            raise damaged(replica, error) from error
        except (ViewNotReady, OffsetOutOfRange) as error:
            raise ShoalError("not-ready", f"the messages cannot be read now: {error}") from error
        except (StoreError, OSError) as error:
            raise ShoalError("internal", f"the messages cannot be read: {error}") from error

    async def lag_ms(self, key: GroupKey) -> int:
        """The age of the first message that the group is not done with; in a timer topic, since it was due.
        It is 0 where there is none, or nobody can tell now. Raises as `numbers`."""
        self._leader(key)
        place = first_of(self._fold.groups[key])
        if isinstance(self._feed, ViewFeed):
            oldest_us = await self._feed.due_us_from(place)
        else:
            log = self._replica.log
            try:
                oldest_us = log.entry(await log.find_offset(Offset(place.offset))).append_time_us
            except (OffsetOutOfRange, StoreError):
                oldest_us = None
        return 0 if oldest_us is None else max(self._replica.host.clock.now_us() - oldest_us, 0) // 1_000

    def stopped_at(self, key: GroupKey, offset: int) -> DuePlace:
        """The place of the stopped message of that offset; its due time need not be known. Raises as
        `numbers`."""
        self._leader(key)
        for span in self._fold.groups[key].spans.from_place(START):
            if span.state is SpanState.STOPPED and span.first <= offset < span.first + span.count:
                return DuePlace(span.due_us, offset)
        return DuePlace(0, offset)

    def stopped_offsets(self, key: GroupKey) -> list[int]:
        """The offsets of the first STOPPED_NAMED messages that stopped, in due order in a timer topic. Raises
        as `numbers`."""
        self._leader(key)
        spans = self._fold.groups[key].spans
        if not spans.messages[SpanState.STOPPED]:
            return []
        stopped = (
            range(row[1], row[1] + row[2]) for row in spans.rows() if row[STATE_FIELD] == SpanState.STOPPED
        )
        return list(islice(chain.from_iterable(stopped), STOPPED_NAMED))

    def pending(self, key: GroupKey) -> int:
        """Messages of a timer topic that are not due yet: about so many, as `numbers` has the lag; 0 while
        the view is made again. Raises as `numbers`."""
        self._leader(key)
        assert isinstance(self._feed, ViewFeed)
        return self._feed.count_pending(self._replica.append_time_us(self._replica.host.clock.now_ms()))

    async def key_at(self, place: DuePlace) -> bytes | None:
        """The key of a message, as it was given. None: it has none, is longer than KEY_BYTES_SHOWN, or cannot
        be read now."""
        try:
            batch = await read_one(self._replica, self._timers, place)
        except (StoreError, ViewNotReady, OffsetOutOfRange, OSError):
            return None
        key: bytes | None = batch.column(KEY_COLUMN)[0].as_py() if batch.num_rows else None
        return key if key is None or len(key) <= KEY_BYTES_SHOWN else None

    def remembers(self, key: GroupKey, consumer: bytes, request: bytes) -> bool:
        """Whether that request of the consumer was served here. Raises ShoalError not-leader, no-leader."""
        self._replica.require_leader()
        group = self._fold.groups.get(key)
        return group is not None and group.requests.find(consumer, request) is not None

    def numbers(self, key: GroupKey) -> GroupNumbers:
        """The group here, for people. Raises ShoalError not-leader, no-leader, not-ready."""
        now_ms = self._replica.host.clock.now_ms()
        return self._leader(key).describe(now_ms, self._replica.append_time_us(now_ms))

    def letters_of(self, key: GroupKey) -> tuple[int, int]:
        """The last dead letter of the group that came again, and the last that is stored; at the log's end.
        Raises as `numbers`."""
        self._leader(key)
        group = self._fold.groups[key]
        return group.redriven, group.letters_given - len(group.letters)

    def numbers_of_all(self) -> list[tuple[GroupPlan, GroupNumbers]]:
        """The groups that are led here, for metrics."""
        now_ms = self._replica.host.clock.now_ms()
        append_us = self._replica.append_time_us(now_ms)
        plans = self._plans.groups
        led = [(key, leader) for key, leader in self._led.leaders.items() if key in plans]
        return [(plans[key], leader.describe(now_ms, append_us)) for key, leader in led]

    def _leader(self, key: GroupKey) -> GroupLeader:
        self._replica.require_leader()
        leader = self._led.leaders.get(key)
        if leader is None:
            raise ShoalError("not-ready", "the group has not begun at this partition yet")
        return leader
