"""Records as people write and read them (JSON, NDJSON, one raw value) <-> columns and batches.

Pure: no request, no topic, no clock. Input is hostile; the only error is ShoalError, which numbers the wrong
record from 0. Arrow streams are read in arrow_stream.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa

from shoal.errors import ShoalError
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    MAX_RECORD_BYTES,
    TIMER_SCHEMA,
    Message,
    message_from_batch,
)
from shoal.format.row_encoding import encode_rows
from shoal.format.timestamps import parse_duration_ms, parse_time

Headers: TypeAlias = "list[tuple[str, bytes | None]]"

MAX_JSON_BYTES: Final = 8 * 2**20  # of one JSON or raw body
MAX_HEADERS: Final = 256  # of one record: far above tracing and routing headers, far below a second payload

_RECORD_OVERHEAD_BYTES: Final = 32  # offsets and validity of four columns, roughly
_HEADER_OVERHEAD_BYTES: Final = 16
_WRAPPING: Final = (
    'wrap records as {"records":[{"key":"k","value":"v"}]}, or send one value per line with '
    "Content-Type: application/x-ndjson"
)


@dataclass(slots=True)
class RecordColumns:
    """Records by column; every list is equally long. A null timestamp means the time of arrival.
    deliver_at_us: when each is due, null for at once; None where no record says so."""

    timestamps_us: list[int | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    deliver_at_us: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def append(
        self,
        timestamp_us: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        deliver_at_us: int | None = None,
    ) -> None:
        """Add one record."""
        if deliver_at_us is not None and self.deliver_at_us is None:
            self.deliver_at_us = [None] * len(self)
        if self.deliver_at_us is not None:
            self.deliver_at_us.append(deliver_at_us)
        self.timestamps_us.append(timestamp_us)
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)

    def extend(self, other: RecordColumns) -> None:
        """Add the other's records behind these."""
        if other.deliver_at_us is not None and self.deliver_at_us is None:
            self.deliver_at_us = [None] * len(self)
        if self.deliver_at_us is not None:
            self.deliver_at_us.extend(other.deliver_at_us or [None] * len(other))
        self.timestamps_us.extend(other.timestamps_us)
        self.keys.extend(other.keys)
        self.values.extend(other.values)
        self.headers.extend(other.headers)

    def take(self, rows: Sequence[int]) -> RecordColumns:
        """The given rows, in that order."""
        return RecordColumns(
            [self.timestamps_us[row] for row in rows],
            [self.keys[row] for row in rows],
            [self.values[row] for row in rows],
            [self.headers[row] for row in rows],
            None if self.deliver_at_us is None else [self.deliver_at_us[row] for row in rows],
        )

    @property
    def size_bytes(self) -> int:
        """About the size of the records in a batch."""
        if len(self.values) == 1 and self.headers[0] is None:
            return _RECORD_OVERHEAD_BYTES + len(self.keys[0] or b"") + len(self.values[0] or b"")
        total = _RECORD_OVERHEAD_BYTES * len(self.values)
        total += sum(map(len, filter(None, self.keys)))
        total += sum(map(len, filter(None, self.values)))
        return total + sum(map(_headers_bytes, filter(None, self.headers)))


def _headers_bytes(headers: Headers) -> int:
    return sum(_HEADER_OVERHEAD_BYTES + len(key.encode()) + len(value or b"") for key, value in headers)


# --- from JSON


def _fail(number: int, what: str) -> NoReturn:
    raise ShoalError("bad-request", f"record {number}: {what}", record=number)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
JSON_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode_json(text: bytes) -> Any:
    """Raises ValueError for anything but one JSON value in UTF-8."""
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" in str(error):  # Python's bound on quadratic work, in words about Python
            raise ValueError("a number has too many digits") from None
        raise


