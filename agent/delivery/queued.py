"""Requests of consumers and operators at one partition, from their arrival to their answer.

Law of this file: values, and when each of them has waited long enough. They are moved along by keeper.py:
queued, then perhaps parked (the question stands with a leader), then settled. A settled one may still wait
for the commit of the entry that it rests on: the replica's queue of waiters has it then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, Final

from shoal.agent.groups.entry import Begin, Decide, Free, Lettered, Lost, Seek
from shoal.agent.receive import Act, GroupKey, Question, Wanted
from shoal.agent.submission import Appended
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex

ELSEWHERE: Final = frozenset(("not-leader", "no-leader"))
STALE_TIMES_MAX: Final = 1_024
"""Times of requests that have been answered, beside as many as there are others."""

PlacedOperation = Begin | Seek | Free | Decide | Lost | Lettered
"""Operations that an operator, or the service for one, brings ready made."""


class RequestStage(Enum):
    """How far a request has come."""

    QUEUED = 1
    PARKED = 2
    SETTLED = 3


class GroupRequest:
    """`deadline_ms`: on the monotonic clock. `entry`: the newest entry that the answer rests on, 0 for none.
    `proposed`: the newest that was proposed and holds acts or messages of this request, 0 for none.
    `lengthened`: leases last longer by it, here and in no log."""

    __slots__ = ("answer", "deadline_ms", "entry", "key", "lengthened", "proposed", "since_ms", "stage")

    def __init__(self, key: GroupKey, now_ms: int, deadline_ms: int) -> None:
        self.key = key
        self.since_ms = now_ms
        self.deadline_ms = deadline_ms
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.entry = self.proposed = LogIndex(0)
        self.lengthened = False
        self.stage = RequestStage.QUEUED

    def rest_on(self, index: int) -> None:
        """The answer is true once that entry is committed."""
        self.entry = LogIndex(max(self.entry, index))

    def fail(self, error: ShoalError, *, definite: bool) -> None:
        """Tell the one who asked, unless it has gone."""
        self.stage = RequestStage.SETTLED
        if not self.answer.done():
            self.answer.set_exception(self.told(error, definite=definite))

    def told(self, error: ShoalError, *, definite: bool) -> ShoalError:
        """The error as the one who asked hears it. Acts and messages in an entry may have happened."""
        definite = definite and not self.proposed
        # A client that hears of another leader asks there, as if nothing had happened.
        code = "leadership-lost" if error.code in ELSEWHERE and not definite else error.code
        return ShoalError(code, error.detail, definite=definite, **error.extra)

    def is_unlogged(self, result: object) -> bool:
        """Whether the answer says something for which nothing stands in the log: that an act was not done, or
        that a lease lasts longer. Leases are memory of a leader."""
        return False


class WaitingRequest(GroupRequest):
    """One that asks for messages, and waits for them until `until_ms`. `number`: of its question while that
    stands with a leader, else 0."""

    __slots__ = ("number", "until_ms")

    def __init__(self, key: GroupKey, now_ms: int, wait_ms: int, deadline_ms: int) -> None:
        super().__init__(key, now_ms, deadline_ms)
        self.until_ms = min(now_ms + wait_ms, deadline_ms)
        self.number = 0


class ConsumerRequest(WaitingRequest):
    """Acts, and then perhaps a receive. `outcomes`: of the acts that are done with."""

    __slots__ = ("acts", "outcomes", "refusal", "wanted")

    def __init__(
        self,
        key: GroupKey,
        wanted: Wanted | None,
        acts: Sequence[Act],
        now_ms: int,
        wait_ms: int,
        deadline_ms: int,
    ) -> None:
        super().__init__(key, now_ms, wait_ms, deadline_ms)
        self.wanted = wanted
        self.acts = acts
        self.outcomes: list[str | None] = []
        self.refusal = ""

    def is_unlogged(self, result: object) -> bool:
        """See GroupRequest. That there is no message now is never for certain."""
        return self.lengthened or any(self.outcomes)


class QuestionRequest(WaitingRequest):
    """Somebody wants to know when it may receive."""

    __slots__ = ("question",)

    def __init__(
        self, key: GroupKey, question: Question, now_ms: int, wait_ms: int, deadline_ms: int
    ) -> None:
        super().__init__(key, now_ms, wait_ms, deadline_ms)
        self.question = question


class PlacedRequest(GroupRequest):
    """An operation as it is; None: only that the group has begun."""

    __slots__ = ("operation",)

    def __init__(
        self, key: GroupKey, operation: PlacedOperation | None, now_ms: int, deadline_ms: int
    ) -> None:
        super().__init__(key, now_ms, deadline_ms)
        self.operation = operation

    def is_unlogged(self, result: object) -> bool:
        """See GroupRequest: the operation was void."""
        return result is False


class OnCommit:
    """The Answer of a waiter for an entry: then the request's own answer is told."""

    __slots__ = ("_future", "_result")

    def __init__(self, request: GroupRequest, result: object) -> None:
        self._future = request.answer
        self._result = result

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._future.done()

    def set_result(self, result: Appended, /) -> None:  # an entry without records
        """The entry is committed."""
        self._future.set_result(self._result)

    def set_exception(self, exception: BaseException, /) -> None:
        """It will not be, or nobody knows."""
        self._future.set_exception(exception)


class Times:
    """When requests have waited long enough: a heap, in which answered ones stay for a while."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, GroupRequest]] = []
        self._count = 0

    def add(self, at_ms: int, request: GroupRequest) -> None:
        """Look at the request then."""
        self._count += 1
        heappush(self._heap, (at_ms, self._count, request))

    def over(self, now_ms: int) -> list[GroupRequest]:
        """Those to look at now."""
        found: list[GroupRequest] = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, request = heappop(self._heap)
            if request.stage is not RequestStage.SETTLED:
                found.append(request)
        return found

    def nearest_ms(self, live: int) -> int | None:
        """When there is something to look at next. `live`: how many requests are not settled."""
        heap = self._heap
        if len(heap) > 3 * live + STALE_TIMES_MAX:  # each has at most three times
            self._heap = heap = [item for item in heap if item[2].stage is not RequestStage.SETTLED]
            heapify(heap)
        while heap and heap[0][2].stage is RequestStage.SETTLED:
            heappop(heap)
        return heap[0][0] if heap else None
