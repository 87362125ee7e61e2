"""Packets and what rides along in them: budgets, order of the queues, bounds."""

from shoal.membership.swim.piggyback import MAX_PACKETS, Outbox
from shoal.membership.wire.messages import Endpoint, Nack, Ping, User, decode_message
from shoal.membership.wire.packets import encode_packet

PEER = Endpoint(bytes((127, 0, 0, 1)), 7946)


def full_outbox() -> Outbox:
    """Each queue holds more than a packet's worth."""
    outbox = Outbox(1400, lambda: 4)
    for number in range(20):
        for queue in (outbox.own, outbox.intents, outbox.queries, outbox.events):
            queue.queue(b"\x0b\x81\xa5SeqNo" + bytes((number,)) + b"x" * (90 + number))
    return outbox


def test_gossip_keeps_the_budget_over_all_queues() -> None:
    """1400 bytes as a compound, the checksum's five beside them, as memberlist counts."""
    outbox = full_outbox()
    for _ in range(20):
        outbox.gossip(PEER, checksum=True)
    sizes = [len(encode_packet(packet.parts)) for packet in outbox.packets]
    assert max(sizes) <= 1400
    assert min(sizes[:10]) > 1250


def test_messages_leave_room_for_news() -> None:
    """The ping first, then news up to the budget."""
    outbox = full_outbox()
    outbox.send(PEER, Ping(1, "n" * 100), Nack(3))
    (packet,) = outbox.packets
    assert decode_message(packet.parts[0]) == Ping(1, "n" * 100)
    assert decode_message(packet.parts[1]) == Nack(3)
    assert 1250 < len(encode_packet(packet.parts)) <= 1400


def test_a_message_above_the_budget_goes_alone() -> None:
    """A big answer is sent, with nothing added."""
    outbox = full_outbox()
    outbox.send(PEER, User(b"x" * 2000))
    assert [len(packet.parts) for packet in outbox.packets] == [1]


def test_own_news_goes_before_intents_before_events() -> None:
    """Who is alive matters more than what they say."""
    outbox = Outbox(1400, lambda: 4)
    outbox.events.queue(b"event")
    outbox.intents.queue(b"intent")
    outbox.own.queue(b"own")
    outbox.queries.queue(b"query")
    outbox.gossip(PEER, checksum=True)
    assert outbox.packets[0].parts == (b"own", b"\x08intent", b"\x08query", b"\x08event")
    assert outbox.packets[0].checksum


def test_nothing_to_tell_sends_nothing() -> None:
    """An idle pool gossips no empty packets."""
    outbox = Outbox(1400, lambda: 4)
    assert not outbox.gossip(PEER, checksum=True)
    assert outbox.packets == []


def test_waiting_packets_are_bounded() -> None:
    """A driver that does not take them loses the newest, counted."""
    outbox = Outbox(1400, lambda: 4)
    for number in range(MAX_PACKETS + 10):
        outbox.send(PEER, Nack(number))
    assert len(outbox.packets) == MAX_PACKETS
    assert outbox.dropped == 10
