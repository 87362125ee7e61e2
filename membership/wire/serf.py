"""Serf's messages, which travel inside memberlist's user messages and as the user state of a push/pull.

Law of this file: values and their bytes; what they mean for a member list is membership/serf/core.py's
business, one floor up.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from shoal.membership.wire.dialect import Fields, as_text, pack, unpack, unpack_struct
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, endpoint, read_endpoint
from shoal.membership.wire.structs import (
    MAX_NAME_BYTES,
    MessageTable,
    Part,
    Struct,
    flag,
    integer,
    node_name,
    payload,
    text,
    unsigned,
)

MAX_TAGS_BYTES = 512
"""Encoded tags, with the leading ff. Only senders enforce it, so we must."""

EVENT_SLOTS = 512
"""Serf's ring of recent events and queries; also how far back in Lamport time a message is still news."""

MAX_LTIME = (1 << 64) - 2
"""The largest Lamport time we take: one below what cannot be incremented any more."""

NODE_FILTER = 0
TAG_FILTER = 1
"""The first byte of a query's filter."""

_TAGS_MAGIC = b"\xff"


class SerfType(IntEnum):
    LEAVE = 0
    JOIN = 1
    PUSH_PULL = 2
    USER_EVENT = 3
    QUERY = 4
    QUERY_RESPONSE = 5
    CONFLICT_RESPONSE = 6
    KEY_REQUEST = 7
    KEY_RESPONSE = 8
    RELAY = 9


@dataclass(frozen=True, slots=True)
class LeaveIntent:
    ltime: int
    node: str
    prune: bool = False


@dataclass(frozen=True, slots=True)
class JoinIntent:
    ltime: int
    node: str


@dataclass(frozen=True, slots=True)
class UserEvent:
    """`coalesce` is Serf's CC: receivers may deliver only the newest event of a name."""

    ltime: int
    name: str
    payload: bytes
    coalesce: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    ltime: int
    id: int
    source: Endpoint
    source_node: str
    filters: tuple[bytes, ...]
    flags: int
    relay_factor: int
    timeout_ns: int
    name: str
    payload: bytes

    ACK = 1
    NO_BROADCAST = 2


@dataclass(frozen=True, slots=True)
class QueryResponse:
    """flags 1 is an acknowledgement, 0 an answer."""

    ltime: int
    id: int
    sender: str
    flags: int
    payload: bytes

    ACK = 1


@dataclass(frozen=True, slots=True)
class Relay:
    """`message` is a whole Serf message (type and body) to be handed on to the destination unread."""

    destination: Endpoint
    destination_name: str
    message: bytes


SerfMessage = LeaveIntent | JoinIntent | UserEvent | Query | QueryResponse | Relay


