"""TCP streams: one request or answer, found in bytes that come in any pieces.

Law of this file: there is no length framing; msgpack delimits itself, and raw bytes
(push/pull user state, a user message) follow the last value. StreamDecoder therefore
keeps what it has and tries again only when enough came.

By default every stream message is one compressed blob, even an ack of nine bytes;
uncompressed ones are accepted as well.
"""

from collections.abc import Generator

from shoal.membership.wire.dialect import Fields, ValueWalk, pack, unpack_walked
from shoal.membership.wire.errors import ShortError, WireError
from shoal.membership.wire.messages import (
    Ack,
    NodeState,
    Ping,
    PushPull,
    RemoteError,
    StreamMessage,
    Type,
    User,
    decode_ack,
    decode_node_state,
    decode_ping,
    encode_message,
    encode_node_state,
)
from shoal.membership.wire.packets import decompress_fields, encode_compressed

MAX_STREAM_BYTES = 8 << 20
"""One stream message, before and after decompression: 4096 members with the longest
meta we accept, their intents and a full ring of events. Memberlist itself allows 20 MiB
of user state alone, which no sane pool comes near."""

MAX_NODES = 16_384
"""Records of one push/pull."""


def encode_stream(message: StreamMessage, *, compressed: bool = True) -> bytes:
    """The bytes of one stream message; pings, acks and errors have the same body as in a packet."""
    match message:
        case PushPull():
            data = _encode_push_pull(message)
        case User(payload):
            data = bytes((Type.USER,)) + pack({"UserMsgLen": len(payload)}) + payload
        case Ping() | Ack() | RemoteError():
            data = encode_message(message)
    return encode_compressed(data) if compressed else data


def _encode_push_pull(message: PushPull) -> bytes:
    header = pack(
        {"Join": message.join, "Nodes": len(message.nodes), "UserStateLen": len(message.user_state)}
    )
    nodes = b"".join(encode_node_state(node) for node in message.nodes)
    return bytes((Type.PUSH_PULL,)) + header + nodes + message.user_state


class StreamDecoder:
    """Bytes of one stream to its one message. feed() answers None until the message is
    whole, and raises WireError.

    A generator that asks for more bytes when it lacks some: each byte is looked at
    once, however small the pieces, and it never waits for more than the message is
    known to lack, for the peer may be waiting for our answer.
    """

    def __init__(self, max_bytes: int = MAX_STREAM_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._position = 0
        self._parser = self._parse()
        self._needed = next(self._parser)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> StreamMessage | None:
        self._buffer += data
        if len(self._buffer) > self._max_bytes:
            raise WireError("limit", f"a stream message of more than {self._max_bytes} bytes")
        while len(self._buffer) >= self._needed:
            try:
                self._needed = self._parser.send(None)
            except StopIteration as finished:
                message: StreamMessage = finished.value
                return message
        if self._needed > self._max_bytes:
            raise WireError("limit", f"a stream message announces {self._needed} bytes")
        return None

    @property
    def needed_bytes(self) -> int:
        """A lower bound for the length at which the message can be whole."""
        return self._needed

    def _parse(self) -> Generator[int, None, StreamMessage]:
        yield 1
        kind = self._buffer[0]
        self._position = 1
        if kind == Type.COMPRESS:
            fields = yield from self._struct()
            return _decode_content(decompress_fields(fields, self._max_bytes), self._max_bytes)
        if kind == Type.PUSH_PULL:
            return (yield from self._push_pull())
        if kind not in (Type.PING, Type.ACK, Type.USER, Type.ERROR):
            raise WireError("type", f"stream message type {kind}")
        fields = yield from self._struct()
        if kind == Type.PING:
            return decode_ping(fields)
        if kind == Type.ACK:
            return decode_ack(fields)
        if kind == Type.ERROR:
            return RemoteError(fields.text("Error", 65_536))
        return User((yield from self._raw(fields.integer("UserMsgLen", 0, MAX_STREAM_BYTES))))

    def _push_pull(self) -> Generator[int, None, PushPull]:
        header = yield from self._struct()
        join, count = header.flag("Join"), header.integer("Nodes", 0, MAX_NODES)
        nodes: list[NodeState] = []
        for _ in range(count):
            fields = yield from self._struct()
            nodes.append(decode_node_state(fields))
        user_state = yield from self._raw(header.integer("UserStateLen", 0, MAX_STREAM_BYTES))
        return PushPull(join, tuple(nodes), user_state)

    def _struct(self) -> Generator[int, None, Fields]:
        walk = ValueWalk(self._position)
        while True:
            try:
                end = walk.end(self._buffer)
                break
            except ShortError as short:
                needed = short.needed
            yield needed
        fields = Fields.of(unpack_walked(self._buffer[self._position : end]))
        self._position = end
        return fields

    def _raw(self, length: int) -> Generator[int, None, bytes]:
        """Bytes without a wrapper."""
        end = self._position + length
        while len(self._buffer) < end:
            yield end
        data = bytes(self._buffer[self._position : end])
        self._position = end
        return data


def decode_stream(data: bytes, max_bytes: int = MAX_STREAM_BYTES) -> StreamMessage:
    """One whole stream message; ShortError says that more bytes may complete it, WireError that none can."""
    decoder = StreamDecoder(max_bytes)
    message = decoder.feed(data)
    if message is None:
        raise ShortError(decoder.needed_bytes)
    return message


def _decode_content(content: bytes, max_bytes: int) -> StreamMessage:
    """What a compression held: whole, and not compressed again."""
    if content[:1] == bytes((Type.COMPRESS,)):
        raise WireError("limit", "compressed twice")
    try:
        return decode_stream(content, max_bytes)
    except ShortError as short:
        raise WireError("short", "a compressed message that ends early") from short
