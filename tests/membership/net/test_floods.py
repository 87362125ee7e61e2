"""Floods over real sockets: whatever is sent, memory stays bounded and probing goes on.

The sender shares the event loop with its victims, so each burst is followed by a breath for them.
"""

import asyncio
import random
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from waiting import until

from shoal.membership.net.gossip import Membership
from shoal.membership.net.stream_tasks import MAX_STREAMS
from shoal.membership.net.streams import MAX_HELD_BYTES, StreamBudget, StreamFault
from shoal.membership.swim.piggyback import MAX_PACKETS
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.lzw import compress
from shoal.membership.wire.messages import VSN, Alive, Endpoint, Suspect, User, encode_message
from shoal.membership.wire.packets import MAX_PACKET_BYTES, encode_packet
from shoal.membership.wire.serf import Query, UserEvent, encode_serf
from tests.membership.net.test_gossip import pool, statuses

ALIVE = {"a": "alive", "b": "alive"}
KEYRING = Keyring((bytes(16),))
MAX_GROWTH_BYTES = 12 << 20
"""Far below what is sent, and above what the bounded tables and queues of two members hold when full."""

Flood = Callable[[random.Random, int], bytes]


def wrapped(body: bytes) -> bytes:
    """A compress wrapper of anything."""
    return b"\x09\x82\xa4Algo\x00\xa3Buf\xda" + len(body).to_bytes(2, "big") + body


BOMB = wrapped(compress(bytes(60_000)))
DEEP = wrapped(compress(wrapped(compress(wrapped(compress(bytes(40_000)))))))
HERE = Endpoint(bytes((127, 0, 0, 1)), 7946)
NOWHERE = Endpoint(bytes((127, 0, 0, 1)), 9)


def member_of_nobody(number: int) -> bytes:
    """A new name each time."""
    alive = Alive(
        1, f"ghost-{number}", Endpoint(bytes((127, 1, number >> 8 & 255, number & 255)), 9), b"", VSN
    )
    return encode_packet((encode_message(alive),))


def event(number: int) -> bytes:
    return encode_packet((encode_message(User(encode_serf(UserEvent(number, "e", bytes(400))))),))


def query(number: int) -> bytes:
    content = Query(number, number, NOWHERE, "x", (), 1, 0, 10**10, "q", bytes(400))
    return encode_packet((encode_message(User(encode_serf(content))),))


FLOODS: dict[str, Flood] = {
    "noise": lambda rng, _: rng.randbytes(rng.randrange(1, 1400)),
    "oversized": lambda rng, _: rng.randbytes(MAX_PACKET_BYTES),
    "bombs": lambda _, __: BOMB,
    "bombs in bombs": lambda _, __: DEEP,
    "nested maps": lambda _, __: b"\x04" + b"\x81\xa1k" * 20_000,
    "claimed lengths": lambda _, __: b"\x04\xdf\x00\x03\xff\xff" + b"\xdd\x00\x03\xff\xff" * 7,
    "members of nobody": lambda _, number: member_of_nobody(number),
    "accusations": lambda _, number: encode_packet((encode_message(Suspect(1, "b", f"x{number}")),)),
    "events": lambda _, number: event(number),
    "queries": lambda _, number: query(number),
    "false seals": lambda rng, _: b"\x01" + rng.randbytes(800),
    "false labels": lambda rng, number: b"\xf4\x20" + rng.randbytes(300),
}


DEAR = dict.fromkeys(("bombs", "bombs in bombs", "oversized", "nested maps"), 60) | {
    "events": 150,
    "queries": 150,
}
"""How many packets of those that cost the sender or the receiver much; of the others 400."""


@contextmanager
def bounded_memory(limit_bytes: int = MAX_GROWTH_BYTES) -> Iterator[None]:
    """What the block leaves behind, and its peak, are below the limit."""
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes - before_bytes < limit_bytes, f"{(peak_bytes - before_bytes) >> 20} MiB"


