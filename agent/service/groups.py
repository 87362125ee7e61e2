"""Consumer groups in partitions that this agent leads: receives, acknowledgements, seeks, numbers.

Law of this file: it finds the partition's keeper and passes on to it, as records.py does to the host. It
resolves times to offsets, and names faults so that a client can go on.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.entry import Begin, Decide, Seek
from shoal.agent.host.free_space import MIN_FREE_BYTES
from shoal.agent.host.host import Host
from shoal.agent.interface import Group, Topic
from shoal.agent.receive import (
    NOBODY,
    Act,
    DecideStopped,
    DuePlace,
    Granted,
    GroupNumbers,
    Promise,
    Question,
    Range,
    Wanted,
)
from shoal.agent.service.group_admin import GroupAdmin
from shoal.agent.service.records import RecordService, offset_at_time
from shoal.agent.service.redrive import Redriver
from shoal.errors import ErrorCode, ShoalError
from shoal.format.timestamps import format_time

SEEK_ATTEMPTS_MAX = 8
"""Seeks of one group in one partition at the same time, each of which makes the others begin again."""
DESCRIBE_TIMEOUT_MS = 1_000  # a group that was just made begins within a few round trips
_REFUSED: dict[str, tuple[ErrorCode, str]] = {
    "too-many-consumers": (
        "too-many-consumers",
        "the partition remembers 1,024 consumers of this group for 15 minutes: try later, keep their names",
    ),
    "consumer-in-use": (
        "consumer-in-use",
        "another process with this consumer's name is present: choose another name, or wait for its session",
    ),
}


class GroupService(RecordService, GroupAdmin):
    """See the module. Raises ShoalError as RecordService does, and not-ready while a group begins."""

    def _keeper(self, host: Host, group_id: GroupId, *, writes: bool) -> GroupKeeper:
        return host.keeper(group_id, least_bytes=MIN_FREE_BYTES if writes else 0)

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
        """Acts, then messages, in one commit where possible. ShoalError too-many-consumers, consumer-in-use,
        disk-full; timeout, leadership-lost: the same request brings the same messages."""
        deadline_ms = self._clock.now_ms() + wait_ms + timeout_ms
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            await self._begin_at_time(host, group_id, keeper, topic, group, deadline_ms)
            granted = await keeper.receive(group.key, wanted, acts, wait_ms, deadline_ms)
        refused = _REFUSED.get(granted.refusal)
        if refused is not None:
            raise ShoalError(*refused, definite=not acts)
        return granted

    async def act(
        self, topic: Topic, partition: int, group: Group, acts: Sequence[Act], timeout_ms: int
    ) -> tuple[str | None, ...]:
        """Of each act None, or why it was refused; durable."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            return await keeper.act(group.key, acts, deadline_ms)

    async def await_messages(
        self, topic: Topic, partition: int, group: Group, question: Question, wait_ms: int
    ) -> Promise | None:
        """A promise once there is a message for the consumer; None when the time is up."""
        deadline_ms = self._clock.now_ms() + wait_ms + DESCRIBE_TIMEOUT_MS
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            await self._begin_at_time(host, group_id, keeper, topic, group, deadline_ms)
            return await keeper.wait(group.key, question, wait_ms, deadline_ms)

    async def due_records(
        self, topic: Topic, partition: int, ranges: Sequence[Range]
    ) -> list[pa.RecordBatch]:
        """Messages of a timer topic that were delivered, with their offsets: each range's by itself, without
        those that are past their retention."""
        with self._led_here(topic, partition) as (host, group_id):
            return await self._keeper(host, group_id, writes=False).due_records(ranges)

    async def remembers(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, request: bytes, *, confirmed: bool
    ) -> bool:
        """Whether the request was served before. `confirmed`: by an agent that certainly leads."""
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=False)
            if confirmed:
                await host.offsets(group_id)
            return keeper.remembers(group.key, consumer, request)

    # ---- operating a group -----------------------------------------------------------------------

    async def begin_group(self, topic: Topic, partition: int, group: Group, timeout_ms: int) -> None:
        """Return once the group has begun in the partition."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            await self._begin_at_time(host, group_id, keeper, topic, group, deadline_ms)
            await keeper.begun(group.key, deadline_ms)

    async def _begin_at_time(
        self,
        host: Host,
        group_id: GroupId,
        keeper: GroupKeeper,
        topic: Topic,
        group: Group,
        deadline_ms: int,
    ) -> None:
        """A group that starts at a time begins at the offset of then, which only a search of the log finds.
        Among due times it begins at that time. The keeper begins all others itself."""
        if keeper.has_begun(group.key):
            return
        entry = self._group_entry(topic, group.name)
        start_us = entry.settings.start_us()
        if start_us is None:
            return
        if topic.has_due_times:
            is_later = start_us > self._clock.now_us()  # nothing that falls due before may be passed
            begin = Begin(entry.made, DuePlace(0 if is_later else max(start_us, 0), 0), is_later)
        else:
            offset = await offset_at_time(host.reader(group_id), start_us)
            begin = Begin(entry.made, DuePlace(0, offset))
        await keeper.change(group.key, begin, deadline_ms)

    async def seek_group(
        self, topic: Topic, partition: int, group: Group, place: DuePlace | None, timeout_ms: int
    ) -> dict[str, Any]:
        """The group goes on from `place`, None for the log's end; receipts from before count no more."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            await keeper.begun(group.key, deadline_ms)
            for _ in range(SEEK_ATTEMPTS_MAX):
                generation = keeper.numbers(group.key).generation + 1
                seek = Seek(generation, place or DuePlace(0, 0), place is None)
                if await keeper.change(group.key, seek, deadline_ms):
                    found = keeper.numbers(group.key).position if place is None else place
                    sought = {"partition": partition, "offset": found.offset, "generation": generation}
                    return sought | ({"due": format_time(found.due_us)} if topic.has_due_times else {})
        raise ShoalError("overloaded", f"others seek in group {group.name} at the same time: try again")

    async def decide_stopped(
        self, topic: Topic, partition: int, group: Group, decision: DecideStopped, timeout_ms: int
    ) -> bool:
        """An operator's word on stopped messages; False: none of them was stopped."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=True)
            piece = decision.range
            if topic.has_due_times:
                piece = piece._replace(due_us=keeper.stopped_at(group.key, piece.first).due_us)
            operation = Decide(decision.action, (piece,))
            return await keeper.change(group.key, operation, deadline_ms)

    async def redrive_group(
        self, topic: Topic, partition: int, group: Group, limit: int | None, timeout_ms: int
    ) -> dict[str, Any]:
        """Dead letters of the partition come again to the group, at most `limit` of them."""
        with self._led_here(topic, partition) as (host, group_id):
            read = partial(self._parts().letters.read, group_id, group.name)
            found = await Redriver(host, read, group_id, group.key, timeout_ms).run(limit)
        named = [{"partition": partition, **letter._asdict()} for letter in found.named]
        numbers = {name: getattr(found, name) for name in ("redriven", "copied", "kept")}
        return {"partition": partition, **numbers, "kept_letters": named}

    def present(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes, name: str
    ) -> bool:
        """A consumer is there; whether the partition should be its own. ShoalError consumer-in-use."""
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=False)
            if not keeper.present(group.key, consumer, instance, name):
                raise ShoalError(*_REFUSED["consumer-in-use"])
            return keeper.is_assigned(group.key, consumer)

    def leave_group(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes
    ) -> None:
        """A consumer goes: as if its session had ended."""
        with self._led_here(topic, partition) as (host, group_id):
            self._keeper(host, group_id, writes=False).leave(group.key, consumer, instance)

    async def group_numbers(self, topic: Topic, partition: int, group: Group) -> dict[str, Any]:
        """One partition in the document of a group."""
        deadline_ms = self._clock.now_ms() + DESCRIBE_TIMEOUT_MS
        with self._led_here(topic, partition) as (host, group_id):
            keeper = self._keeper(host, group_id, writes=False)
            if not keeper.has_begun(group.key):
                await self._begin_at_time(host, group_id, keeper, topic, group, deadline_ms)
                await keeper.begun(group.key, deadline_ms)
            numbers = keeper.numbers(group.key)
            more: dict[str, Any] = {"stopped_offsets": keeper.stopped_offsets(group.key)}
            if topic.has_due_times:
                more["pending"] = keeper.pending(group.key)
                more["high_watermark"] = (await host.offsets(group_id)).high_watermark
                more["due"] = format_time(numbers.position.due_us)
            if numbers.blocked_by is not None:
                place = numbers.blocked_by.place
                more |= {"blocked_offset": place.offset, **key_document(await keeper.key_at(place))}
            return {
                "partition": partition,
                "leader": self.agent_id,
                **partition_document(numbers),
                **more,
                "lag_seconds": await keeper.lag_ms(group.key) / 1_000 if numbers.lag else 0.0,
            }


def key_document(key: bytes | None) -> dict[str, str]:
    """The key that a group waits for, as records have theirs in JSON: text, or base64 of bytes that are
    none."""
    if key is None:
        return {}
    try:
        return {"blocked_key": key.decode()}
    except UnicodeDecodeError:
        return {"blocked_key_base64": b64encode(key).decode()}


def name_of(consumer: bytes) -> str | None:
    """Of a consumer that a new leader has yet to hear by its name: the hash of it; None for one without."""
    return None if consumer == NOBODY else consumer.hex()


def partition_document(numbers: GroupNumbers) -> dict[str, Any]:
    """Numbers of a group in a partition, as JSON has them."""
    names = {consumer.consumer: consumer.name or None for consumer in numbers.consumers}
    owner = names.get(numbers.owner) or name_of(numbers.owner)
    return {
        "generation": numbers.generation,
        "position": numbers.position.offset,
        "next": numbers.next.offset,
        "high_watermark": numbers.end.offset,
        "lag": numbers.lag,
        "in_flight": numbers.in_flight,
        "delayed": numbers.delayed,
        "dying": numbers.dying,
        "stopped": numbers.stopped,
        "dead": numbers.dead,
        "acked": numbers.acked,
        "skipped": numbers.skipped,
        "dropped": numbers.dropped,
        "window": numbers.window or None,
        "blocked_by": f"{numbers.blocked_by.key_hash:016x}" if numbers.blocked_by else None,
        "owner": owner,
        "consumers": [
            {"consumer": item.name or name_of(item.consumer), "holds": item.holds, "seen_ms": item.seen_ms}
            for item in numbers.consumers
        ],
    }
