"""Serf's messages, which travel inside memberlist's user messages and as the user state of a push/pull.

Law of this file: values and their bytes; what they mean for a member list is membership/serf/core.py's
business, one floor up.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from shoal.membership.wire.dialect import Fields, as_text, pack, unpack, unpack_struct
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import MAX_NAME_BYTES, Endpoint

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


def encode_serf(message: SerfMessage) -> bytes:
    """Type byte and body, without memberlist's 08 in front."""
    match message:
        case LeaveIntent(ltime, node, prune):
            return _typed(SerfType.LEAVE, {"LTime": ltime, "Node": node, "Prune": prune})
        case JoinIntent(ltime, node):
            return _typed(SerfType.JOIN, {"LTime": ltime, "Node": node})
        case UserEvent(ltime, name, payload, coalesce):
            body = {"CC": coalesce, "LTime": ltime, "Name": name, "Payload": payload or None}
            return _typed(SerfType.USER_EVENT, body)
        case Query():
            return _encode_query(message)
        case QueryResponse(ltime, id_, sender, flags, payload):
            answer = {"Flags": flags, "From": sender, "ID": id_, "LTime": ltime, "Payload": payload or None}
            return _typed(SerfType.QUERY_RESPONSE, answer)
        case Relay(destination, destination_name, wrapped):
            address = {"IP": destination.address, "Port": destination.port, "Zone": ""}
            header = {"DestAddr": address, "DestName": destination_name}
            return _typed(SerfType.RELAY, header) + wrapped


def _typed(kind: SerfType, body: Mapping[str, object]) -> bytes:
    return bytes((kind,)) + pack(body)


def _encode_query(query: Query) -> bytes:
    body: dict[str, object] = {
        "Addr": query.source.address,
        "Filters": list(query.filters) or None,
        "Flags": query.flags,
        "ID": query.id,
        "LTime": query.ltime,
        "Name": query.name,
        "Payload": query.payload or None,
        "Port": query.source.port,
        "RelayFactor": query.relay_factor,
        "SourceNode": query.source_node,
        "Timeout": query.timeout_ns,
    }
    return _typed(SerfType.QUERY, body)


def decode_serf(data: bytes) -> SerfMessage:
    """One Serf message; an unknown type raises WireError("type"), which callers skip without more ado."""
    if not data:
        raise WireError("short", "an empty Serf message")
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise WireError("type", f"Serf message type {data[0]}")
    fields, end = unpack_struct(data, 1)
    return decoder(fields, data[end:])


def _ltime(fields: Fields, name: str = "LTime") -> int:
    return fields.integer(name, 0, MAX_LTIME)


def _node(fields: Fields) -> str:
    node = fields.text("Node", MAX_NAME_BYTES)
    if not node:
        raise WireError("format", "an intent about nobody")
    return node


def _decode_leave(fields: Fields, _rest: bytes) -> SerfMessage:
    return LeaveIntent(_ltime(fields), _node(fields), fields.flag("Prune"))


def _decode_join(fields: Fields, _rest: bytes) -> SerfMessage:
    return JoinIntent(_ltime(fields), _node(fields))


def _decode_event(fields: Fields, _rest: bytes) -> SerfMessage:
    return UserEvent(_ltime(fields), fields.text("Name"), fields.raw("Payload"), fields.flag("CC"))


def _decode_query(fields: Fields, _rest: bytes) -> SerfMessage:
    filters = fields.items("Filters")
    if not all(isinstance(item, bytes) for item in filters):
        raise WireError("format", "a filter is not bytes")
    return Query(
        ltime=_ltime(fields),
        id=fields.unsigned("ID", 32),
        source=_endpoint(fields.raw("Addr"), fields.unsigned("Port", 16)),
        source_node=fields.text("SourceNode", MAX_NAME_BYTES),
        filters=tuple(filters),
        flags=fields.unsigned("Flags", 32),
        relay_factor=fields.unsigned("RelayFactor", 8),
        timeout_ns=fields.integer("Timeout", 0, (1 << 63) - 1),
        name=fields.text("Name"),
        payload=fields.raw("Payload"),
    )


