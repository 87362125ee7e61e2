"""The frames between two agents: bytes <-> values.

Law of this file: pure. Every length is checked before it is believed, and everything that is wrong raises
PeerWireError and nothing else; a link that meets one is closed. Raft's own messages are encoded by
replication/messages.py, batches by shoal/format/batch.py: here they are opaque.

A frame on the wire: u32 payload length, u8 type, payload; little endian.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from shoal.agent.durable.ids import GROUP_ID_BYTES, GroupId, group_id_from_bytes
from shoal.format.batch import MAX_FRAME_BYTES

PROTOCOL = "shoal-peer/1"
Piece: TypeAlias = bytes | memoryview
"""Of a frame on its way: stored frames go as they lie in memory."""

MAX_CONTROL_PAYLOAD_BYTES = 2**20
"""Heartbeats, votes, acknowledgements of all groups for one turn: a heartbeat never waits behind more than
this."""
MAX_BULK_PAYLOAD_BYTES = MAX_FRAME_BYTES + 2**20
"""One stored frame of the largest size, or many small ones, with the message that carries them."""
MAX_REASON_BYTES = 512
MAX_STOPPED_GROUPS = 256
"""In one liveness frame: 5 KB in each heartbeat interval is what an agent costs each peer while all of its
replicas have stopped. More of them are named in turn."""

FRAME_HEAD = struct.Struct("<IB")
_HEAD_BYTES = FRAME_HEAD.size
_HELLO = struct.Struct("<4sHB16s16s16s8s")
_HELLO_MAGIC = b"SHPR"
_LENGTH = struct.Struct("<I")
_COUNT = struct.Struct("<H")
_CORRELATION = struct.Struct("<QB")

NONCE_BYTES = 8

_group_id = lru_cache(maxsize=8192)(group_id_from_bytes)  # the same ones all the time
_group_bytes = lru_cache(maxsize=8192)(GroupId.to_bytes)


class PeerWireError(ValueError):
    """Bytes that are no frame of this protocol."""


class LinkKind(IntEnum):
    """Two connections a pair of agents, so that a heartbeat never waits behind a batch (safety 24)."""

    CONTROL = 0
    BULK = 1


class FrameType(IntEnum):
    """0 to 63 belong to the links and the host; messages.py has those from 64 on."""

    HELLO = 1
    REFUSED = 2
    LIVENESS = 3
    GROUPS = 4
    APPEND = 5
    REQUEST = 6
    RESPONSE = 7


MAX_PAYLOAD_BYTES = {LinkKind.CONTROL: MAX_CONTROL_PAYLOAD_BYTES, LinkKind.BULK: MAX_BULK_PAYLOAD_BYTES}


class RawFrame(NamedTuple):
    """Type (known or not) and payload."""

    type: int
    payload: bytes


class FrameReader:
    """Frames out of a byte stream that arrives in any pieces; holds at most one unfinished frame."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._data: bytes | bytearray = b""  # a bytearray once a frame comes in several pieces
        self._position = 0

    def limit(self, max_payload_bytes: int) -> None:
        """The bound from the next frame on: small until the handshake is done."""
        self._max_payload_bytes = max_payload_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held of an incomplete frame, without those that came last."""
        return len(self._data) - self._position if isinstance(self._data, bytearray) else 0

    def only(self, data: bytes) -> RawFrame | None:
        """The frame that these bytes are, if they are one and nothing is left from before: as nearly all that
        arrives. None: nothing has happened, `feed` says more."""
        if self._data or len(data) < _HEAD_BYTES:
            return None
        length, frame_type = FRAME_HEAD.unpack_from(data)
        if length != len(data) - _HEAD_BYTES or length > self._max_payload_bytes:
            return None
        return RawFrame(frame_type, data[_HEAD_BYTES:])

    def feed(self, data: bytes) -> None:
        """These bytes have arrived."""
        if not self._data:
            self._data = data
            return
        if isinstance(self._data, bytearray):
            del self._data[: self._position]
        else:
            self._data = bytearray(self._data[self._position :])
        self._position = 0
        self._data += data

    def take(self) -> RawFrame | None:
        """The next frame, once it is complete. Raises PeerWireError as soon as a length is out of bounds. One
        by one, since the first may change the bound of those that came with it."""
        data, start = self._data, self._position + _HEAD_BYTES
        if len(data) < start:
            return None
        length, frame_type = FRAME_HEAD.unpack_from(data, self._position)
        if length > self._max_payload_bytes:
            raise PeerWireError(f"a frame of {length} bytes, more than {self._max_payload_bytes}")
        end = start + length
        if end > len(data):
            return None
        if isinstance(data, bytes):
            payload = data[start:end]
        else:
            with memoryview(data) as view:
                payload = bytes(view[start:end])
        if end == len(data):
            self._data, self._position = b"", 0
        else:
            self._position = end
        return RawFrame(frame_type, payload)


def frame_head(frame_type: int, payload_bytes: int) -> bytes:
    """The head before a payload of this length."""
    return FRAME_HEAD.pack(payload_bytes, frame_type)


class Hello(NamedTuple):
    """The greeting: sender, receiver, cluster, and the sender's run. Ids are 32 hexadecimal digits, as
    everywhere."""

    kind: LinkKind
    cluster_id: bytes
    agent_id: str
    expected_agent_id: str
    boot_nonce: bytes

    def to_bytes(self, version: int) -> bytes:
        """The payload of a HELLO frame, in the link version that both sides chose."""
        return _HELLO.pack(
            _HELLO_MAGIC,
            version,
            self.kind,
            self.cluster_id,
            bytes.fromhex(self.agent_id),
            bytes.fromhex(self.expected_agent_id),
            self.boot_nonce,
        )

    @classmethod
    def from_bytes(cls, data: bytes, agreed_version: int) -> "Hello":
        """Raises PeerWireError."""
        if len(data) != _HELLO.size:
            raise PeerWireError(f"a greeting of {len(data)} bytes")
        magic, version, kind, cluster_id, agent_id, expected, nonce = _HELLO.unpack(data)
        if magic != _HELLO_MAGIC:
            raise PeerWireError("not a greeting")
        if version != agreed_version:
            raise PeerWireError(
                f"a greeting of link version {version}, where the two sides chose {agreed_version}"
            )
        if kind not in (LinkKind.CONTROL, LinkKind.BULK):
            raise PeerWireError(f"link kind {kind}")
        return cls(LinkKind(kind), cluster_id, agent_id.hex(), expected.hex(), nonce)


def encode_refusal(reason: str) -> bytes:
    """The payload of a REFUSED frame."""
    return reason.encode()[:MAX_REASON_BYTES]


def decode_refusal(payload: bytes) -> str:
    """Never raises: a reason is for people."""
    return payload[:MAX_REASON_BYTES].decode("utf-8", "replace")


def encode_stopped(groups: Sequence[GroupId]) -> bytes:
    """The end of a liveness frame, behind the boot nonce: groups whose replicas at the sender have stopped.
    Nothing for none of them."""
    assert len(groups) <= MAX_STOPPED_GROUPS
    return _COUNT.pack(len(groups)) + b"".join(map(_group_bytes, groups)) if groups else b""


def decode_stopped(payload: bytes) -> list[GroupId]:
    """Bytes behind the groups are for newer decoders. Raises PeerWireError."""
    if not payload:
        return []
    if len(payload) < _COUNT.size:
        raise PeerWireError("a liveness frame that ends within a number")
    (count,) = _COUNT.unpack_from(payload)
    end = _COUNT.size + count * GROUP_ID_BYTES
    if count > MAX_STOPPED_GROUPS or end > len(payload):
        raise PeerWireError(f"{count} stopped groups in {len(payload)} bytes")
    return [_group_id(payload[at : at + GROUP_ID_BYTES]) for at in range(_COUNT.size, end, GROUP_ID_BYTES)]


def encode_group_messages(messages: Sequence[tuple[GroupId, bytes]]) -> list[bytes]:
    """Payloads of GROUPS frames: all messages for one peer and turn, cut where the bound demands."""
    if len(messages) == 1:
        ((group, message),) = messages
        size = len(message)
        assert GROUP_ID_BYTES + _LENGTH.size + size <= MAX_CONTROL_PAYLOAD_BYTES
        return [_group_bytes(group) + _LENGTH.pack(size) + message]
    payloads: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for group, message in messages:
        item_bytes = GROUP_ID_BYTES + _LENGTH.size + len(message)
        assert item_bytes <= MAX_CONTROL_PAYLOAD_BYTES
        if size + item_bytes > MAX_CONTROL_PAYLOAD_BYTES:
            payloads.append(b"".join(parts))
            parts, size = [], 0
        parts += (group.to_bytes(), _LENGTH.pack(len(message)), message)
        size += item_bytes
    if parts:
        payloads.append(b"".join(parts))
    return payloads


def decode_group_messages(payload: bytes) -> list[tuple[GroupId, bytes]]:
    """Raises PeerWireError."""
    messages = []
    position = 0
    while position < len(payload):
        group, message, position = take_message(payload, position)
        messages.append((group, message))
    return messages


def take_message(payload: bytes, position: int) -> tuple[GroupId, bytes, int]:
    """One group's message, and where it ends. Raises PeerWireError."""
    start = position + GROUP_ID_BYTES + _LENGTH.size
    if start > len(payload):
        raise PeerWireError("a group message without its head")
    group = _group_id(payload[position : position + GROUP_ID_BYTES])
    (length,) = _LENGTH.unpack_from(payload, start - _LENGTH.size)
    if length > len(payload) - start:
        raise PeerWireError("a group message longer than its frame")
    return group, payload[start : start + length], start + length


def encode_append(group: GroupId, message: bytes, frames: Sequence[Piece]) -> list[Piece]:
    """The pieces of an APPEND payload: the message that names the entries, then the stored frames,
    unchanged."""
    return [_group_bytes(group) + _LENGTH.pack(len(message)) + message, *frames]


def decode_append(payload: bytes) -> tuple[GroupId, bytes, int]:
    """Group, message, and the position where the stored frames begin. Raises PeerWireError."""
    return take_message(payload, 0)


def encode_request(correlation: int, request_type: int, payload: bytes) -> list[Piece]:
    """The pieces of a REQUEST payload, and of a RESPONSE payload with its status for a type."""
    return [_CORRELATION.pack(correlation, request_type), payload]


def decode_request(payload: bytes) -> tuple[int, int, bytes]:
    """Correlation, type or status, payload. Raises PeerWireError."""
    if len(payload) < _CORRELATION.size:
        raise PeerWireError("a request without its head")
    correlation, request_type = _CORRELATION.unpack_from(payload)
    return correlation, request_type, payload[_CORRELATION.size :]
