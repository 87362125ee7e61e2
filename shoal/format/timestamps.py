"""Times that users give, as microseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, TypeAlias

from shoal.errors import ShoalError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_UTC: Final = EPOCH.replace(tzinfo=None)  # every time is UTC: to write one takes no zone
_MICROSECOND: Final = timedelta(microseconds=1)
LAST_TIME_MS: Final = 2**63 // 1000 - 1  # as microseconds it must fit an int64
_MILLISECONDS = re.compile(r"-?[0-9]{1,16}", re.ASCII)
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+ -])([0-9]{2}):([0-5][0-9]))",
    re.ASCII,
)
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)?", re.ASCII)
DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Timestamp: TypeAlias = "datetime | int"
MICROSECONDS_MIN: Final = 10**14
MICROSECONDS_MAX: Final = 10**17
"""A time between 1973 and 5138 lies between these in microseconds. Our time in seconds, milliseconds or
nanoseconds lies outside: such a number is refused, not stored."""

MAX_AHEAD_US: Final = 3_653 * 86_400 * 1_000_000
"""Ten years, with their leap days: no record is due later, and such a time is rather one in another unit."""


def due_us(deliver_at: Timestamp | None, delay_seconds: float | None, now_us: int) -> int | None:
    """When a record is due; None for at once. Raises ShoalError bad-request."""
    if deliver_at is None and delay_seconds is None:
        return None
    if delay_seconds is None:
        assert deliver_at is not None
        time_us = timestamp_us(deliver_at)
    elif deliver_at is not None:
        raise ShoalError("bad-request", "deliver_at or delay_seconds, not both")
    elif isinstance(delay_seconds, bool) or not isinstance(delay_seconds, int | float):
        raise ShoalError("bad-request", f"delay_seconds is a number, not {delay_seconds!r}")
    elif not 0 <= delay_seconds <= MAX_AHEAD_US / 1_000_000:
        raise ShoalError("bad-request", f"a delay of {delay_seconds!r} s: from 0 to ten years are possible")
    else:
        time_us = now_us + round(1_000_000 * delay_seconds)
    if time_us - now_us > MAX_AHEAD_US:
        raise ShoalError("bad-request", f"due at {format_time(time_us)}, more than ten years ahead")
    return time_us


def timestamp_us(timestamp: Timestamp) -> int:
    """Microseconds since the epoch, of a datetime that knows its zone, or of such a number. Raises ShoalError
    bad-request, also for a number that is clearly of another unit."""
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise ShoalError("bad-request", f"{timestamp} has no time zone: use datetime.now(UTC)")
        return (timestamp - EPOCH) // timedelta(microseconds=1)
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise ShoalError(
            "bad-request", f"a timestamp is a datetime or microseconds since 1970, not {timestamp!r}"
        )
    if timestamp == 0 or MICROSECONDS_MIN <= timestamp < MICROSECONDS_MAX:
        return timestamp
    raise ShoalError(
        "bad-request",
        f"a timestamp that is a number counts microseconds since 1970, and {timestamp} would be no time"
        f" between 1973 and 5138{_other_unit(timestamp)}; for such a time use a datetime",
    )


def _other_unit(timestamp: int) -> str:
    """A hint for a number that would be our time in another unit."""
    for unit, low, cure in (
        ("seconds", 10**8, "multiply by 1_000_000"),
        ("milliseconds", 10**11, "multiply by 1_000"),
        ("nanoseconds", 10**17, "divide by 1_000"),
    ):
        if low <= timestamp < low * 1_000:
            return f" (if these are {unit}, {cure})"
    return ""


def parse_time(text: str) -> int:
    """Microseconds since the epoch, from RFC 3339 (a `+` may have become a space) or from milliseconds.

    Digits below a microsecond are dropped. Raises ShoalError("bad-request").
    """
    if _MILLISECONDS.fullmatch(text):
        milliseconds = int(text)
        if abs(milliseconds) > LAST_TIME_MS:
            raise ShoalError("bad-request", f"time {text} is out of range")
        return milliseconds * 1000
    match = _RFC_3339.fullmatch(text)
    if match is None:
        detail = f"time {text[:64]!r} is neither like 2013-01-01T05:00:00Z nor milliseconds since the epoch"
        raise ShoalError("bad-request", detail)
    date, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}")
        shift = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        moment = moment.replace(tzinfo=timezone(-shift if sign == "-" else shift))
    except ValueError as error:
        raise ShoalError("bad-request", f"time {text!r}: {error}") from error
    return (moment - EPOCH) // _MICROSECOND + int((fraction or "").ljust(6, "0")[:6])


def format_time(us: int) -> str:
    """RFC 3339 with microseconds and Z. Beyond the years 1 to 9999: milliseconds since the epoch, as text."""
    try:
        moment = _EPOCH_UTC + timedelta(microseconds=us)
    except OverflowError:
        return str(us // 1000)
    return moment.isoformat(timespec="microseconds") + "Z"


def parse_duration_ms(text: str) -> int:
    """Milliseconds, from 500ms, 30s, 5m, 2h, 7d or plain milliseconds. Raises ShoalError("bad-request")."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ShoalError("bad-request", f"duration {text[:64]!r} is not like 500ms, 30s, 5m or 7d")
    return int(match[1]) * DURATION_UNITS_MS[match[2] or "ms"]


def format_duration(duration_ms: int | None) -> str | None:
    """The shortest of `7d 5m 30s 500ms` that is exact; parse_duration_ms() reads it back."""
    if duration_ms is None:
        return None
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % DURATION_UNITS_MS[unit] == 0:
            return f"{duration_ms // DURATION_UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
