"""The rows of a table as its users see them, and how keys and cuts stand in requests and answers.

Law of this file: values and texts; nobody is asked here. It knows no Arrow: a command that gets one row
starts without that.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from shoal.errors import ShoalError

_PLAIN_KEY: Final = re.compile(rb"[A-Za-z0-9_-]+(?:[./:][A-Za-z0-9_-]+)*")
"""A key that stands in a path as it is: no proxy makes another one of it."""
PLACE_CHARACTERS_MAX: Final = 8_000
"""A request line has 8,190 at agents and most proxies: method, version and other parameters take the rest."""
_ETAG: Final = re.compile(r'"(\d{1,19})"', re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPACT_HEAD_BYTES: Final = 9


class TableEntry(NamedTuple):
    """A row: the newest record of its key. `timestamp_us`: microseconds since the epoch."""

    key: bytes
    value: bytes
    partition: int
    offset: int
    timestamp_us: int

    @property
    def etag(self) -> int:
        """The offset of the row's record, which no other version of the row has: `expected` of a compare and
        set."""
        return self.offset

    @property
    def timestamp(self) -> datetime:
        """The record's time, in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def json(self) -> Any:
        """The value as JSON. Raises ValueError for a value that is none."""
        return json.loads(self.value)


class TableChangeKind(StrEnum):
    """The steps of a watch. ROW: a row of the contents. CURRENT: everything of before the watch was told. PUT
    and DELETE: a change."""

    ROW = "row"
    CURRENT = "current"
    PUT = "put"
    DELETE = "delete"


class TableChange(NamedTuple):
    """One step of a watch. CURRENT has an empty key and no value, DELETE no value."""

    kind: TableChangeKind
    key: bytes = b""
    value: bytes | None = None
    partition: int = -1
    offset: int = -1
    timestamp_us: int = 0

    def json(self) -> Any:
        """The value as JSON; None for one without a value. Raises ValueError for a value that is none."""
        return None if self.value is None else json.loads(self.value)


def table_path(topic: str) -> str:
    """The path of a table. Raises ShoalError illegal-name for names that a path cannot hold."""
    if topic in ("", ".", ".."):
        raise ShoalError(
            "illegal-name", f"{topic!r} is no topic name: use letters, digits, . _ - (not . or ..)"
        )
    return f"/v1/tables/{quote(topic, safe='')}"


def row_place(topic: str, key: bytes) -> tuple[str, dict[str, str]]:
    """Path and parameters of a row. Keys that a proxy might normalise travel as base64. Raises ShoalError
    too-large."""
    params = {}
    path = table_path(topic)
    if _PLAIN_KEY.fullmatch(key):
        path += f"/{key.decode('ascii')}"
    else:
        params["key_base64"] = b64encode(key).decode("ascii")
    if len(path) + len(urlencode(params)) > PLACE_CHARACTERS_MAX:
        raise ShoalError(
            "too-large", f"a key of {len(key):,} bytes fits no URL: put it with send(), read it by a scan"
        )
    return path, params


def bytes_parameter(name: str, value: bytes) -> dict[str, str]:
    """A parameter of bytes: as text where it is UTF-8, else as base64 under the name that says so."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode("ascii")}


def if_match(etag: int) -> dict[str, str]:
    """The condition that the row is this version. Raises ShoalError bad-request."""
    if not isinstance(etag, int) or isinstance(etag, bool) or etag < 0:
        raise ShoalError("bad-request", f"an ETag is the offset of a row, and not {etag!r:.80}")
    return {"If-Match": f'"{etag}"'}


def offset_of_etag(headers: Mapping[str, str]) -> int:
    """The offset that an answer's ETag is. Raises ShoalError internal."""
    found = _ETAG.fullmatch(headers.get("Etag", ""))
    if found is None:
        raise ShoalError("internal", "the agent's answer about a row has no ETag of a table")
    return int(found[1])


def cut_of(headers: Mapping[str, str]) -> dict[int, int]:
    """The end of each partition that an answer rests on. Raises ShoalError internal."""
    text = headers.get("Shoal-As-Of", "")
    try:
        if text.startswith("p"):
            return _compact(text[1:])
        pairs = [piece.partition(":") for piece in text.split(",")]
        return {int(partition): int(offset) for partition, _, offset in pairs}
    except (ValueError, binascii.Error) as error:
        raise ShoalError("internal", f"the agent's answer has no cut but {text[:80]!r}") from error


def _compact(text: str) -> dict[int, int]:
    """The form of many partitions: width, base, and each partition's offset above it, plus 1."""
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    width, base = data[0] if data else 0, int.from_bytes(data[1:_COMPACT_HEAD_BYTES])
    body = data[_COMPACT_HEAD_BYTES:]
    if not 1 <= width <= 8 or not body or len(body) % width:
        raise ValueError("not a cut")
    above = [int.from_bytes(body[at : at + width]) for at in range(0, len(body), width)]
    return {partition: base + more - 1 for partition, more in enumerate(above) if more}
