"""Memberlist's messages: values and their bytes.

Law of this file: one message in, one message out; packets and streams are framed elsewhere.
Nothing here knows a clock, a socket or what a message means for anybody's state.

Addresses stay bytes (4 or 16) as on the wire, because peers compare them bytewise:
7f000001 and ::ffff:7f000001 are two addresses of one name, hence a conflict.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from shoal.membership.wire.dialect import Fields, pack, unpack_struct
from shoal.membership.wire.errors import WireError

VSN = bytes((1, 5, 2, 2, 5, 5))
"""Versions we advertise: memberlist 1..5 speaking 2, Serf 2..5 speaking 5. Never
anything else: a Vsn of 1 to 5 bytes crashes a Serf 0.9.4 agent, and an incompatible one
poisons every later push/pull of the pool."""

MAX_NAME_BYTES = 128
"""Serf's own limit for node names since 0.9.5."""

MAX_META_BYTES = 1024
"""What we accept; senders keep to 512, old Serf agents enforce nothing on receipt."""

MAX_INCARNATION = (1 << 32) - 1


class Type(IntEnum):
    """The first byte of a message or of a wrapper around messages."""

    PING = 0
    INDIRECT_PING = 1
    ACK = 2
    SUSPECT = 3
    ALIVE = 4
    DEAD = 5
    PUSH_PULL = 6
    COMPOUND = 7
    USER = 8
    COMPRESS = 9
    ENCRYPT = 10
    NACK = 11
    CHECKSUM = 12
    ERROR = 13
    LABEL = 244


class State(IntEnum):
    """A node's state as push/pull writes it."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Endpoint(NamedTuple):
    """Where a node listens, UDP and TCP alike."""

    address: bytes
    port: int

    def __str__(self) -> str:
        return f"{host_text(self.address)}:{self.port}"


@lru_cache(maxsize=4096)
def host_text(address: bytes) -> str:
    """Bytes to text; an IPv4 address in IPv6 clothes (agents bound to 0.0.0.0 send it
    so) becomes plain IPv4."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)


def is_ipv4(address: bytes) -> bool:
    """Whether packets go there by IPv4, whatever clothes the address wears."""
    return ":" not in host_text(address)


@lru_cache(maxsize=4096)
def host_bytes(text: str) -> bytes:
    """An address (not a host name) to bytes. Raises ValueError."""
    return ipaddress.ip_address(text).packed


@dataclass(frozen=True, slots=True)
class Ping:
    sequence: int
    node: str = ""
    source: Endpoint | None = None
    source_node: str = ""


@dataclass(frozen=True, slots=True)
class IndirectPing:
    sequence: int
    target: Endpoint
    node: str
    nack: bool
    source: Endpoint | None = None
    source_node: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    sequence: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Nack:
    sequence: int


@dataclass(frozen=True, slots=True)
class Suspect:
    incarnation: int
    node: str
    accuser: str


@dataclass(frozen=True, slots=True)
class Alive:
    incarnation: int
    node: str
    endpoint: Endpoint
    meta: bytes
    vsn: bytes


@dataclass(frozen=True, slots=True)
class Dead:
    """accuser == node says "I leave"."""

    incarnation: int
    node: str
    accuser: str


@dataclass(frozen=True, slots=True)
class User:
    """Opaque to memberlist; Serf's messages travel in it."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class NodeState:
    """One record of a push/pull."""

    name: str
    endpoint: Endpoint
    meta: bytes
    incarnation: int
    state: State
    vsn: bytes


@dataclass(frozen=True, slots=True)
class PushPull:
    join: bool
    nodes: tuple[NodeState, ...]
    user_state: bytes


@dataclass(frozen=True, slots=True)
class RemoteError:
    """A peer's refusal on a stream."""

    text: str


Message = Ping | IndirectPing | Ack | Nack | Suspect | Alive | Dead | User
"""What a UDP packet can hold, after unwrapping."""

StreamMessage = Ping | Ack | PushPull | User | RemoteError
"""What a TCP stream can hold."""


