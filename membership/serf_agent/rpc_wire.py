"""Values and bytes of the Serf agent's RPC: requests out, replies and records in.

Law of this file: pure. The meaning of a reply is rpc.py's business. Every decoder here
accepts or raises WireError.

The stream is a plain concatenation of msgpack values without lengths: a header {Seq, Error}, then a body if
this command has one. Only who asked knows whether it has, so the decoder gives values, not messages.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.membership.interface import Member
from shoal.membership.serf.ready import ReplyKind
from shoal.membership.wire.dialect import Fields, ValueWalk, pack_typed, unpack_walked
from shoal.membership.wire.errors import ShortError, WireError
from shoal.membership.wire.messages import MAX_NAME_BYTES, host_text
from shoal.membership.wire.serf import MAX_LTIME, UserEvent

MAX_VALUE_BYTES = 8 << 20
"""One reply: a list of 4096 members with 512 bytes of tags each takes 3 MB."""

MAX_TEXT_BYTES = 1 << 16
"""A log line, an error, a payload: Serf's own limits are far below."""

MAX_SEQUENCE = (1 << 64) - 1


class MemberRecord(NamedTuple):
    """kind: member-join, member-leave, member-failed, member-update or member-reap."""

    kind: str
    members: tuple[Member, ...]


class QueryRecord(NamedTuple):
    """Somebody's query; `id` is for respond(), on this connection and until its deadline."""

    id: int
    ltime: int
    name: str
    payload: bytes


class AnswerRecord(NamedTuple):
    """What came of a query of ours."""

    kind: ReplyKind
    sender: str
    payload: bytes


_REPLY_KINDS = frozenset(kind.value for kind in ReplyKind)

Record = MemberRecord | UserEvent | QueryRecord | AnswerRecord


class KeyReply(NamedTuple):
    """What became of a key in the pool. `error` is empty when every member reported success; `messages` are
    what single members had to say, `keys` how many members have each key (of list-keys)."""

    error: str
    messages: Mapping[str, str]
    keys: Mapping[str, int]
    members: int
    failures: int
    answers: int


def encode_request(command: str, sequence: int, body: Mapping[str, object] | None) -> bytes:
    """Header and body, ready to be sent."""
    header = pack_typed({"Command": command, "Seq": sequence})
    return header if body is None else header + pack_typed(body)


class ValueDecoder:
    """Bytes in any pieces to msgpack values. Each byte is looked at once."""

    def __init__(self, max_bytes: int = MAX_VALUE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._walk = ValueWalk(0)
        self._needed = 1

    def feed(self, data: bytes) -> list[Any]:
        """The values that are whole now, text and bytes alike as bytes. Raises WireError, after which the
        stream is of no use any more."""
        self._buffer += data
        values = []
        while len(self._buffer) >= self._needed:
            try:
                end = self._walk.end(self._buffer)
            except ShortError as short:
                self._needed = short.needed
                break
            values.append(unpack_walked(self._buffer[:end]))
            del self._buffer[:end]
            self._walk, self._needed = ValueWalk(0), 1
        if max(self._needed, len(self._buffer)) > self._max_bytes:
            raise WireError("limit", f"a reply of more than {self._max_bytes} bytes")
        return values


def decode_header(value: object) -> tuple[int, str]:
    """Sequence number and error; the error is empty when all went well."""
    fields = Fields.of(value)
    return fields.integer("Seq", 0, MAX_SEQUENCE), _text(fields, "Error")


def _text(fields: Fields, name: str) -> str:
    return _as_text(fields.raw(name), name)


def _as_text(value: object, name: str) -> str:
    """Serf does not check what it passes on, and one strange byte must not cost the connection."""
    if value is None:
        return ""
    if not isinstance(value, bytes) or len(value) > MAX_TEXT_BYTES:
        raise WireError("format", f"{name} is not text of at most {MAX_TEXT_BYTES} bytes")
    return value.decode(errors="replace")


def _text_map(fields: Fields, name: str) -> dict[str, str]:
    return {_as_text(key, name): _as_text(value, name) for key, value in fields.mapping(name).items()}


def decode_member(value: object) -> Member:
    """Serf's status may also be "none". Incarnation and time are not told, and 0."""
    fields = Fields.of(value)
    name, address = _text(fields, "Name"), fields.raw("Addr")
    if not name or len(name.encode()) > 3 * MAX_NAME_BYTES or len(address) not in (0, 4, 16):
        raise WireError("format", "a member without a name or with a strange address")
    host, port = host_text(address) if address else "", fields.unsigned("Port", 16)
    return Member(name, host, port, _text_map(fields, "Tags"), _text(fields, "Status"), 0, 0)


def decode_members(value: object) -> tuple[Member, ...]:
    return tuple(decode_member(member) for member in Fields.of(value).items("Members"))


def decode_joined(value: object) -> int:
    """How many nodes a join reached."""
    return Fields.of(value).integer("Num", 0, 1 << 31)


def decode_record(value: object) -> Record:
    """One record of a stream."""
    fields = Fields.of(value)
    kind = _text(fields, "Event")
    if kind.startswith("member-"):
        return MemberRecord(kind, decode_members(value))
    if kind not in ("user", "query"):
        raise WireError("type", f"a record of the unknown kind {kind[:64]!r}")
    ltime, name = fields.integer("LTime", 0, MAX_LTIME), _text(fields, "Name")
    if kind == "user":
        return UserEvent(ltime, name, fields.raw("Payload"), fields.flag("Coalesce"))
    return QueryRecord(fields.integer("ID", 0, MAX_SEQUENCE), ltime, name, fields.raw("Payload"))


def decode_answer(value: object) -> AnswerRecord:
    """One record of a query of ours."""
    fields = Fields.of(value)
    kind = _text(fields, "Type")
    if kind not in _REPLY_KINDS:
        raise WireError("type", f"an answer of the unknown kind {kind[:64]!r}")
    return AnswerRecord(ReplyKind(kind), _text(fields, "From"), fields.raw("Payload"))


def decode_stats(value: object) -> dict[str, dict[str, str]]:
    """Sections of names and values, all text."""
    fields = Fields.of(value)
    sections = [_as_text(key, "a section") for key in fields.names()]
    return {section: _text_map(fields, section) for section in sections}


def decode_keys(value: object, error: str) -> KeyReply:
    fields = Fields.of(value)
    keys = {_as_text(key, "a key"): count for key, count in fields.mapping("Keys").items()}
    if not all(isinstance(count, int) and 0 <= count < 1 << 31 for count in keys.values()):
        raise WireError("format", "a key is held by a number of members")
    counts = [fields.integer(name, 0, 1 << 31) for name in ("NumNodes", "NumErr", "NumResp")]
    return KeyReply(error, _text_map(fields, "Messages"), keys, counts[0], counts[1], counts[2])
