"""Values of options as people write them: numbers, words, topics, addresses. Pure: no Spark, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from shoal.credentials import PEM, Credentials, credentials_of, read_private
from shoal.errors import ClientError, ShoalError
from shoal.format.timestamps import parse_time
from shoal.spark.options.errors import SourceError

MAX_TIME_MS: Final = 253_402_300_799_000  # the end of the year 9999: nobody means a later one
DEFAULT_AGENT: Final = "http://127.0.0.1:7070"
AGENT_VARIABLE: Final = "SHOAL_AGENT"
_URL = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<place>(?:[\w.~-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII | re.IGNORECASE,
)
_MAX_PORT: Final = 65_535
_DURATION = re.compile(r"([0-9]{1,15})([a-z]*)", re.ASCII)
_UNITS_US: Final = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
"""Spark's units of time, in microseconds; a number alone is milliseconds."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def agents_of(given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The agents to begin with. Raises SourceError."""
    text = given.get("agent") or environment.get(AGENT_VARIABLE) or DEFAULT_AGENT
    return tuple(normal_url(agent) for agent in names_in(text))


def credentials_in(
    given: Mapping[str, str], environment: Mapping[str, str], agents: Sequence[str]
) -> Credentials:
    """The credentials for agents, where the query is planned: executors have neither the token's file nor the
    authority's, so both go along as texts. Raises SourceError, which shows no token."""
    try:
        found = credentials_of(
            environment,
            token=given.get("token"),
            ca=given.get("ca"),
            certificate=given.get("certificate"),
            key=given.get("key"),
        )
        if found.ca is not None and not found.ca.startswith(PEM):
            text = read_private(found.ca, "the authority's certificate", is_secret=False)
            found = replace(found, ca=text[max(0, text.find(PEM)) :])
    except ClientError as error:
        raise SourceError(f"options token, ca, certificate, key: {error}") from None
    is_secure = found.token is not None and all(agent.startswith("https://") for agent in agents)
    return replace(found, needs_tls=is_secure)


def names_in(text: str) -> tuple[str, ...]:
    """Each name of a list with commas once, in order."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def normal_url(text: str) -> str:
    """http://host:port, from that or from host:port. Raises SourceError."""
    match = _URL.fullmatch(text)
    if match is None or not 0 < int(match["port"] or "80") <= _MAX_PORT:
        raise SourceError(f"agent {text!r} is not a URL like {DEFAULT_AGENT}")
    return f"{match['scheme'] or 'http'}://{match['place']}"


def require_topic_name(option: str, topic: str) -> None:
    """Raises SourceError for what no topic is called."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise SourceError(
            f"option {option}: {topic[:80]!r} is no topic's name (1 to 249 of a-z A-Z 0-9 . _ -)"
        )


def json_object(option: str, text: str) -> dict[str, Any] | None:
    """None for any other text. Raises SourceError for a name that an object has twice: one of both values
    would be passed over."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise SourceError(f"option {option} names {name[:80]!r} twice")
            found[name] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """true or false in any case of letters. Raises SourceError."""
    return one_of(given, name, ("true", "false"), str(default).lower()) == "true"


def one_of(given: Mapping[str, str], name: str, words: Sequence[str], default: str) -> str:
    """One of these words, in lower case. Raises SourceError."""
    text = given.get(name.lower(), default).strip().lower()
    if text not in words:
        raise SourceError(f"option {name} must be {' or '.join(words)}, not {text[:80]!r}")
    return text


def count_of(given: Mapping[str, str], name: str, default: int, high: int, *, low: int = 1) -> int:
    """A whole number within bounds. Raises SourceError."""
    text = given.get(name.lower(), str(default)).strip()
    sound = text.isascii() and text.isdecimal() and len(text) < 20
    if not (sound and low <= int(text) <= high):
        raise SourceError(f"option {name} must be a number from {low} to {high}, not {text[:80]!r}")
    return int(text)


def time_ms_of(text: str) -> int | None:
    """Milliseconds since the epoch, from such a number or RFC 3339, whose digits below are dropped. None for
    any other text, and for times before the epoch or after MAX_TIME_MS."""
    try:
        time_ms = parse_time(text.strip()) // 1_000
    except ShoalError:
        return None
    return time_ms if 0 <= time_ms <= MAX_TIME_MS else None


def duration_ms_of(given: Mapping[str, str], name: str, default: str) -> int:
    """A duration as Spark's Kafka source takes it: 15m, 30s, 500ms, or milliseconds. Raises SourceError."""
    text = given.get(name.lower(), default)
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_US:
        raise SourceError(f"option {name} must be a duration like 15m, 30s or 500ms, not {text[:80]!r}")
    duration_ms = int(match[1]) * _UNITS_US[match[2]] // 1_000
    if duration_ms > MAX_TIME_MS:
        raise SourceError(f"option {name}: {text[:80]!r} is longer than 8,000 years")
    return duration_ms
