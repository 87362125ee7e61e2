"""The settings of a consumer group: the body of PUT /v1/topics/{topic}/groups/{group}, checked and frozen.

Law of this file: pure. Legal names, legal bodies, and settings in JSON, for the API and the catalog alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from shoal.agent.levels import FIRST_LEVEL, Level
from shoal.agent.receive import GroupKey, GroupMode
from shoal.errors import ShoalError
from shoal.format.timestamps import format_duration, format_time, parse_duration_ms, parse_time

MAX_GROUP_NAME_CHARACTERS: Final = 64
MAX_TOPIC_NAME_CHARACTERS: Final = 249
GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
DEAD_ACTIONS: Final = ("letter", "stop", "drop")
MAX_ATTEMPTS: Final = 100
MAX_FACTOR: Final = 10
FIXED: Final = {
    "mode": "what was promised of the order of messages rests on it",
    "start": "the group has begun there: seek instead",
}
"""Settings of a group for its whole life, and why."""
RETRY: Final = frozenset({"first", "factor", "most"})
CHANGEABLE: Final = ("visibility", "max_attempts", "retry", "dead", "session", "paused")
_HOUR_MS: Final = 3_600_000
MAX_DELAY_MS: Final = 7 * 24 * _HOUR_MS
MIN_VISIBILITY_MS: Final = 1_000
MAX_VISIBILITY_MS: Final = 12 * _HOUR_MS
DURATIONS: Final = {
    "visibility": (MIN_VISIBILITY_MS, MAX_VISIBILITY_MS),
    "retry.first": (0, MAX_DELAY_MS),
    "retry.most": (0, MAX_DELAY_MS),
    "session": (1_000, 300_000),
    "delay": (0, MAX_DELAY_MS),
}
"""The shortest and the longest legal ones; `delay` is that of a nack."""
_VERSION_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`start`: earliest, latest, or @ and a time. `max_attempts` None: without limit. `visibility_ms`: how
    long a message is in one consumer's hands alone. `dead`: what happens after the last attempt."""

    mode: GroupMode = GroupMode.SHARED
    start: str = "earliest"
    visibility_ms: int = 30_000
    max_attempts: int | None = 5
    retry_first_ms: int = 1_000
    retry_factor: int = 2
    retry_most_ms: int = 300_000
    dead: str = "letter"
    session_ms: int = 10_000
    paused: bool = False

    def to_document(self) -> dict[str, Any]:
        """The JSON shape of docs/http.md; settings_from_body() of it gives equal settings."""
        return {
            "mode": self.mode.value,
            "start": self.start,
            "visibility": format_duration(self.visibility_ms),
            "max_attempts": self.max_attempts,
            "retry": {
                "first": format_duration(self.retry_first_ms),
                "factor": self.retry_factor,
                "most": format_duration(self.retry_most_ms),
            },
            "dead": self.dead,
            "session": format_duration(self.session_ms),
            "paused": self.paused,
        }

    def version(self) -> str:
        """Opaque; settings of the same version are equal."""
        document = json.dumps(self.to_document(), sort_keys=True).encode()
        return blake2b(document, digest_size=_VERSION_BYTES).hexdigest()

    def start_us(self) -> int | None:
        """The time of a start at a time; None for earliest and latest."""
        return parse_time(self.start[1:]) if self.start.startswith("@") else None


class GroupPlan(NamedTuple):
    """One group as the catalog has it. `mac`: the secret key of its receipts. `catalog`: the catalog's epoch
    and the offset of the command that made the group."""

    key: GroupKey
    name: str
    settings: GroupSettings
    mac: bytes
    catalog: tuple[int, int]


class GroupPlans(NamedTuple):
    """The groups of a topic, for one of its partitions. `catalog`: the epoch, and the offset up to which the
    catalog was read. `level`: the cluster's. `partitions`: of the topic."""

    groups: Mapping[GroupKey, GroupPlan]
    catalog: tuple[int, int]
    level: Level
    partitions: int


NO_GROUPS: Final = GroupPlans({}, (0, 0), FIRST_LEVEL, 1)
"""Of a topic whose groups are not known yet: it begins none, and ends none."""


def retry_delay_ms(settings: GroupSettings, attempts: int) -> int:
    """How long a message waits after its attempt number `attempts` (from 1) failed."""
    most_ms = settings.retry_most_ms
    delay_ms = settings.retry_first_ms
    if settings.retry_factor > 1:
        for _ in range(attempts - 1):
            if not 0 < delay_ms < most_ms:
                break
            delay_ms *= settings.retry_factor
    return min(delay_ms, most_ms)


def dead_topic(topic: str, group: str) -> str:
    """Where the group's dead letters go."""
    return f"{topic}.dead.{group}"


