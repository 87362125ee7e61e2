"""The settings of a topic: the body of PUT /v1/topics/{topic}, checked and frozen.

Law of this file: pure. Legal names, legal bodies, and settings in JSON, for the API and the catalog alike. It
knows no partition, replica or member.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa

from shoal.agent.interface import (
    MAX_PARTITIONS,
    MAX_REPLICATION_FACTOR,
    MAX_RETENTION_BYTES,
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
)
from shoal.agent.levels import AdditionKind, is_known
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA
from shoal.format.timestamps import format_duration, parse_duration_ms

MAX_TOPIC_NAME_CHARACTERS = 249
ALL_REPLICAS_VOTERS = 5  # `all`: three to five voters, the others only follow (safety 5)
DEFAULT_REPLICATION_TARGET = 3
DAY_MS = 86_400_000
LONGEST_AGE_MS = 100 * 365 * DAY_MS

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

FIXED = {
    "kind": "it says how records are stored",
    "partitions": "each key belongs to one of them",
    "fsync": "acknowledged records were stored by it",
}
"""Settings of a topic for its whole life, and why."""
RETENTION = frozenset({"age", "bytes", "hold_for_groups", "acknowledged"})
LATER_SETTINGS = ("retention.hold_for_groups", "retention.acknowledged")
"""Of a later level than the first: a catalog has them only where they are set, and so does no other."""
SEGMENT = frozenset({"bytes", "age"})
SCHEMAS = {"log": DEFAULT_SCHEMA, "timer": TIMER_SCHEMA, "table": DEFAULT_SCHEMA}
"""The columns of each kind of topic. Kinds other than `log` are of a later level than the first."""
TABLE_HISTORY_MS = DAY_MS
TABLE_HISTORY_BYTES = 32 << 20
"""A table's log goes back no further unless somebody says otherwise: for those who follow its changes. Rows
stay as long as their keys have them, so a table that is overwritten all day takes not a day's writes of the
disk."""
TABLE_SEGMENT_BYTES = 16 << 20
"""Of a table: whole segments go, and what a smaller one holds stands in the view sooner."""
CHANGEABLE = ("replication_factor", "retention", "segment")
_VERSION_BYTES = 8


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Ages in milliseconds, sizes in bytes; None means without limit. For the two of consumer groups see
    Retention."""

    kind: str = "log"
    partitions: int = 1
    replication_factor: int | Literal["all"] = DEFAULT_REPLICATION_TARGET
    retention_age_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int = 64 << 20
    segment_age_ms: int | None = DAY_MS
    fsync: bool = True
    hold_for_groups: bool = False
    acknowledged: bool = False

    def to_catalog(self) -> dict[str, Any]:
        """As agents of the cluster's level read it: LATER_SETTINGS stand there where they are set."""
        document = self.to_document()
        for name in LATER_SETTINGS:
            table, _, part = name.partition(".")
            if not document[table][part]:
                del document[table][part]
        return document

    def later_settings(self) -> list[str]:
        """Those of LATER_SETTINGS that are set, and a kind that is not of the first level."""
        flat = _flat(self.to_catalog())
        kinds = [] if self.kind == "log" else [f"kind.{self.kind}"]
        return kinds + [name for name in LATER_SETTINGS if name in flat]

    @property
    def schema(self) -> pa.Schema:
        """The columns of its records."""
        return SCHEMAS[self.kind]

    def to_document(self) -> dict[str, Any]:
        """The JSON shape of docs/http.md; from_body() of it gives equal settings."""
        return {
            "kind": self.kind,
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "retention": {
                "age": format_duration(self.retention_age_ms),
                "bytes": self.retention_bytes,
                "hold_for_groups": self.hold_for_groups,
                "acknowledged": self.acknowledged,
            },
            "segment": {"bytes": self.segment_bytes, "age": format_duration(self.segment_age_ms)},
            "fsync": self.fsync,
        }

    def differences(self, other: TopicSettings) -> list[str]:
        """The settings in which the two differ, for people."""
        asked = _flat(other.to_document())
        return [
            f"{name} is {_shown(value)}, asked was {_shown(asked[name])}"
            for name, value in _flat(self.to_document()).items()
            if value != asked[name]
        ]

    def wanted_replicas(self, live_members: int) -> int:
        """How many voters each partition should have now, with that many members to place on."""
        if self.replication_factor == "all":
            return voters_of_all(live_members)
        return max(1, min(self.replication_factor, live_members))


def voters_of_all(agents: int) -> int:
    """How many of the replicas that every agent holds should vote: a fourth adds nothing to three."""
    voters = max(1, min(agents, ALL_REPLICAS_VOTERS))
    return voters - 1 if voters == 4 else voters


