"""Sizes, durations and moments as people type them.

Law of this file: pure, and it raises UsageError only. Time is an argument.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from shoal.agent.cli.terminal.output import UsageError
from shoal.format.timestamps import parse_duration_ms

UNLIMITED: Final = "none"
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([kmgt]?i?b?)", re.IGNORECASE)
_SIZE_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_SECONDS_MAX: Final = 10**11
"""A number below it counts seconds (until the year 5138), above it milliseconds (from 1973 on)."""
MOMENT_FORMS: Final = "@2026-01-01T05:00:00Z, @2026-01-01, @1h (an hour ago), or @MILLISECONDS since 1970"


def size_bytes(text: str, option: str) -> int | None:
    """64MiB (powers of 1024), 64MB (of 1000), 64M (as MiB) or bytes; None for `none`. Raises UsageError."""
    if text == UNLIMITED:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r} is no size", "give one like 64MiB or 1GB, or `none`")
    unit = match[2].lower()
    base = 1_000 if unit.endswith("b") and "i" not in unit else 1_024
    factor: int = base ** _SIZE_POWERS[unit.rstrip("b").rstrip("i")]
    return round(float(match[1]) * factor)


def is_size(text: str) -> bool:
    """Whether it is a size with a unit, and no duration."""
    text = text.strip()
    return not text.isdecimal() and _DURATION.fullmatch(text) is None and _SIZE.fullmatch(text) is not None


def age_limit_text(text: str, option: str) -> str | None:
    """A duration as agents take it, None for `none`. Raises UsageError."""
    if text == UNLIMITED:
        return None
    return duration_text(text, option, ", or `none`")


def duration_text(text: str, option: str, other: str = "") -> str:
    """A duration as agents take it, `7d`; weeks become days. `other`: what else may be given. Raises
    UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r} is no duration", f"give one like 10s, 30m, 12h or 7d{other}")
    return f"{7 * int(match[1])}d" if match[2] == "w" else f"{match[1]}{match[2]}"


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since the epoch, of the text after an `@`: a time, a date (UTC without a zone), a number,
    or a duration before now. Raises UsageError."""
    ago = text.strip().removeprefix("-")
    if _DURATION.fullmatch(ago):
        return now_ms - parse_duration_ms(duration_text(ago, "@"))
    if text.isdecimal() and len(text) <= 16:
        return int(text) * 1_000 if int(text) < _SECONDS_MAX else int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"@{text} is no time", f"give {MOMENT_FORMS}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)


def start_of(text: str, now_ms: int, option: str = "--from") -> str:
    """The value of --from as the client takes it: earliest, latest, -N, @MILLISECONDS or an offset. `option`
    is another one that may have most of these. Raises UsageError."""
    word = {"beginning": "earliest", "start": "earliest", "end": "latest"}.get(text, text)
    if re.fullmatch(r"-0{1,19}", word):
        return "latest"  # the last none of them; the number alone would be the first offset
    if word in ("earliest", "latest") or re.fullmatch(r"-?[0-9]{1,19}", word):
        return word
    moment = _moment_of(word, now_ms)
    if moment is None:
        raise UsageError(
            f"{option} {text!r} is no place",
            f"give earliest, latest, {'-10, ' if option == '--from' else ''}an offset, or a time: -1h,"
            f" {MOMENT_FORMS}",
        )
    return moment


def end_of(text: str, now_ms: int) -> str:
    """The value of --before: latest, @MILLISECONDS or an offset. Raises UsageError."""
    word = {"end": "latest"}.get(text, text)
    if word == "latest" or re.fullmatch(r"[0-9]{1,19}", word):
        return word
    moment = _moment_of(word, now_ms)
    if moment is None:
        raise UsageError(
            f"--before {text!r} is no end", f"give an offset, latest, or a time: -1h, {MOMENT_FORMS}"
        )
    return moment


def _moment_of(text: str, now_ms: int) -> str | None:
    """@MILLISECONDS of `@` and a time, or of a duration before now; None for another text. Raises
    UsageError."""
    if text.startswith("@"):
        return f"@{moment_ms(text[1:], now_ms)}"
    if text.startswith("-") and _DURATION.fullmatch(text[1:]):
        return f"@{moment_ms(text, now_ms)}"
    return None


def typed_bytes(text: str) -> bytes:
    """The bytes of an argument: UTF-8, and where it was typed as other bytes, those."""
    return text.encode("utf-8", "surrogateescape")
