"""Values of options as people write them: numbers, words, topics, addresses. Pure: no Spark, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.spark.options.errors import SourceError

DEFAULT_AGENT: Final = "http://127.0.0.1:7070"
AGENT_VARIABLE: Final = "SHOAL_AGENT"
_URL = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<place>(?:[\w.~-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII | re.IGNORECASE,
)
_MAX_PORT: Final = 65_535
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def agents_of(given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The agents to begin with. Raises SourceError."""
    text = given.get("agent") or environment.get(AGENT_VARIABLE) or DEFAULT_AGENT
    return tuple(normal_url(agent) for agent in names_in(text))


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


def json_object(text: str) -> dict[str, Any] | None:
    """None for any other text."""
    try:
        document = json.loads(text)
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
