"""The input of `shoal produce` as records: lines, lines of JSON, whole files, or a tombstone.

Law of this file: whole chunks at a time. It decides which options go together, and sends nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shoal.agent.cli.terminal.amounts import typed_bytes
from shoal.agent.cli.terminal.options import name_of
from shoal.agent.cli.terminal.output import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.client.produce.accumulator import DueOptions

CARRIED_ON = frozenset({"topic", "partition", "offset"})
"""Fields of `shoal consume --output json` that name the place of a record: they are passed over."""
CONSUMED = CARRIED_ON | {"timestamp", "key", "key_base64", "value", "value_base64", "headers", "deliver_at"}
"""All of its fields; the last one on topics of kind timer alone."""


class InputFormat(StrEnum):
    """The content of a line."""

    TEXT = "text"
    JSON = "json"


def is_consumed(line: bytes) -> bool:
    """Whether this is a record as `shoal consume --output json` and the HTTP API write it."""
    if not line.lstrip().startswith(b"{") or b'"offset"' not in line:
        return False
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    names = set(document)
    return names >= {"offset", "timestamp"} and bool(names & {"value", "value_base64"}) and names <= CONSUMED


@dataclass(frozen=True, slots=True)
class Shape:
    """How input becomes records. At most one of the three sources of a key is given. A line that is `null`
    means no value. `form` None: the first line decides."""

    form: InputFormat | None = InputFormat.TEXT
    key_field: str | None = None
    key: str | None = None
    key_separator: str | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    null: str | None = None
    whole: bool = False
    tombstone: bool = False

    def check(self, files: tuple[str, ...]) -> None:
        """Raises UsageError for options that do not go together."""
        keys = {"--key-field": self.key_field, "--key": self.key, "--key-separator": self.key_separator}
        given = [name for name, value in keys.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both say what the key is", "give one")
        lines_only = [name for name in given if name != "--key"] + ["--null"] * (self.null is not None)
        if (self.whole or self.tombstone) and (lines_only or self.form is InputFormat.JSON):
            what = "--whole" if self.whole else "--tombstone"
            other = lines_only[0] if lines_only else "--format json"
            raise UsageError(f"{other} is about lines, and {what} reads none", "leave one out")
        if self.form is InputFormat.JSON and (given or self.headers or self.null is not None):
            raise UsageError(
                "--format json: each line has its own key and headers", "leave those options out"
            )
        if self.tombstone and (self.key is None or files or self.whole):
            raise UsageError("--tombstone is one record without a value", "give --key KEY and no file")
        if self.key_separator == "":
            raise UsageError("--key-separator is empty", "give one such as : or a tab")

    def seen(self, first_line: bytes) -> Shape:
        """The shape with its form decided. Raises UsageError for a record of `consume --output json` beside
        options for plain lines."""
        if self.form is not None:
            return self
        if not is_consumed(first_line):
            return replace(self, form=InputFormat.TEXT)
        try:
            decided = replace(self, form=InputFormat.JSON)
            decided.check(())
        except UsageError:
            raise UsageError(
                "the first line is a record of `consume --output json`, with its own key and headers",
                "leave the options for them out, or add --format text to store the lines as they are",
            ) from None
        return decided

    @property
    def line_bytes_max(self) -> int:
        """Of a line that may become a record."""
        from shoal.agent.cli.records.input_lines import JSON_LINE_BYTES_MAX
        from shoal.format.batch import MAX_RECORD_BYTES

        plain = (self.key_field, self.key, self.key_separator, self.null, self.headers or None)
        is_plain = self.form is InputFormat.TEXT or any(option is not None for option in plain)
        return MAX_RECORD_BYTES if is_plain else JSON_LINE_BYTES_MAX

    @property
    def strips(self) -> bool:
        """Whether blanks around a line are removed, as for JSON."""
        return self.key_field is not None or self.form is InputFormat.JSON

    def batch(self, lines: list[bytes]) -> pa.RecordBatch:
        """Lines as records. Raises ShoalError whose `record` counts from 0 within `lines`."""
        from shoal.agent.cli.records.input_lines import keys_of
        from shoal.client.produce.producer import batch_of

        if self.form is InputFormat.JSON:
            from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA
            from shoal.format.records import columns_to_batch, parse_json_lines

            now_us = time.time_ns() // 1_000
            columns = parse_json_lines(lines, CARRIED_ON, now_us)
            schema = DEFAULT_SCHEMA if columns.deliver_at_us is None else TIMER_SCHEMA
            return columns_to_batch(columns, now_us, schema)
        _check_lengths(lines)
        keys: Any = None
        values: list[bytes | None] = list(lines)
        if self.key_field is not None:
            keys = keys_of(lines, self.key_field)
        elif self.key is not None:
            keys = [typed_bytes(self.key)] * len(lines)
        elif self.key_separator is not None:
            keys, values = _split(lines, typed_bytes(self.key_separator))
        if self.null is not None:
            null = typed_bytes(self.null)
            values = [None if value == null else value for value in values]
        return self.with_headers(batch_of(values, keys))

    def one(self, value: bytes | None) -> pa.RecordBatch:
        """A single record: a file's content, or a tombstone."""
        from shoal.client.produce.producer import batch_of

        return self.with_headers(batch_of([value], None if self.key is None else [typed_bytes(self.key)]))

    def with_headers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Every record with the headers that were given."""
        if not self.headers:
            return batch
        import pyarrow as pa

        place = batch.schema.get_field_index("headers")
        pairs = [{"key": name, "value": value} for name, value in self.headers]
        column = pa.repeat(pa.scalar(pairs, batch.schema.field(place).type), batch.num_rows)
        return pa.RecordBatch.from_arrays(
            [column if i == place else old for i, old in enumerate(batch.columns)], schema=batch.schema
        )


def _check_lengths(lines: list[bytes]) -> None:
    """A line that might have been a record as JSON may be too long as it is. Raises ShoalError."""
    from shoal.errors import ShoalError
    from shoal.format.batch import MAX_RECORD_BYTES

    sizes = list(map(len, lines))
    if max(sizes, default=0) > MAX_RECORD_BYTES:
        number = next(number for number, size in enumerate(sizes) if size > MAX_RECORD_BYTES)
        detail = f"record {number}: the line is longer than {MAX_RECORD_BYTES >> 20} MiB"
        raise ShoalError("too-large", detail, record=number)


def _split(lines: list[bytes], separator: bytes) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values: the text before and after the first separator."""
    from shoal.errors import ShoalError

    parts = [line.partition(separator) for line in lines]
    for number, (_, found, _) in enumerate(parts):
        if not found:
            text = separator.decode(errors="backslashreplace")
            detail = f"record {number}: the line has no {text!r} between key and value"
            raise ShoalError("bad-request", detail, record=number)
    return [key for key, _, _ in parts], [value for _, _, value in parts]


