"""The msgpack dialect of memberlist and Serf: go-msgpack with default handles, which is
the old raw specification.

Law of this file: here alone the msgpack library is called for gossip. Structs are maps with CamelCase keys;
text and bytes are the same raw family when sent (never str8 or bin). Every buffer is walked by value_end()
before the library sees it, so depth and element counts are bounded and no length read from the wire is ever
allocated on trust.

Facts that shaped it: Go re-encodes empty bytes as nil, so a missing field, nil and the
zero value are all one; a decoder that told them apart would refute itself for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from shoal.membership.wire.errors import ShortError, WireError

MAX_DEPTH = 8
"""Containers inside containers. The deepest real message, Serf's push/pull with events, has five."""

MAX_ELEMENTS = 1 << 18
"""Elements of one container: far above any member list we accept, far below what would hurt."""

_FIXED_BYTES = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),  # nil, false, true
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
}
_RAW_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNT_BYTES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_MAP_MARKERS = frozenset((0xDE, 0xDF))


def pack(value: Mapping[str, object] | list[object] | None) -> bytes:
    """Encode as Go would: keys in the order given (callers give them sorted), old raw
    family, no ext types."""
    return bytes(msgpack.packb(value, use_bin_type=False))


def pack_typed(value: Mapping[str, object]) -> bytes:
    """Encode as the new specification has it, which Serf's RPC speaks: text and bytes are told apart."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def _number(data: bytes | bytearray, position: int, size: int) -> int:
    end = position + size
    if end > len(data):
        raise ShortError(end)
    return int.from_bytes(data[position:end], "big")


def _extent(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Where the value at position ends without its children, and how many children follow."""
    marker = data[position]
    if marker < 0x80 or marker >= 0xE0:
        return position + 1, 0
    if marker < 0x90:
        return position + 1, 2 * (marker & 0x0F)
    if marker < 0xA0:
        return position + 1, marker & 0x0F
    if marker < 0xC0:
        return position + 1 + (marker & 0x1F), 0
    if (size := _FIXED_BYTES.get(marker)) is not None:
        return position + size, 0
    if (size := _RAW_LENGTH_BYTES.get(marker)) is not None:
        return position + 1 + size + _number(data, position + 1, size), 0
    if (size := _COUNT_BYTES.get(marker)) is not None:
        count = _number(data, position + 1, size)
        if count > MAX_ELEMENTS:
            raise WireError("limit", f"{count} elements in one container")
        return position + 1 + size, 2 * count if marker in _MAP_MARKERS else count
    raise WireError("format", f"msgpack marker 0x{marker:02x} is not used by this protocol")


class ValueWalk:
    """Finds the end of one msgpack value, and can go on where it stopped for want of bytes.

    Iterative, so that hostile nesting costs a list of at most MAX_DEPTH numbers;
    resumable, so that a value sent byte by byte is walked once and not once per byte.
    """

    __slots__ = ("_pending", "_position")

    def __init__(self, position: int) -> None:
        self._pending = [1]
        self._position = position

    def end(self, data: bytes | bytearray) -> int:
        """The position after the value; raises ShortError when it is not complete in `data`."""
        pending, position, size = self._pending, self._position, len(data)
        while pending:
            if pending[-1] == 0:
                pending.pop()
                continue
            self._position = position
            if position >= size:
                raise ShortError(position + 1)
            marker = data[position]
            if 0xA0 <= marker < 0xC0:  # a short text, as nearly every value is
                position += 1 + (marker & 0x1F)
                children = 0
            else:
                position, children = _extent(data, position)
            if position > size:
                raise ShortError(position)
            pending[-1] -= 1
            if children:
                if len(pending) > MAX_DEPTH:
                    raise WireError("limit", f"nested deeper than {MAX_DEPTH}")
                pending.append(children)
        return position


def value_end(data: bytes | bytearray, position: int) -> int:
    """The position after the msgpack value that starts at position; raises ShortError
    when it is not complete."""
    return ValueWalk(position).end(data)


def unpack(data: bytes, position: int = 0) -> tuple[Any, int]:
    """One value and the position after it. Raw values come back as bytes."""
    end = value_end(data, position)
    return unpack_walked(data[position:end]), end


def unpack_walked(data: bytes | bytearray) -> Any:
    """Exactly one value that was walked before."""
    try:
        return msgpack.unpackb(data, raw=True, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError("format", str(error) or type(error).__name__) from error


def unpack_struct(data: bytes, position: int = 0) -> tuple["Fields", int]:
    """One struct (a map) and the position after it."""
    value, end = unpack(data, position)
    return Fields.of(value), end


@dataclass(slots=True)
class Fields:
    """A decoded struct. Missing and nil fields are the zero value; unknown ones are
    ignored (forward compatible)."""

    _values: dict[Any, Any]

    @classmethod
    def of(cls, value: object) -> "Fields":
        if not isinstance(value, dict):
            raise WireError("format", f"a struct is a map, not {type(value).__name__}")
        return cls(value)

    def raw(self, name: str) -> bytes:
        """Bytes; Go may also send an array of small integers."""
        value = self._values.get(name.encode())
        if value is None:
            return b""
        if isinstance(value, bytes):
            return value
        if isinstance(value, list) and all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value)
        raise WireError("format", f"{name} is not bytes")

    def text(self, name: str, max_bytes: int = 4096) -> str:
        return as_text(self._values.get(name.encode()), name, max_bytes)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._values.get(name.encode())
        if value is None:
            return 0
        if not isinstance(value, int) or not low <= value <= high:
            raise WireError("format", f"{name} is not an integer from {low} to {high}")
        return int(value)

    def unsigned(self, name: str, bits: int) -> int:
        return self.integer(name, 0, (1 << bits) - 1)

    def names(self) -> list[Any]:
        """The names of all fields, as they came."""
        return list(self._values)

    def flag(self, name: str) -> bool:
        value = self._values.get(name.encode())
        if value is None or value is False or value is True or value in (0, 1):
            return bool(value)
        raise WireError("format", f"{name} is not a boolean")

    def items(self, name: str) -> list[Any]:
        found: list[Any] = self._container(name, list, "an array")
        return found

    def mapping(self, name: str) -> dict[Any, Any]:
        found: dict[Any, Any] = self._container(name, dict, "a map")
        return found

    def _container(self, name: str, kind: type, article: str) -> Any:
        value = self._values.get(name.encode())
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise WireError("format", f"{name} is not {article}")
        return value


def as_text(value: object, name: str, max_bytes: int) -> str:
    """A raw value as text; nil is the empty string."""
    if value is None:
        return ""
    if not isinstance(value, bytes) or len(value) > max_bytes:
        raise WireError("format", f"{name} is not text of at most {max_bytes} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise WireError("format", f"{name} is not UTF-8") from error
