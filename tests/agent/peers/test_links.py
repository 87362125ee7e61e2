"""Links over real loopback sockets: greeting, frames, bounds, silence, requests."""

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from link_nodes import FAST, PATIENT, TEST_FRAME, Node, RawPeer, agent_id, connected, nodes
from listening import serving, stop_listening
from waiting import until

from shoal.agent.peers.connection import JOINED_BYTES
from shoal.agent.peers.frames import (
    MAX_BULK_PAYLOAD_BYTES,
    MAX_CONTROL_PAYLOAD_BYTES,
    FrameReader,
    FrameType,
    LinkKind,
    frame_head,
)
from shoal.agent.peers.links import LinkConfig, PeerRequestFailed, PeerUnavailable


async def test_both_kinds_connect_and_carry_frames_both_ways() -> None:
    """Small and large frames arrive whole, in order, at both ends, on both connections, and are counted."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        assert a.links.send_control(agent_id("b"), TEST_FRAME, b"one")
        assert b.links.send_control(agent_id("a"), TEST_FRAME, b"two")
        big = random.Random(2).randbytes(3 * 2**20)
        assert a.links.send_bulk(agent_id("b"), TEST_FRAME, [big[:100], big[100:]])
        await until(lambda: len(b.received) == 2 and len(a.received) == 1)
        assert b.received == [(agent_id("a"), b"one"), (agent_id("a"), big)]
        assert a.received == [(agent_id("b"), b"two")]
        assert a.silent == b.silent == []
        sent, received = a.links.traffic[LinkKind.BULK], b.links.traffic[LinkKind.BULK]
        assert (sent.sent_frames, sent.sent_bytes) == (1, len(frame_head(TEST_FRAME, len(big)) + big))
        assert (received.received_frames, received.received_bytes) == (1, sent.sent_bytes)
        assert (sent.received_frames, received.sent_frames) == (0, 0)
        for node in (a, b):
            control = node.links.traffic[LinkKind.CONTROL]
            assert min(control.sent_bytes, control.received_bytes) > len(b"one")


async def test_the_loop_hears_of_entries_that_have_left() -> None:
    """Not of those that were dropped, nor of other frames: nobody answers them soon."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    told: list[None] = []
    a.links.on_append_sent = lambda: told.append(None)
    a.links.send_append(agent_id("b"), [b"dropped"])
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        assert a.links.send_bulk(agent_id("b"), TEST_FRAME, [b"other"])
        assert not told
        a.links.send_append(agent_id("b"), [b"entries"])
    assert len(told) == 1


class Cable:
    """Between one who dials and a port. Once cut, what runs through it arrives nowhere, for ever, as where
    TCP waits for longer and longer before it tries again; what is made later does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """The URL at this end."""
        try:
            async with serving(self._carry) as url:
                yield url
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._cut.set()
        self._cut = asyncio.Event()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for ends in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._forward(*ends, self._cut))
            self._tasks.add(task)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        try:
            while (data := await reader.read(65_536)) and not cut.is_set():
                writer.write(data)
            if cut.is_set():
                while await reader.read(65_536):
                    continue
        finally:
            writer.close()


async def test_a_connection_that_an_outage_left_dead_is_made_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody closes it, and nothing comes through any more: TCP would find out in a quarter of an hour, or
    in a minute that the outage is over."""
    config = replace(FAST, give_up_after_ms=300)
    a, b = Node("a", config=config), Node("b", config=config)
    await a.start()
    await b.start()
    cable = Cable(b.port)
    try:
        async with cable.laid() as url:
            a.links.set_addresses({b.links.agent_id: url})
            b.links.set_addresses({a.links.agent_id: a.url})
            await until(lambda: connected(a) and connected(b))
            before = list(a.links._peers[b.links.agent_id].connections.values())
            cable.cut()
            await until(lambda: all(one.closed.is_set() for one in before))
            await until(lambda: connected(a) and connected(b))
            assert b.links.agent_id in a.silent
            assert "nothing heard for 400 ms: connecting anew" in caplog.text, "twice what silence is"
            assert a.links.send_bulk(b.links.agent_id, TEST_FRAME, [b"through"])
            await until(lambda: (a.links.agent_id, b"through") in b.received)
            await a.links.stop()
    finally:
        await b.stop()
        await a.stop()


