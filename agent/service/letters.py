"""The way of dead letters: from the partition where a message died to the same partition of their topic.

Law of this file: it finds the topic and who leads the partition, here or on another agent. Letters, their
order, and when one may be forgotten are the sender's business (agent/delivery/letter_sender.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from shoal.agent.delivery.letter_sender import REFUSED
from shoal.agent.durable.ids import GroupId
from shoal.agent.fetch import FetchRequest
from shoal.agent.groups.settings import dead_topic
from shoal.agent.partition.reader import Reader
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import (
    PeerMessage,
    PeerMessageError,
    decode_letter,
    decode_letters,
    decode_letters_wanted,
    encode_letter,
    encode_letters,
    encode_letters_wanted,
)
from shoal.agent.submission import Appended, Submission
from shoal.agent.topics.catalog import Catalog
from shoal.errors import ShoalError
from shoal.format.batch import Message, Offset, ProducerStamp, parse_stamp

STORE_TIMEOUT_MS = 10_000
PAGE_BYTES = 256 * 2**10
"""Of letters that are read at once; a larger batch comes alone."""


class LetterHost(Protocol):
    """The agent's replicas, as letters need them."""

    async def append(self, group: GroupId, submission: Submission) -> Appended: ...
    def reader(self, group: GroupId) -> Reader: ...


class LetterPeers(Protocol):
    """The other agents, as letters need them."""

    @property
    def agent_id(self) -> str: ...
    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes: ...


class DeadLetters:
    """A LetterPost. `catalog`: this agent's; `leader`: the agent that leads a partition, None while nobody is
    known to."""

    def __init__(
        self,
        host: LetterHost,
        peers: LetterPeers,
        catalog: Callable[[], Catalog],
        leader: Callable[[GroupId], str | None],
    ) -> None:
        self._host = host
        self._peers = peers
        self._catalog = catalog
        self._leader = leader

    def topic(self, source: GroupId) -> str:
        """See LetterPost."""
        entry = self._catalog().by_id(source.topic_id)
        if entry is None:
            raise ShoalError("unknown-topic", "the catalog here does not know the topic")
        return entry.name

    async def store(
        self, source: GroupId, group: str, producer: ProducerStamp, message: Message, timeout_ms: int
    ) -> None:
        """See LetterPost."""
        target = self._target(source, group)
        leader = self._leader(target)
        if leader is None:
            raise ShoalError("no-leader", f"{target} has no leader at present")
        if leader == self._peers.agent_id:
            await self._append(target, producer, message, timeout_ms)
            return
        payload = encode_letter(target, producer, message)
        try:
            refusal = await self._peers.request(leader, PeerMessage.LETTERS, payload, timeout_ms)
        except (PeerUnavailable, PeerRequestFailed) as error:
            raise ShoalError("no-leader", f"{target}: {error}", definite=False) from None
        for code in REFUSED:
            if refusal == code.encode():
                raise ShoalError(code, f"{target} takes no such record")

    def _target(self, source: GroupId, group: str) -> GroupId:
        name = dead_topic(self.topic(source), group)
        entry = self._catalog().topics.get(name)
        if entry is None or entry.letters_of != source.topic_id:
            raise ShoalError(
                "unknown-topic",
                f"there is no topic {name} for dead letters: PUT the group {group} again to have it made",
            )
        return GroupId(entry.topic_id, source.partition)

    async def on_letter(self, _peer: str, payload: bytes) -> bytes:
        """A peer has a letter for a partition that is led here: nothing once it is stored, or why it never
        will be. Raises PeerMessageError, ShoalError."""
        target, producer, message = decode_letter(payload)
        self._check_letters(target)
        try:
            await self._append(target, producer, message, STORE_TIMEOUT_MS)
        except ShoalError as error:
            if error.code not in REFUSED:
                raise
            return error.code.encode()
        return b""

    def _check_letters(self, target: GroupId) -> None:
        entry = self._catalog().by_id(target.topic_id)
        if entry is None or entry.letters_of is None:
            raise ShoalError("unknown-topic", f"{target} is no place for dead letters, as this agent knows")

    async def _append(
        self, target: GroupId, producer: ProducerStamp, message: Message, timeout_ms: int
    ) -> None:
        submission = Submission.of([message], timeout_ms=timeout_ms, producer=producer, consecutive=False)
        try:
            await self._host.append(target, submission)
        except ShoalError as error:
            if not is_there(error, producer.sequence):
                raise

    async def read(self, source: GroupId, group: str, offset: Offset) -> tuple[Offset, list[pa.RecordBatch]]:
        """Stored letters of a group's partition, from the offset on, and where to go on. Raises
        ShoalError."""
        target = self._target(source, group)
        leader = self._leader(target)
        if leader is None:
            raise ShoalError("no-leader", f"{target} has no leader at present")
        if leader == self._peers.agent_id:
            return decode_letters(await self._pages(target, offset))
        payload = encode_letters_wanted(target, offset)
        try:
            page = await self._peers.request(leader, PeerMessage.LETTERS_READ, payload, STORE_TIMEOUT_MS)
            return decode_letters(page)
        except (PeerUnavailable, PeerRequestFailed, PeerMessageError) as error:
            raise ShoalError("no-leader", f"{target}: {error}") from None

    async def on_read(self, _peer: str, payload: bytes) -> bytes:
        """A peer reads letters of a partition that is led here. Raises PeerMessageError, ShoalError."""
        target, offset = decode_letters_wanted(payload)
        self._check_letters(target)
        return await self._pages(target, offset)

    async def _pages(self, target: GroupId, offset: Offset) -> bytes:
        reader = self._host.reader(target)
        start = (await reader.offsets()).log_start_offset
        fetch = await reader.read(FetchRequest(max(offset, start), max_bytes=PAGE_BYTES))
        frames = [frame for frame in fetch.frames if parse_stamp(frame, 0)[0].record_count]
        return encode_letters(fetch.next_offset, frames)


def is_there(error: ShoalError, sequence: int) -> bool:
    """Whether the refusal of a letter says that it stands in the log. Letters come one after the other, each
    once the one before is committed: so does the letter of a greater sequence."""
    last = error.extra.get("last_sequence")
    return error.code == "sequence-gap" and isinstance(last, int) and last >= sequence
