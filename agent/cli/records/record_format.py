"""`--format`: a template for each record.

Law of this file: pure. A template is parsed once; then it renders records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from shoal.agent.cli.terminal.amounts import typed_bytes
from shoal.agent.cli.terminal.output import UsageError
from shoal.client.consume.record import Record
from shoal.format.timestamps import format_time

FIELDS: Final[dict[str, Callable[[Record], bytes]]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "d": lambda record: format_time(record.timestamp_us).encode(),
    "T": lambda record: b"%d" % (record.timestamp_us // 1_000),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|([^%\\]+)", re.DOTALL)
HELP: Final = (
    "%t topic, %p partition, %o offset, %k key, %v value, %h headers, %d time, %T its ms; \\n \\t \\0 \\xHH."
)


class Template:
    """`%k %v\\n` and the like. A null key or value is written as nothing."""

    def __init__(self, text: str) -> None:
        """Raises UsageError, also for a template that shows nothing of a record."""
        self._parts: list[bytes | Callable[[Record], bytes]] = []
        for found in _PART.finditer(text):
            self._parts.append(_part(text, found[0], *(found[i] or "" for i in (1, 2, 3))))
        if all(isinstance(part, bytes) for part in self._parts):
            raise UsageError(f"--format {text!r} names no field", f"{HELP} --follow is -F")

    def render(self, records: Iterable[Record]) -> bytes:
        """The records, one after the other; only the template stands between them."""
        parts = self._parts
        return b"".join(
            part if isinstance(part, bytes) else part(record) for record in records for part in parts
        )


def _part(text: str, part: str, field: str, escape: str, plain: str) -> bytes | Callable[[Record], bytes]:
    if plain:
        return typed_bytes(plain)
    if field in FIELDS:
        return FIELDS[field]
    if field == "%":
        return b"%"
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    raise UsageError(f"--format {text!r}: {part} stands for nothing", HELP)
