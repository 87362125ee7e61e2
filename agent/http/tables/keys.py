"""Keys, conditions and ETags of rows, as a request has them in its path, query and headers.

Pure. A key is bytes. In a path it is what stands behind the topic, percent-decoded once: slashes, dots and
escapes belong to it. Nothing else of a path is changed. An ETag is the row's offset in double quotes.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from shoal.agent.http.core.parameters import Query, invalid
from shoal.agent.interface import MAX_TABLE_KEY_BYTES, Condition
from shoal.errors import ShoalError, shown
from shoal.format.batch import Offset

KEY_BASE64: Final = "key_base64"
_ESCAPES = re.compile("%(?![0-9A-Fa-f]{2})")
_TAG = re.compile(r'"([0-9]{1,18})"')
_OTHER_BASE64 = str.maketrans("-_ ", "+/+")
"""The URL-safe alphabet is taken too, and a plus sign that a query has made a space."""


def row_key(arguments: tuple[str, ...], query: Query) -> bytes:
    """The key that a request names. `arguments`: of its route, the raw rest of the path last. ShoalError
    bad-request, too-large."""
    if KEY_BASE64 in query:
        key = from_base64(query, KEY_BASE64)
        if len(arguments) > 1 and arguments[1]:
            raise ShoalError("bad-request", f"the path and {KEY_BASE64} both name a key")
    elif len(arguments) > 1:
        key = path_key(arguments[1])
    else:
        raise ShoalError(
            "bad-request", f"name the row's key behind the topic, or as ?{KEY_BASE64}=, where it is bytes"
        )
    if not key:
        raise ShoalError("bad-request", "the key is empty: a row has a key of a byte at least")
    if len(key) > MAX_TABLE_KEY_BYTES:
        raise ShoalError(
            "too-large", f"the key has {len(key)} bytes, at most {MAX_TABLE_KEY_BYTES} are taken"
        )
    return key


def path_key(rest: str) -> bytes:
    """The key that the rest of a path is. ShoalError bad-request."""
    wrong = _ESCAPES.search(rest)
    if wrong is not None:
        found = shown(rest[wrong.start() :][:3])
        raise ShoalError("bad-request", f"the key has a percent sign that is no escape at {found}: write %25")
    return unquote_to_bytes(rest)


def from_base64(query: Query, name: str) -> bytes:
    """The bytes of a parameter. ShoalError bad-request."""
    try:
        return b64decode(query[name].translate(_OTHER_BASE64), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(name, query[name], "base64 is wanted") from None


def bytes_of(query: Query, name: str) -> bytes | None:
    """The bytes of a parameter that is given as text, or in base64 under a name that says so; None where
    neither is there."""
    coded = f"{name}_base64"
    if coded not in query:
        return query[name].encode("utf-8") if name in query else None
    if name in query:
        raise ShoalError("bad-request", f"{name} and {coded} exclude each other", invalid_params=[coded])
    return from_base64(query, coded)


def write_condition(headers: Mapping[str, str], *, deletes: bool) -> Condition:
    """The condition of a PUT or a DELETE on the row that is there. `headers`: found in any case. ShoalError
    bad-request."""
    match, none_match = headers.get("If-Match"), headers.get("If-None-Match")
    if match is not None and none_match is not None:
        raise ShoalError("bad-request", "If-Match and If-None-Match exclude each other: no row is both")
    if match is not None:
        found = _TAG.fullmatch(match.strip())
        if found is None:
            raise ShoalError("bad-request", f"If-Match {shown(match)}: {_ONE_TAG}")
        return Condition(if_offset=Offset(int(found[1])))
    if none_match is None:
        return Condition()
    if deletes:
        raise ShoalError("bad-request", "If-None-Match: a row that is not there needs no deletion")
    if none_match.strip() != "*":
        raise ShoalError("bad-request", f"If-None-Match {shown(none_match)}: only * is taken, for a new row")
    return Condition(if_absent=True)


_ONE_TAG = 'one ETag is wanted, as an answer gave it: an offset in double quotes, such as "17"'


def tag_of(offset: int) -> str:
    """The ETag of the row at that offset."""
    return f'"{offset}"'


def is_known(headers: Mapping[str, str], tag: str) -> bool:
    """Whether a reader says that it has the row of this ETag. Proxies may have made weak ones of what it
    has (RFC 9110, section 13.1.2)."""
    if "If-Match" in headers:
        raise ShoalError("bad-request", "If-Match belongs to PUT and DELETE; a GET takes If-None-Match")
    text = headers.get("If-None-Match")
    if text is None:
        return False
    return text.strip() == "*" or tag in (item.strip().removeprefix("W/") for item in text.split(","))
