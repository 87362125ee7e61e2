"""Memberlist's messages: values and their bytes.

Law of this file: one message in, one message out; packets and streams are framed elsewhere.
Nothing here knows a clock, a socket or what a message means for anybody's state.

Addresses stay bytes (4 or 16) as on the wire, because peers compare them bytewise:
7f000001 and ::ffff:7f000001 are two addresses of one name, hence a conflict.
"""

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from shoal.membership.wire.dialect import Fields, unpack_struct
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.structs import MAX_NAME_BYTES as MAX_NAME_BYTES
from shoal.membership.wire.structs import (
    MessageTable,
    Part,
    Struct,
    flag,
    node_name,
    payload,
    text,
    unsigned,
)

VSN = bytes((1, 5, 2, 2, 5, 5))
"""Versions we advertise: memberlist 1..5 speaking 2, Serf 2..5 speaking 5. Never
anything else: a Vsn of 1 to 5 bytes crashes a Serf 0.9.4 agent, and an incompatible one
poisons every later push/pull of the pool."""

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


def host_and_port(host: str, port: int) -> str:
    """As Serf writes it: an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ipv4(address: bytes) -> bool:
    """Whether packets go there by IPv4, also to an IPv4 address in IPv6 clothes."""
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


def read_endpoint(address: bytes, port: int) -> Endpoint:
    """Raises WireError."""
    if len(address) not in (4, 16) or not port:
        raise WireError("format", f"an address of {len(address)} bytes with port {port}")
    return Endpoint(address, port)


def endpoint(address: str, port: str = "Port") -> Part:
    """An address and its port, each in a field of its own."""
    return Part(
        lambda fields: read_endpoint(fields.raw(address), fields.unsigned(port, 16)),
        lambda value: {address: value.address, port: value.port},
    )


def _read_source(fields: Fields) -> Endpoint | None:
    """Where an answer shall go: both parts or neither."""
    address, port = fields.raw("SourceAddr"), fields.unsigned("SourcePort", 16)
    return Endpoint(address, port) if len(address) in (4, 16) and port else None


def _read_meta(fields: Fields) -> bytes:
    meta = fields.raw("Meta")
    if len(meta) > MAX_META_BYTES:
        raise WireError("limit", f"{len(meta)} bytes of Meta")
    return meta


def _read_vsn(fields: Fields) -> bytes:
    """Exactly six bytes, or none: shorter ones count as absent, as newer versions may append."""
    vsn = fields.raw("Vsn")
    return vsn[:6] if len(vsn) >= 6 else b""


def _write_vsn(vsn: bytes) -> dict[str, object]:
    assert len(vsn) in (0, 6)  # any other length crashes a Serf 0.9.4 agent
    return {"Vsn": vsn}


_SEQUENCE, _INCARNATION = unsigned("SeqNo", 32), unsigned("Incarnation", 32)
_NODE, _ACCUSER = node_name("Node"), text("From", MAX_NAME_BYTES)
_SOURCE = Part(
    _read_source,
    lambda source: {} if source is None else {"SourceAddr": source.address, "SourcePort": source.port},
)
_SOURCE_NODE = Part(
    lambda fields: fields.text("SourceNode", MAX_NAME_BYTES),
    lambda name: {"SourceNode": name} if name else {},
)
_META, _VSN = Part(_read_meta, lambda meta: {"Meta": meta}), Part(_read_vsn, _write_vsn)

MESSAGES = MessageTable({
    Type.PING: Struct(Ping, sequence=_SEQUENCE, node=text("Node"), source=_SOURCE, source_node=_SOURCE_NODE),
    Type.INDIRECT_PING: Struct(
        IndirectPing,
        sequence=_SEQUENCE,
        target=endpoint("Target"),
        node=_NODE,
        nack=flag("Nack"),
        source=_SOURCE,
        source_node=_SOURCE_NODE,
    ),
    Type.ACK: Struct(Ack, sequence=_SEQUENCE, payload=payload("Payload")),
    Type.NACK: Struct(Nack, sequence=_SEQUENCE),
    Type.SUSPECT: Struct(Suspect, incarnation=_INCARNATION, node=_NODE, accuser=_ACCUSER),
    Type.ALIVE: Struct(
        Alive, incarnation=_INCARNATION, node=_NODE, endpoint=endpoint("Addr"), meta=_META, vsn=_VSN
    ),
    Type.DEAD: Struct(Dead, incarnation=_INCARNATION, node=_NODE, accuser=_ACCUSER),
    Type.ERROR: Struct(RemoteError, text=text("Error", 65_536)),
})  # fmt: skip
"""Stream messages have the same bodies."""

NODE_STATE = Struct(
    NodeState,
    name=node_name("Name"),
    endpoint=endpoint("Addr"),
    meta=_META,
    incarnation=_INCARNATION,
    state=Part(lambda fields: State(fields.integer("State", 0, 3)), lambda state: {"State": int(state)}),
    vsn=_VSN,
)
"""One record of a push/pull, which has no type byte."""


def encode_message(message: Message | RemoteError) -> bytes:
    """A type byte and a body."""
    if isinstance(message, User):
        return bytes((Type.USER,)) + message.payload
    return MESSAGES.encode(message)


def decode_message(data: bytes) -> Message:
    """One unwrapped UDP message. Bytes after the body are ignored, as Go ignores them. Raises WireError."""
    if not data:
        raise WireError("short", "an empty message")
    if data[0] == Type.USER:
        return User(data[1:])
    if data[0] not in MESSAGES or data[0] == Type.ERROR:
        raise WireError("type", f"message type {data[0]}")
    fields, _ = unpack_struct(data, 1)
    message: Message = MESSAGES.decode(data[0], fields)
    return message