def parse_json(body: bytes, now_us: int) -> RecordColumns:
    """Read {"records":[...]}; delays count from now. Raises ShoalError: bad-request, too-large."""
    if len(body) > MAX_JSON_BYTES:
        raise ShoalError("too-large", f"a JSON body may have at most {MAX_JSON_BYTES} bytes; stream NDJSON")
    try:
        document = decode_json(body)
    except ValueError as error:
        raise ShoalError("bad-request", f"the body is not JSON ({error}); {_WRAPPING}") from error
    if not isinstance(document, dict) or "records" not in document:
        raise ShoalError("bad-request", f"the body has no 'records'; {_WRAPPING}")
    records = document["records"]
    if not isinstance(records, list) or len(document) > 1:
        raise ShoalError("bad-request", f"'records' must be a list and stand alone; {_WRAPPING}")
    columns = RecordColumns()
    for number, record in enumerate(records):
        _append_json(columns, number, record, now_us)
    return columns


def parse_json_lines(lines: Sequence[bytes], ignored: frozenset[str], now_us: int) -> RecordColumns:
    """Read records that are a line of JSON each, as in {"records":[...]}; fields of the names `ignored` are
    passed over. Raises ShoalError: bad-request, too-large, with `record`: the line's place from 0 on."""
    columns = RecordColumns()
    for number, line in enumerate(lines):
        try:
            record = decode_json(line)
        except (ValueError, RecursionError) as error:
            _fail(number, f"is not JSON ({error})")
        if isinstance(record, dict):
            record = {name: value for name, value in record.items() if name not in ignored}
        _append_json(columns, number, record, now_us)
    return columns


_FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "timestamp", "headers", "deliver_at", "delay"}
)


def _append_json(columns: RecordColumns, number: int, record: Any, now_us: int) -> None:
    if not isinstance(record, dict):
        _fail(number, 'must be an object like {"key":"k","value":"v"}')
    if not record.keys() <= _FIELDS:
        unknown = min(record.keys() - _FIELDS)
        _fail(number, f"unknown field {unknown!r}, expected some of {', '.join(sorted(_FIELDS))}")
    if "value" not in record and "value_base64" not in record:
        _fail(number, "has no 'value' (null makes a tombstone)")
    key = _json_bytes(number, "key", record)
    value = _json_bytes(number, "value", record)
    headers = _json_headers(number, record.get("headers"))
    _check_size(number, key, value, headers)
    timestamp_us = _json_time(number, "timestamp", record.get("timestamp"))
    columns.append(timestamp_us, key, value, headers, _json_due(number, record, now_us))


def _json_bytes(number: int, name: str, record: Mapping[str, Any]) -> bytes | None:
    """`name` as bytes: a string is its UTF-8, name_base64 is decoded, null stays, else compact JSON."""
    if f"{name}_base64" not in record:
        return _to_bytes(number, name, record.get(name))
    encoded = record[f"{name}_base64"]
    if name in record:
        _fail(number, f"has both '{name}' and '{name}_base64'")
    if not isinstance(encoded, str):
        _fail(number, f"'{name}_base64' must be a string")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        _fail(number, f"'{name}_base64' is not base64")


