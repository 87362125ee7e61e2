"""The way of audit records: from an agent's buffer to the topic `_audit`, which is made when the first one
comes.

Law of this file: it finds who leads the topic, here or on another agent, and tries again until a record is
stored. The content of records is the trail's business (agent/security/audit.py). Each agent is a producer of
its own run. Changes of security have producers that all agents share. There each command has a lane of its
own, by its offset. So the topic's own table of sequences keeps each from being there twice, whoever writes it
and when.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from shoal.agent.durable.ids import GroupId
from shoal.agent.levels import AdditionKind, level_of
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, decode_audit, encode_audit
from shoal.agent.process.clock import Clock, is_set_within
from shoal.agent.security.access import Place
from shoal.agent.security.audit import AUDIT_TOPIC, CHANGES_LEFT_MS, AuditTrail
from shoal.agent.submission import Appended, Submission
from shoal.agent.topics.catalog import Catalog
from shoal.errors import ShoalError
from shoal.format.arrow_stream import SEQUENCES_PER_LANE
from shoal.format.batch import Message, ProducerStamp, message_from_batch, producer_id_from_text
from shoal.format.records import RecordColumns, columns_to_batch

AUDIT_LEVEL: Final = level_of(AdditionKind.LINK_MESSAGE, "AUDIT")
BATCH_RECORDS_MAX: Final = 1_024
"""Of one append, about 400 KiB."""
STORE_TIMEOUT_MS: Final = 10_000
RETRY_S: Final = 1.0
"""Also how often the ends of floods are looked for."""
CHANGES_OF_PRODUCER: Final = 1_024
"""Commands that share a producer, so that the table can forget the oldest ones with theirs."""
_PARTITION: Final = 0

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class AuditHost(Protocol):
    """The agent's replicas, as the audit needs them."""

    async def append(self, group: GroupId, submission: Submission) -> Appended: ...


class AuditPeers(Protocol):
    """The other agents, as the audit needs them."""

    @property
    def agent_id(self) -> str: ...
    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes: ...


class AuditCatalog(Protocol):
    """The catalog here, and who leads it."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def leader(self) -> Callable[[], str | None]: ...


class AuditPost:
    """Of one agent. `trail`: None where it asks for no credentials; it takes the records of others all the
    same. `leader`: the agent that leads a partition; `make_topic`: makes the topic where this agent leads the
    catalog, or raises ShoalError."""

    def __init__(
        self,
        trail: AuditTrail | None,
        host: AuditHost,
        peers: AuditPeers,
        catalog: AuditCatalog,
        leader: Callable[[GroupId], str | None],
        make_topic: Callable[[int], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._trail = trail
        self._host = host
        self._peers = peers
        self._catalog = catalog
        self._leader = leader
        self._make_topic = make_topic
        self._clock = clock
        self._producer = os.urandom(16)
        self._sequence = 0
        self._news = asyncio.Event()
        self._under_way = 0
        self._stored = asyncio.Event()
        if trail is not None:
            trail.on_news = self._news.set

    async def run(self) -> None:
        """Write for the agent's life."""
        trail = self._trail
        if trail is None:
            return
        while True:
            await self._news.wait()
            self._news.clear()
            while trail.has_news:
                await self._write_changes(trail)
                records = trail.take(self._clock.now_us() // 1_000, BATCH_RECORDS_MAX)
                if records:
                    stamp = ProducerStamp(self._producer, 0, self._sequence)
                    self._under_way = len(records)
                    await self._store_at_last(stamp, records)
                    self._under_way = 0
                    self._stored.set()
                    self._sequence += 1
                    trail.written += len(records)
                else:
                    await is_set_within(self._news, RETRY_S)
                    self._news.clear()

    async def flush(self, timeout_s: float) -> None:
        """Before the agent stops: wait until everything is stored that was told, but not for longer."""
        trail = self._trail
        if trail is None:
            return
        trail.end_windows(self._clock.now_us() // 1_000)
        try:
            async with asyncio.timeout(timeout_s):
                while trail.waiting or self._under_way:
                    self._stored.clear()
                    await self._stored.wait()
        except TimeoutError:
            lost = trail.waiting + self._under_way
            logger.warning("%s: stopping without %d records, after %.1f s", AUDIT_TOPIC, lost, timeout_s)

    async def _write_changes(self, trail: AuditTrail) -> None:
        """At once those that the catalog's leader tells of. Any other agent leaves its own to it for a while,
        and then finds them there."""
        while trail.changes:
            change = trail.changes[0]
            leads = self._catalog.leader() == self._peers.agent_id
            if not leads and self._clock.now_ms() - change.told_ms < CHANGES_LEFT_MS:
                return
            await self._store_at_last(change_stamp(change.place), [change.text])
            trail.written += 1
            if trail.changes and trail.changes[0] is change:  # it may have gone for newer ones
                trail.changes.popleft()

    async def _store_at_last(self, stamp: ProducerStamp, records: list[bytes]) -> None:
        """Durable once this returns."""
        count = len(records)
        now_us = self._clock.now_us()
        columns = RecordColumns([now_us] * count, [None] * count, [*records], [None] * count)
        message = message_from_batch(columns_to_batch(columns, now_us))
        while True:
            try:
                await self._store(stamp, message)
            except (ShoalError, PeerUnavailable, PeerRequestFailed) as error:
                seldom.info("%s: cannot be written yet, trying again: %s", AUDIT_TOPIC, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _store(self, stamp: ProducerStamp, message: Message) -> None:
        """Raises ShoalError, PeerUnavailable, PeerRequestFailed."""
        if self._catalog.catalog.level < AUDIT_LEVEL:
            raise ShoalError("not-ready", f"the cluster is below level {AUDIT_LEVEL}")
        target = self._target()
        leader = self._catalog.leader() if target is None else self._leader(target)
        if leader is None:
            raise ShoalError("no-leader", f"{AUDIT_TOPIC} has no leader at present")
        if leader == self._peers.agent_id:
            await self._append(stamp, message)
            return
        payload = encode_audit(stamp, message)
        await self._peers.request(leader, PeerMessage.AUDIT, payload, STORE_TIMEOUT_MS)

    async def on_audit(self, _peer: str, payload: bytes) -> bytes:
        """A peer has records, and takes this agent for the leader. Raises PeerMessageError, ShoalError."""
        await self._append(*decode_audit(payload))
        return b""

    def _target(self) -> GroupId | None:
        entry = self._catalog.catalog.topics.get(AUDIT_TOPIC)
        return None if entry is None else GroupId(entry.topic_id, _PARTITION)

    async def _append(self, stamp: ProducerStamp, message: Message) -> None:
        if self._target() is None:
            await self._make_topic(STORE_TIMEOUT_MS)
        target = self._target()
        if target is None:
            raise ShoalError("no-leader", f"{AUDIT_TOPIC} is just being made")
        submission = Submission.of([message], timeout_ms=STORE_TIMEOUT_MS, producer=stamp, consecutive=False)
        await self._host.append(target, submission)


def change_stamp(place: Place) -> ProducerStamp:
    """The lane of the command at this place. Its producer belongs to one lineage of the catalog."""
    epoch, offset = place
    block, lane = divmod(offset, CHANGES_OF_PRODUCER)
    producer = producer_id_from_text(f"_audit: changes of the catalog {epoch:x}-{block:x}")
    return ProducerStamp(producer, 0, lane * SEQUENCES_PER_LANE, in_lanes=True)
