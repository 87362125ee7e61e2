"""Messages as tables: one entry says under which names an attribute travels, for encoding and decoding alike.

Law of this file: how attributes become fields of a struct and back. What a message means is not known here.
Keys leave in Go's sorted order, so that the bytes equal those of memberlist and Serf.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from shoal.membership.wire.dialect import Fields, pack
from shoal.membership.wire.errors import WireError

M = TypeVar("M")

MAX_NAME_BYTES = 128
"""Serf's own limit for node names since 0.9.5."""


class Part(NamedTuple):
    """One attribute. `read` raises WireError."""

    read: Callable[[Fields], Any]
    write: Callable[[Any], dict[str, object]]


class Struct(Generic[M]):
    """One Go struct: the attributes of a message, by name."""

    def __init__(self, make: Callable[..., M], **parts: Part) -> None:
        self.make = make
        self._parts = parts

    def encode(self, message: M) -> bytes:
        fields: dict[str, object] = {}
        for attribute, part in self._parts.items():
            fields |= part.write(getattr(message, attribute))
        return pack(dict(sorted(fields.items())))

    def decode(self, fields: Fields) -> M:
        """Raises WireError."""
        return self.make(**{attribute: part.read(fields) for attribute, part in self._parts.items()})


class MessageTable:
    """Structs by the type byte that stands before a message."""

    def __init__(self, structs: dict[int, Struct[Any]]) -> None:
        self._structs = structs
        self._kinds = {struct.make: kind for kind, struct in structs.items()}

    def __contains__(self, kind: int) -> bool:
        return kind in self._structs

    def encode(self, message: object) -> bytes:
        """Type byte and body."""
        kind = self._kinds[type(message)]
        return bytes((kind,)) + self._structs[kind].encode(message)

    def decode(self, kind: int, fields: Fields) -> Any:
        """What follows a type byte that is in the table. Raises WireError."""
        return self._structs[kind].decode(fields)


def unsigned(name: str, bits: int) -> Part:
    return integer(name, (1 << bits) - 1)


def integer(name: str, highest: int) -> Part:
    """From 0 on."""
    return Part(lambda fields: fields.integer(name, 0, highest), lambda value: {name: int(value)})


def text(name: str, max_bytes: int = 4096) -> Part:
    return Part(lambda fields: fields.text(name, max_bytes), lambda value: {name: value})


def node_name(name: str) -> Part:
    """Never empty."""

    def read(fields: Fields) -> str:
        if not (found := fields.text(name, MAX_NAME_BYTES)):
            raise WireError("format", f"{name} is empty")
        return found

    return Part(read, lambda value: {name: value})


def payload(name: str) -> Part:
    """Bytes; none are sent as nil, as Go does."""
    return Part(lambda fields: fields.raw(name), lambda value: {name: value or None})


def flag(name: str) -> Part:
    return Part(lambda fields: fields.flag(name), lambda value: {name: value})
