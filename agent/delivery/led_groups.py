"""The leaders of a partition's groups, while this replica leads: made for a term, and dropped with it.

Law of this file: which leaders there are, and when they have something to do. Their decisions are
asked for, and folded, by entry_turn.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.agent.delivery.queued import WaitingRequest
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.candidates import Feed
from shoal.agent.groups.leader.group_leader import GroupLeader
from shoal.agent.groups.settings import GroupPlans
from shoal.agent.receive import GroupKey, GroupMode


class LedGroups:
    """By their keys. `keyed`: the feed of groups that keep the order of each key."""

    def __init__(self, fold: GroupFold, partition: int, feed: Feed, keyed: Feed) -> None:
        self._fold = fold
        self._partition = partition
        self._feed = feed
        self._keyed = keyed
        self.leaders: dict[GroupKey, GroupLeader] = {}
        self.parked: dict[tuple[GroupKey, int], WaitingRequest] = {}
        """Requests whose questions stand with a leader."""
        self._beginning: dict[GroupKey, Iterator[None] | None] = {}  # None: nothing was looked at yet

    @property
    def begins(self) -> bool:
        """Whether some leader has yet to look at its messages in flight."""
        return bool(self._beginning)

    def follow(self, plans: GroupPlans) -> None:
        """A leader for each group that is known and has begun, and for no other."""
        for key, plan in plans.groups.items():
            group = self._fold.groups.get(key)
            if group is None or key in self.leaders:
                continue
            keyed = plan.settings.mode is GroupMode.KEY_ORDERED
            self.leaders[key] = GroupLeader(
                group,
                plan.settings,
                self._keyed if keyed else self._feed,
                partition=self._partition,
                partitions=plans.partitions,
                fits=self._fold.would_fit,
            )
            self._beginning[key] = None
        for key in [key for key in self.leaders if key not in plans.groups or key not in self._fold.groups]:
            self.drop(key)

    def drop(self, key: GroupKey) -> None:
        """The group is gone, or its leader knows something that did not happen."""
        self.leaders.pop(key, None)
        self._beginning.pop(key, None)

    def begin_step(self, now_ms: int) -> bool:
        """One slice of what new leaders look at; whether more is left. After the first commit of the term:
        leases run from then on, since nobody was answered before by an entry that was not committed yet."""
        for key, steps in list(self._beginning.items()):
            if steps is None:
                steps = self._beginning[key] = self.leaders[key].begin(now_ms)
            for _ in steps:
                return True
            del self._beginning[key]
        return False

    def committed(self, index: int, now_ms: int) -> None:
        """Leases of what was delivered up to there begin."""
        for leader in self.leaders.values():
            leader.committed(index, now_ms)

    def deadline_ms(self, now_ms: int, append_us: int) -> int | None:
        """When some leader has something to do."""
        nearest = [leader.deadline_ms(now_ms, append_us) for leader in self.leaders.values()]
        return min((at_ms for at_ms in nearest if at_ms is not None), default=None)

    def park(self, request: WaitingRequest, number: int) -> None:
        """The request's question stands with its group's leader."""
        request.number = number
        self.parked[request.key, number] = request

    def unpark(self, request: WaitingRequest) -> None:
        """It does not any more."""
        if self.parked.pop((request.key, request.number), None) is not None:
            leader = self.leaders.get(request.key)
            if leader is not None:
                leader.withdraw(request.number)
        request.number = 0

    def clear(self) -> list[WaitingRequest]:
        """No leader is left; the requests that stood with one."""
        waiting = list(self.parked.values())
        for request in waiting:
            request.number = 0
        self.leaders.clear()
        self.parked.clear()
        self._beginning.clear()
        return waiting
