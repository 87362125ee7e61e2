"""Packets on their way out of the core, with gossip riding along where there is room.

Law of this file: budgets and piggybacking. It decides which queued news a packet
carries, not what is news.
"""

from collections.abc import Callable

from shoal.membership.swim.broadcasts import BroadcastQueue
from shoal.membership.swim.ready import OutgoingPacket
from shoal.membership.wire.messages import Endpoint, Message, Type, encode_message
from shoal.membership.wire.packets import COMPOUND_OVERHEAD_BYTES, MAX_PARTS, PART_OVERHEAD_BYTES

MAX_PACKETS = 4096
"""Packets waiting for the driver. It takes them after every step, so that this is a
bound, not a working size."""


class Outbox:
    """Collects packets. Queues are drained in order: memberlist's own first, then
    Serf's intents, queries, events."""

    def __init__(self, packet_bytes: int, limit: Callable[[], int]) -> None:
        self._packet_bytes = packet_bytes
        self._limit = limit
        budget_bytes, user = packet_bytes - COMPOUND_OVERHEAD_BYTES, bytes((Type.USER,))
        self.own = BroadcastQueue(budget_bytes, PART_OVERHEAD_BYTES)
        self.intents = BroadcastQueue(budget_bytes, PART_OVERHEAD_BYTES, user)
        self.queries = BroadcastQueue(budget_bytes, PART_OVERHEAD_BYTES, user)
        self.events = BroadcastQueue(budget_bytes, PART_OVERHEAD_BYTES, user)
        self.packets: list[OutgoingPacket] = []
        self.dropped = 0

    def pending(self) -> int:
        """Messages still to be told."""
        return len(self.own) + len(self.intents) + len(self.queries) + len(self.events)

    def send(self, receiver: Endpoint, *messages: Message, counted: bool = True) -> None:
        """A packet of these messages, filled up with news; `counted` as BroadcastQueue has it."""
        parts = [encode_message(message) for message in messages]
        used_bytes = sum(len(part) + PART_OVERHEAD_BYTES for part in parts) + COMPOUND_OVERHEAD_BYTES
        news = self._news(self._packet_bytes - used_bytes, MAX_PARTS - len(parts), counted)
        self._put(receiver, parts + news, False)

    def send_alone(self, receiver: Endpoint, message: Message) -> None:
        """A packet of this message and no news: to somebody who may be nobody."""
        self._put(receiver, [encode_message(message)], False)

    def gossip(self, receiver: Endpoint, *, checksum: bool, counted: bool = True) -> bool:
        """A packet of news alone; False when there is none left to tell."""
        parts = self._news(self._packet_bytes - COMPOUND_OVERHEAD_BYTES, MAX_PARTS, counted)
        if parts:
            self._put(receiver, parts, checksum)
        return bool(parts)

    def _news(self, budget_bytes: int, max_parts: int, counted: bool) -> list[bytes]:
        news: list[bytes] = []
        for queue in (self.own, self.intents, self.queries, self.events):
            if not len(queue):
                continue
            room = max_parts - len(news)
            parts, used_bytes = queue.take(budget_bytes, self._limit(), room, counted=counted)
            news += parts
            budget_bytes -= used_bytes
        return news

    def _put(self, receiver: Endpoint, parts: list[bytes], checksum: bool) -> None:
        if len(self.packets) >= MAX_PACKETS:
            self.dropped += 1  # gossip is best effort: a lost packet is what the protocol is made for
            return
        self.packets.append(OutgoingPacket(receiver, tuple(parts), checksum))
