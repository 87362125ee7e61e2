"""The head of a request, read without a parser for all of HTTP: only what plain clients send to produce.

Pure, and strict in one direction: a head is read here only if it can mean but one thing (RFC 9112). Whatever
is unusual, malformed or unknown is None, which means «ask the real parser», never «refuse».
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shoal.agent.http.admission.limits import HEAD_END

_REQUEST_LINE = re.compile(rb"POST (/[\x21\x22\x24-\x7e]*) HTTP/1\.1")
_HEADER_LINE = re.compile(rb"([0-9A-Za-z-]{1,64}):[ \t]*((?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?)[ \t]*")
# Headers that change nothing about how the request is read or answered, and those that fast_append.py looks
# at.
_UNDERSTOOD: Final = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"shoal-producer-epoch",
        b"shoal-producer-id",
        b"shoal-producer-order",
        b"shoal-producer-sequence",
        b"user-agent",
    )
)
_SEQUENCE_LINE: Final = b"\r\nShoal-Producer-Sequence: "
_SEQUENCE_DIGITS_MAX: Final = 18  # any such number is a sequence
# In a head that the real parser gets: with one of these, its end cannot be told from its length.
_ENDLESS = re.compile(rb"\r\n(?:transfer-encoding|upgrade|expect|[ \t])", re.IGNORECASE)
_LENGTHS = re.compile(rb"\r\ncontent-length[^\r]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*", re.IGNORECASE)


class Head(NamedTuple):
    """Request line and headers; the names in lower case."""

    target: str
    headers: dict[str, str]
    body_bytes: int


def read_head(data: bytes) -> Head | None:
    """`data`: everything up to and including the empty line."""
    line, *lines = data[: -len(HEAD_END)].split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER_LINE.fullmatch(line)
        if header is None:
            return None
        name = header[1].lower()
        if name not in _UNDERSTOOD:
            return None
        headers[name.decode("ascii")] = header[2].decode("ascii")
    if len(headers) != len(lines) or "host" not in headers:
        return None  # a header came twice
    length = headers.get("content-length", "")
    if not length.isdigit() or len(length) > 9 or headers.get("connection", "keep-alive") != "keep-alive":
        return None
    return Head(request[1].decode("ascii"), headers, int(length))


def request_bytes(data: bytes) -> int | None:
    """How long the request is that `data` begins with, head and body; None when that cannot be said."""
    end = data.find(HEAD_END)
    if end < 0 or _ENDLESS.search(data, 0, end + 2):
        return None
    head = data[: end + 2]
    given = _LENGTHS.findall(head)
    if not given:
        return end + len(HEAD_END)
    length = _LENGTH.fullmatch(given[0])
    return None if len(given) > 1 or length is None else end + len(HEAD_END) + int(length[1])


def without_sequence(data: bytes) -> tuple[bytes, int | None]:
    """A whole head with its producer's sequence cut out, and that; the head and None where none is written as
    clients of this package write it. Heads that are equal but for it mean the same at another sequence."""
    start = data.find(_SEQUENCE_LINE) + len(_SEQUENCE_LINE)
    if start < len(_SEQUENCE_LINE):
        return data, None
    end = data.find(b"\r", start)
    digits = data[start:end]
    if not digits.isdigit() or len(digits) > _SEQUENCE_DIGITS_MAX:
        return data, None
    return data[:start] + data[end:], int(digits)
