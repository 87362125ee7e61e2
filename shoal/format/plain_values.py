"""Keys and values as users hand them over, as the bytes that are stored.

Pure, and without Arrow: one record needs none.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from shoal.errors import ShoalError

Text: TypeAlias = "bytes | str | bytearray | memoryview"


def json_value(value: object) -> bytes:
    """Compact JSON in UTF-8, as agents write it; `Record.json` is the way back. Raises ShoalError bad-request
    for a value that JSON cannot express."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ShoalError("bad-request", f"the value is nothing that JSON can express: {error}") from None


def as_bytes(value: object, what: str) -> bytes:
    """Text as its UTF-8, buffers as their bytes. Raises ShoalError bad-request for anything else."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ShoalError("bad-request", f"a {what} that is no text: {error}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None:
        raise ShoalError("bad-request", f"a {what} is bytes or text here, not None")
    kind = type(value).__name__
    raise ShoalError("bad-request", f"a {what} is bytes, text or None, not {kind}: send_json() it, perhaps")
