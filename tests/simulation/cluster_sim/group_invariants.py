"""What must hold of the consumer groups of every replica, looked at whenever something was committed there.

Law of this file: it reads, it never changes. SameGroups: whoever folded the same entries has the same groups,
byte for byte. GroupsAreSound: each is as operations leave it. OneEntryPerCycle: a leader proposes no entry of
its groups while the last one is not on its own disk. CountedOnce: all agents in all their lives count no more
messages acked, dead or skipped, and letters stored, than the groups have at the end.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shoal.agent.delivery.entry_note import GroupTotals
from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.group_leader import GroupLeader
from shoal.agent.metrics.measures import GroupMeasures
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import GroupKey
from shoal.format.batch import Kind

if TYPE_CHECKING:
    from cluster_sim.invariants import Invariants
    from cluster_sim.loop import SimLoop

KEPT_MAX = 500
"""States of a partition by index: replicas that are further behind are compared when they have caught up."""


class GroupInvariants:
    """See the head of this file."""

    def __init__(self, invariants: Invariants, loop: SimLoop) -> None:
        self._invariants = invariants
        self._loop = loop
        self._states: dict[tuple[Any, int], dict[tuple[int, int], tuple[str, str]]] = {}
        """By partition and birth: of an entry (index and term), who has which groups behind it."""
        self.led: dict[tuple[bool, int], list[float]] = {}
        """By whether places are due times, and by partition: when agents began to lead a group there. Each
        knows nothing of consumers at first."""
        self.checks = 0
        self.counted = Counter[str]()
        """By all agents in all their lives, of COUNTED."""
        invariants.also.append(self.look)

    def look(self, where: str, replica: Replica, generation: int) -> None:
        """At a replica whose commit index has moved."""
        fold, tail = replica.state.fold, replica.state.tail
        if not isinstance(fold, GroupFold) or not fold.groups:
            return
        self.checks += 1
        try:
            fold.check_invariants()
        except AssertionError as error:
            self._invariants.fail("GroupsAreSound", f"{where}: {error}")
        if tail.last_index != replica.core.commit_index:
            return
        states = self._states.setdefault((replica.group, generation), {})
        state = hashlib.sha256(fold.to_bytes()).hexdigest()[:16]
        known = states.setdefault((tail.last_index, tail.last_term), (where, state))
        if known[1] != state:
            self._invariants.fail(
                "SameGroups", f"{where} and {known[0]} differ at {tail.last_index}: {fold.groups}"
            )
        if len(states) > KEPT_MAX:
            del states[next(iter(states))]

    def check_counts(self, replicas: Iterable[Replica]) -> None:
        """Once every replica has everything. An agent that was killed had perhaps not counted its last."""
        at_end: dict[tuple[Any, GroupKey], GroupTotals] = {}
        for replica in replicas:
            if isinstance(replica.state.fold, GroupFold):
                for key, group in replica.state.fold.groups.items():
                    at_end[replica.group, key] = GroupTotals.of(group)
        for name in GroupTotals._fields:
            there = sum(getattr(totals, name) for totals in at_end.values())
            if self.counted[name] > there:
                said = f"agents counted {self.counted[name]} messages {name}, and groups have {there}"
                self._invariants.fail("CountedOnce", said)

    def listeners(self) -> list[tuple[Any, str, Any]]:
        """Replacements that tell of entries."""
        propose, invariants = Replica.propose_next, self._invariants
        last: dict[Replica, tuple[int, int]] = {}

        def observed(self: Replica, kind: Kind, *arguments: Any, **named: Any) -> Any:
            before = last.get(self, (0, 0))
            synced = self.core.stable_index
            proposed = propose(self, kind, *arguments, **named)
            if kind == Kind.GROUP_STATE:
                if before[0] == self.core.term and before[1] > synced:
                    said = f"{self.group}: entry {before[1]} is not synced, only {synced}"
                    invariants.fail("OneEntryPerCycle", said)
                last[self] = self.core.term, self.core.last_index
            return proposed

        turn = GroupKeeper.turn_begins

        def turned(self: GroupKeeper, now_ms: int) -> None:
            turn(self, now_ms)
            for key, leader in self._led.leaders.items():
                try:
                    leader.check_invariants(now_ms)
                except AssertionError as error:
                    said = f"{self._replica.group} {key.hex()[:8]}: {error}"
                    invariants.fail("LeaderIsSound", said)

        begin, loop, led = GroupLeader.begin, self._loop, self.led

        def begun(self: GroupLeader, now_ms: int) -> Iterator[None]:
            times = led.setdefault((self._group.by_due, self._partition), [])
            times.append(loop.time())
            yield from begin(self, now_ms)
            times.append(loop.time())

        add, counted = GroupMeasures.add, self.counted

        def added(self: GroupMeasures, numbers: Mapping[str, int]) -> None:
            add(self, numbers)
            counted.update(numbers)

        return [
            (GroupMeasures, "add", added),
            (Replica, "propose_next", observed),
            (GroupKeeper, "turn_begins", turned),
            (GroupLeader, "begin", begun),
        ]
