"""Lines into records: reading files without blocking the loop, and keys out of JSON by the chunk.

Law of this file: whole chunks at a time; only Python's own list operations touch a single record.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.json

from shoal.agent.cli.terminal.output import CliError
from shoal.agent.cli.terminal.run import ADVICE
from shoal.errors import ShoalError
from shoal.format.batch import MAX_RECORD_BYTES
from shoal.format.records import parse_ndjson

READ_BYTES = 1 << 18
JSON_LINE_BYTES_MAX = 6 * MAX_RECORD_BYTES + (1 << 20)
"""Of a record as JSON: a control character is six bytes there, and names, offset and time come on top."""
CHUNKS_AHEAD_MAX = 8  # read and not yet taken: 2 MiB of lines, or 64 MiB of whole files


class Chunk(NamedTuple):
    """Lines without their line feeds; `first_line` is the number (from 1) of the first in `source`."""

    source: str
    first_line: int
    lines: list[bytes]
    read_bytes: int


class LineTooLong(CliError):
    """A line or file that no agent accepts as a record, and that is not collected in memory."""


class LineReader:
    """Reads files one after the other in a thread; `next` awaits chunks. "-" is standard input. `whole`: each
    file is a chunk of one line, with all that is in it.

    The thread is a daemon that blocks in read(2) or on the bound of CHUNKS_AHEAD_MAX only, so an interrupted
    command does not wait for a terminal's next line.
    """

    def __init__(
        self, paths: Sequence[str], *, line_bytes_max: int = MAX_RECORD_BYTES, whole: bool = False
    ) -> None:
        self.total_bytes = _total_bytes(paths)
        self._line_bytes_max = line_bytes_max
        self._read_file = self._read_whole if whole else self._read_lines
        self._paths = paths
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(CHUNKS_AHEAD_MAX)
        self._chunks: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()  # bounded by _room
        threading.Thread(target=self._read_all, name="line-reader", daemon=True).start()

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end. Raises OSError and LineTooLong."""
        chunk = await self._chunks.get()
        self._room.release()
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def _read_all(self) -> None:
        try:
            for path in self._paths:
                descriptor = 0 if path == "-" else os.open(path, os.O_RDONLY)
                self._read_file(descriptor, "standard input" if path == "-" else path)
                if path != "-":
                    os.close(descriptor)
            self._put(None)
        except (OSError, LineTooLong) as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = path  # os.read, unlike os.open, does not name it
            self._put(error)

    def _read_lines(self, descriptor: int, name: str) -> None:
        first_line, rest = 1, bytearray()
        while data := os.read(descriptor, READ_BYTES):
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                rest += data
                if len(rest) > self._line_bytes_max:
                    detail = f"line {first_line} of {name} is longer than {self._line_bytes_max >> 20} MiB"
                    raise LineTooLong(detail, ADVICE["too-large"])
                continue
            lines = bytes(rest + head).split(b"\n")
            rest = bytearray(tail)
            self._put(Chunk(name, first_line, lines, len(data)))
            first_line += len(lines)
        if rest:
            self._put(Chunk(name, first_line, [bytes(rest)], 0))

    def _read_whole(self, descriptor: int, name: str) -> None:
        """A file without an end is no record either."""
        content = bytearray()
        while data := os.read(descriptor, READ_BYTES):
            content += data
            if len(content) > MAX_RECORD_BYTES:
                raise LineTooLong(f"{name} is longer than {MAX_RECORD_BYTES >> 20} MiB", ADVICE["too-large"])
        self._put(Chunk(name, 1, [bytes(content)], len(content)))

    def _put(self, chunk: Chunk | Exception | None) -> None:
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        except RuntimeError:  # the loop is closed
            raise SystemExit from None  # ends this thread only


def _total_bytes(paths: Sequence[str]) -> int | None:
    """The size of the files; None for a pipe or a terminal. Raises OSError."""
    total = 0
    for path in paths:
        if path == "-" or not os.path.isfile(path):
            if path != "-":
                os.stat(path)
            return None
        total += os.stat(path).st_size
    return total


def keys_of(lines: list[bytes], key_field: str) -> pa.Array:
    """The keys of JSON lines: the field's text, or its JSON if it is no text; null means no key.

    Raises ShoalError bad-request whose `record` counts from 0 within `lines`.
    """
    keys = _text_keys(lines, key_field)
    if keys is not None and keys.null_count == 0:
        return keys.cast(pa.binary())
    # Numbers, nulls, missing fields, malformed lines: the rule of the agents decides, line by line.
    return pa.array(parse_ndjson(b"\n".join(lines), key_field).keys, pa.binary())


def _text_keys(lines: list[bytes], key_field: str) -> pa.Array | None:
    """A quick way for lines that are all objects with text in that field; None for others."""
    body = b"\n".join(lines)
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(body),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([(key_field, pa.string())]), unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowException, ValueError):
        return None
    return table.column(0).combine_chunks() if table.num_rows == len(lines) else None


def without_blanks(chunk: Chunk, *, strip: bool) -> tuple[list[bytes], list[int] | None]:
    """The lines that hold a record, and their numbers (None: all of them, counting on from the first).

    `strip`: blanks around a line are no part of it (JSON); otherwise lines are taken as they are.
    """
    lines = [line.strip(b" \t\r") for line in chunk.lines] if strip else chunk.lines
    if all(lines):
        return lines, None
    numbers = [chunk.first_line + place for place, line in enumerate(lines) if line]
    return [line for line in lines if line], numbers


def located(error: ShoalError, chunk: Chunk, numbers: list[int] | None) -> tuple[str, int]:
    """The place of an error about a record, as `FILE:LINE`, and the number of good records before it."""
    record = error.extra.get("record")
    if not isinstance(record, int):
        return f"{chunk.source}:{chunk.first_line}", 0
    return f"{chunk.source}:{numbers[record] if numbers else chunk.first_line + record}", record