def _decode_response(fields: Fields, _rest: bytes) -> SerfMessage:
    sender = fields.text("From", MAX_NAME_BYTES)
    id_, flags = fields.unsigned("ID", 32), fields.unsigned("Flags", 32)
    return QueryResponse(_ltime(fields), id_, sender, flags, fields.raw("Payload"))


def _decode_relay(fields: Fields, rest: bytes) -> SerfMessage:
    address = Fields.of(fields.mapping("DestAddr"))
    destination = _endpoint(address.raw("IP"), address.unsigned("Port", 16))
    return Relay(destination, fields.text("DestName", MAX_NAME_BYTES), rest)


def _endpoint(address: bytes, port: int) -> Endpoint:
    if len(address) not in (4, 16) or not port:
        raise WireError("format", f"an address of {len(address)} bytes with port {port}")
    return Endpoint(address, port)


_DECODERS: dict[int, Callable[[Fields, bytes], SerfMessage]] = {
    SerfType.LEAVE: _decode_leave,
    SerfType.JOIN: _decode_join,
    SerfType.USER_EVENT: _decode_event,
    SerfType.QUERY: _decode_query,
    SerfType.QUERY_RESPONSE: _decode_response,
    SerfType.RELAY: _decode_relay,
}


def encode_state(state: SerfState) -> bytes:
    """Push/pull user state. Events of one Lamport time share a slot."""
    slots: dict[int, list[object]] = {}
    for event in state.events:
        slots.setdefault(event.ltime, []).append({"Name": event.name, "Payload": event.payload or None})
    events: list[object] = [{"Events": group, "LTime": ltime} for ltime, group in slots.items()]
    body: dict[str, object] = {
        "EventLTime": state.event_ltime,
        "Events": events or None,
        "LTime": state.ltime,
        "LeftMembers": list(state.left_members),
        "QueryLTime": state.query_ltime,
        "StatusLTimes": dict(state.status_ltimes),
    }
    return _typed(SerfType.PUSH_PULL, body)


def decode_state(data: bytes) -> SerfState:
    """Push/pull user state; an idle Serf agent sends 512 empty event slots, which are skipped."""
    if data[:1] != bytes((SerfType.PUSH_PULL,)):
        raise WireError("type", "the user state is not Serf's")
    fields, _ = unpack_struct(data, 1)
    left = tuple(as_text(name, "LeftMembers", MAX_NAME_BYTES) for name in fields.items("LeftMembers"))
    events = [event for slot in fields.items("Events") if slot is not None for event in _slot_events(slot)]
    return SerfState(
        ltime=_ltime(fields),
        status_ltimes=_status_ltimes(fields.mapping("StatusLTimes")),
        left_members=left,
        event_ltime=_ltime(fields, "EventLTime"),
        query_ltime=_ltime(fields, "QueryLTime"),
        events=tuple(events),
    )


def _status_ltimes(mapping: dict[Any, Any]) -> dict[str, int]:
    ltimes: dict[str, int] = {}
    for name, ltime in mapping.items():
        if ltime is not None and (not isinstance(ltime, int) or not 0 <= ltime <= MAX_LTIME):
            raise WireError("format", "a status time is not a Lamport time")
        ltimes[as_text(name, "StatusLTimes", MAX_NAME_BYTES)] = ltime or 0
    return ltimes


def _slot_events(slot: object) -> list[UserEvent]:
    fields = Fields.of(slot)
    ltime = _ltime(fields)
    events = [Fields.of(event) for event in fields.items("Events") if event is not None]
    return [UserEvent(ltime, event.text("Name"), event.raw("Payload")) for event in events]


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


def encode_conflict_answer(answer: ConflictAnswer | None) -> bytes:
    """The payload that answers `_serf_conflict`; None says that we do not know the name."""
    kind = bytes((SerfType.CONFLICT_RESPONSE,))
    if answer is None:
        return kind + pack(None)
    versions = answer.vsn or bytes(6)
    body: dict[str, object] = {
        "Addr": answer.endpoint.address,
        "DelegateCur": versions[5],
        "DelegateMax": versions[4],
        "DelegateMin": versions[3],
        "Name": answer.name,
        "Port": answer.endpoint.port,
        "ProtocolCur": versions[2],
        "ProtocolMax": versions[1],
        "ProtocolMin": versions[0],
        "Status": answer.status,
        "Tags": dict(answer.tags),
    }
    return kind + pack(body)


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
