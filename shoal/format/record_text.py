"""Columns of records as people read them: JSON, NDJSON, values alone.

Pure. The other way is records.py's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from shoal.format.batch import (
    DELIVER_AT_COLUMN,
    HEADERS_COLUMN,
    KEY_COLUMN,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
)
from shoal.format.records import JSON_ENCODER, decode_json
from shoal.format.timestamps import format_time

ValueAs: TypeAlias = "Literal['text', 'json']"

EMBEDDED_BYTES_MAX: Final = 64 * 2**10
"""A longer value is not parsed to be embedded (value=json), but stays text: parsing takes up to 0.1 ms a KiB
and a hundred times its memory, and cannot be interrupted."""


def render_records(
    batch: pa.RecordBatch, base_offset: int | Sequence[int], value_as: ValueAs = "text"
) -> list[dict[str, Any]]:
    """Records as JSON objects. `base_offset`: of the first, or each one's. `value_as` json: a value that
    parses as JSON is embedded instead of quoted."""
    offsets = (
        range(base_offset, base_offset + batch.num_rows) if isinstance(base_offset, int) else base_offset
    )
    times = batch.column(TIMESTAMP_COLUMN).view(pa.int64()).to_pylist()
    keys = batch.column(KEY_COLUMN).to_pylist()
    values = batch.column(VALUE_COLUMN).to_pylist()
    headers = batch.column(HEADERS_COLUMN).to_pylist()
    due_times = _due_times(batch)
    rendered = []
    last_us, timestamp = None, None  # neighbours often share a time
    for row, time_us in enumerate(times):
        if time_us != last_us:
            last_us, timestamp = time_us, None if time_us is None else format_time(time_us)
        record: dict[str, Any] = {"offset": offsets[row], "timestamp": timestamp}
        _render_bytes(record, "key", keys[row])
        _render_value(record, values[row], value_as)
        record["headers"] = [_render_header(header) for header in headers[row] or ()]
        if due_times is not None:
            record[DELIVER_AT_COLUMN] = due_times[row]
        rendered.append(record)
    return rendered


def _due_times(batch: pa.RecordBatch) -> list[str | None] | None:
    """When each record is due, as text; None for records of a log."""
    position = batch.schema.get_field_index(DELIVER_AT_COLUMN)
    if position < 0:
        return None
    times = batch.column(position).view(pa.int64()).to_pylist()
    return [None if time_us is None else format_time(time_us) for time_us in times]


def _render_bytes(target: dict[str, Any], name: str, value: bytes | None) -> None:
    try:
        target[name] = None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        assert value is not None
        target[f"{name}_base64"] = base64.b64encode(value).decode("ascii")


def _render_value(record: dict[str, Any], value: bytes | None, value_as: ValueAs) -> None:
    if value_as == "json" and value is not None and len(value) <= EMBEDDED_BYTES_MAX:
        try:
            document = decode_json(value)
            JSON_ENCODER.encode(document).encode("utf-8")  # fails for 1e999 and half surrogates, which parse
        except (ValueError, RecursionError):
            _render_bytes(record, "value", value)
        else:
            record["value"] = document
    else:
        _render_bytes(record, "value", value)


def render_value(value: bytes | None, value_as: ValueAs) -> bytes:
    """The field of a record's value alone, with its name, as render_ndjson writes it."""
    record: dict[str, Any] = {}
    _render_value(record, value, value_as)
    return JSON_ENCODER.encode(record)[1:-1].encode("utf-8")


def _render_header(header: Mapping[str, Any] | None) -> dict[str, Any]:
    rendered: dict[str, Any] = {"key": header["key"] if header else None}
    _render_bytes(rendered, "value", header["value"] if header else None)
    return rendered


def render_ndjson(
    batch: pa.RecordBatch,
    base_offset: int | Sequence[int],
    view: Literal["record", "value"] = "record",
    value_as: ValueAs = "text",
) -> bytes:
    """A line for each record. `base_offset`: as render_records has it. `view` value: the values alone,
    byte for byte; a tombstone is `null`."""
    if view == "value":
        values = batch.column(VALUE_COLUMN).to_pylist()
        return b"".join((b"null" if value is None else value) + b"\n" for value in values)
    lines = [JSON_ENCODER.encode(record) for record in render_records(batch, base_offset, value_as)]
    return "".join(f"{line}\n" for line in lines).encode("utf-8")