def headers_of(texts: list[str]) -> tuple[tuple[str, bytes], ...]:
    """`name=value`, or `name: value` without the blanks around the value, each. Raises UsageError."""
    pairs = []
    for text in texts:
        cut = min((text.find(sign) for sign in "=:" if sign in text), default=-1)
        if cut < 1:
            raise UsageError(f"--header {text!r} has no name and value", "give one like trace=af31")
        value = text[cut + 1 :] if text[cut] == "=" else text[cut + 1 :].strip()
        pairs.append((str(name_of(text[:cut].strip())), typed_bytes(value)))
    return tuple(pairs)


def due_options(delay: str | None, deliver_at: str | None) -> DueOptions:
    """Of --delay and --deliver-at, as producers take them. Raises UsageError."""
    from shoal.errors import ShoalError
    from shoal.format.timestamps import EPOCH, parse_duration_ms, parse_time

    if delay is not None and deliver_at is not None:
        raise UsageError("--delay and --deliver-at both say when the records are due", "give one")
    try:
        if delay is not None:
            return {"delay_seconds": parse_duration_ms(delay) / 1_000}
        if deliver_at is not None:
            return {"deliver_at": EPOCH + timedelta(microseconds=parse_time(deliver_at))}
    except (ShoalError, OverflowError) as error:
        option = "--delay" if delay is not None else "--deliver-at"
        example = "30s, 10m, 7d" if delay is not None else "2030-01-01T09:00:00Z"
        raise UsageError(f"{option}: {error}", f"give one like {example}") from None
    return {}
