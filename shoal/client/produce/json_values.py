"""Values that clients send as JSON, and what else may be said of a record that is sent.

Pure. The way back is Record.json.
"""

from __future__ import annotations

import json
from typing import TypedDict

from shoal.client.produce.accumulator import HeadersLike
from shoal.errors import ShoalError
from shoal.format.timestamps import Timestamp


class RecordOptions(TypedDict, total=False):
    """As the parameters of `send` of these names."""

    headers: HeadersLike | None
    timestamp: Timestamp | None
    partition: int | None


class SendOptions(RecordOptions, total=False):
    """Where sending may have to wait for room."""

    timeout_seconds: float | None


def json_value(value: object) -> bytes:
    """Compact JSON in UTF-8, as agents write it. ShoalError bad-request for what JSON cannot express."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ShoalError("bad-request", f"the value is nothing that JSON can express: {error}") from None
