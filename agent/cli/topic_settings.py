"""The settings of a topic as options of the command line, and as people read them.

Law of this file: it translates between options and documents. The agents decide which settings are legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shoal.agent.cli.terminal.amounts import duration_text, size_bytes
from shoal.agent.cli.terminal.options import option
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


def changeable(
    retention: str | None, retention_bytes: str | None, segment_bytes: str | None, segment_age: str | None
) -> dict[str, Any]:
    """The part of a topic's document that these options name. Raises CliError."""
    kept: dict[str, Any] = {}
    if retention is not None:
        kept["age"] = duration_text(retention, "--retention")
    if retention_bytes is not None:
        kept["bytes"] = size_bytes(retention_bytes, "--retention-bytes")
    segment: dict[str, Any] = {}
    if segment_bytes is not None:
        segment["bytes"] = size_bytes(segment_bytes, "--segment-bytes")
    if segment_age is not None:
        segment["age"] = duration_text(segment_age, "--segment-age")
    return {name: table for name, table in (("retention", kept), ("segment", segment)) if table}


def factor_of(text: str) -> int | str:
    """A replication factor. Raises CliError."""
    if text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--replication-factor {text!r} is neither a number nor `all`", "give 1 or more")
    return int(text)


def shown_settings(document: Mapping[str, Any]) -> str:
    """Retention and segments in one line."""
    retention, segment = document.get("retention") or {}, document.get("segment") or {}
    kept = [str(retention["age"])] if retention.get("age") else []
    kept += [f"at least {size_text(retention['bytes'])} a partition"] if retention.get("bytes") else []
    text = f"retention {' and '.join(kept) or 'for ever'}"
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