@pytest.mark.machine_clock
async def test_who_stood_still_himself_gives_nobody_up() -> None:
    """Neither was heard by the other for seconds in which neither ran: their connections are well."""
    config = replace(FAST, give_up_after_ms=300)
    a, b = Node("a", config=config), Node("b", config=config)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        before = list(a.links._peers[b.links.agent_id].connections.values())
        time.sleep(1.0)
        await asyncio.sleep(0.1)
        assert list(a.links._peers[b.links.agent_id].connections.values()) == before
        assert all(connection.is_open for connection in before)


async def test_a_heartbeat_does_not_wait_behind_batches() -> None:
    """The receiver takes no bulk for now, and megabytes of it wait: what goes by the control connection
    arrives all the same, else the group would elect (safety 24)."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        bulk = b.links._peers[agent_id("a")].connections[LinkKind.BULK]
        assert bulk._transport is not None
        bulk._transport.pause_reading()
        body = bytes(2**20)
        while a.links.send_bulk(agent_id("b"), TEST_FRAME, [body]):
            pass  # until the sockets and the outbox are full
        assert a.links.send_control(agent_id("b"), TEST_FRAME, b"heartbeat")
        await until(lambda: b.received == [(agent_id("a"), b"heartbeat")])
        bulk._transport.resume_reading()
        await until(lambda: len(b.received) > 2)
        assert a.silent == b.silent == []


async def test_an_unknown_peer_gets_nothing() -> None:
    """Frames to an agent that is not connected are dropped, and counted."""
    a = Node("a")
    async with nodes(a):
        assert not a.links.send_control(agent_id("z"), TEST_FRAME, b"x")
        assert a.links.dropped_frames == 1
        with pytest.raises(PeerUnavailable):
            await a.links.request(agent_id("z"), 1, b"", 100)


async def test_a_foreign_cluster_is_refused() -> None:
    """Two clusters never exchange a frame, whoever dials."""
    a, b = Node("a"), Node("b", cluster=b"d" * 16)
    async with nodes(a, b):
        await until(lambda: a.silent and b.silent)
        assert not any(peer.control or peer.bulk for node in (a, b) for peer in node.links.statistics())
        assert not a.links.send_control(agent_id("b"), TEST_FRAME, b"x")


async def test_a_wrong_agent_behind_an_address_is_refused() -> None:
    """The address of b leads to c: nobody takes c for b."""
    a, c = Node("a"), Node("c")
    await a.start()
    await c.start()
    try:
        a.links.set_addresses({agent_id("b"): c.url})
        await until(lambda: a.silent == [agent_id("b")])
        assert not connected(a)
        assert c.links.statistics() == ()
    finally:
        await a.stop()
        await c.stop()


async def test_a_copied_data_directory_is_refused() -> None:
    """Of two live processes with one agent id the second is refused, and the first goes on."""
    a, b, twin = Node("a"), Node("b"), Node("a", nonce=b"another-")
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        await twin.start()
        try:
            twin.links.set_addresses({agent_id("b"): b.url})
            await until(lambda: twin.silent)
            assert not connected(twin)
            assert a.links.send_control(agent_id("b"), TEST_FRAME, b"still here")
            await until(lambda: b.received == [(agent_id("a"), b"still here")])
        finally:
            await twin.stop()


async def test_silence_is_reported_once_and_ends_when_heard_again() -> None:
    """A stopped peer is reported within the bound, once; its next life connects and is reported as new."""
    a, b = Node("a"), Node("b")
    await a.start()
    await b.start()
    a.links.set_addresses({agent_id("b"): b.url})
    b.links.set_addresses({agent_id("a"): a.url})
    await until(lambda: connected(a) and connected(b))
    port = b.port
    await b.stop()
    await until(lambda: a.silent == [agent_id("b")])
    assert a.links.is_silent(agent_id("b"))
    again = Node("b", nonce=b"reborn--")
    await again.start(port)
    again.links.set_addresses({agent_id("a"): a.url})
    try:
        await until(lambda: connected(a) and connected(again))
        assert not a.links.is_silent(agent_id("b"))
        assert len(a.silent) == 1
    finally:
        await again.stop()
        await a.stop()


async def test_a_new_boot_nonce_is_reported_even_without_silence() -> None:
    """A peer that restarts faster than silence is noticed has lost what it knew: quiet groups must wake."""
    slow = LinkConfig(
        heartbeat_interval_ms=20, silence_after_ms=5_000, silence_after_loss_ms=4_000, redial_min_ms=10
    )
    a, b = Node("a", config=slow), Node("b", config=slow)
    await a.start()
    await b.start()
    b.links.set_addresses({agent_id("a"): a.url})
    a.links.set_addresses({agent_id("b"): b.url})
    await until(lambda: connected(a))
    await b.links.stop()
    assert b.runner is not None
    port = b.port
    await stop_listening(b.runner)
    await b.runner.cleanup()
    a_reports = len(a.silent)
    again = Node("b", nonce=b"reborn--", config=slow)
    await again.start(port)
    again.links.set_addresses({agent_id("a"): a.url})
    try:
        await until(lambda: connected(a))
        assert len(a.silent) in (1, a_reports + 1)
        assert a.silent[0] == agent_id("b")
    finally:
        await again.stop()
        await a.stop()


async def test_requests_are_answered_refused_and_bounded_in_time() -> None:
    """An answer, a failure with its reason, an unknown type, and a timeout are told apart."""
    a, b = Node("a"), Node("b")

    async def echo(peer: str, payload: bytes) -> bytes:
        return peer.encode() + payload

    async def fail(peer: str, payload: bytes) -> bytes:
        raise ValueError("no such thing")

    async def hang(peer: str, payload: bytes) -> bytes:
        await asyncio.sleep(30)
        return b""

    handlers: list[Callable[[str, bytes], Awaitable[bytes]]] = [echo, fail, hang]
    for number, handler in enumerate(handlers):
        b.links.handle_request(number, handler)
    async with nodes(a, b):
        await until(lambda: connected(a))
        ask = a.links.request
        assert await ask(agent_id("b"), 0, b"!", 1_000) == agent_id("a").encode() + b"!"
        with pytest.raises(PeerRequestFailed, match="no such thing"):
            await ask(agent_id("b"), 1, b"", 1_000)
        with pytest.raises(PeerRequestFailed, match="unknown request type 9"):
            await ask(agent_id("b"), 9, b"", 1_000)
        with pytest.raises(PeerUnavailable, match="within 30 ms"):
            await ask(agent_id("b"), 2, b"", 30)


async def test_a_lost_link_fails_its_requests() -> None:
    """Whoever waits for an answer learns at once that it will not come."""
    a, b = Node("a"), Node("b")
    asked = asyncio.Event()

    async def hang(peer: str, payload: bytes) -> bytes:
        asked.set()
        await asyncio.sleep(30)
        return b""

    b.links.handle_request(0, hang)
    await a.start()
    await b.start()
    b.links.set_addresses({agent_id("a"): a.url})
    a.links.set_addresses({agent_id("b"): b.url})
    await until(lambda: connected(a))
    waiting = asyncio.create_task(a.links.request(agent_id("b"), 0, b"", 60_000))
    await asked.wait()
    await b.stop()
    with pytest.raises(PeerUnavailable):
        await asyncio.wait_for(waiting, 40)
    await a.stop()


async def test_a_full_outbox_drops_whole_frames() -> None:
    """A peer that does not read costs a bounded buffer; what arrives later is whole."""
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        before = a.links.dropped_frames  # where connecting takes long, signs of life found nobody
        b_side = b.links._peers[agent_id("a")].connections[LinkKind.BULK]
        assert b_side._transport is not None
        b_side._transport.pause_reading()
        sent = sum(a.links.send_bulk(agent_id("b"), TEST_FRAME, [bytes(2**20)]) for _ in range(80))
        assert 32 <= sent < 80
        assert a.links.dropped_frames - before == 80 - sent
        b_side._transport.resume_reading()
        await until(lambda: len(b.received) == sent)
        assert all(len(payload) == 2**20 for _, payload in b.received)


async def test_a_large_frame_for_a_connection_that_has_just_broken_is_dropped() -> None:
    """From Python 3.12 on asyncio would watch its descriptor for ever: the next one with it would be deaf."""
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        connection = a.links._peers[agent_id("b")].connections[LinkKind.BULK]
        transport = connection._transport
        assert transport is not None
        transport.abort()  # as it does itself when it meets a reset; its protocol hears of that later
        assert connection.is_open
        assert not connection.send(TEST_FRAME, [bytes(JOINED_BYTES), b"more"])
        await connection.closed.wait()
        await until(lambda: connected(a) and connected(b))
        assert a.links.send_bulk(agent_id("b"), TEST_FRAME, [bytes(2**20)])
        await until(lambda: b.received)


@pytest.mark.parametrize(
    "opening",
    [
        b"\xff\xff\xff\xff\x01" + bytes(100),
        frame_head(FrameType.HELLO, 3) + b"abc",
        frame_head(FrameType.GROUPS, 3) + b"abc",
        b"GET / HTTP/1.1\r\n\r\n",
        random.Random(3).randbytes(400),
    ],
)
async def test_garbage_before_the_greeting_closes(opening: bytes) -> None:
    """No frame is believed before the greeting, and none is longer than one."""
    a = Node("a")
    async with nodes(a):
        peer = await RawPeer.connect(a)
        peer.writer.write(opening)
        reader = FrameReader(2**20)
        reader.feed(await peer.closed())
        frames = list(iter(reader.take, None))
        assert [frame.type for frame in frames] == [FrameType.REFUSED]
        assert a.links.statistics() == ()
        peer.writer.close()


@pytest.mark.parametrize(
    ("kind", "bytes_too_many"),
    [(LinkKind.CONTROL, MAX_CONTROL_PAYLOAD_BYTES + 1), (LinkKind.BULK, MAX_BULK_PAYLOAD_BYTES + 1)],
)
async def test_an_oversized_frame_closes(kind: LinkKind, bytes_too_many: int) -> None:
    """The length alone is enough: nothing of such a frame is awaited or stored."""
    a = Node("a")
    async with nodes(a):
        peer = await RawPeer.connect(a)
        await peer.greet(a, kind)
        peer.writer.write(struct.pack("<IB", bytes_too_many, TEST_FRAME))
        await peer.closed()
        await until(lambda: not any(p.control or p.bulk for p in a.links.statistics()))
        peer.writer.close()


@pytest.mark.parametrize(
    "frame",
    [frame_head(99, 0), frame_head(FrameType.LIVENESS, 1) + b"x", frame_head(FrameType.RESPONSE, 1) + b"x"],
)
async def test_a_frame_that_is_none_closes(frame: bytes) -> None:
    """An unknown type, a foreign nonce, a response without its head."""
    a = Node("a")
    async with nodes(a):
        peer = await RawPeer.connect(a)
        await peer.greet(a)
        peer.writer.write(frame)
        await peer.closed()
        assert not connected(a)
        peer.writer.close()


async def test_an_agent_without_a_cluster_says_that_it_takes_no_peers_yet() -> None:
    """The dialler gets a whole answer and tries again; the connection is not merely dropped."""
    a = Node("a")
    async with nodes(a):
        a.links.cluster_id = None
        reader, writer = await asyncio.open_connection("127.0.0.1", a.port)
        writer.write(
            b"GET /v1/peer HTTP/1.1\r\nHost: x\r\nUpgrade: shoal-peer/1\r\nConnection: close\r\n\r\n"
        )
        answer = await asyncio.wait_for(reader.read(), 40)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"not-ready" in answer
        writer.close()


async def test_forgotten_agents_are_disconnected() -> None:
    """An agent that left the member list is dropped, with its connections and requests."""
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        a.links.set_addresses({})
        assert a.links.statistics() == ()
        await until(lambda: not any(peer.control for peer in b.links.statistics()))


async def test_a_server_that_does_not_upgrade_hears_nothing_more() -> None:
    """What answers anything but 101 still speaks HTTP: the dialler closes without a frame."""
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        heard.append(await reader.read())
        writer.close()
        ended.set()

    async with serving(answer) as url, nodes(Node("a")) as (a,):
        a.links.set_addresses({agent_id("b"): url})
        await asyncio.wait_for(ended.wait(), 40)
    assert heard[0] == b""
