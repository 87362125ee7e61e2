"""Consumer groups of the in-memory brokers: the real fold and the real leader over a fake log.

Every entry is committed at once. Time is the loop's and `shift_ms`, which a test may move.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steady_loop import now_ms

from shoal.agent.groups.entry import Begin, Decide, GroupOperation, Seek
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.acts import MAX_ACTS
from shoal.agent.groups.leader.group_leader import Decision, GroupLeader
from shoal.agent.groups.place import EntryStamp
from shoal.agent.groups.settings import changed, check_group_name, settings_from_body
from shoal.agent.interface import Group, Json, Topic
from shoal.agent.receive import (
    Act,
    DecideStopped,
    DuePlace,
    Granted,
    GroupKey,
    Promise,
    Question,
    Range,
    Wanted,
)
from shoal.agent.service.group_admin import equal_or_differs, group_of, settings_document
from shoal.agent.service.groups import partition_document
from shoal.agent.topics.groups_catalog import MAX_GROUPS, GroupEntry
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Offset

if TYPE_CHECKING:
    from fake_broker import FakeCluster, FakeLog

LOOK_SECONDS = 0.005
RECORD_BYTES = 100


class LogFeedOf:
    """A Feed over a fake log: every record has RECORD_BYTES, and no key."""

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def end(self, append_us: int) -> DuePlace:
        return DuePlace(0, self._log.end)

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        first = max(after.offset, self._log.start)
        count = min(limit, self._log.end - first)
        return [Range(0, first, count)] if count > 0 else []

    def count(self, after: DuePlace, append_us: int) -> int:
        return max(self._log.end - max(after.offset, self._log.start), 0)

    def rows_within(self, piece: Range, max_bytes: int) -> tuple[int, int]:
        rows = min(piece.count, max_bytes // RECORD_BYTES)
        return rows, rows * RECORD_BYTES

    def keys(self, piece: Range) -> Sequence[int]:
        return [0] * piece.count

    def deadline_us(self, append_us: int) -> int | None:
        return None


class FakeDelivery:
    """The groups of one partition at its leader."""

    def __init__(self, log: FakeLog, partition: int, partitions: int) -> None:
        self.log = log
        self.partition = partition
        self.partitions = partitions
        self.fold = GroupFold()
        self.leaders: dict[GroupKey, GroupLeader] = {}
        self.index = 0
        self.shift_ms = 0
        self.redriven: list[int | None] = []
        """The limits of redrives."""

    def now_ms(self) -> int:
        return now_ms() + self.shift_ms

    def append_us(self) -> int:
        return time.time_ns() // 1_000 + 1_000 * self.shift_ms

    def stage(
        self, key: GroupKey, operations: Sequence[GroupOperation], time_us: int | None = None
    ) -> list[bool]:
        """One entry, committed."""
        if not operations:
            return []
        stamp = EntryStamp(LogIndex(self.index + 1), Offset(self.log.end), time_us or self.append_us())
        happened = self.fold.stage(key, operations, stamp)
        if self.fold.staged_bytes:
            self.fold.fold(stamp, self.fold.staged_entry())  # type: ignore[arg-type]
            self.fold.settle(stamp.index)
            self.index += 1
        return happened

    def leader(self, entry: GroupEntry) -> GroupLeader:
        """It begins with the first question."""
        key = entry.key
        if key not in self.fold.groups:
            place = DuePlace(0, self.log.start)
            self.stage(key, [Begin((0, 1), place, entry.settings.start == "latest")])
        if key not in self.leaders:
            leader = self.leaders[key] = GroupLeader(
                self.fold.groups[key], entry.settings, LogFeedOf(self.log), partition=self.partition,
                partitions=self.partitions, fits=self.fold.would_fit,
            )  # fmt: skip
            for _ in leader.begin(self.now_ms()):
                pass
        return self.leaders[key]

    def look(self, entry: GroupEntry) -> None:
        leader = self.leader(entry)
        self.stage(entry.key, leader.look(self.now_ms(), self.append_us()))

    def act(self, entry: GroupEntry, acts: Sequence[Act]) -> tuple[str | None, ...]:
        leader = self.leader(entry)
        outcomes: list[str | None] = []
        for at in range(0, len(acts), MAX_ACTS):
            acted = leader.act(acts[at : at + MAX_ACTS], self.now_ms(), self.append_us())
            assert all(self.stage(entry.key, acted.operations))
            outcomes += acted.outcomes
        return tuple(outcomes)

    def receive(self, entry: GroupEntry, wanted: Wanted) -> Granted:
        self.look(entry)
        leader, time_us = self.leader(entry), self.append_us()
        found = leader.receive(wanted, self.index + 1, self.now_ms(), time_us)
        group = self.fold.groups[entry.key]
        if not isinstance(found, Decision):
            return Granted((), 0, group.generation, time_us, found.reason, ())
        assert all(self.stage(entry.key, found.operations, time_us))
        leader.committed(self.index, self.now_ms())
        if found.repeated:
            before = group.requests.find(wanted.consumer, wanted.request)
            assert before is not None
            time_us = before.time_us
        refusal = "" if found.delivered else "empty"
        return Granted(
            found.delivered, found.delivery, group.generation, time_us, refusal, (), self.log.identity,
            self.log.start,
        )  # fmt: skip


class FakeGroupBroker:
    """The part of a fake broker that is about groups."""

    cluster: FakeCluster
    agent_id: str
    _check_catalog_leader: Callable[[], None]
    _log: Callable[[Topic, int], FakeLog]
    _raise_injected: Callable[[], None]

    # --- the catalog

    def _entry(self, topic: str, name: str) -> GroupEntry:
        check_group_name(topic, name)
        found = self.cluster.groups.get((topic, name))
        if found is None:
            raise ShoalError("unknown-group", f"topic {topic} has no consumer group {name!r}")
        return found

    def group(self, topic: Topic, name: str) -> Group:
        return group_of(self._entry(topic.name, name))

    async def known_group(self, topic: Topic, name: str, timeout_ms: int) -> Group:
        return self.group(topic, name)

    def groups(self, topic: Topic) -> list[Group]:
        items = sorted(self.cluster.groups.items())
        return [group_of(entry) for (name, _), entry in items if name == topic.name]

    def group_settings(self, topic: Topic, group: Group) -> Json:
        return settings_document(topic.name, self._entry(topic.name, group.name))

    async def create_group(
        self, topic: str, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> tuple[bool, Json]:
        settings = settings_from_body(body)
        if topic.startswith("_") or topic in self.cluster.letters:
            raise ShoalError("no-groups-here", f"{topic} has no consumer groups")
        check_group_name(topic, name)
        self._raise_injected()
        self._check_catalog_leader()
        if topic not in self.cluster.topics:
            raise ShoalError("unknown-topic", f"there is no topic {topic!r}")
        existing = self.cluster.groups.get((topic, name))
        if existing is not None:
            return False, equal_or_differs(topic, existing, body)
        if sum(of == topic for of, _ in self.cluster.groups) >= MAX_GROUPS:
            raise ShoalError("too-many-groups", f"{topic} has {MAX_GROUPS} groups")
        number = self.cluster.groups_made = self.cluster.groups_made + 1
        made = GroupEntry(name, GroupKey(number.to_bytes(16, "big")), bytes([number % 256]) * 32, settings)
        self.cluster.groups[topic, name] = made
        return True, settings_document(topic, made)

    async def change_group(
        self, topic: str, name: str, body: Mapping[str, Any] | None, timeout_ms: int, if_version: str | None
    ) -> Json:
        self._check_catalog_leader()
        entry = self._entry(topic, name)
        settings = changed(entry.settings, body)
        if if_version not in (None, entry.settings.version()):
            raise ShoalError("settings-changed", "read them again")
        after = self.cluster.groups[topic, name] = dataclasses.replace(entry, settings=settings)
        for delivery in self.cluster.deliveries.values():
            if entry.key in delivery.leaders:
                delivery.leaders[entry.key].change(settings, delivery.now_ms())
        return settings_document(topic, after)

    async def delete_group(self, topic: str, name: str, timeout_ms: int) -> None:
        self._check_catalog_leader()
        self._entry(topic, name)
        del self.cluster.groups[topic, name]

    # --- partitions

    def _delivery(self, topic: Topic, partition: int) -> FakeDelivery:
        log = self._log(topic, partition)
        known = self.cluster.deliveries.get((topic.name, partition))
        if known is None:
            known = FakeDelivery(log, partition, len(topic.ranges))
            self.cluster.deliveries[topic.name, partition] = known
        return known

    async def receive(
        self,
        topic: Topic,
        partition: int,
        group: Group,
        wanted: Wanted,
        acts: Sequence[Act],
        wait_ms: int,
        timeout_ms: int,
    ) -> Granted:
        self._raise_injected()
        entry = self._entry(topic.name, group.name)
        outcomes = self._delivery(topic, partition).act(entry, acts)
        end_ms = now_ms() + wait_ms
        while True:
            granted = self._delivery(topic, partition).receive(entry, wanted)
            if granted.refusal in ("too-many-consumers", "consumer-in-use"):
                raise ShoalError(granted.refusal, "at this partition")  # type: ignore[arg-type]
            if granted.delivered or now_ms() >= end_ms:
                return granted._replace(outcomes=outcomes)
            await asyncio.sleep(LOOK_SECONDS)

    async def act(
        self, topic: Topic, partition: int, group: Group, acts: Sequence[Act], timeout_ms: int
    ) -> tuple[str | None, ...]:
        self._raise_injected()
        return self._delivery(topic, partition).act(self._entry(topic.name, group.name), acts)

    async def await_messages(
        self, topic: Topic, partition: int, group: Group, question: Question, wait_ms: int
    ) -> Promise | None:
        self._raise_injected()
        entry = self._entry(topic.name, group.name)
        delivery = self._delivery(topic, partition)
        asked = delivery.leader(entry).ask(question, delivery.now_ms())
        end_ms = now_ms() + wait_ms
        promise: Promise | None = None
        try:
            while True:
                delivery = self._delivery(topic, partition)
                leader = delivery.leader(entry)
                self.cluster.promises.update(
                    {
                        (entry.key, partition, one.number): promise
                        for one, promise in leader.promised(delivery.now_ms(), delivery.append_us())
                    }
                )
                promise = self.cluster.promises.pop((entry.key, partition, asked.number), None)
                if promise is not None or now_ms() >= end_ms:
                    return promise
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if promise is None:
                delivery.leader(entry).withdraw(asked.number)

    async def remembers(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, request: bytes, *, confirmed: bool
    ) -> bool:
        found = self._delivery(topic, partition).fold.groups.get(group.key)
        return found is not None and found.requests.find(consumer, request) is not None

    async def begin_group(self, topic: Topic, partition: int, group: Group, timeout_ms: int) -> None:
        self._delivery(topic, partition).leader(self._entry(topic.name, group.name))

    async def seek_group(
        self, topic: Topic, partition: int, group: Group, place: DuePlace | None, timeout_ms: int
    ) -> Json:
        delivery = self._delivery(topic, partition)
        leader = delivery.leader(self._entry(topic.name, group.name))
        known = delivery.fold.groups[group.key]
        seek = Seek(known.generation + 1, place or DuePlace(0, 0), place is None)
        assert delivery.stage(group.key, [seek]) == [True]
        leader.noted(delivery.now_ms())
        return {"partition": partition, "offset": known.floor.offset, "generation": known.generation}

    async def redrive_group(
        self, topic: Topic, partition: int, group: Group, limit: int | None, timeout_ms: int
    ) -> Json:
        """Two letters wait in each partition, as often as they are asked for."""
        count = 2 if limit is None else min(limit, 2)
        self._delivery(topic, partition).redriven.append(limit)
        return {"partition": partition, "redriven": count, "copied": count // 2}

    async def decide_stopped(
        self, topic: Topic, partition: int, group: Group, decision: DecideStopped, timeout_ms: int
    ) -> bool:
        delivery = self._delivery(topic, partition)
        leader = delivery.leader(self._entry(topic.name, group.name))
        happened = delivery.stage(group.key, [Decide(decision.action, (decision.range,))])
        leader.noted(delivery.now_ms())
        return happened == [True]

    async def group_numbers(self, topic: Topic, partition: int, group: Group) -> Json:
        delivery = self._delivery(topic, partition)
        leader = delivery.leader(self._entry(topic.name, group.name))
        numbers = leader.describe(delivery.now_ms(), delivery.append_us())
        document = partition_document(numbers)
        return {"partition": partition, "leader": self.agent_id, **document, "lag_seconds": 0}

    def present(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes, name: str
    ) -> bool:
        delivery = self._delivery(topic, partition)
        leader = delivery.leader(self._entry(topic.name, group.name))
        if not leader.present(consumer, instance, delivery.now_ms(), name):
            raise ShoalError("consumer-in-use", "another process is")
        return leader.assigned(consumer, delivery.now_ms())

    def leave_group(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes
    ) -> None:
        delivery = self._delivery(topic, partition)
        leader = delivery.leader(self._entry(topic.name, group.name))
        leader.leave(consumer, instance, delivery.now_ms())
