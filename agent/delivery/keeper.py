"""The consumer groups of one replica: requests become entries, and answers once these are committed.

Law of this file: the way of a request, and when this replica has its next turn for groups. Its outcome is
decided by the group's leader (agent/groups/leader), and kept by the fold. At most one entry is made per
turn, and none while the last own one is not synced: what arrives meanwhile shares the next. In a turn nothing
is awaited between the choice of the entry's index and its proposal, and no segment begins there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shoal.agent.delivery.entry_turn import EntryTurn
from shoal.agent.delivery.group_upkeep import GroupUpkeep, first_of, shown
from shoal.agent.delivery.inspection import GroupInspection
from shoal.agent.delivery.letter_sender import LetterBox, LetterSender
from shoal.agent.delivery.queued import (
    ConsumerRequest,
    GroupRequest,
    OnCommit,
    PlacedOperation,
    PlacedRequest,
    QuestionRequest,
    RequestStage,
    Times,
    WaitingRequest,
)
from shoal.agent.groups.entry import Lost, Skip
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.news import LeaderWatch, News, TellNews
from shoal.agent.groups.place import EntryStamp
from shoal.agent.groups.settings import GroupPlans
from shoal.agent.levels import SEE_LEVEL, AdditionKind, level_of, too_low
from shoal.agent.metrics.measures import GroupMeasures
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.pending import Waiter
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import (
    Act,
    Granted,
    GroupKey,
    Promise,
    Question,
    Wanted,
)
from shoal.agent.submission import Appended
from shoal.agent.views.timer_view import TimerView
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Offset

MAX_QUEUED: Final = 4_096
"""Requests of a partition that are not decided, with those that wait for messages."""
ENTRY_ROOM_BYTES: Final = 4_096
"""An entry may be larger: a segment then passes its size by one entry."""
GROUP_KNOWN_MS: Final = 1_000
"""So long a request waits for a catalog that knows its group."""
AGAIN_MS: Final = 50
"""Before operations without a request are proposed again."""
GROUP_LEVEL: Final = level_of(AdditionKind.ENTRY_KIND, "GROUP_STATE")

logger = logging.getLogger(__name__)


class GroupKeeper(GroupInspection, ReplicaObserver):
    """One per replica whose log has a GroupFold."""

    def __init__(
        self,
        replica: Replica,
        fold: GroupFold,
        reader: Reader,
        letters: LetterBox,
        measures: GroupMeasures,
        tell: TellNews,
        timers: TimerView | None = None,
    ) -> None:
        """`timers`: of a timer topic's view."""
        super().__init__(replica, fold, timers)
        self._reader = reader
        self._measures = measures
        self._tell = tell
        self._watch = LeaderWatch()
        self._letters = LetterSender(replica, fold, letters, self.change, timers)
        self._queue: deque[GroupRequest] = deque()
        self._times = Times()
        self._term = -1
        self._last_entry = LogIndex(0)
        """The last that this keeper has proposed, in this term."""
        self._seen_offset = Offset(0)
        """The log's end at the last turn for groups."""
        self._alert = False
        """Whether something here depends on the next commit."""
        self._upkeep = GroupUpkeep(replica, fold)

    # Requests

    async def receive(
        self, key: GroupKey, wanted: Wanted, acts: Sequence[Act], wait_ms: int, deadline_ms: int
    ) -> Granted:
        """Acts, and then messages, in one entry if possible, answered once that is committed. Without any
        the answer says why (`too-many-consumers` and `consumer-in-use` are errors of the request), at the
        latest after `wait_ms`. Raises ShoalError: not-leader, no-leader, overloaded, not-ready (definite);
        timeout, leadership-lost: the same request brings the same messages."""
        now_ms = self._replica.host.clock.now_ms()
        granted: Granted = await self._ask(
            ConsumerRequest(key, wanted, acts, now_ms, wait_ms, deadline_ms), now_ms
        )
        replica = self._replica
        return granted._replace(log=replica.identity, log_start_offset=replica.log.start_offset)

    async def act(self, key: GroupKey, acts: Sequence[Act], deadline_ms: int) -> tuple[str | None, ...]:
        """Of each act None, or why it was refused. Raises as `receive`."""
        now_ms = self._replica.host.clock.now_ms()
        outcomes: tuple[str | None, ...] = await self._ask(
            ConsumerRequest(key, None, acts, now_ms, 0, deadline_ms), now_ms
        )
        return outcomes

    async def wait(self, key: GroupKey, question: Question, wait_ms: int, deadline_ms: int) -> Promise | None:
        """A promise once there is a message for the consumer, None after `wait_ms`. Raises as `receive`."""
        now_ms = self._replica.host.clock.now_ms()
        promise: Promise | None = await self._ask(
            QuestionRequest(key, question, now_ms, wait_ms, deadline_ms), now_ms
        )
        return promise

    async def change(self, key: GroupKey, operation: PlacedOperation, deadline_ms: int) -> bool:
        """Let an operation happen that no consumer asks for. False: it was void. Raises as `receive`."""
        now_ms = self._replica.host.clock.now_ms()
        happened: bool = await self._ask(PlacedRequest(key, operation, now_ms, deadline_ms), now_ms)
        return happened

    async def begun(self, key: GroupKey, deadline_ms: int) -> None:
        """Return once the group has begun here. Raises as `receive`."""
        now_ms = self._replica.host.clock.now_ms()
        await self._ask(PlacedRequest(key, None, now_ms, deadline_ms), now_ms)

    async def _ask(self, request: GroupRequest, now_ms: int) -> Any:
        self._replica.require_leader()
        if len(self._queue) + len(self._led.parked) >= MAX_QUEUED:
            raise ShoalError("overloaded", f"{MAX_QUEUED} requests of consumers wait at this partition")
        self._queue.append(request)
        self._times.add(request.deadline_ms, request)
        if request.key not in self._plans.groups:
            self._times.add(now_ms + GROUP_KNOWN_MS, request)
        if isinstance(request, WaitingRequest) and request.until_ms < request.deadline_ms:
            self._times.add(request.until_ms, request)
        term = self._replica.core.term
        agenda, syncs = self._replica.agenda, self._replica.core.stable_index < self._last_entry
        if not (syncs and agenda.groups_wait and (agenda.groups_ms or 0) <= now_ms + AGAIN_MS):
            self._wake()  # else the end of the sync under way brings the turn, or the agenda before long
        try:
            answer = await request.answer
        finally:
            if request.stage is not RequestStage.SETTLED:  # the one who asked has gone
                request.stage = RequestStage.SETTLED
                if isinstance(request, WaitingRequest) and request.number:
                    self._led.unpark(request)
        if request.is_unlogged(answer):
            await self._confirm(request, term)
        return answer

    async def _confirm(self, request: GroupRequest, term: int) -> None:
        """Return once a majority says that this replica still led when it decided. A later leader may have
        given the very receipt that is unknown here, and knows nothing of a lease that lasts longer here.
        Raises ShoalError."""
        replica = self._replica
        remaining_ms = max(request.deadline_ms - replica.host.clock.now_ms(), 0)
        try:
            async with asyncio.timeout(remaining_ms / 1_000):
                await self._reader.confirm()
            if replica.core.term != term:
                raise ShoalError("no-leader", "leadership moved while the request was judged")
        except TimeoutError:
            error = ShoalError("timeout", "no majority confirmed in time that this leader may answer it")
            raise request.told(error, definite=not request.lengthened) from None
        except ShoalError as error:  # another leads, or may: it knows nothing of what happened here alone
            raise request.told(error, definite=True) from error

    def present(self, key: GroupKey, consumer: bytes, instance: bytes, name: str = "") -> bool:
        """A consumer is there. False: another process of that name is, or too many are. Raises ShoalError
        not-leader, no-leader, not-ready."""
        there = self._leader(key).present(consumer, instance, self._replica.host.clock.now_ms(), name)
        self._wake()
        return there

    def leave(self, key: GroupKey, consumer: bytes, instance: bytes) -> None:
        """It goes. Raises as `present`."""
        self._leader(key).leave(consumer, instance, self._replica.host.clock.now_ms())
        self._wake()

    def is_assigned(self, key: GroupKey, consumer: bytes) -> bool:
        """Whether this partition of an exclusive group should be the consumer's. Raises as `present`."""
        return self._leader(key).assigned(consumer, self._replica.host.clock.now_ms())

    # Plans

    def set_groups(self, plans: GroupPlans) -> None:
        """The topic's groups are these, as far as this agent's catalog knows. Each begins and ends here by
        entries of its own."""
        before, self._plans = self._plans, plans
        self._replica.plan = replace(self._replica.plan, groups=plans)  # for one that is opened in its place
        now_ms = self._replica.host.clock.now_ms()
        for key, leader in self._led.leaders.items():
            plan, former = plans.groups.get(key), before.groups.get(key)
            if plan is not None and former is not None and plan.settings != former.settings:
                leader.change(plan.settings, now_ms)
        if self._replica.is_leader and (plans.groups or self._fold.groups):
            self._wake()
            self._letters.look()

    def done_before(self) -> Offset | None:
        """All groups are done with the records before it, at the log's end; None without a group. One that
        is known and has not begun may want everything."""
        groups, known = self._fold.groups, self._plans.groups
        if self._fold.by_due or not (groups or known):
            return None  # a view keeps what is due later, wherever the log begins
        if not groups.keys() >= known.keys():
            return Offset(0)
        return Offset(min(first_of(group).offset for group in groups.values()))

    def check(self) -> None:
        """From time to time: messages that retention took are skipped, and letters sent that wait."""
        self._letters.look()
        if self._replica.is_leader and self._upkeep.is_any_trimmed():
            self._wake()

    # Turns

    def committed(self) -> None:
        """Leases begin, and whoever waits for messages may have some. Own entries count now, also where
        another leads since."""
        for note in self._fold.settled_notes():
            self._measures.add(note.counted)
            for key, news in note.news:
                self._tell_of(key, news)
        if not self._alert:
            return
        now_ms = self._replica.host.clock.now_ms()
        self._led.committed(self._replica.state.committed.last_index, now_ms)
        self._letters.look()
        if self._queue or self._led.parked or self._led.begins:
            self._wake()
        else:
            self._plan_next(now_ms)

    def role_changed(self) -> None:
        """Requests that were not decided are refused for certain; leaders are of a term."""
        replica = self._replica
        if replica.is_leader and replica.core.term == self._term:
            return
        self._last_entry = LogIndex(0)
        try:
            replica.require_leader()
        except ShoalError as error:
            for request in [*self._queue, *self._led.clear()]:
                if request.stage is RequestStage.SETTLED:
                    continue
                if isinstance(request, QuestionRequest) and request.stage is RequestStage.PARKED:
                    request.stage = RequestStage.SETTLED
                    if not request.answer.done():
                        request.answer.set_result(None)
                else:
                    request.fail(error, definite=True)
            self._queue.clear()
            self._term, self._alert = -1, False
            self._watch.look({})
            replica.agenda.groups_ms, replica.agenda.groups_wait = None, False
        else:
            self._alert = True
            self._wake()

    def turn_begins(self, now_ms: int) -> None:
        """Make an entry of what is there, once the last one is synced. Those who wait are given what was
        appended in this very turn: the records and their entry share a sync."""
        replica = self._replica
        at_ms = replica.agenda.groups_ms
        is_fed = bool(self._led.parked) and replica.state.tail.end_offset > self._seen_offset
        if at_ms is None or (now_ms < at_ms and not replica.agenda.groups_wait and not is_fed):
            return
        if not replica.is_leader:
            replica.agenda.groups_ms, replica.agenda.groups_wait = None, False
            return
        if replica.core.stable_index >= self._last_entry:
            try:
                goes_on = self._make_entry(now_ms)
            except ShoalError as error:  # nothing was decided: those who wait for it hear why
                logger.debug("%s: no entry of its groups now: %s", replica.group, error)
                for request in self._queue:
                    request.fail(error, definite=True)
                self._queue.clear()
                self._plan_next(now_ms)
                if error.code != "level-too-low":  # that ends with other plans, which come with a turn
                    replica.agenda.groups_ms = now_ms + AGAIN_MS
                return
        else:
            goes_on = True
        self._plan_next(now_ms, goes_on=goes_on)

    def _make_entry(self, now_ms: int) -> bool:
        """Whether something is left that waits for nothing but the next entry."""
        replica, level = self._replica, self._plans.level
        if level < GROUP_LEVEL and self._plans.groups:
            raise ShoalError("level-too-low", too_low("a consumer group", GROUP_LEVEL, level, SEE_LEVEL))
        replica.make_room(ENTRY_ROOM_BYTES, now_ms)
        if replica.core.term != self._term:
            self._forget_leaders()
            self._term = replica.core.term
        tail = replica.state.tail
        self._seen_offset = tail.end_offset
        stamp = EntryStamp(LogIndex(tail.last_index + 1), tail.end_offset, replica.append_time_us(now_ms))
        turn = EntryTurn(self._fold, self._led, stamp, now_ms)
        self._follow_plans(turn, now_ms)
        if replica.state.committed.last_term == replica.core.term and self._led.begin_step(now_ms):
            replica.host.schedule(replica)
        turn.look()
        self._decide(turn, now_ms)
        self._propose(turn, stamp, now_ms)
        led = {key: one.watched() if one.is_ready else None for key, one in self._led.leaders.items()}
        for key, news in self._watch.look(led):
            self._tell_of(key, news)
        return turn.was_full

    def _tell_of(self, key: GroupKey, news: News) -> None:
        """News of a group, unless it has ended meanwhile: then nobody knows its name."""
        plan = self._plans.groups.get(key)
        if plan is not None:
            self._tell(self._replica.group, plan.name, news)

    def _follow_plans(self, turn: EntryTurn, now_ms: int) -> None:
        for key, operation in self._upkeep.due(self._plans):
            if turn.is_full(key):
                break
            happened = turn.stage(key, [operation]) == [True]
            if happened and isinstance(operation, Skip):
                logger.warning(
                    "%s: a group skips %d messages before offset %d, which retention has removed",
                    self._replica.group, operation.messages, operation.offset,
                )  # fmt: skip
            elif happened and isinstance(operation, Lost):
                logger.warning(
                    "%s: a group skips messages that no replica can read any more: %s",
                    self._replica.group, shown(operation.ranges),
                )  # fmt: skip
            if happened and key in self._led.leaders:
                self._led.leaders[key].noted(now_ms)
        self._led.follow(self._plans)

    def _decide(self, turn: EntryTurn, now_ms: int) -> None:
        """Those whose time is up, then the others in their order, then those who wait for messages."""
        late = self._times.over(now_ms)
        for request in late:
            self._time_up(turn, request, now_ms)
        queue, self._queue = self._queue, deque()
        while queue:
            request = queue.popleft()
            if request.stage is not RequestStage.QUEUED:
                continue
            if request.key not in self._plans.groups or not turn.decide(request):
                self._queue.append(request)
        left = turn.answer_questions()
        self._queue.extendleft(reversed(left))
        for request in late:
            if request.stage is RequestStage.PARKED:  # asked in this turn, with no time left to wait
                self._time_up(turn, request, now_ms)
            elif request.stage is RequestStage.QUEUED:
                self._times.add(min(now_ms + AGAIN_MS, max(request.deadline_ms, now_ms + 1)), request)

    def _time_up(self, turn: EntryTurn, request: GroupRequest, now_ms: int) -> None:
        if isinstance(request, WaitingRequest) and request.stage is RequestStage.PARKED:
            if request.until_ms <= now_ms:
                self._led.unpark(request)
                turn.give_up(request)
        elif request.deadline_ms <= now_ms:
            request.fail(ShoalError("timeout", "not begun in time"), definite=True)
        elif request.key not in self._plans.groups and request.since_ms + GROUP_KNOWN_MS <= now_ms:
            error = ShoalError("not-ready", "the catalog of this agent does not know the group yet")
            request.fail(error, definite=True)

    def _propose(self, turn: EntryTurn, stamp: EntryStamp, now_ms: int) -> None:
        """Append what was staged, and let those be answered who are settled."""
        replica, fold = self._replica, self._fold
        if fold.staged_bytes:
            fold.note_staged(turn.note())
            try:
                replica.propose_next(Kind.GROUP_STATE, fold.staged_entry(), stamp.append_time_us, now_ms)
            except ShoalError as error:
                fold.unstage(stamp.index)
                for request in (*turn.logged, *(request for request, _ in turn.settled)):
                    request.fail(error, definite=True)
                self._forget_leaders()
                raise
            self._last_entry = stamp.index
        for request in turn.logged:
            request.proposed = request.entry
        for request, result in turn.settled:
            self._answer(request, result)
        if turn.flawed:
            self._forget_leaders()

    def _answer(self, request: GroupRequest, result: object) -> None:
        if request.entry > self._replica.state.committed.last_index:
            appended = Appended(Offset(-1), 0)
            waiter = Waiter(request.entry, OnCommit(request, result), appended, request.deadline_ms)
            self._replica.waiting.add(waiter)
        elif not request.answer.done():
            request.answer.set_result(result)

    def _forget_leaders(self) -> None:
        """They are made anew from the fold; who stood with them asks again."""
        waiting = [request for request in self._led.clear() if request.stage is RequestStage.PARKED]
        for request in waiting:
            request.stage = RequestStage.QUEUED
        self._queue.extendleft(reversed(waiting))

    def _plan_next(self, now_ms: int, *, goes_on: bool = False) -> None:
        """When this replica has to have a turn for its groups, and whether a sync or a commit brings one."""
        replica, led = self._replica, self._led
        syncs = replica.core.stable_index < self._last_entry
        live = len(self._queue) + len(led.parked)
        nearest = [self._times.nearest_ms(live), now_ms if goes_on else None]
        if led.leaders:
            nearest.append(led.deadline_ms(now_ms, replica.append_time_us(now_ms)))
        at_ms = min((time_ms for time_ms in nearest if time_ms is not None), default=None)
        agenda = replica.agenda
        if led.begins and replica.state.committed.last_term == replica.core.term:
            at_ms = now_ms
        agenda.groups_wait = syncs and (bool(self._queue) or (at_ms is not None and at_ms <= now_ms))
        if at_ms is not None:
            at_ms = max(at_ms, now_ms + (AGAIN_MS if syncs else 1))
        agenda.groups_ms = at_ms
        uncommitted = self._last_entry > replica.state.committed.last_index
        self._alert = bool(self._queue or led.parked or led.begins or uncommitted)

    async def stop(self) -> None:
        """Read nothing more; the replica's end answers whoever waits."""
        await self._feed.stop()
        await self._keys.stop()
        await self._letters.stop()