def _source_fields(source: Endpoint | None, source_node: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    if source is not None:
        fields["SourceAddr"] = source.address
    if source_node:
        fields["SourceNode"] = source_node
    if source is not None:
        fields["SourcePort"] = source.port
    return fields


def encode_message(message: Message | RemoteError) -> bytes:
    """A type byte and a body, keys in Go's sorted order so that the bytes equal memberlist's."""
    match message:
        case Ping(sequence, node, source, source_node):
            body = {"Node": node, "SeqNo": sequence, **_source_fields(source, source_node)}
            return _typed(Type.PING, body)
        case IndirectPing():
            return _encode_indirect_ping(message)
        case Ack(sequence, payload):
            return _typed(Type.ACK, {"Payload": payload or None, "SeqNo": sequence})
        case Nack(sequence):
            return _typed(Type.NACK, {"SeqNo": sequence})
        case Suspect(incarnation, node, accuser):
            return _typed(Type.SUSPECT, {"From": accuser, "Incarnation": incarnation, "Node": node})
        case Dead(incarnation, node, accuser):
            return _typed(Type.DEAD, {"From": accuser, "Incarnation": incarnation, "Node": node})
        case Alive():
            return _encode_alive(message)
        case User(payload):
            return bytes((Type.USER,)) + payload
        case RemoteError(text):
            return _typed(Type.ERROR, {"Error": text})


def _typed(kind: Type, body: dict[str, object]) -> bytes:
    return bytes((kind,)) + pack(body)


def _encode_indirect_ping(message: IndirectPing) -> bytes:
    body: dict[str, object] = {
        "Nack": message.nack,
        "Node": message.node,
        "Port": message.target.port,
        "SeqNo": message.sequence,
        **_source_fields(message.source, message.source_node),
        "Target": message.target.address,
    }
    return _typed(Type.INDIRECT_PING, body)


def _encode_alive(message: Alive) -> bytes:
    assert len(message.vsn) in (0, 6)  # any other length crashes a Serf 0.9.4 agent
    body: dict[str, object] = {
        "Addr": message.endpoint.address,
        "Incarnation": message.incarnation,
        "Meta": message.meta,
        "Node": message.node,
        "Port": message.endpoint.port,
        "Vsn": message.vsn,
    }
    return _typed(Type.ALIVE, body)


def encode_node_state(node: NodeState) -> bytes:
    """One record of a push/pull, without a type byte."""
    assert len(node.vsn) in (0, 6)
    return pack({
        "Addr": node.endpoint.address,
        "Incarnation": node.incarnation,
        "Meta": node.meta,
        "Name": node.name,
        "Port": node.endpoint.port,
        "State": int(node.state),
        "Vsn": node.vsn,
    })  # fmt: skip


def decode_message(data: bytes) -> Message:
    """One unwrapped UDP message. Bytes after the body are ignored, as Go ignores them. Raises WireError."""
    if not data:
        raise WireError("short", "an empty message")
    if data[0] == Type.USER:
        return User(data[1:])
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise WireError("type", f"message type {data[0]}")
    fields, _ = unpack_struct(data, 1)
    return decoder(fields)


def decode_ping(fields: Fields) -> Ping:
    """Also used for a ping on a stream."""
    source = _source(fields)
    return Ping(
        fields.unsigned("SeqNo", 32), fields.text("Node"), source, fields.text("SourceNode", MAX_NAME_BYTES)
    )


def decode_ack(fields: Fields) -> Ack:
    return Ack(fields.unsigned("SeqNo", 32), fields.raw("Payload"))


def _source(fields: Fields) -> Endpoint | None:
    """Where an answer shall go: both parts or neither."""
    address, port = fields.raw("SourceAddr"), fields.unsigned("SourcePort", 16)
    return Endpoint(address, port) if len(address) in (4, 16) and port else None


def _decode_indirect_ping(fields: Fields) -> IndirectPing:
    return IndirectPing(
        sequence=fields.unsigned("SeqNo", 32),
        target=_endpoint(fields, "Target"),
        node=_name(fields, "Node"),
        nack=fields.flag("Nack"),
        source=_source(fields),
        source_node=fields.text("SourceNode", MAX_NAME_BYTES),
    )


def _endpoint(fields: Fields, address_field: str) -> Endpoint:
    address, port = fields.raw(address_field), fields.unsigned("Port", 16)
    if len(address) not in (4, 16) or not port:
        raise WireError("format", f"an address of {len(address)} bytes with port {port}")
    return Endpoint(address, port)


def _name(fields: Fields, field: str) -> str:
    name = fields.text(field, MAX_NAME_BYTES)
    if not name:
        raise WireError("format", f"{field} is empty")
    return name


def _meta(fields: Fields) -> bytes:
    meta = fields.raw("Meta")
    if len(meta) > MAX_META_BYTES:
        raise WireError("limit", f"{len(meta)} bytes of Meta")
    return meta


def _vsn(fields: Fields) -> bytes:
    """Exactly six bytes, or none: shorter ones count as absent, as newer versions may append."""
    vsn = fields.raw("Vsn")
    return vsn[:6] if len(vsn) >= 6 else b""


def _decode_suspect(fields: Fields) -> Suspect:
    return Suspect(
        fields.unsigned("Incarnation", 32), _name(fields, "Node"), fields.text("From", MAX_NAME_BYTES)
    )


def _decode_dead(fields: Fields) -> Dead:
    return Dead(
        fields.unsigned("Incarnation", 32), _name(fields, "Node"), fields.text("From", MAX_NAME_BYTES)
    )


def _decode_alive(fields: Fields) -> Alive:
    return Alive(
        incarnation=fields.unsigned("Incarnation", 32),
        node=_name(fields, "Node"),
        endpoint=_endpoint(fields, "Addr"),
        meta=_meta(fields),
        vsn=_vsn(fields),
    )


def decode_node_state(fields: Fields) -> NodeState:
    return NodeState(
        name=_name(fields, "Name"),
        endpoint=_endpoint(fields, "Addr"),
        meta=_meta(fields),
        incarnation=fields.unsigned("Incarnation", 32),
        state=State(fields.integer("State", 0, 3)),
        vsn=_vsn(fields),
    )


_DECODERS: dict[int, Callable[[Fields], Message]] = {
    Type.PING: decode_ping,
    Type.INDIRECT_PING: _decode_indirect_ping,
    Type.ACK: decode_ack,
    Type.NACK: lambda fields: Nack(fields.unsigned("SeqNo", 32)),
    Type.SUSPECT: _decode_suspect,
    Type.ALIVE: _decode_alive,
    Type.DEAD: _decode_dead,
}
