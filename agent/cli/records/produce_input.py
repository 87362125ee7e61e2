"""The input of `shoal produce` as records: lines, lines of JSON, whole files, or a tombstone.

Law of this file: whole chunks at a time. It decides which options go together, and sends nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shoal.agent.cli.terminal.output import CliError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


CARRIED_ON = frozenset({"topic", "partition", "offset"})
"""Fields of `shoal consume --output json` that name the place of a record: they are passed over."""
CONSUMED = CARRIED_ON | {"timestamp", "key", "key_base64", "value", "value_base64", "headers"}
"""All of its fields."""


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
    headers: tuple[tuple[str, str], ...] = ()
    null: str | None = None
    whole: bool = False
    tombstone: bool = False

    def check(self, files: tuple[str, ...]) -> None:
        """Raises CliError for options that do not go together."""
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
    def strips(self) -> bool:
        """Whether blanks around a line are removed, as for JSON."""
        return self.key_field is not None or self.form is InputFormat.JSON

    def batch(self, lines: list[bytes]) -> pa.RecordBatch:
        """Lines as records. Raises ShoalError whose `record` counts from 0 within `lines`."""
        from shoal.agent.cli.records.input_lines import keys_of
        from shoal.client.produce.producer import batch_of

        if self.form is InputFormat.JSON:
            from shoal.format.records import columns_to_batch, parse_json_lines

            return columns_to_batch(parse_json_lines(lines, CARRIED_ON), time.time_ns() // 1_000)
        keys: Any = None
        values: list[bytes | None] = list(lines)
        if self.key_field is not None:
            keys = keys_of(lines, self.key_field)
        elif self.key is not None:
            keys = [self.key.encode()] * len(lines)
        elif self.key_separator is not None:
            keys, values = _split(lines, self.key_separator.encode())
        if self.null is not None:
            null = self.null.encode()
            values = [None if value == null else value for value in values]
        return self.with_headers(batch_of(values, keys))

    def one(self, value: bytes | None) -> pa.RecordBatch:
        """A single record: a file's content, or a tombstone."""
        from shoal.client.produce.producer import batch_of

        return self.with_headers(batch_of([value], None if self.key is None else [self.key.encode()]))

    def with_headers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Every record with the headers that were given."""
        if not self.headers:
            return batch
        import pyarrow as pa

        place = batch.schema.get_field_index("headers")
        pairs = [{"key": name, "value": value.encode()} for name, value in self.headers]
        column = pa.repeat(pa.scalar(pairs, batch.schema.field(place).type), batch.num_rows)
        return pa.RecordBatch.from_arrays(
            [column if i == place else old for i, old in enumerate(batch.columns)], schema=batch.schema
        )


def _split(lines: list[bytes], separator: bytes) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values: the text before and after the first separator."""
    from shoal.errors import ShoalError

    parts = [line.partition(separator) for line in lines]
    for number, (_, found, _) in enumerate(parts):
        if not found:
            detail = f"record {number}: the line has no {separator.decode()!r} between key and value"
            raise ShoalError("bad-request", detail, record=number)
    return [key for key, _, _ in parts], [value for _, _, value in parts]


def headers_of(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """`name=value` or `name:value`, each. Raises CliError."""
    pairs = []
    for text in texts:
        cut = min((text.find(sign) for sign in "=:" if sign in text), default=-1)
        if cut < 1:
            raise UsageError(f"--header {text!r} has no name and value", "give one like trace=af31")
        pairs.append((text[:cut].strip(), text[cut + 1 :].strip()))
    return tuple(pairs)


def whole_file(path: str) -> bytes:
    """A file's content; "-" is standard input. Raises OSError, and CliError above MAX_RECORD_BYTES."""
    import sys

    from shoal.format.batch import MAX_RECORD_BYTES

    if path == "-":
        data = sys.stdin.buffer.read(MAX_RECORD_BYTES + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1)
    if len(data) > MAX_RECORD_BYTES:
        name = "standard input" if path == "-" else path
        limit = f"a record may have at most {MAX_RECORD_BYTES >> 20} MiB"
        raise CliError(f"{name} is longer than {MAX_RECORD_BYTES >> 20} MiB", limit)
    return data
