"""TCP streams: one request or answer, found in bytes that come in any pieces.

Law of this file: there is no length framing; msgpack delimits itself, and raw bytes (push/pull user state,
a user message) follow the last value. StreamDecoder therefore keeps what it has and tries again only when
enough came.

By default every stream message is one compressed blob, even an ack of nine bytes; uncompressed ones are
accepted as well.
"""

from shoal.membership.wire.dialect import pack, unpack_struct
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
from shoal.membership.wire.packets import decode_compressed, encode_compressed

MAX_STREAM_BYTES = 8 << 20
"""One stream message, before and after decompression. A record is at most some 2.5 KiB, so this is room for
thousands of members with full tags; memberlist itself allows 20 MiB of user state alone, which nothing in a
sane pool comes near."""

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
    """Bytes of one stream to its one message. feed() answers None until the message is whole, and raises
    WireError."""

    def __init__(self, max_bytes: int = MAX_STREAM_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._needed = 1

    def feed(self, data: bytes) -> StreamMessage | None:
        self._buffer += data
        if len(self._buffer) > self._max_bytes:
            raise WireError("limit", f"a stream message of more than {self._max_bytes} bytes")
        if len(self._buffer) < self._needed:
            return None
        whole = bytes(self._buffer)
        try:
            return decode_stream(whole, self._max_bytes)
        except ShortError as short:
            if short.needed > self._max_bytes:
                raise WireError("limit", f"a stream message announces {short.needed} bytes") from short
            # Never more than the message is known to lack: the peer may have sent all it will send before
            # our answer.
            self._needed = short.needed
            return None


def decode_stream(data: bytes, max_bytes: int = MAX_STREAM_BYTES) -> StreamMessage:
    """One stream message; ShortError says that more bytes may complete it, WireError that none can."""
    if not data:
        raise ShortError(1)
    if data[0] != Type.COMPRESS:
        return _decode_plain(data)
    content, _ = decode_compressed(data, 1, max_bytes)
    try:
        if content[:1] == bytes((Type.COMPRESS,)):
            raise WireError("limit", "compressed twice")
        return _decode_plain(content)
    except ShortError as short:
        raise WireError("short", "a compressed message that ends early") from short


def _decode_plain(data: bytes) -> StreamMessage:
    if not data:
        raise ShortError(1)
    kind = data[0]
    if kind == Type.PUSH_PULL:
        return _decode_push_pull(data)
    if kind not in (Type.PING, Type.ACK, Type.USER, Type.ERROR):
        raise WireError("type", f"stream message type {kind}")
    fields, end = unpack_struct(data, 1)
    if kind == Type.PING:
        return decode_ping(fields)
    if kind == Type.ACK:
        return decode_ack(fields)
    if kind == Type.ERROR:
        return RemoteError(fields.text("Error", 65_536))
    return User(_tail(data, end, fields.integer("UserMsgLen", 0, MAX_STREAM_BYTES)))


def _decode_push_pull(data: bytes) -> PushPull:
    header, position = unpack_struct(data, 1)
    count = header.integer("Nodes", 0, MAX_NODES)
    nodes: list[NodeState] = []
    for _ in range(count):
        fields, position = unpack_struct(data, position)
        nodes.append(decode_node_state(fields))
    user_state = _tail(data, position, header.integer("UserStateLen", 0, MAX_STREAM_BYTES))
    return PushPull(header.flag("Join"), tuple(nodes), user_state)


def _tail(data: bytes, position: int, length: int) -> bytes:
    if position + length > len(data):
        raise ShortError(position + length)
    return data[position : position + length]
