"""Documents of consumer groups in words: rows of tables, and lines.

Law of this file: JSON comes in, texts go out. A field that agents of a former version leave out is no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.agent.cli.terminal.output import age_text, listed, plural

if TYPE_CHECKING:
    from collections.abc import Mapping


def partition_row(entry: dict[str, Any]) -> list[object]:
    """A partition in the table of `shoal group describe`."""
    position = entry["position"]
    why = [entry["window"]] if entry.get("window") else []
    why += ["blocked by a key"] if entry.get("blocked_by") else []
    why += [f"{entry['stopped']:,} stopped"] if entry.get("stopped") else []
    return [
        entry["partition"],
        position["offset"] if isinstance(position, dict) else position,
        entry["high_watermark"],
        entry["lag"],
        age_text(entry["lag_seconds"]) if entry.get("lag_seconds") else "-",
        entry["in_flight"],
        entry["delayed"],
        entry.get("owner"),
        ", ".join(why),
    ]


def waits_text(topic: str, partitions: list[dict[str, Any]]) -> list[str]:
    """A line for each partition with messages that wait for an operator, or for a message of their key."""
    lines: list[str] = []
    for entry in partitions:
        where = f"{topic}/{entry['partition']}"
        if offsets := entry.get("stopped_offsets"):
            rest = entry["stopped"] - len(offsets)
            more = f" and {rest:,} more" if rest > 0 else ""
            lines.append(f"{where}: stopped at {', '.join(map(str, offsets))}{more}; `shoal group decide`")
        if entry.get("blocked_by"):
            key = f"key {entry['blocked_key']}, " if "blocked_key" in entry else ""
            key = f"key {entry['blocked_key_base64']} (base64), " if "blocked_key_base64" in entry else key
            at = f" at offset {entry['blocked_offset']}" if "blocked_offset" in entry else ""
            lines.append(f"{where}: all wait for {key}hash {entry['blocked_by']}{at}")
    return lines


NAMELESS: Final = "(no name)"
"""All consumers that gave none."""


def consumer_rows(partitions: list[dict[str, Any]]) -> list[list[object]]:
    """Each consumer: its partitions, how many messages it holds, and when it was heard last."""
    found: dict[str, tuple[list[int], int, int]] = {}
    for entry in partitions:
        for one in entry.get("consumers", []):
            name = one["consumer"] or NAMELESS
            numbers, holds, seen_ms = found.get(name, ([], 0, one["seen_ms"]))
            if one["holds"] or entry.get("owner") == name:
                numbers = [*numbers, entry["partition"]]
            found[name] = (numbers, holds + one["holds"], min(seen_ms, one["seen_ms"]))
    return [
        [name, ", ".join(map(str, numbers)), holds, f"{age_text(seen_ms / 1_000)} ago"]
        for name, (numbers, holds, seen_ms) in sorted(found.items())
    ]


def summary(document: Mapping[str, Any]) -> str:
    """Its mode, and whether it is paused."""
    return f"{document['mode']}{', PAUSED' if document.get('paused') else ''}"


def shown_settings(document: Mapping[str, Any]) -> str:
    """The settings in one line."""
    retry = document["retry"]
    attempts = document["max_attempts"]
    most = "attempts without end" if attempts is None else plural(attempts, "attempt")
    return (
        f"visibility {document['visibility']}; {most}, after {retry['first']} times {retry['factor']} up to"
        f" {retry['most']}, then {document['dead']}; session {document['session']}"
    )


def totals_text(document: Mapping[str, Any]) -> list[str]:
    """Sums over all partitions, in words; those that are nought are left out but for the lag."""
    totals = document["totals"]
    words = [f"lag {plural(totals['lag'], 'message')}"]
    for name, said in (("in_flight", "in flight"), ("delayed", "delayed"), ("stopped", "stopped")):
        words += [f"{totals[name]:,} {said}"] if totals.get(name) else []
    pending = sum(entry.get("pending", 0) for entry in document.get("partitions", ()))
    words += [f"{pending:,} not due yet"] if pending else []
    gone = [
        plural(totals[name], said) if name == "dead" else f"{totals[name]:,} {said}"
        for name, said in (
            ("dead", "dead letter"),
            ("dropped", "dropped"),
            ("skipped", "skipped, since retention had removed them"),
        )
        if totals.get(name)
    ]
    return ["; ".join(filter(None, (", ".join(words), ", ".join(gone))))]


def kept_text(topic: str, redriven: Mapping[str, Any]) -> list[str]:
    """A line about the letters that a redrive passed over."""
    kept = redriven.get("kept", 0)
    if not kept:
        return []
    places = [
        f"{topic}/{one['partition']} offset {one['offset']}: {one['reason']}"
        for one in redriven["kept_letters"]
    ]
    return [f"{plural(kept, 'letter')} cannot come again, and stay dead letters ({listed(places, 4)})"]