def check_topic_form(name: str) -> None:
    """Raises ShoalError illegal-name. Names never reach the file system; the rule keeps URLs and shells
    simple."""
    if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
        raise ShoalError(
            "illegal-name",
            f"{name[:64]!r} is no topic name: use 1 to {MAX_TOPIC_NAME_CHARACTERS} of letters, digits, . _ - "
            "(not . or ..)",
        )


def check_topic_name(name: str) -> None:
    """Raises ShoalError illegal-name, for names of the system's own topics too."""
    check_topic_form(name)
    if name.startswith("_"):
        raise ShoalError(
            "illegal-name", f"{name[:64]!r}: names that begin with _ are the system's; choose another"
        )


def settings_from_body(body: Mapping[str, Any] | None) -> tuple[TopicSettings, bool]:
    """The settings a request asks for, and whether it named a replication factor itself. Raises ShoalError
    bad-request, which names the field at fault and its legal values."""
    body = body or {}
    _check_fields(body, "", {"kind", "partitions", "replication_factor", "retention", "segment", "fsync"})
    factor = body.get("replication_factor")
    default = _DEFAULTS.get(_kind(body.get("kind")), TopicSettings())
    settings = replace(
        default,
        partitions=_integer(body, "partitions", default.partitions, 1, MAX_PARTITIONS),
        replication_factor=default.replication_factor if factor is None else _factor(factor),
        fsync=_fsync(body.get("fsync", True)),
    )
    return _with_lifetimes(settings, body), factor is not None


_DEFAULTS: Mapping[str, TopicSettings] = {
    "timer": TopicSettings(kind="timer"),
    "table": TopicSettings(
        kind="table",
        retention_age_ms=TABLE_HISTORY_MS,
        retention_bytes=TABLE_HISTORY_BYTES,
        segment_bytes=TABLE_SEGMENT_BYTES,
    ),
}
"""By kind, where they are not those of a log."""


def served_kinds() -> list[str]:
    """The kinds of topics that this version makes."""
    return [kind for kind in SCHEMAS if kind == "log" or is_known(AdditionKind.TOPIC_SETTING, f"kind.{kind}")]


def _kind(value: Any) -> str:
    if value is None:
        return "log"
    kinds = served_kinds()
    if value in kinds:
        return str(value)
    raise ShoalError(
        "bad-request", f"kind {value!r} is not served by this version: it is {' or '.join(kinds)}"
    )


def check_sizes(settings: TopicSettings) -> None:
    """Of a request, not of what is stored. Raises ShoalError bad-request."""
    if settings.retention_bytes is not None and settings.retention_bytes > MAX_RETENTION_BYTES:
        raise ShoalError("bad-request", f"retention.bytes must be null or at most {MAX_RETENTION_BYTES}")


def changed_settings(current: TopicSettings, body: Mapping[str, Any] | None) -> TopicSettings:
    """The settings after PATCH: fields that the body names are changed. Raises ShoalError bad-request, which
    names a setting that is fixed, or unknown with the one that was probably meant."""
    body = body or {}
    for name in sorted(set(body) - set(CHANGEABLE)):
        if name in FIXED:
            raise ShoalError(
                "bad-request",
                f"{name!r} of an existing topic cannot be changed ({FIXED[name]}): create another topic and"
                f" copy the records; {', '.join(CHANGEABLE)} can be changed",
            )
        raise ShoalError("bad-request", f"unknown setting {name!r}{_likely(name, _names(CHANGEABLE))}")
    if not body:
        raise ShoalError(
            "bad-request",
            f'nothing to change: name {" or ".join(CHANGEABLE)}, as {{"retention": {{"age": "7d"}}}}',
        )
    changed = _with_lifetimes(current, body)
    if changed.retention_bytes != current.retention_bytes:
        check_sizes(changed)
    if "replication_factor" not in body:
        return changed
    return replace(changed, replication_factor=_factor(body["replication_factor"]))


def _with_lifetimes(current: TopicSettings, body: Mapping[str, Any]) -> TopicSettings:
    """`current` with what the body says of retention and segments, the settings that may change."""
    retention = _table(body, "retention", RETENTION)
    segment = _table(body, "segment", SEGMENT)
    if current.kind == "timer":
        _check_timer(retention)
    return replace(
        current,
        retention_age_ms=_age(retention, "retention.age", current.retention_age_ms),
        retention_bytes=_optional_bytes(retention) if "bytes" in retention else current.retention_bytes,
        segment_bytes=_integer(
            segment, "bytes", current.segment_bytes, MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES, "segment."
        ),
        segment_age_ms=_age(segment, "segment.age", current.segment_age_ms),
        hold_for_groups=_flag(retention, "hold_for_groups", current.hold_for_groups),
        acknowledged=_flag(retention, "acknowledged", current.acknowledged),
    )


def _check_timer(retention: Mapping[str, Any]) -> None:
    """Records of timers lie in a view by due time: their age counts from there, and nothing else lets them
    go."""
    for name in ("bytes", "hold_for_groups", "acknowledged"):
        if retention.get(name) not in (None, False):
            raise ShoalError(
                "bad-request",
                f"retention.{name} is not for topics of kind timer: retention.age, which counts from when a"
                " record is due, is",
            )


