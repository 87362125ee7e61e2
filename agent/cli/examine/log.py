"""`shoal log inspect|verify|export`: a stopped agent's logs, by hand.

Law of this file: it shows findings and writes records elsewhere; it changes no log. Every byte that is shown
or exported has been verified, and damage makes the exit code 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.options import Output, OutputOption, argument, example, group, option
from shoal.agent.cli.terminal.output import (
    CliError,
    UsageError,
    plural,
    say,
    show_json,
    show_table,
    size_text,
)

if TYPE_CHECKING:
    from shoal.agent.cli.examine.stored_logs import StoredLog
    from shoal.segment_store.check.examination import DamageReport, LogReport, StoredFrame

PathArgument = Annotated[
    str, argument("PATH", "A stopped agent's data directory, a partition in it, or a segment.")
]
ClusterIdOption = Annotated[
    str | None, option("HEX", "For files that lie outside their data directory.", "--cluster-id")
]
FRAME_HEADERS = ["POSITION", "BYTES", "ENTRY", "TERM", "KIND", "OFFSET", "RECORDS", "APPENDED"]

logs = group(
    "log",
    "Inspect, verify and export the logs of a stopped agent.",
    "shoal log verify /var/lib/shoal",
    "shoal log inspect /var/lib/shoal",
)


@contextmanager
def _opened(path: str, cluster_id: str | None) -> Iterator[list[StoredLog]]:
    from shoal.agent.cli.examine.stored_logs import stored_logs

    try:
        with stored_logs(path, cluster_id) as found:
            yield found
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CliError(f"{where}{error.strerror or error}") from None


def _examine(log: StoredLog, visit: Callable[[StoredFrame], None] = lambda _: None) -> LogReport:
    from shoal.segment_store.check.offline import examine_log

    return examine_log(log.directory, log.identity, visit, log.only)


@logs.command(
    "inspect",
    epilog=example("shoal log inspect /var/lib/shoal", "shoal log inspect /var/lib/shoal/topics/TOPIC-ID/0"),
)
def inspect(
    path: PathArgument, output: OutputOption = Output.TABLE, cluster_id: ClusterIdOption = None
) -> None:
    """List the partitions of a data directory, the segments of a partition, or the batches of a segment.

    All of it is verified; the exit code is 1 for damage.
    """
    with _opened(path, cluster_id) as found:
        if found[0].only is not None:
            frames: list[StoredFrame] = []
            reports = [_examine(found[0], lambda frame: frames.append(frame._replace(data=b"")))]
            document, headers, rows = _frame_rows(frames)
        else:
            reports = [_examine(log) for log in found]
            document, headers, rows = _log_rows(found, reports)
    document["damage"] = [damage_document(damage) for report in reports for damage in report.damage]
    if output is Output.JSON:
        show_json(document)
    else:
        show_table(headers, rows)
    _tell(reports)


def _log_rows(
    found: list[StoredLog], reports: list[LogReport]
) -> tuple[dict[str, Any], list[str], list[list[object]]]:
    """Rows of segments for one partition, of partitions for several."""
    if len(found) == 1:
        headers = ["SEGMENT", "ENTRIES", "OFFSETS", "RECORDS", "SIZE", "APPENDED", "STATE"]
        documents = [segment_document(segment) for segment in reports[0].segments]
        rows: list[list[object]] = [
            [
                one["segment"],
                f"{one['first_index']}-{one['last_index']}",
                f"{one['first_offset']}-{one['end_offset'] - 1}"
                if one["end_offset"] > one["first_offset"]
                else "",
                one["records"],
                size_text(one["used_bytes"]),
                one["last_append_time"],
                one["state"],
            ]
            for one in documents
        ]
        head = {"topic": found[0].topic, "partition": found[0].partition, "segments": documents}
        return head, headers, rows
    headers = ["TOPIC", "PARTITION", "SEGMENTS", "ENTRIES", "RECORDS", "SIZE", "DAMAGE"]
    rows = []
    documents = []
    for log, report in zip(found, reports, strict=True):
        segments, damaged = len(report.segments), len(report.damage)
        numbers = [log.partition, segments, report.entries, report.records]
        rows.append([log.topic, *numbers, size_text(report.size_bytes), damaged or "none"])
        documents.append(
            {
                "topic": log.topic,
                "partition": log.partition,
                "directory": log.directory,
                "segments": [segment_document(segment) for segment in report.segments],
            }
        )
    return {"partitions": documents}, headers, rows


def segment_document(segment: Any) -> dict[str, Any]:
    """One segment for programs: sizes in bytes, times as RFC 3339."""
    from shoal.format.timestamps import format_time

    times = [segment.first_append_time_us, segment.last_append_time_us] if segment.entries else [None, None]
    first, last = [None if time is None else format_time(time) for time in times]
    return {
        "segment": os.path.basename(segment.path),
        "state": "damaged" if segment.damage else "sealed" if segment.sealed else "active",
        "first_index": segment.name.first_index,
        "last_index": segment.last_index,
        "last_term": segment.last_term,
        "first_offset": segment.name.first_offset,
        "end_offset": segment.end_offset,
        "entries": segment.entries,
        "records": segment.records,
        "kinds": {kind.name: count for kind, count in sorted(segment.kinds.items())},
        "size_bytes": segment.size_bytes,
        "used_bytes": segment.end_position,
        "index_entries": segment.index_entries,
        "first_append_time": first,
        "last_append_time": last,
        "notes": segment.notes,
    }


def damage_document(damage: DamageReport) -> dict[str, Any]:
    """One finding for programs; ranges exclude their ends."""
    document = asdict(damage)
    return {"file": document.pop("path"), **document}


def _frame_rows(frames: list[StoredFrame]) -> tuple[dict[str, Any], list[str], list[list[object]]]:
    from shoal.format.timestamps import format_time
    from shoal.segment_store.check.offline import describe_frame

    rows: list[list[object]] = [
        [
            frame.entry.position,
            frame.entry.length,
            frame.entry.index,
            frame.entry.term,
            describe_frame(frame.stamp),
            frame.entry.base_offset,
            frame.entry.record_count,
            format_time(frame.entry.append_time_us),
        ]
        for frame in frames
    ]
    names = [header.lower() for header in FRAME_HEADERS]
    return {"batches": [dict(zip(names, row, strict=True)) for row in rows]}, FRAME_HEADERS, rows


@logs.command("verify", epilog=example("shoal log verify /var/lib/shoal && echo sound"))
def verify(
    path: PathArgument, output: OutputOption = Output.TABLE, cluster_id: ClusterIdOption = None
) -> None:
    """Read every byte, check every checksum and the chain from batch to batch, and change nothing.

    Damage is reported with file, byte position, entries and offsets. The exit code is 0 only without damage.
    """
    with _opened(path, cluster_id) as found:
        reports = []
        for log in found:
            report = _examine(log)
            reports.append(report)
            if output is Output.TABLE:
                verdict = f"{len(report.damage)} damaged" if report.damage else "sound"
                sizes = f"{report.entries:,} {'batch' if report.entries == 1 else 'batches'}, "
                sizes += f"{plural(report.records, 'record')} in {plural(len(report.segments), 'segment')}"
                print(f"{log}: {verdict}: {sizes}", flush=True)
    if output is Output.JSON:
        damage = [damage_document(item) for report in reports for item in report.damage]
        records = sum(report.records for report in reports)
        show_json({"sound": not damage, "partitions": len(found), "records": records, "damage": damage})
    _tell(reports)


def _tell(reports: list[LogReport]) -> None:
    """Notes and damage on stderr; exit code 1 for damage."""
    for report in reports:
        for segment in report.segments:
            for note in segment.notes:
                say(f"{segment.path}: {note}")
        for damage in report.damage:
            say(f"DAMAGED {damage}")
    if any(report.damage for report in reports):
        raise typer.Exit(1)


@logs.command(
    "export",
    epilog=example(
        "shoal log export /var/lib/shoal/topics/TOPIC-ID/0 --output parquet --to flights.parquet",
        "shoal log export /var/lib/shoal/topics/TOPIC-ID/0 --output ndjson | head",
    ),
)
def export(
    path: PathArgument,
    output: Annotated[str, option("FORMAT", "arrow, parquet or ndjson.", "--output", "-o")] = "ndjson",
    to: Annotated[str | None, option("FILE", "The file to write; default: standard output.", "--to")] = None,
    cluster_id: ClusterIdOption = None,
) -> None:
    """Write the records of one partition (or one segment) with their offsets, verified, in order.

    Damaged batches are left out and reported, and the exit code is then 1. Records at the very end may never
    have been committed: a stopped replica alone cannot know.
    """
    from shoal.agent.cli.records.export import Exporter, ExportFormat

    if output not in list(ExportFormat):
        raise UsageError(f"--output {output!r} is no format", "there are arrow, parquet and ndjson")
    with _opened(path, cluster_id) as found:
        if len(found) > 1:
            names = ", ".join(f"{log} in {log.directory}" for log in found[:3])
            raise CliError(f"{path} holds {len(found)} partitions: {names} ...", "give one of them")
        with Exporter(ExportFormat(output), to) as exporter:
            report = _examine(found[0], exporter.take)
    say(f"{plural(exporter.records, 'record')} exported")
    _tell([report])
