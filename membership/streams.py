"""One TCP stream: state exchanges, pings, and the sockets they need.

Law of this file: bytes on a connection, in both roles. Time limits are the caller's
(asyncio.timeout around each).

A peer may send its push/pull reply first and judge our versions afterwards, so a completed exchange
is no proof of membership; and a Serf agent answers every stream compressed, even nine bytes.
"""

import asyncio
import socket
from collections.abc import Callable

from shoal.membership.envelope import Envelope
from shoal.membership.members import Node
from shoal.membership.ready import StreamProbe
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Ack, Ping, PushPull, RemoteError, StreamMessage, User, host_text
from shoal.membership.wire.sealing import PLAIN_VERSION
from shoal.membership.wire.streams import encode_stream
from shoal.membership.wrapped_streams import WrappedStreamDecoder

READ_BYTES = 65_536
BIND_ATTEMPTS = 16
"""Tries to find one port free for both TCP and UDP."""
LISTEN_BACKLOG = 64

MAX_INLINE_BYTES = 32_768
"""Larger messages are decompressed and decoded in a thread: LZW in Python takes some 5
ms for this much, and the loop serves appends."""

MAX_INLINE_NODES = 64
"""Push/pulls of more records are encoded in a thread, for the same reason."""


class StreamFault(Exception):
    """The peer closed, refused, or answered something else than was asked."""


def open_listener(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A listening TCP and a non-blocking UDP socket on one port; port 0 picks. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for attempt in range(BIND_ATTEMPTS):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((address, port))
            udp.bind((address, tcp.getsockname()[1]))
            tcp.listen(LISTEN_BACKLOG)
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


async def read_message(reader: asyncio.StreamReader, decoder: WrappedStreamDecoder) -> StreamMessage:
    """The peer's one message. Raises WireError, or StreamFault when it closes before the end."""
    while True:
        data = await reader.read(READ_BYTES)
        if not data:
            raise StreamFault("closed before its message was complete")
        if decoder.buffered_bytes + len(data) > MAX_INLINE_BYTES:
            message = await asyncio.to_thread(decoder.feed, data)
        else:
            message = decoder.feed(data)
        if message is not None:
            return message


async def _write_message(
    writer: asyncio.StreamWriter,
    message: StreamMessage,
    envelope: Envelope,
    *,
    opens: bool,
    version: int = PLAIN_VERSION,
) -> None:
    inline = not isinstance(message, PushPull) or len(message.nodes) <= MAX_INLINE_NODES
    data = encode_stream(message) if inline else await asyncio.to_thread(encode_stream, message)
    writer.write(envelope.wrap_stream(data, opens=opens, version=version))
    await writer.drain()


async def _ask(host: str, port: int, request: StreamMessage, envelope: Envelope) -> StreamMessage:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        await _write_message(writer, request, envelope, opens=True)
        return await read_message(reader, WrappedStreamDecoder(envelope, accepted=False))
    finally:
        writer.close()


async def exchange_state(host: str, port: int, state: PushPull, envelope: Envelope) -> PushPull:
    """Push ours, pull theirs."""
    answer = await _ask(host, port, state, envelope)
    if isinstance(answer, RemoteError):
        raise StreamFault(f"refused: {answer.text}")
    if not isinstance(answer, PushPull):
        raise StreamFault(f"answered a state exchange with {type(answer).__name__}")
    return answer


async def ping_over_stream(probe: StreamProbe, local: Node, envelope: Envelope) -> bool:
    """Whether the node answers a ping over TCP."""
    ping = Ping(probe.sequence, probe.node, local.endpoint, local.name)
    answer = await _ask(host_text(probe.endpoint.address), probe.endpoint.port, ping, envelope)
    return isinstance(answer, Ack) and answer.sequence == probe.sequence


async def serve_stream(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    envelope: Envelope,
    local_name: str,
    local_state: Callable[[], PushPull],
) -> PushPull | User | None:
    """Answer one stream; returns what it brought. A ping for another node, and a stream of another label, are
    left without an answer; other faults are told, sealed with our key as everything."""
    decoder = WrappedStreamDecoder(envelope, accepted=True)

    async def answer(message: StreamMessage) -> None:
        await _write_message(writer, message, envelope, opens=False, version=decoder.version)

    try:
        request = await read_message(reader, decoder)
    except WireError as fault:
        if fault.reason != "label":
            await answer(RemoteError(fault.detail if fault.reason == "key" else str(fault)))
        raise
    brought: PushPull | User | None = None
    match request:
        case PushPull(join):
            state = local_state()
            await answer(PushPull(join, state.nodes, state.user_state))
            brought = request
        case Ping(sequence, node) if node in ("", local_name):
            await answer(Ack(sequence))
        case User():
            brought = request
        case _:
            raise StreamFault(f"unexpected {type(request).__name__}")
    return brought