def with_changes(current: TopicSettings, asked: TopicSettings) -> TopicSettings:
    """`current` with the settings of `asked` that a catalog command `change` has: those of the first
    level."""
    return replace(
        current,
        retention_age_ms=asked.retention_age_ms,
        retention_bytes=asked.retention_bytes,
        segment_bytes=asked.segment_bytes,
        segment_age_ms=asked.segment_age_ms,
    )


def altered(current: TopicSettings, asked: TopicSettings) -> TopicSettings:
    """`current` with all changeable settings of `asked`, as a catalog command `alter` has them."""
    return replace(
        with_changes(current, asked),
        replication_factor=asked.replication_factor,
        hold_for_groups=asked.hold_for_groups,
        acknowledged=asked.acknowledged,
    )


def settings_version(settings: TopicSettings) -> str:
    """Opaque; settings of the same version are equal."""
    document = json.dumps(settings.to_catalog(), sort_keys=True).encode()
    return blake2b(document, digest_size=_VERSION_BYTES).hexdigest()


def settings_table(settings: TopicSettings) -> list[dict[str, Any]]:
    """Each setting as it stands in JSON. set: whether it is another than the default, which its kind may
    have."""
    usual = TopicSettings()
    defaults = _flat(_DEFAULTS.get(settings.kind, usual).to_document() | {"kind": usual.kind})
    return [
        {
            "name": name,
            "value": value,
            "default": defaults[name],
            "set": value != defaults[name],
            "changeable": name.partition(".")[0] in CHANGEABLE,
        }
        for name, value in _flat(settings.to_document()).items()
    ]


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """With names like `retention.age`."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        parts = {f"{name}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {}
        flat |= parts or {name: value}
    return flat


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower()


def _factor(value: Any) -> int | Literal["all"]:
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_REPLICATION_FACTOR:
        return value
    raise ShoalError("bad-request", f'replication_factor must be 1 to {MAX_REPLICATION_FACTOR}, or "all"')


def _fsync(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ShoalError("bad-request", "fsync must be true or false")


def _flag(retention: Mapping[str, Any], name: str, default: bool) -> bool:
    value = retention.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise ShoalError("bad-request", f"retention.{name} must be true or false")


def _table(body: Mapping[str, Any], name: str, known: Collection[str]) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ShoalError("bad-request", f"{name} must be an object with {', '.join(sorted(known))}")
    _check_fields(value, f" in {name}", known)
    return value


def _check_fields(table: Mapping[str, Any], where: str, known: Collection[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        names = known if where else _names(sorted(known))
        raise ShoalError("bad-request", f"unknown field {unknown[0]!r}{where}{_likely(unknown[0], names)}")


def _names(fields: Collection[str]) -> list[str]:
    """The fields, and those of the tables among them, as `retention.age`."""
    parts = {"retention": RETENTION, "segment": SEGMENT}
    return [*fields, *(f"{name}.{part}" for name in fields for part in sorted(parts.get(name, ())))]


def _likely(name: str, known: Collection[str]) -> str:
    """The end of a refusal of an unknown name: the one that was probably meant, and all known ones."""
    alike = {item.replace(".", "_"): item for item in known}
    found = get_close_matches(name.lower().replace(".", "_").replace("-", "_"), alike, n=1)
    meant = alike[found[0]] if found else ""
    table, _, part = meant.partition(".")
    hint = f'{{"{table}": {{"{part}": ...}}}}' if part else repr(meant)
    tops = ", ".join(sorted(item for item in known if "." not in item))
    return f": did you mean {hint}? Use {tops}" if meant else f": use {tops}"


def _integer(body: Mapping[str, Any], name: str, default: int, low: int, high: int, table: str = "") -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ShoalError("bad-request", f"{table}{name} must be a whole number from {low} to {high}")
    return value


def _optional_bytes(retention: Mapping[str, Any]) -> int | None:
    value = retention.get("bytes")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < MIN_SEGMENT_BYTES:
        raise ShoalError("bad-request", f"retention.bytes must be null or at least {MIN_SEGMENT_BYTES}")
    return value


def _age(table: Mapping[str, Any], label: str, default: int | None) -> int | None:
    value = table.get("age")
    if value is None:
        return None if "age" in table else default
    try:
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise ShoalError("bad-request", "not a duration")
        age_ms = parse_duration_ms(str(value))
    except ShoalError:
        raise ShoalError("bad-request", f'{label} must be null or a duration such as "7d" or "30m"') from None
    if not 1_000 <= age_ms <= LONGEST_AGE_MS:
        raise ShoalError("bad-request", f"{label} must be at least one second and at most 100 years")
    return age_ms