def _to_bytes(number: int, name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else JSON_ENCODER.encode(value)
        return text.encode("utf-8")
    except UnicodeEncodeError:
        _fail(number, f"'{name}' holds half of a surrogate pair, which UTF-8 cannot express")
    except (ValueError, RecursionError):
        _fail(number, f"'{name}' holds a number or a nesting that JSON cannot express")


def _json_due(number: int, record: Mapping[str, Any], now_us: int) -> int | None:
    """When the record is due; None for at once."""
    if "deliver_at" in record and "delay" in record:
        _fail(number, "has both 'deliver_at' and 'delay'")
    delay = record.get("delay")
    if delay is None:
        return _json_time(number, "deliver_at", record.get("deliver_at"))
    if isinstance(delay, float) and delay.is_integer():
        delay = int(delay)
    if isinstance(delay, bool) or not isinstance(delay, int | str):
        _fail(number, "'delay' must be a duration such as 10m, or milliseconds")
    try:
        return now_us + 1_000 * parse_duration_ms(str(delay))
    except ShoalError as error:
        _fail(number, f"'delay': {error.detail}")


def _json_time(number: int, name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # JSON does not tell 1.0 from 1
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        _fail(number, f"'{name}' must be RFC 3339 text or milliseconds since the epoch")
    try:
        return parse_time(str(value))
    except ShoalError as error:
        _fail(number, error.detail)


def _json_headers(number: int, value: Any) -> Headers | None:
    if value is None:
        return None
    if isinstance(value, dict):
        pairs = [(name, _to_bytes(number, "headers", item)) for name, item in value.items()]
    elif isinstance(value, list):
        pairs = [_json_header(number, item) for item in value]
    else:
        _fail(number, '\'headers\' must be an object, or a list of {"key","value"}')
    if len(pairs) > MAX_HEADERS:
        _fail(number, f"has more than {MAX_HEADERS} headers")
    for name, _ in pairs:
        _to_bytes(number, "headers", name)
    return pairs


def _json_header(number: int, item: Any) -> tuple[str, bytes | None]:
    if not isinstance(item, dict) or not isinstance(item.get("key"), str):
        _fail(number, 'a header in a list must be an object like {"key":"k","value":"v"}')
    if not item.keys() <= {"key", "value", "value_base64"}:
        _fail(number, "a header has only 'key' and 'value' (or 'value_base64')")
    return item["key"], _json_bytes(number, "value", item)


def _check_size(number: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> None:
    size = len(key or b"") + len(value or b"")
    if headers:
        size += _headers_bytes(headers) - _HEADER_OVERHEAD_BYTES * len(headers)
    if size > MAX_RECORD_BYTES:
        detail = f"record {number} has {size} bytes, at most {MAX_RECORD_BYTES} are accepted"
        raise ShoalError("too-large", detail, record=number)


def parse_ndjson_line(line: bytes, key_field: str | None, number: int) -> tuple[bytes | None, bytes]:
    """Key and value of one line (without its line feed): the line verbatim, its key from `key_field`.

    Raises ShoalError: bad-request (not JSON, or no such field), too-large.
    """
    if len(line) > MAX_RECORD_BYTES:
        _check_size(number, None, line, None)
    try:
        document = decode_json(line)
    except ValueError as error:
        _fail(number, f"the line is not JSON ({error})")
    if key_field is None:
        return None, line
    if not isinstance(document, dict) or key_field not in document:
        _fail(number, f"has no field {key_field!r} to take the key from (null means no key)")
    key = _to_bytes(number, key_field, document[key_field])
    if key is not None and len(key) + len(line) > MAX_RECORD_BYTES:
        _check_size(number, key, line, None)
    return key, line


def parse_ndjson(body: bytes, key_field: str | None, first_record: int = 0) -> RecordColumns:
    """Read whole lines; blank ones are passed over. `first_record` numbers the first, for error messages.

    Raises ShoalError: bad-request, too-large.
    """
    columns = RecordColumns()
    for raw_line in body.split(b"\n"):
        line = raw_line.removesuffix(b"\r")
        if line.strip():
            key, value = parse_ndjson_line(line, key_field, first_record + len(columns))
            columns.append(None, key, value, None)
    return columns


OCTETS: Final = "application/octet-stream"
_OCTETS_ADVICE: Final = f"-H 'Content-Type: {OCTETS}' to store it as one value"
_LINES_ADVICE: Final = (
    "curl --data-binary @FILE -H 'Content-Type: application/x-ndjson' to store a record a line"
)
_SEVERAL = re.compile(rb"[}\]]\s*[{\[]")


def parse_raw(body: bytes, content_type: str | None, key: bytes | None) -> RecordColumns:
    """The body is one value of any media type; as OCTETS, of any bytes. Raises ShoalError: ambiguous-body
    where it seems to be meant for several, too-large."""
    if len(body) > MAX_JSON_BYTES:
        raise ShoalError("too-large", f"a body that is one value may have at most {MAX_JSON_BYTES} bytes")
    essence = "" if content_type is None else _essence(content_type)
    if essence != OCTETS:
        _refuse_several(body, essence)
    if key is not None or len(body) > MAX_RECORD_BYTES:
        _check_size(0, key, body, None)
    return RecordColumns([None], [key], [body], [None])


@lru_cache(maxsize=256)  # clients send few
def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _refuse_several(body: bytes, essence: str) -> None:
    """Refuse bodies that were hardly meant as one value: the mistake would show only when they are read."""
    as_what = f"was sent as {essence}" if essence else "was sent without a Content-Type"
    if essence.startswith("multipart/"):
        raise ShoalError(
            "ambiguous-body",
            f"the body {as_what}, as curl -F does: what separates its parts would be stored with them; use "
            f"curl --data-binary @FILE, with {_OCTETS_ADVICE}",
        )
    first = body[:64].lstrip()[:1]
    if first not in (b"{", b"["):
        return
    document: Any = None
    with suppress(ValueError):
        document = decode_json(body) if b'"records"' in body else None
    if isinstance(document, dict) and "records" in document:
        form = ", as curl -d does" if essence == "application/x-www-form-urlencoded" else ""
        raise ShoalError(
            "ambiguous-body",
            f"the body is JSON with 'records' but {as_what}{form}; send it as application/json (curl "
            f"--json), or with {_OCTETS_ADVICE}",
        )
    if _SEVERAL.search(body) is not None and _is_several_values(body):
        raise ShoalError(
            "ambiguous-body",
            f"the body is several JSON values one behind the other but {as_what}; use {_LINES_ADVICE}, or "
            f"{_OCTETS_ADVICE}",
        )


def _is_several_values(body: bytes) -> bool:
    """Whether JSON objects or arrays follow each other, with or without line feeds between."""
    try:
        text = body.decode("utf-8").lstrip()
        _, end = _DECODER.raw_decode(text)
        rest = text[end:].lstrip()
        if not rest.startswith(("{", "[")):
            return False
        _DECODER.raw_decode(rest)
    except (ValueError, RecursionError):
        return False
    return True


# --- to and from batches


def columns_to_batch(
    columns: RecordColumns, now_us: int, schema: pa.Schema = DEFAULT_SCHEMA
) -> pa.RecordBatch:
    """A batch of a log's columns, or of a timer topic's; records without timestamp get `now_us`."""
    timestamp, key, value, headers = (schema.field(number).type for number in range(4))
    timestamps = [now_us if time_us is None else time_us for time_us in columns.timestamps_us]
    if columns.headers.count(None) == len(columns):
        header_array = pa.nulls(len(columns), headers)
    else:
        header_array = pa.array(columns.headers, headers)
    arrays = [pa.array(timestamps, timestamp), pa.array(columns.keys, key), pa.array(columns.values, value)]
    arrays.append(header_array)
    if schema is TIMER_SCHEMA:
        due_times = columns.deliver_at_us
        arrays.append(
            pa.nulls(len(columns), timestamp) if due_times is None else pa.array(due_times, timestamp)
        )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_to_message(columns: RecordColumns, now_us: int, schema: pa.Schema = DEFAULT_SCHEMA) -> Message:
    """The records as a message of a log's columns, or of a timer topic's; those without timestamp get
    `now_us`. Raises pyarrow's errors for values that fit no column (ArrowException, TypeError, ValueError,
    OverflowError), BatchError for too many bytes."""
    headers = columns.headers
    if schema is DEFAULT_SCHEMA and headers.count(None) == len(headers):
        timestamps = [now_us if time_us is None else time_us for time_us in columns.timestamps_us]
        message = encode_rows(timestamps, columns.keys, columns.values)
        if message is not None:
            return message
    return message_from_batch(columns_to_batch(columns, now_us, schema))
