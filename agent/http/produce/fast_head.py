"""The head of an append that takes the fast path: only what plain clients send to produce.

Pure. None says that the request goes the ordinary way; nothing is refused here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from multidict import CIMultiDict

from shoal.agent.http.http1.head import BLANKS, FIELD

# Headers that change nothing about how the request is read or answered, and those that fast_append.py looks
# at.
UNDERSTOOD: Final = frozenset((
    "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length",
    "content-type", "host", "shoal-producer-epoch", "shoal-producer-id", "shoal-producer-order",
    "shoal-producer-sequence", "user-agent",
))  # fmt: skip
_SEQUENCE_LINE: Final = b"\r\nShoal-Producer-Sequence: "
_SEQUENCE_DIGITS_MAX: Final = 18  # any such number is a sequence


class Head(NamedTuple):
    """Request line and headers."""

    target: str
    headers: CIMultiDict[str]
    body_bytes: int


def append_head(data: bytes, body_bytes: int) -> Head | None:
    """`data`: a POST's head, up to and including the empty line, that http1/head.py has read."""
    if not body_bytes or not data.isascii():
        return None
    headers = CIMultiDict[str]()
    for name, value in FIELD.findall(data):
        lower = name.lower().decode()
        if lower not in UNDERSTOOD or lower in headers:
            return None
        headers[lower] = value.strip(BLANKS).decode()
    return Head(data.split(b" ", 2)[1].decode(), headers, body_bytes)


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
