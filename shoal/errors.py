"""The table of error codes, once: agents answer with it, clients read it, documentation is made from it.

Knows HTTP status numbers, but neither requests nor responses. Problem documents are RFC 9457.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

# Longer values than any time, name or offset; they come back in error messages.
SHOWN_CHARACTERS = 80

JSON: TypeAlias = "bool | int | float | str | list[Any] | dict[str, Any] | None"

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
_TYPE_PREFIX: Final = "urn:shoal:problem:"


ErrorCode: TypeAlias = Literal[
    "bad-request", "ambiguous-body", "schema-mismatch", "illegal-name", "unauthenticated", "foreign-origin",
    "forbidden", "unknown-topic", "unknown-partition", "unknown-group", "unknown-key", "unknown-member",
    "unknown-principal", "unknown-role", "unknown-token", "unknown-route", "method-not-allowed",
    "not-acceptable", "topic-differs", "group-differs", "wrong-mode", "wrong-kind", "no-groups-here",
    "too-many-groups", "role-in-use", "role-built-in",
    "last-administrator", "too-many-tokens", "no-session", "consumer-in-use",
    "settings-changed", "not-enough-members", "keys-differ", "unreachable", "not-failed", "recovery-refused",
    "level-too-low", "level-refused", "producer-fenced", "sequence-gap", "sequence-differs", "trimmed",
    "precondition-failed", "too-large", "unsupported-media-type", "beyond-end", "not-leader", "overloaded",
    "too-many-producers", "too-many-consumers", "quota-exceeded", "too-many-failed-logins", "internal",
    "no-leader", "not-ready", "stopping", "damaged", "timeout", "leadership-lost", "catalog-full",
    "disk-full",
]  # fmt: skip
"""The codes of ERRORS, for type checkers: a code that is not in the table does not pass them."""


class ErrorRow(NamedTuple):
    """One line of the table.

    `retriable`: the same request may succeed later, or elsewhere. `definite`: the request certainly was not
    carried out; a client that repeats an indefinite append without a producer id may store it twice.
    """

    code: ErrorCode
    status: int
    title: str
    retriable: bool
    definite: bool


_TABLE: Final = (
    ErrorRow("bad-request", 400, "The request cannot be understood", False, True),
    ErrorRow("ambiguous-body", 400, "The body could mean two things", False, True),
    ErrorRow("schema-mismatch", 400, "The records do not fit the topic's schema", False, True),
    ErrorRow("illegal-name", 400, "The name is not allowed", False, True),
    ErrorRow("unauthenticated", 401, "Credentials are missing, or are not accepted", False, True),
    ErrorRow("foreign-origin", 403, "Requests from this origin are refused", False, True),
    ErrorRow("forbidden", 403, "The credentials do not allow this", False, True),
    ErrorRow("unknown-topic", 404, "There is no such topic", False, True),
    ErrorRow("unknown-partition", 404, "The topic has no such partition", False, True),
    ErrorRow("unknown-group", 404, "The topic has no such consumer group", False, True),
    ErrorRow("unknown-key", 404, "The table has no row with this key", False, True),
    ErrorRow("unknown-member", 404, "There is no such member", False, True),
    ErrorRow("unknown-principal", 404, "There is no such principal", False, True),
    ErrorRow("unknown-role", 404, "There is no such role", False, True),
    ErrorRow("unknown-token", 404, "There is no such token", False, True),
    ErrorRow("unknown-route", 404, "There is nothing at this address", False, True),
    ErrorRow("method-not-allowed", 405, "This address does not take this method", False, True),
    ErrorRow("not-acceptable", 406, "None of the accepted media types can be served", False, True),
    ErrorRow("topic-differs", 409, "The topic exists with other settings", False, True),
    ErrorRow("group-differs", 409, "The consumer group exists with other settings", False, True),
    ErrorRow("wrong-mode", 409, "The consumer group's mode does not allow this", False, True),
    ErrorRow("wrong-kind", 409, "The topic's kind does not allow this", False, True),
    ErrorRow("no-groups-here", 409, "The topic can have no consumer groups", False, True),
    ErrorRow("too-many-groups", 409, "The topic has as many consumer groups as it can have", False, True),
    ErrorRow("role-in-use", 409, "There are principals with this role", False, True),
    ErrorRow("role-built-in", 409, "The role is built in, and stays as it is", False, True),
    ErrorRow("last-administrator", 409, "The cluster would have no administrator left", False, True),
    ErrorRow("too-many-tokens", 409, "The principal has as many tokens as it can have", False, True),
    ErrorRow("no-session", 409, "No session can be made of this, or ended here", False, True),
    ErrorRow("consumer-in-use", 409, "Another process is this consumer at present", True, True),
    ErrorRow("settings-changed", 409, "The settings are not those expected", False, True),
    ErrorRow("not-enough-members", 409, "There are fewer live members than replicas wanted", False, True),
    ErrorRow("keys-differ", 409, "The members' gossip keys do not allow this", False, True),
    ErrorRow("unreachable", 409, "Nobody answers at these addresses", True, True),
    ErrorRow("not-failed", 409, "The member has not failed", False, True),
    ErrorRow("recovery-refused", 409, "The partition must not be recovered by force now", False, True),
    ErrorRow("level-too-low", 409, "The cluster's level does not allow this yet", False, True),
    ErrorRow("level-refused", 409, "The cluster's level must not be raised so", False, True),
    ErrorRow("producer-fenced", 409, "A newer epoch of this producer is known", False, True),
    ErrorRow("sequence-gap", 409, "The producer's sequence does not follow the last one", False, True),
    ErrorRow("sequence-differs", 409, "The sequence is stored with other records", False, True),
    ErrorRow("trimmed", 410, "The records at this offset have been removed", False, True),
    ErrorRow("precondition-failed", 412, "The present value is not the one expected", False, True),
    ErrorRow("too-large", 413, "The request or one of its records is too large", False, True),
    ErrorRow("unsupported-media-type", 415, "The body's media type is not supported", False, True),
    ErrorRow("beyond-end", 416, "The offset lies beyond the end of the log", False, True),
    ErrorRow("not-leader", 421, "Another agent leads this partition", True, True),
    ErrorRow("overloaded", 429, "The agent has as much work as it can hold", True, True),
    ErrorRow("too-many-producers", 429, "The partition can remember no more producers now", True, True),
    ErrorRow("too-many-consumers", 429, "The partition can remember no more consumers now", True, True),
    ErrorRow("quota-exceeded", 429, "The principal has used up its quota", True, True),
    ErrorRow("too-many-failed-logins", 429, "Too many credentials of this address were wrong", False, True),
    ErrorRow("internal", 500, "The agent failed in an unexpected way", False, False),
    ErrorRow("no-leader", 503, "The partition has no leader at present", True, True),
    ErrorRow("not-ready", 503, "The agent is not ready yet", True, True),
    ErrorRow("stopping", 503, "The agent is stopping", True, True),
    ErrorRow("damaged", 503, "The log is damaged here and waits for an intact copy", False, True),
    ErrorRow("timeout", 504, "No answer came in time; it may have happened", True, False),
    ErrorRow("leadership-lost", 504, "Leadership was lost on the way; it may have happened", True, False),
    ErrorRow("catalog-full", 507, "The catalog has no room for more", False, True),
    ErrorRow("disk-full", 507, "The disk is full", True, True),
)
ERRORS: Final[dict[ErrorCode, ErrorRow]] = {row.code: row for row in _TABLE}


def is_error_code(code: object) -> TypeGuard[ErrorCode]:
    """Whether it is a code of the table."""
    return isinstance(code, str) and code in ERRORS


_RESERVED_MEMBERS: Final = frozenset({"type", "title", "status", "detail", "code", "retriable", "definite"})


class ShoalError(Exception):
    """A fault with a stable code of ERRORS. `extra` are further members of the problem document."""

    def __init__(self, code: ErrorCode, detail: str, *, definite: bool | None = None, **extra: JSON) -> None:
        """`definite` None: as the table says. `extra`: JSON values, for example leader_url."""
        assert code in ERRORS, f"unknown error code {code!r}"
        assert not _RESERVED_MEMBERS & extra.keys(), "an extra member would hide one of the document's own"
        super().__init__(f"{code}: {detail}")
        self._row = ERRORS[code]
        self.code: ErrorCode = code
        self.detail = detail
        self.definite = self._row.definite if definite is None else definite
        self.extra: dict[str, JSON] = extra

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._row.status

    @property
    def retriable(self) -> bool:
        """May the same request succeed later, or at another agent?"""
        return self._row.retriable

    def to_problem(self) -> dict[str, JSON]:
        """The RFC 9457 document."""
        return {
            "type": _TYPE_PREFIX + self.code,
            "title": self._row.title.partition(";")[0] if self.definite else self._row.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retriable": self.retriable,
            "definite": self.definite,
            **self.extra,
        }

    @classmethod
    def from_problem(cls, document: Mapping[str, Any]) -> ShoalError:
        """Read a problem document. One that no agent of this version writes is `internal`, indefinite."""
        extra = {str(name): value for name, value in document.items() if name not in _RESERVED_MEMBERS}
        code = document.get("code")
        detail = str(document.get("detail") or document.get("title") or "no detail given")
        if not is_error_code(code):
            return _restore(cls, "internal", f"{code or 'unknown problem'}: {detail}", False, extra)
        definite = document.get("definite")
        return _restore(cls, code, detail, definite if isinstance(definite, bool) else None, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), self.code, self.detail, self.definite, self.extra))


def _restore(
    kind: type[ShoalError], code: ErrorCode, detail: str, definite: bool | None, extra: dict[str, JSON]
) -> ShoalError:
    """Built in two steps: members of a foreign document may be called like parameters."""
    error = kind(code, detail, definite=definite)
    error.extra = extra
    return error


def unknown_partition(topic: str, partition: object, count: int) -> ShoalError:
    """The client's error for a partition that a topic of so many has not."""
    return ShoalError("unknown-partition", f"{topic} has no partition {partition}: it has {numbered(count)}")


class ClientError(Exception):
    """An error of the client itself: no agent was asked, and nothing was stored."""


class ClientClosed(ClientError):
    """The client, producer or consumer is closed, or was never opened."""


class ClientForked(ClientClosed):
    """It was opened before this process was forked off; its thread and connections stayed with the parent."""


class BufferFull(ClientError, TimeoutError):
    """As much waits for acknowledgement as the client may hold; the record or batch was not taken."""


def numbered(count: int) -> str:
    """A topic's partitions, for people who count from 1."""
    return "1 partition, numbered 0" if count == 1 else f"{count} partitions, numbered 0 to {count - 1}"


def shown(text: str) -> str:
    """A client's text, quoted and short enough for an error message."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
