"""One TCP stream: state exchanges, pings, and the sockets they need.

Law of this file: bytes on a connection, in both roles. Time limits are the caller's
(asyncio.timeout around each).

A peer may send its push/pull reply first and judge our versions afterwards, so a completed exchange
is no proof of membership; and a Serf agent answers every stream compressed, even nine bytes.
"""

import asyncio
import socket
from collections.abc import Callable

from shoal.membership.swim.claims import Node
from shoal.membership.swim.ready import StreamProbe
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Ack, Ping, PushPull, RemoteError, StreamMessage, User, host_text
from shoal.membership.wire.streams import StreamDecoder, encode_stream

READ_BYTES = 65_536
BIND_ATTEMPTS = 16
"""Tries to find one port free for both TCP and UDP."""
LISTEN_BACKLOG = 64
RECEIVE_BUFFER_BYTES = 2 << 20
"""Asked for as by memberlist, so that acks find room beside a burst; the system grants what it allows."""

MAX_INLINE_BYTES = 32_768
"""Larger messages are decompressed and decoded in a thread: LZW in Python takes some 5
ms for this much, and the loop serves appends."""

MAX_INLINE_NODES = 64
"""Push/pulls of more records are encoded in a thread, for the same reason."""


MAX_HELD_BYTES = 32 << 20
"""Incomplete messages of all streams together: four of the largest there may be. A stranger that dials us
decides how much it sends."""


class StreamFault(Exception):
    """The peer closed, refused, or answered something else than was asked."""


class StreamBudget:
    """What all streams of one node may hold in memory, and work out in threads, at a time.

    One thread: several that decompress at once would leave the event loop a fraction of the interpreter, and
    probes would be late. A stream that is given up goes on holding it until its work ends.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._working = asyncio.Lock()

    def hold(self, size: int) -> None:
        """Raises StreamFault when there is no room."""
        if self.held_bytes + size > MAX_HELD_BYTES:
            raise StreamFault("too much is being received at a time")
        self.held_bytes += size

    def release(self, size: int) -> None:
        self.held_bytes -= size

    async def work_out(self, decoder: StreamDecoder, data: bytes) -> StreamMessage | None:
        """Feed the decoder in a thread."""
        await self._working.acquire()
        work = asyncio.get_running_loop().run_in_executor(None, decoder.feed, data)
        work.add_done_callback(lambda _: self._working.release())
        return await asyncio.shield(work)


async def system_lookup(host: str) -> list[str]:
    """The addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def open_listener(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A listening TCP and a non-blocking UDP socket on one port; port 0 picks. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for attempt in range(BIND_ATTEMPTS):
        tcp = socket.create_server((address, port), family=family, backlog=LISTEN_BACKLOG)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            udp.bind((address, tcp.getsockname()[1]))
        except OSError:
            tcp.close()
            udp.close()
            if port or attempt == BIND_ATTEMPTS - 1:
                raise
            continue
        tcp.setblocking(False)
        udp.setblocking(False)
        return tcp, udp
    raise AssertionError("the last attempt raises")


async def read_message(
    reader: asyncio.StreamReader, decoder: StreamDecoder, intake: StreamBudget
) -> StreamMessage:
    """The peer's one message. Raises WireError, or StreamFault when it closes before the end or there is no
    room for it."""
    held_bytes = 0
    try:
        while True:
            data = await reader.read(READ_BYTES)
            if not data:
                raise StreamFault("closed before its message was complete")
            intake.hold(len(data))
            held_bytes += len(data)
            if held_bytes > MAX_INLINE_BYTES:
                message = await intake.work_out(decoder, data)
            else:
                message = decoder.feed(data)
            if message is not None:
                return message
    finally:
        intake.release(held_bytes)


async def _write_message(
    writer: asyncio.StreamWriter, message: StreamMessage, envelope: Envelope, *, opens: bool
) -> None:
    inline = not isinstance(message, PushPull) or len(message.nodes) <= MAX_INLINE_NODES
    data = encode_stream(message) if inline else await asyncio.to_thread(encode_stream, message)
    writer.write(envelope.wrap_stream(data, opens=opens))
    await writer.drain()


async def _ask(
    host: str, port: int, request: StreamMessage, envelope: Envelope, intake: StreamBudget
) -> StreamMessage:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        await _write_message(writer, request, envelope, opens=True)
        return await read_message(reader, StreamDecoder(envelope=envelope), intake)
    finally:
        writer.close()


async def exchange_state(
    host: str, port: int, state: PushPull, envelope: Envelope, intake: StreamBudget
) -> PushPull:
    """Push ours, pull theirs."""
    answer = await _ask(host, port, state, envelope, intake)
    if isinstance(answer, RemoteError):
        raise StreamFault(f"refused: {answer.text}")
    if not isinstance(answer, PushPull):
        raise StreamFault(f"answered a state exchange with {type(answer).__name__}")
    return answer


async def ping_over_stream(probe: StreamProbe, local: Node, envelope: Envelope, intake: StreamBudget) -> bool:
    """Whether the node answers a ping over TCP."""
    ping = Ping(probe.sequence, probe.node, local.endpoint, local.name)
    answer = await _ask(host_text(probe.endpoint.address), probe.endpoint.port, ping, envelope, intake)
    return isinstance(answer, Ack) and answer.sequence == probe.sequence


async def serve_stream(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    envelope: Envelope,
    intake: StreamBudget,
    local_name: str,
    local_state: Callable[[], PushPull],
) -> PushPull | User | None:
    """Answer one stream; returns what it brought. A ping for another node, and a stream of another label, are
    left without an answer; other faults are told, sealed with our key as everything."""

    async def answer(message: StreamMessage) -> None:
        await _write_message(writer, message, envelope, opens=False)

    try:
        request = await read_message(reader, StreamDecoder(envelope=envelope, accepted=True), intake)
    except WireError as fault:
        if fault.reason != "label":
            await answer(RemoteError(fault.detail if fault.reason == "key" else str(fault)))
        raise
    match request:
        case PushPull(join):
            state = local_state()
            await answer(PushPull(join, state.nodes, state.user_state))
            return request
        case Ping(sequence, node) if node in ("", local_name):
            await answer(Ack(sequence))
            return None
        case User():
            return request
        case _:
            raise StreamFault(f"unexpected {type(request).__name__}")
