"""TCP streams: one request or answer, found in bytes that come in any pieces.

Law of this file: there is no length framing; msgpack delimits itself, and raw bytes
(push/pull user state, a user message) follow the last value. StreamDecoder therefore
keeps what it has and tries again only when enough came.

By default every stream message is one compressed blob, even an ack of nine bytes;
uncompressed ones are accepted as well.
"""

from collections.abc import Generator

from shoal.membership.wire.dialect import Fields, ValueWalk, pack, unpack_walked
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import ShortError, WireError
from shoal.membership.wire.messages import (
    MESSAGES,
    NODE_STATE,
    Ack,
    NodeState,
    Ping,
    PushPull,
    RemoteError,
    StreamMessage,
    Type,
    User,
    encode_message,
)
from shoal.membership.wire.packets import decompress_fields, encode_compressed
from shoal.membership.wire.sealing import BLOCK_BYTES, MAX_LABEL_BYTES, OVERHEAD_BYTES, STREAM_HEADER_BYTES

MAX_STREAM_BYTES = 8 << 20
"""One stream message, before and after decompression: 4096 members with the longest
meta we accept, their intents and a full ring of events. Memberlist itself allows 20 MiB
of user state alone, which no sane pool comes near."""

MAX_WRAPPING_BYTES = 2 + MAX_LABEL_BYTES + STREAM_HEADER_BYTES + OVERHEAD_BYTES + BLOCK_BYTES
"""Label, header, seal and padding around a message of MAX_STREAM_BYTES."""

MAX_NODES = 16_384
"""Records of one push/pull."""


def encode_stream(message: StreamMessage, *, compressed: bool = True) -> bytes:
    """The bytes of one stream message; pings, acks and errors have the same body as in a packet."""
    match message:
        case PushPull(join, nodes, user_state):
            header = pack({"Join": join, "Nodes": len(nodes), "UserStateLen": len(user_state)})
            records = b"".join(map(NODE_STATE.encode, nodes))
            data = bytes((Type.PUSH_PULL,)) + header + records + user_state
        case User(payload):
            data = bytes((Type.USER,)) + pack({"UserMsgLen": len(payload)}) + payload
        case Ping() | Ack() | RemoteError():
            data = encode_message(message)
    return encode_compressed(data) if compressed else data


class StreamDecoder:
    """Bytes of one stream to its one message. feed() answers None until the message is
    whole, and raises WireError. What follows the message is ignored, as memberlist ignores it.

    A generator that asks for more bytes when it lacks some: each byte is looked at
    once, however small the pieces, and it never waits for more than the message is
    known to lack, for the peer may be waiting for our answer.

    With an `envelope` the label and the seal come off first, in memberlist's order. `accepted`: the peer
    opened the connection, so that its label comes first; answers carry none.
    """

    def __init__(
        self,
        max_bytes: int = MAX_STREAM_BYTES,
        *,
        envelope: Envelope | None = None,
        accepted: bool = False,
    ) -> None:
        self._max_bytes = max_bytes
        self._limit_bytes = max_bytes + (0 if envelope is None else MAX_WRAPPING_BYTES)
        self._buffer = bytearray()
        self._position = 0
        self._parser = self._message() if envelope is None else self._wrapped(envelope, accepted)
        self.needed_bytes = next(self._parser)
        """A lower bound for the length at which the message can be whole."""

    def feed(self, data: bytes) -> StreamMessage | None:
        self._buffer += data
        if len(self._buffer) > self._limit_bytes:
            raise WireError("limit", f"a stream message of more than {self._max_bytes} bytes")
        while len(self._buffer) >= self.needed_bytes:
            try:
                self.needed_bytes = self._parser.send(None)
            except StopIteration as finished:
                self._buffer.clear()
                message: StreamMessage = finished.value
                return message
        if self.needed_bytes > self._limit_bytes:
            raise WireError("limit", f"a stream message announces {self.needed_bytes} bytes")
        return None

    def _wrapped(self, envelope: Envelope, accepted: bool) -> Generator[int, None, StreamMessage]:
        yield 1
        if accepted:
            envelope.check_label((yield from self._label()))
            yield self._position + 1
        if self._buffer[self._position] != Type.ENCRYPT:
            envelope.check_plain()
            return (yield from self._message())
        envelope.check_sealed()
        header = yield from self._raw(STREAM_HEADER_BYTES)
        blob = yield from self._raw(int.from_bytes(header[1:], "big"))
        self._buffer.clear()
        return _decode_content("sealed", envelope.open_stream(header, blob), self._max_bytes)

    def _label(self) -> Generator[int, None, bytes]:
        if self._buffer[0] != Type.LABEL:
            return b""
        _, size = yield from self._raw(2)
        if not size:
            raise WireError("format", "an empty label")
        return (yield from self._raw(size))

    def _message(self) -> Generator[int, None, StreamMessage]:
        (kind,) = yield from self._raw(1)
        if kind == Type.COMPRESS:
            fields = yield from self._struct()
            content = decompress_fields(fields, self._max_bytes)
            if content[:1] == bytes((Type.COMPRESS,)):
                raise WireError("limit", "compressed twice")
            return _decode_content("compressed", content, self._max_bytes)
        if kind == Type.PUSH_PULL:
            return (yield from self._push_pull())
        if kind not in (Type.PING, Type.ACK, Type.USER, Type.ERROR):
            raise WireError("type", f"stream message type {kind}")
        fields = yield from self._struct()
        if kind != Type.USER:
            message: StreamMessage = MESSAGES.decode(kind, fields)
            return message
        return User((yield from self._raw(fields.integer("UserMsgLen", 0, MAX_STREAM_BYTES))))

    def _push_pull(self) -> Generator[int, None, PushPull]:
        header = yield from self._struct()
        join, count = header.flag("Join"), header.integer("Nodes", 0, MAX_NODES)
        nodes: list[NodeState] = []
        for _ in range(count):
            fields = yield from self._struct()
            nodes.append(NODE_STATE.decode(fields))
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


def _decode_content(kind: str, content: bytes, max_bytes: int) -> StreamMessage:
    """What a seal or a compression held: whole, or no message."""
    try:
        return decode_stream(content, max_bytes)
    except ShortError as short:
        raise WireError("short", f"a {kind} message that ends early") from short