async def send_all(packets: Iterator[bytes], member: Membership) -> None:
    """In bursts, from one socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for number, packet in enumerate(packets):
            udp.sendto(packet, ("127.0.0.1", member.port))
            if number % 8 == 7 or len(packet) > 20_000:
                await asyncio.sleep(0)


@pytest.mark.parametrize("keyring", [None, KEYRING], ids=["plain", "sealed"])
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_stops_nobody_and_fills_nothing(kind: str, keyring: Keyring | None) -> None:
    """Probes go on during it, and afterwards everybody is alive for everybody."""
    rng = random.Random(kind)
    async with pool(
        "a", "b", keyring=keyring, max_members=256, probe_timeout_ms=90, stream_timeout_ms=3_000
    ) as started:
        first, second = started.members
        await until(lambda: statuses(first) == statuses(second) == ALIVE)
        probes, received = first.statistics().probes, first.traffic().received_packets
        count = DEAR.get(kind, 400)
        with bounded_memory():
            await send_all((FLOODS[kind](rng, number) for number in range(1, count)), first)
            await until(lambda: first.statistics().probes > probes + 2)
        assert first.traffic().received_packets > received + count // 4
        if keyring is not None:
            assert first.traffic().strangers > 0
        await until(lambda: {name: statuses(first).get(name) for name in ALIVE} == ALIVE)
        await until(lambda: {name: statuses(second).get(name) for name in ALIVE} == ALIVE)
        for member in started.members:
            core = member._running()
            core.check_invariants()
            assert len(core.members()) <= 256
            assert len(core.swim.outbox.packets) <= MAX_PACKETS


def tapped(member: Membership, recorded: list[bytes]) -> Callable[[bytes], bytes]:
    """What goes onto the wire, noted."""
    wrap = member._envelope.wrap_packet

    def wrap_and_note(data: bytes) -> bytes:
        recorded.append(wrap(data))
        return recorded[-1]

    return wrap_and_note


@pytest.mark.parametrize("keyring", [None, KEYRING], ids=["plain", "sealed"])
async def test_replayed_packets_change_nothing(
    keyring: Keyring | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that a pool of three said, an event and a leave among it, sent again ten times: nobody is
    dead, nobody has come back, no event is told twice, and nothing grows."""
    recorded: list[bytes] = []
    told: list[bytes] = []
    async with pool("a", "b", "c", keyring=keyring, stream_timeout_ms=3_000) as started:
        first, second, third = started.members
        first._on_user_event = lambda event: told.append(event.payload)
        for member in started.members:
            monkeypatch.setattr(member._envelope, "wrap_packet", tapped(member, recorded))
        await until(lambda: set(statuses(first)) == {"a", "b", "c"})
        second.send_user_event("news", b"once")
        await until(lambda: told == [b"once"])
        await third.leave()
        await third.stop()
        expected = ALIVE | {"c": "left"}
        await until(lambda: statuses(first) == statuses(second) == expected)
        assert len(recorded) > 20
        packets = [packet for _ in range(10) for packet in recorded]
        version = first.version
        with bounded_memory():
            await send_all(iter(packets), first)
            probes = first.statistics().probes
            await until(lambda: first.statistics().probes > probes + 2)
        assert told == [b"once"]
        assert statuses(first) == statuses(second) == expected
        assert first.version == version


def test_incomplete_streams_have_a_bound_together() -> None:
    """Not each for itself: a hundred peers may dribble at a time."""
    intake = StreamBudget()
    intake.hold(MAX_HELD_BYTES)
    with pytest.raises(StreamFault, match="too much"):
        intake.hold(1)
    intake.release(MAX_HELD_BYTES)
    intake.hold(1)
    assert intake.held_bytes == 1


async def test_streams_that_never_end_hold_little_and_end() -> None:
    """Every place taken by a peer that announces eight megabytes and sends one: refused at the bound, closed
    in time, and then a join works again."""
    announced = b"\x09\x82\xa4Algo\x00\xa3Buf\xdb\x00\x70\x00\x00" + bytes(1 << 20)
    async with pool("a", "b") as started:
        first = started.members[0]
        writers = []
        for _ in range(MAX_STREAMS):
            _, writer = await asyncio.open_connection("127.0.0.1", first.port)
            writer.write(announced)
            writers.append(writer)
        await asyncio.sleep(0.2)
        assert first._streams.intake.held_bytes <= MAX_HELD_BYTES
        probes = first.statistics().probes
        await until(lambda: first.statistics().probes > probes + 2)
        await until(lambda: not first._streams)
        assert first._streams.intake.held_bytes == 0
        for writer in writers:
            writer.transport.abort()
        assert await started.members[1].join([("127.0.0.1", first.port)]) == 1
        assert statuses(first) == ALIVE


async def test_stream_bombs_leave_the_loop_its_turns() -> None:
    """Three streams of kilobytes that would be a byte too many each: refused by size, one after the other,
    while probes go on."""
    bomb = compress(bytes((8 << 20) + 1))
    data = b"\x09\x82\xa4Algo\x00\xa3Buf\xdb" + len(bomb).to_bytes(4, "big") + bomb
    async with pool("a", "b", stream_timeout_ms=4_000) as started:
        first = started.members[0]
        probes = first.statistics().probes
        with bounded_memory(40 << 20):
            connections = [await asyncio.open_connection("127.0.0.1", first.port) for _ in range(3)]
            for _, writer in connections:
                writer.write(data)
            await until(lambda: first.statistics().probes > probes + 3)
            async with asyncio.timeout(20):
                answers = [await reader.read() for reader, _ in connections]
        for _, writer in connections:
            writer.close()
        assert any(b"limit" in answer or len(answer) > 10 for answer in answers)
        assert statuses(first) == ALIVE
