"""The answer of an append that takes the fast path, written as one piece of bytes.

aiohttp's Response collects headers in a dictionary, completes them and serializes them anew each time: a
fifth of the cost of a small request. This answer has nothing to decide: HTTP/1.1, and the connection stays
open.
"""

from __future__ import annotations

import functools
import time
from email.utils import formatdate

from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.core.problems import SERVER, json_bytes
from shoal.agent.interface import Appended
from shoal.errors import JSON


@functools.lru_cache(maxsize=1)
def _head(second: int) -> bytes:
    """The head up to the length, made once a second: it carries the date."""
    date = formatdate(second, usegmt=True)
    head = f"Content-Type: {JSON_TYPE}\r\nDate: {date}\r\nServer: {SERVER}\r\nContent-Length: "
    return b"HTTP/1.1 200 OK\r\n" + head.encode("ascii")


def append_answer(partition: int, done: Appended) -> bytes:
    """The whole answer, head and body, of one append to one partition; without a JSON encoder, unless the
    append is a duplicate."""
    if done.duplicate:
        appended: JSON = {"partition": partition, "base_offset": done.base_offset, "count": done.count}
        body = json_bytes({"count": done.count, "appended": [appended], "duplicate": True}) + b"\n"
    else:
        numbers = (done.count, partition, done.base_offset, done.count)
        body = b'{"count":%d,"appended":[{"partition":%d,"base_offset":%d,"count":%d}]}\n' % numbers
    return b"%b%d\r\n\r\n%b" % (_head(int(time.time())), len(body), body)
