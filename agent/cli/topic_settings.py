"""The settings of a topic as options of the command line, and as people read them.

Law of this file: it translates between options and documents. The agents decide which settings are legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shoal.agent.cli.terminal.amounts import age_limit_text, is_size, size_bytes
from shoal.agent.cli.terminal.options import flag, option
from shoal.agent.cli.terminal.output import UsageError, plural, size_text

RetentionOption = Annotated[
    str | None, option("TIME|none", "How long batches are kept, as 7d; default: for ever.", "--retention")
]
RetentionBytesOption = Annotated[
    str | None, option("SIZE|none", "Size of each partition to keep, as 10GiB.", "--retention-bytes")
]
SegmentBytesOption = Annotated[
    str | None, option("SIZE", "Largest size of a segment file; default 64MiB.", "--segment-bytes")
]
SegmentAgeOption = Annotated[
    str | None, option("TIME|none", "Greatest age of a segment file; default 1d.", "--segment-age")
]
HoldOption = Annotated[
    bool | None,
    flag(
        "Keep what a consumer group is not done with, up to twice as long.",
        "--hold-for-groups/--no-hold-for-groups",
    ),
]
AcknowledgedOption = Annotated[
    bool | None,
    flag(
        "Remove segments once all consumer groups are done with them.",
        "--remove-acknowledged/--no-remove-acknowledged",
    ),
]
OPTIONS = {
    "replication_factor": "--replication-factor",
    "retention.age": "--retention",
    "retention.bytes": "--retention-bytes",
    "retention.hold_for_groups": "--hold-for-groups",
    "retention.acknowledged": "--remove-acknowledged",
    "segment.bytes": "--segment-bytes",
    "segment.age": "--segment-age",
}
"""The options of `shoal topic alter`, by what they change."""
FACTOR_DIGITS_MAX = 9
"""Python refuses to read thousands; the agents name the largest factor."""


def changeable(
    retention: str | None,
    retention_bytes: str | None,
    segment_bytes: str | None,
    segment_age: str | None,
    hold_for_groups: bool | None,
    acknowledged: bool | None,
) -> dict[str, Any]:
    """The part of a topic's document that these options name. Raises CliError."""
    kept: dict[str, Any] = {}
    if retention is not None:
        if is_size(retention):
            raise UsageError(
                f"--retention {retention!r} is a size, not a time", f"give --retention-bytes {retention}"
            )
        kept["age"] = age_limit_text(retention, "--retention")
    if retention_bytes is not None:
        kept["bytes"] = size_bytes(retention_bytes, "--retention-bytes")
    flags = {"hold_for_groups": hold_for_groups, "acknowledged": acknowledged}
    kept |= {name: value for name, value in flags.items() if value is not None}
    segment: dict[str, Any] = {}
    if segment_bytes is not None:
        segment["bytes"] = size_bytes(segment_bytes, "--segment-bytes")
    if segment_age is not None:
        segment["age"] = age_limit_text(segment_age, "--segment-age")
    return {name: table for name, table in (("retention", kept), ("segment", segment)) if table}


def factor_of(text: str) -> int | str:
    """A replication factor. Raises CliError."""
    if text == "all":
        return text
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"--replication-factor {text!r} is neither a number nor `all`", "give 1 or more")
    if len(text) > FACTOR_DIGITS_MAX:
        shown = f"{text[:FACTOR_DIGITS_MAX]}..."
        raise UsageError(f"--replication-factor {shown} is far too large", "give a small number, or `all`")
    if int(text) == 0:
        raise UsageError(
            "--replication-factor 0: a topic has at least one replica", "`shoal topic delete` removes a topic"
        )
    return int(text)


def setting_rows(table: Mapping[str, Any]) -> list[list[object]]:
    """GET /v1/topics/{topic}/settings as rows: name, value, default, whether it was set, and how it is
    changed."""
    return [
        [
            row["name"],
            _value_text(row["name"], row["value"]),
            _value_text(row["name"], row["default"]),
            row["set"],
            OPTIONS.get(row["name"], "PATCH") if row["changeable"] else "fixed",
        ]
        for row in table["settings"]
    ]


def _value_text(name: str, value: object) -> object:
    """As options take it."""
    if value is None:
        return "none"
    if name.endswith(".bytes") and isinstance(value, int):
        return f"{value} B" if value % (1 << 20) else size_text(value)
    return str(value).lower()


def change_text(document: Mapping[str, Any]) -> str:
    """How many replicas are still to come and to go; empty when all are where they belong."""
    missing, surplus = document.get("missing_replicas") or 0, document.get("surplus_replicas") or 0
    if not missing and not surplus:
        return ""
    learners = sum(
        replica.get("role") == "learner"
        for partition in document["partitions"]
        for replica in partition.get("replicas", [])
    )
    copied = "" if document.get("replication_factor") == "all" else f" ({learners} being copied)"
    parts = [f"{plural(missing, 'replica')} to come{copied}"] if missing else []
    parts += [f"{plural(surplus, 'replica')} to go"] if surplus else []
    return f"replicas change: {' and '.join(parts)}"


def shown_settings(document: Mapping[str, Any]) -> str:
    """Retention and segments in one line."""
    retention, segment = document.get("retention") or {}, document.get("segment") or {}
    kept = [str(retention["age"])] if retention.get("age") else []
    kept += [f"at least {size_text(retention['bytes'])} a partition"] if retention.get("bytes") else []
    text = f"retention {' and '.join(kept) or 'for ever'}"
    text += ", held for groups" if retention.get("hold_for_groups") else ""
    text += ", until groups are done" if retention.get("acknowledged") else ""
    if segment:
        age = f" or {segment['age']}" if segment.get("age") else ""
        text += f"; segments of {size_text(segment['bytes'])}{age}"
    return text if document.get("fsync", True) else f"{text}; fsync off"


def replicas_text(factor: object, fewest: int | None) -> str | int:
    """`3`, or `1 of 3` where a partition has fewer replicas than configured."""
    if isinstance(factor, int) and fewest is not None and fewest < factor:
        return f"{fewest} of {factor}"
    return factor if isinstance(factor, int) else str(factor)


def fewest_replicas(partitions: Sequence[Mapping[str, Any]]) -> int | None:
    """The smallest number of voters of any partition; None where it is unknown."""
    counts = [
        sum(1 for replica in partition["replicas"] if replica.get("role") != "learner")
        for partition in partitions
        if partition.get("replicas")
    ]
    return min(counts, default=None)


def summary(document: Mapping[str, Any]) -> str:
    """`6 partitions, 3 replicas`, or `1 of 3 replicas` as long as agents are missing."""
    partitions = document.get("partitions")
    listed: list[Mapping[str, Any]] = partitions if isinstance(partitions, list) else []
    count = len(listed) if isinstance(partitions, list) else int(partitions or 0)
    factor = document.get("replication_factor")
    if factor == "all":
        return f"{plural(count, 'partition')}, all replicas"
    copies = replicas_text(factor, fewest_replicas(listed))
    noun = plural(copies, "replica") if isinstance(copies, int) else f"{copies} replicas"
    return f"{plural(count, 'partition')}, {noun}"
