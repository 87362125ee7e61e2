"""The head of a request, read strictly: it has one meaning, or it is not read (RFC 9112, sections 2 to 6).

Pure. None is no refusal: it says that another parser has to judge this head.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shoal.agent.http.admission.limits import WHOLE_HEAD_BYTES_MAX

_HEAD = re.compile(
    rb"[A-Z]{1,24} /[\x21\x22\x24-\x7e]* HTTP/1\.1"
    rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}:[\t\x20-\x7e\x80-\xff]*)*\r\n\r\n"
)
# How every such head begins: bytes that cannot become one need not be waited for.
_BEGINNING = re.compile(
    rb"[A-Z]{1,24}(?: (?:/[\x21\x22\x24-\x7e]*"
    rb"(?: [HTP/1.]{0,8}(?:\r(?:\n[\t\r\n\x20-\x7e\x80-\xff]*)?)?)?)?)?"
)
# Of a head that is one: its headers, and those that say where the request ends and what comes behind it.
FIELD = re.compile(rb"\r\n([^:\r]+):([^\r]*)")
_FRAMING_FIELD = re.compile(
    rb"\r\n(host|content-length|transfer-encoding|connection|upgrade):([^\r]*)", re.IGNORECASE
)
BLANKS: Final = b" \t"
_LENGTH = re.compile(rb"[0-9]{1,15}")


class RequestHead(NamedTuple):
    """How a request ends behind its head."""

    body_bytes: int


_WITHOUT_BODY: Final = RequestHead(0)


def read_head(data: bytes) -> RequestHead | None:
    """`data`: everything up to and including the empty line.

    None for an older version, a target that is no path, a folded line, a framing header that is there twice,
    or a transfer coding. Also None for an upgrade, a connection that is to end, or a missing Host.
    """
    if _HEAD.fullmatch(data) is None:
        return None
    framing: dict[bytes, bytes] = {}
    for name, value in _FRAMING_FIELD.findall(data):
        lower = name.lower()
        if lower in framing:
            return None
        framing[lower] = value
    if b"host" not in framing or b"transfer-encoding" in framing or b"upgrade" in framing:
        return None
    if b"connection" in framing and framing[b"connection"].strip(BLANKS).lower() not in (b"", b"keep-alive"):
        return None
    if b"content-length" not in framing:
        return _WITHOUT_BODY
    length = framing[b"content-length"].strip(BLANKS)
    return RequestHead(int(length)) if _LENGTH.fullmatch(length) else None


def may_become_head(data: bytes) -> bool:
    """Whether bytes without an empty line can be the beginning of a head that is read."""
    return len(data) < WHOLE_HEAD_BYTES_MAX and (not data or _BEGINNING.fullmatch(data) is not None)
