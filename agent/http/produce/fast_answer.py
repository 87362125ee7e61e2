"""The answer of an append that takes the fast path, written as one piece of bytes.

aiohttp's Response collects headers in a dictionary, completes them and serializes them anew each time: a
fifth of the cost of a small request. This answer has nothing to decide: HTTP/1.1, and the connection stays
open.
"""

from __future__ import annotations

import time
from email.utils import formatdate

from shoal.agent.http.core.media import JSON_TYPE
from shoal.agent.http.core.problems import SERVER, json_body
from shoal.agent.interface import Appended
from shoal.errors import JSON

_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: {type}\r\nDate: {date}\r\nServer: {server}\r\nContent-Length: "
).format


class _Head:
    """The head up to the length, made once a second: it carries the date."""

    def __init__(self) -> None:
        self._second = 0
        self._bytes = b""

    def now(self) -> bytes:
        """For an answer that leaves now."""
        second = int(time.time())
        if second != self._second:
            text = _HEAD(type=JSON_TYPE, date=formatdate(second, usegmt=True), server=SERVER)
            self._second, self._bytes = second, text.encode("ascii")
        return self._bytes


_head = _Head()


def append_answer(partition: int, done: Appended) -> bytes:
    """The whole answer, head and body, of one append to one partition; without a JSON encoder, unless the
    append is a duplicate."""
    if done.duplicate:
        appended: JSON = {"partition": partition, "base_offset": done.base_offset, "count": done.count}
        body = json_body({"count": done.count, "appended": [appended], "duplicate": True})
    else:
        numbers = (done.count, partition, done.base_offset, done.count)
        body = b'{"count":%d,"appended":[{"partition":%d,"base_offset":%d,"count":%d}]}\n' % numbers
    return b"%b%d\r\n\r\n%b" % (_head.now(), len(body), body)
