"""Query strings and their values: strict, because a misspelt parameter that is ignored is a silent wrong
answer.

Pure. Every function returns a value or raises ShoalError("bad-request") whose detail names the parameter.
"""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import unquote, unquote_plus

from shoal.errors import ShoalError, shown
from shoal.format.timestamps import parse_duration_ms

Word = TypeVar("Word", bound=str)
Query = dict[str, str]
# Per partition a place in its log; in the order of the partitions.
Places = dict[int, int]
NO_QUERY: Query = {}


def decode_segment(segment: str) -> str:
    """One path segment, percent-decoded once (so an encoded slash stays inside it)."""
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise ShoalError(
            "bad-request", f"the path segment {shown(segment)} is not percent-encoded UTF-8"
        ) from None


def parse_query(text: str, allowed: frozenset[str]) -> Query:
    """A query string as a dictionary; unknown, repeated and undecodable parameters are refused by name."""
    found: Query = {}
    unknown: list[str] = []
    for piece in text.split("&"):
        if not piece:
            continue
        name, _, value = piece.partition("=")
        if "%" in piece or "+" in piece:
            name, value = _decoded(name), _decoded(value)
        if name not in allowed:
            unknown.append(name)
        elif name in found:
            raise ShoalError(
                "bad-request", f"the query parameter {shown(name)} is given twice", invalid_params=[name]
            )
        else:
            found[name] = value
    if unknown:
        raise _unknown(unknown, allowed)
    return found


def _decoded(text: str) -> str:
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        raise ShoalError("bad-request", f"the query {shown(text)} is not percent-encoded UTF-8") from None


def _unknown(names: list[str], allowed: frozenset[str]) -> ShoalError:
    takes = f"this route takes {', '.join(sorted(allowed))}" if allowed else "this route takes none"
    listed = ", ".join(shown(name) for name in names[:8])
    plural = "s" if len(names) > 1 else ""
    return ShoalError(
        "bad-request", f"unknown query parameter{plural} {listed}; {takes}", invalid_params=names[:8]
    )


def invalid(name: str, value: str, wanted: str) -> ShoalError:
    """The error for a parameter whose value is not what it should be."""
    return ShoalError("bad-request", f"{name}={shown(value)}: {wanted}", invalid_params=[name])


def is_number(text: str) -> bool:
    """ASCII digits only, at most 19 of them: what int() takes beyond (signs, _, other scripts) is refused."""
    return 0 < len(text) <= 19 and text.isascii() and text.isdigit()


def integer(query: Query, name: str, default: int, *, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    text = query.get(name)
    if text is None:
        return default
    if not is_number(text) or not low <= int(text) <= high:
        raise invalid(name, text, f"a whole number from {low} to {high} is wanted")
    return int(text)


def duration_ms(query: Query, name: str, default_ms: int, high_ms: int, low_ms: int = 0) -> int:
    """A duration such as 500ms, 30s, 5m or plain milliseconds, from `low_ms` to `high_ms`."""
    text = query.get(name)
    if text is None:
        return default_ms
    try:
        value = parse_duration_ms(text)
    except ShoalError:
        raise invalid(name, text, "a duration such as 500ms, 30s or 5m is wanted") from None
    if value < low_ms:
        raise invalid(name, text, f"at least {low_ms}ms is wanted: in less nothing can happen")
    if value > high_ms:
        raise invalid(name, text, f"at most {high_ms // 1000}s is possible")
    return value


def choice(query: Query, name: str, default: Word, choices: tuple[Word, ...]) -> Word:
    """One of a few words."""
    text = query.get(name)
    if text is None:
        return default
    for word in choices:
        if word == text:
            return word
    raise invalid(name, text, f"one of {', '.join(choices)} is wanted")


def boolean(query: Query, name: str, default: bool) -> bool:
    """true or false; a parameter without a value means true."""
    text = query.get(name)
    if text is None:
        return default
    if text in ("true", "1", ""):
        return True
    if text in ("false", "0"):
        return False
    raise invalid(name, text, "true or false is wanted")