@dataclass(frozen=True, slots=True)
class SerfState:
    """The user state of a push/pull. Empty slots of the sender's event ring are left out here."""

    ltime: int
    status_ltimes: Mapping[str, int]
    left_members: tuple[str, ...]
    event_ltime: int
    query_ltime: int
    events: tuple[UserEvent, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ConflictAnswer:
    """What `_serf_conflict` is answered with: our view of the member in question.
    `status` is Serf's number."""

    name: str
    endpoint: Endpoint
    tags: Mapping[str, str]
    status: int
    vsn: bytes


def _read_filters(fields: Fields) -> tuple[bytes, ...]:
    filters = fields.items("Filters")
    if not all(isinstance(item, bytes) for item in filters):
        raise WireError("format", "a filter is not bytes")
    return tuple(filters)


_LTIME, _ID, _FLAGS = integer("LTime", MAX_LTIME), unsigned("ID", 32), unsigned("Flags", 32)
_NODE, _NAME, _PAYLOAD = node_name("Node"), text("Name"), payload("Payload")

_MESSAGES = MessageTable({
    SerfType.LEAVE: Struct(LeaveIntent, ltime=_LTIME, node=_NODE, prune=flag("Prune")),
    SerfType.JOIN: Struct(JoinIntent, ltime=_LTIME, node=_NODE),
    SerfType.USER_EVENT: Struct(UserEvent, ltime=_LTIME, name=_NAME, payload=_PAYLOAD, coalesce=flag("CC")),
    SerfType.QUERY: Struct(
        Query,
        ltime=_LTIME,
        id=_ID,
        source=endpoint("Addr"),
        source_node=text("SourceNode", MAX_NAME_BYTES),
        filters=Part(_read_filters, lambda filters: {"Filters": list(filters) or None}),
        flags=_FLAGS,
        relay_factor=unsigned("RelayFactor", 8),
        timeout_ns=integer("Timeout", (1 << 63) - 1),
        name=_NAME,
        payload=_PAYLOAD,
    ),
    SerfType.QUERY_RESPONSE: Struct(
        QueryResponse,
        ltime=_LTIME,
        id=_ID,
        sender=text("From", MAX_NAME_BYTES),
        flags=_FLAGS,
        payload=_PAYLOAD,
    ),
})  # fmt: skip


def fields_of(data: bytes, kind: SerfType, otherwise: str) -> Fields:
    """The struct behind that type byte. Raises WireError, with `otherwise` for another type."""
    if data[:1] != bytes((kind,)):
        raise WireError("type", otherwise)
    return unpack_struct(data, 1)[0]


def encode_serf(message: SerfMessage) -> bytes:
    """Type byte and body, without memberlist's 08 in front."""
    if isinstance(message, Relay):
        address = {"IP": message.destination.address, "Port": message.destination.port, "Zone": ""}
        header = {"DestAddr": address, "DestName": message.destination_name}
        return bytes((SerfType.RELAY,)) + pack(header) + message.message
    return _MESSAGES.encode(message)


def decode_serf(data: bytes) -> SerfMessage:
    """One Serf message; an unknown type raises WireError("type"), which callers skip without more ado."""
    if not data:
        raise WireError("short", "an empty Serf message")
    if data[0] not in _MESSAGES and data[0] != SerfType.RELAY:
        raise WireError("type", f"Serf message type {data[0]}")
    fields, end = unpack_struct(data, 1)
    if data[0] == SerfType.RELAY:
        address = Fields.of(fields.mapping("DestAddr"))
        destination = read_endpoint(address.raw("IP"), address.unsigned("Port", 16))
        return Relay(destination, fields.text("DestName", MAX_NAME_BYTES), data[end:])
    message: SerfMessage = _MESSAGES.decode(data[0], fields)
    return message


def _read_left(fields: Fields) -> tuple[str, ...]:
    return tuple(as_text(name, "LeftMembers", MAX_NAME_BYTES) for name in fields.items("LeftMembers"))


def _read_status_ltimes(fields: Fields) -> dict[str, int]:
    ltimes: dict[str, int] = {}
    for name, ltime in fields.mapping("StatusLTimes").items():
        if ltime is not None and (not isinstance(ltime, int) or not 0 <= ltime <= MAX_LTIME):
            raise WireError("format", "a status time is not a Lamport time")
        ltimes[as_text(name, "StatusLTimes", MAX_NAME_BYTES)] = ltime or 0
    return ltimes


def _read_events(fields: Fields) -> tuple[UserEvent, ...]:
    """An idle Serf agent sends 512 empty slots, which are skipped."""
    slots = [Fields.of(slot) for slot in fields.items("Events") if slot is not None]
    held = [(slot.integer("LTime", 0, MAX_LTIME), slot.items("Events")) for slot in slots]
    found = [(ltime, Fields.of(event)) for ltime, events in held for event in events if event is not None]
    return tuple(UserEvent(ltime, event.text("Name"), event.raw("Payload")) for ltime, event in found)


def _write_events(events: Sequence[UserEvent]) -> dict[str, object]:
    """Events of one Lamport time share a slot."""
    slots: dict[int, list[object]] = {}
    for event in events:
        slots.setdefault(event.ltime, []).append({"Name": event.name, "Payload": event.payload or None})
    return {"Events": [{"Events": held, "LTime": ltime} for ltime, held in slots.items()] or None}


_STATE = Struct(
    SerfState,
    ltime=_LTIME,
    status_ltimes=Part(_read_status_ltimes, lambda ltimes: {"StatusLTimes": dict(ltimes)}),
    left_members=Part(_read_left, lambda names: {"LeftMembers": list(names)}),
    event_ltime=integer("EventLTime", MAX_LTIME),
    query_ltime=integer("QueryLTime", MAX_LTIME),
    events=Part(_read_events, _write_events),
)


def encode_state(state: SerfState) -> bytes:
    """Push/pull user state."""
    return bytes((SerfType.PUSH_PULL,)) + _STATE.encode(state)


def decode_state(data: bytes) -> SerfState:
    """Push/pull user state. Raises WireError."""
    return _STATE.decode(fields_of(data, SerfType.PUSH_PULL, "the user state is not Serf's"))


def encode_tags(tags: Mapping[str, str]) -> bytes:
    """Tags as node meta: ff and a map. Raises ValueError above MAX_TAGS_BYTES."""
    encoded = _TAGS_MAGIC + pack(dict(sorted(tags.items())))
    if len(encoded) > MAX_TAGS_BYTES:
        raise ValueError(f"tags take {len(encoded)} bytes when encoded, the limit is {MAX_TAGS_BYTES}")
    return encoded


def decode_tags(meta: bytes) -> dict[str, str]:
    """Node meta as tags. Meta without the magic byte is the value of `role` (Serf
    protocol 2); bad maps raise WireError."""
    if not meta.startswith(_TAGS_MAGIC):
        return {"role": meta.decode(errors="replace")}
    value, _ = unpack(meta, 1)
    if not isinstance(value, dict):
        raise WireError("format", "tags are not a map")
    return {
        as_text(key, "a tag", 512): as_text(text, "a tag's value", MAX_TAGS_BYTES)
        for key, text in value.items()
    }


_VERSION_FIELDS = ("ProtocolMin", "ProtocolMax", "ProtocolCur", "DelegateMin", "DelegateMax", "DelegateCur")


def encode_conflict_answer(answer: ConflictAnswer | None) -> bytes:
    """The payload that answers `_serf_conflict`; None says that we do not know the name."""
    kind = bytes((SerfType.CONFLICT_RESPONSE,))
    if answer is None:
        return kind + pack(None)
    body: dict[str, object] = {
        "Addr": answer.endpoint.address,
        "Name": answer.name,
        "Port": answer.endpoint.port,
        "Status": answer.status,
        "Tags": dict(answer.tags),
    }
    body |= dict(zip(_VERSION_FIELDS, answer.vsn or bytes(6), strict=True))
    return kind + pack(dict(sorted(body.items())))


def decode_node_filter(data: bytes) -> tuple[str, ...]:
    """The names of a node filter (00 and an array of text)."""
    value, _ = unpack(data, 1)
    if not isinstance(value, list):
        raise WireError("format", "a node filter is not an array")
    return tuple(as_text(name, "a filtered name", MAX_NAME_BYTES) for name in value)


def encode_node_filter(names: Sequence[str]) -> bytes:
    """Only these members are to answer."""
    return bytes((NODE_FILTER,)) + pack(list(names))


def decode_tag_filter(data: bytes) -> tuple[str, str]:
    """The tag and the expression of a tag filter (01 and a struct)."""
    fields, _ = unpack_struct(data, 1)
    return fields.text("Tag", MAX_TAGS_BYTES), fields.text("Expr")


def encode_tag_filter(tag: str, expression: str) -> bytes:
    """Only members are to answer in whose tag the regular expression (Go's, not anchored) is found."""
    return bytes((TAG_FILTER,)) + pack({"Expr": expression, "Tag": tag})


def event_fingerprint(event: UserEvent) -> bytes:
    """Name and payload in 16 bytes: remembering an event must not cost its payload."""
    digest = hashlib.blake2b(event.name.encode() + b"\0" + event.payload, digest_size=16)
    return digest.digest()
