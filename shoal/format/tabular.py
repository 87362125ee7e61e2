"""Tables in notebooks (pyarrow, pandas, polars) <-> batches of a topic's columns.

Law of this file: pandas and polars are never required. A frame is recognised by its Arrow interface, and made
only on request. No loop here touches a record.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import ClientError, ShoalError
from shoal.format.arrow_stream import largest_record_bytes
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    DELIVER_AT_COLUMN,
    MAX_RECORD_BYTES,
    TIMER_SCHEMA,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
)
from shoal.format.timestamps import MAX_AHEAD_US

FrameKind = Literal["pandas", "polars", "arrow"]
_KINDS: Final = get_args(FrameKind)
_INDEX_COLUMN: Final = re.compile(r"__index_level_\d+__")  # as pandas and pyarrow name one without a name
PLACED_FIELDS: Final = (pa.field("partition", pa.int32()), pa.field("offset", pa.int64()))


def batches_of(data: Any, topic: str, now_us: int, deliver_at_us: int | None = None) -> list[pa.RecordBatch]:
    """A RecordBatch, Table, pandas or polars frame as batches of DEFAULT_SCHEMA. Where a column `deliver_at`
    or `deliver_at_us` says when records are due: of TIMER_SCHEMA.

    `value` is needed; a missing `timestamp` is `now_us`, missing `key` and `headers` are null, text becomes
    its UTF-8, and columns of other names are refused. Raises ShoalError schema-mismatch or too-large.
    """
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    elif hasattr(data, "__arrow_c_stream__"):  # polars, pandas, DuckDB and others
        batches = _imported(data, topic).to_batches()
    else:
        kind = type(data).__name__
        raise ShoalError(
            "schema-mismatch",
            f"{topic} takes a RecordBatch, Table, pandas or polars frame, not {kind}; send() takes records",
        )
    found = [_checked(_conformed(batch, topic, now_us), topic, now_us) for batch in batches]
    if deliver_at_us is None:
        return found
    if any(batch.num_columns > len(DEFAULT_SCHEMA) for batch in found):
        raise ShoalError("bad-request", f"{topic}: the rows have a column {DELIVER_AT_COLUMN} themselves")
    kind = TIMER_SCHEMA.field(DELIVER_AT_COLUMN).type
    time = pa.scalar(deliver_at_us, pa.int64()).cast(kind)
    return [
        pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(time, batch.num_rows)], schema=TIMER_SCHEMA)
        for batch in found
    ]


def _imported(data: Any, topic: str) -> pa.Table:
    """A frame's columns. pandas exports its index too, which is dropped unless it has a name (a filtered
    frame has an index without one)."""
    try:
        table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(part) for part in error.args)
        raise ShoalError("schema-mismatch", f"{topic}: this frame is no Arrow table: {reason}") from error
    return table.drop_columns([name for name in table.column_names if _INDEX_COLUMN.fullmatch(name)])


def _conformed(batch: pa.RecordBatch, topic: str, now_us: int) -> pa.RecordBatch:
    """The batch with DEFAULT_SCHEMA's columns or TIMER_SCHEMA's, in its order and types."""
    names = batch.schema.names
    schema = TIMER_SCHEMA if DELIVER_AT_COLUMN in names else DEFAULT_SCHEMA
    if batch.schema.equals(schema):
        return batch
    wrong = ", ".join(sorted({repr(name) for name in names if name not in schema.names}))
    if wrong or VALUE_COLUMN not in names or len(set(names)) < len(names):
        what = "names a column twice" if VALUE_COLUMN in names else "has no 'value'"
        if wrong:
            to_json = "df.to_json(orient='records', lines=True).splitlines()"
            what = f"has {wrong}; columns of your own become JSON first: {to_json}"
        known = ", ".join(schema.names)
        raise ShoalError("schema-mismatch", f"{topic} has the columns {known}; this {what}")
    columns = []
    for field in schema:
        if field.name in names:
            try:
                columns.append(_cast(batch.column(field.name), field.type))
            except (pa.ArrowException, ValueError) as error:
                raise ShoalError("schema-mismatch", f"{topic}: column {field.name!r}: {error}") from error
        elif field.name == TIMESTAMP_COLUMN:
            columns.append(pa.repeat(pa.scalar(now_us, pa.int64()), batch.num_rows).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises ArrowException and ValueError. Nanoseconds, pandas' unit, are cut to microseconds."""
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise ValueError("has no time zone: localize it, for example to UTC")
        return column.cast(kind, safe=column.type.unit != "ns")
    return column.cast(kind)


def _checked(batch: pa.RecordBatch, topic: str, now_us: int) -> pa.RecordBatch:
    """Refuse records that an agent would refuse, before they are buffered. Raises ShoalError."""
    if batch.column(TIMESTAMP_COLUMN).null_count:
        raise ShoalError("schema-mismatch", f"{topic}: a record's timestamp is null")
    if batch.num_columns > len(DEFAULT_SCHEMA):
        latest_us = pc.max(batch.column(DELIVER_AT_COLUMN).cast(pa.int64())).as_py() or 0
        if latest_us - now_us > MAX_AHEAD_US:
            raise ShoalError("bad-request", f"{topic}: a record is due more than ten years ahead")
    if batch.nbytes > MAX_RECORD_BYTES:  # else no record can be larger
        largest = largest_record_bytes(batch)
        if largest > MAX_RECORD_BYTES:
            raise ShoalError("too-large", f"{topic}: a record of {largest} bytes: at most {MAX_RECORD_BYTES}")
    return batch


def check_kind(kind: object) -> None:
    """Raises ClientError for another kind than FrameKind."""
    if kind not in _KINDS:
        raise ClientError(
            f"frames() makes {', '.join(_KINDS)} and not {kind!r}: most libraries take what it makes of"
            " 'arrow', a pyarrow.Table"
        )


def placed(batch: pa.RecordBatch, partition: int, base_offset: int) -> pa.RecordBatch:
    """The batch with its records' partition (int32) and offset (int64) in front."""
    rows = batch.num_rows
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.arange(base_offset, base_offset + rows),
        *batch.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*PLACED_FIELDS, *batch.schema]))


def frame_of(batches: list[pa.RecordBatch], kind: FrameKind) -> Any:
    """Batches of equal columns (at least one) as a pandas or polars frame, or a pyarrow Table."""
    table = pa.Table.from_batches(batches)
    if kind == "arrow":
        return table
    try:
        library = import_module(kind)
    except ImportError as error:
        raise ClientError(f"{kind} is not installed: pip install {kind}, or ask for 'arrow'") from error
    return table.to_pandas() if kind == "pandas" else library.from_arrow(table)