def check_group_name(topic: str, group: str) -> None:
    """Raises ShoalError illegal-name, also where the name of the dead letters' topic would be too long."""
    if GROUP_NAME.fullmatch(group) is None or group in (".", ".."):
        raise ShoalError(
            "illegal-name",
            f"{group[:80]!r} is no group name: use 1 to {MAX_GROUP_NAME_CHARACTERS} of letters, digits, . _ -"
            " (not . or ..)",
        )
    if (length := len(dead_topic(topic, group))) > MAX_TOPIC_NAME_CHARACTERS:
        raise ShoalError(
            "illegal-name",
            f"the dead letters' topic {dead_topic(topic[:80], group)!r} would have a name of {length}"
            f" characters: at most {MAX_TOPIC_NAME_CHARACTERS} are legal, choose a shorter group name",
        )


def settings_from_body(body: Mapping[str, Any] | None) -> GroupSettings:
    """The settings that a request asks for. Raises ShoalError bad-request, which names the field at fault and
    its legal values."""
    body = body or {}
    _check_fields(body, "", (*FIXED, *CHANGEABLE))
    mode = body.get("mode", GroupMode.SHARED.value)
    modes = [one.value for one in GroupMode]
    if mode not in modes:
        raise ShoalError("bad-request", f"mode must be one of {', '.join(modes)}")
    start = body.get("start", "earliest")
    if isinstance(start, str) and start.startswith("@"):
        start = "@" + format_time(parse_time(start[1:]))
    elif start not in ("earliest", "latest"):
        raise ShoalError("bad-request", 'start must be "earliest", "latest", or "@" and a time')
    return _with_changeable(GroupSettings(mode=GroupMode(mode), start=start), body)


def changed(current: GroupSettings, body: Mapping[str, Any] | None) -> GroupSettings:
    """The settings after PATCH: fields that the body names are changed. Raises ShoalError bad-request, which
    names a setting that is fixed, or unknown with the one that was probably meant."""
    body = body or {}
    for name in FIXED:
        if name in body:
            raise ShoalError(
                "bad-request",
                f"{name!r} of a group cannot be changed ({FIXED[name]}): use {', '.join(CHANGEABLE)}",
            )
    _check_fields(body, "", CHANGEABLE)
    if not body:
        raise ShoalError(
            "bad-request", f'nothing to change: name {" or ".join(CHANGEABLE)}, as {{"visibility": "1m"}}'
        )
    return _with_changeable(current, body)


def duration_ms(value: Any, label: str) -> int:
    """A duration of a body, within DURATIONS of its name. Raises ShoalError bad-request."""
    low_ms, high_ms = DURATIONS[label]
    try:
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise ShoalError("bad-request", "not a duration")
        length_ms = parse_duration_ms(str(value))
    except ShoalError:
        length_ms = -1
    if not low_ms <= length_ms <= high_ms:
        raise ShoalError(
            "bad-request",
            f"{label} must be a duration from {format_duration(low_ms)} to {format_duration(high_ms)}",
        )
    return length_ms


def _with_changeable(current: GroupSettings, body: Mapping[str, Any]) -> GroupSettings:
    retry = body.get("retry")
    if retry is None:
        retry = {}
    if not isinstance(retry, Mapping):
        raise ShoalError("bad-request", f"retry must be an object with {', '.join(sorted(RETRY))}")
    _check_fields(retry, " in retry", sorted(RETRY))
    dead, paused = body.get("dead", current.dead), body.get("paused", current.paused)
    if dead not in DEAD_ACTIONS:
        raise ShoalError("bad-request", f"dead must be one of {', '.join(DEAD_ACTIONS)}")
    if not isinstance(paused, bool):
        raise ShoalError("bad-request", "paused must be true or false")
    attempts = body.get("max_attempts", current.max_attempts)
    if attempts is not None:
        attempts = _integer(attempts, "max_attempts", MAX_ATTEMPTS, ", or null for no limit")
    return replace(
        current,
        visibility_ms=_duration(body, "visibility", current.visibility_ms),
        max_attempts=attempts,
        retry_first_ms=_duration(retry, "retry.first", current.retry_first_ms),
        retry_factor=_integer(retry.get("factor", current.retry_factor), "retry.factor", MAX_FACTOR),
        retry_most_ms=_duration(retry, "retry.most", current.retry_most_ms),
        dead=dead,
        session_ms=_duration(body, "session", current.session_ms),
        paused=paused,
    )


def _duration(table: Mapping[str, Any], label: str, default_ms: int) -> int:
    name = label.rpartition(".")[2]
    return duration_ms(table[name], label) if name in table else default_ms


def _integer(value: Any, label: str, high: int, more: str = "") -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high:
        return value
    raise ShoalError("bad-request", f"{label} must be a whole number from 1 to {high}{more}")


def _check_fields(table: Mapping[str, Any], where: str, known: Collection[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        meant = get_close_matches(str(unknown[0]).lower(), known, n=1)
        hint = f": did you mean {meant[0]!r}? Use" if meant else ": use"
        raise ShoalError("bad-request", f"unknown field {unknown[0]!r}{where}{hint} {', '.join(known)}")
