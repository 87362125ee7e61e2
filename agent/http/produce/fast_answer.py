"""The answers of an append and of a row that take the fast path, each written as one piece of bytes.

aiohttp's Response collects headers in a dictionary, completes them and serializes them anew each time: a
fifth of the cost of a small request. These answers have nothing to decide: HTTP/1.1, and the connection stays
open.
"""

from __future__ import annotations

import functools
import time

from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.operations import ANY
from shoal.agent.http.core.problems import SERVER, date_text, json_bytes
from shoal.agent.interface import Appended, TableRow
from shoal.errors import JSON
from shoal.format.timestamps import format_time


@functools.lru_cache(maxsize=4)
def _head(second: int, guard: Guard, media: str = JSON_TYPE) -> bytes:
    """The head up to the length, made once a second: it carries the date."""
    said = f"Date: {date_text(second)}\r\nServer: {SERVER}\r\n{guard.lines}"
    return f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n{said}Content-Length: ".encode("ascii")


def append_answer(partition: int, done: Appended, guard: Guard, *, is_row: bool = False) -> bytes:
    """The whole answer, head and body, of one append to one partition; without a JSON encoder, unless the
    append is a duplicate. `is_row`: it has an ETag."""
    if done.duplicate:
        appended: JSON = {"partition": partition, "base_offset": done.base_offset, "count": done.count}
        body = json_bytes({"count": done.count, "appended": [appended], "duplicate": True}) + b"\n"
    else:
        numbers = (done.count, partition, done.base_offset, done.count)
        body = b'{"count":%d,"appended":[{"partition":%d,"base_offset":%d,"count":%d}]}\n' % numbers
    tag = b'ETag: "%d"\r\n' % done.base_offset if is_row else b""
    return b"%b%d\r\n%b\r\n%b" % (_head(int(time.time()), guard), len(body), tag, body)


def row_answer(partition: int, row: TableRow, as_of: int, guard: Guard) -> bytes:
    """The whole answer with the value of a row; tables/row.py has the same headers."""
    time_text = format_time(row.timestamp_us).encode("ascii")
    numbers = (row.offset, partition, time_text, partition, as_of)
    told = b'ETag: "%d"\r\nShoal-Partition: %d\r\nShoal-Timestamp: %b\r\nShoal-As-Of: %d:%d\r\n' % numbers
    return b"%b%d\r\n%b\r\n%b" % (_head(int(time.time()), guard, ANY), len(row.value), told, row.value)
