"""`shoal table get|put|delete|scan|watch`: the rows of a topic of kind table.

Law of this file: it shows and asks. A value on standard output is the value and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from base64 import b64encode
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shoal.agent.cli.terminal.amounts import typed_bytes
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.interruption import interruptible
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    group,
    option,
)
from shoal.agent.cli.terminal.output import (
    CliError,
    UsageError,
    drop_stdout,
    say,
    show_json,
    show_table,
    tell,
)
from shoal.agent.cli.terminal.run import with_client
from shoal.format.timestamps import format_time

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.tables.entries import TableChange, TableEntry

ROWS_SHOWN: Final = 1_000
"""Of a scan for people, unless --limit says another number: columns are aligned over all rows."""
VALUE_CHARACTERS_MAX: Final = 60
"""Of a value in a table on a terminal; the rest is what `get` is for."""

TopicArgument = Annotated[str, argument("TOPIC", "The table.", complete_topic)]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The row's key.")]
PrefixOption = Annotated[
    str, option("PREFIX", "Only rows whose keys begin so.", "--prefix", "-p", show_default=False)
]
LocalOption = Annotated[
    bool, flag("Ask the nearest replica, which may not have the latest writes.", "--local")
]
IfMatchOption = Annotated[
    int | None, option("ETAG", "Only if the row's ETag is this one.", "--if-match", min=0)
]


class RowFormat(StrEnum):
    """How rows and changes are written."""

    TABLE = "table"
    JSON = "json"


RowFormatOption = Annotated[RowFormat, flag("Columns for people, or a JSON object a line.", "--output", "-o")]

tables = group(
    "table",
    "Get, put, delete, scan and watch the rows of a table: a topic of kind table.",
    "shoal topic create users --kind table",
    "shoal table put users ada '{\"born\": 1815}'",
    "shoal table get users ada",
)


@tables.command(
    "get", epilog=example("shoal table get users ada", "shoal table get users ada -o json | jq .etag")
)
def get(
    topic: TopicArgument,
    key: KeyArgument,
    local: LocalOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the value of a key to stdout, with a line end on a terminal. Exit code 1 when there is no row."""
    wanted = typed_bytes(key)
    entry = with_client(agent, lambda client: client.table(topic, local=local).entry(wanted))
    if entry is None:
        raise CliError(f"{topic} has no row {key!r}", f"`shoal table scan {topic}` shows the rows")
    if output is Output.JSON:
        show_json(row_document(entry))
        return
    sys.stdout.buffer.write(entry.value + (b"\n" if sys.stdout.isatty() else b""))


@tables.command(
    "put",
    epilog=example(
        "shoal table put users ada '{\"born\": 1815}'",
        "shoal table put pages /index.html < index.html",
        "shoal table put users ada '{\"born\": 1816}' --if-match 17",
    ),
)
def put(
    topic: TopicArgument,
    key: KeyArgument,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="Its value; none: stdin.")] = None,
    if_match: IfMatchOption = None,
    if_absent: Annotated[bool, flag("Only if there is no such row.", "--if-absent")] = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Store a value under a key. Exit code 1 when a condition does not hold: nothing was stored then."""
    if if_absent and if_match is not None:
        raise UsageError("--if-absent and --if-match exclude each other", "give one of them")
    if value is None and sys.stdin.isatty():
        raise UsageError("there is no value", "give it as an argument, or by `< FILE`")
    data = sys.stdin.buffer.read() if value is None else typed_bytes(value)

    async def work(client: AsyncClient) -> int | None:
        table = client.table(topic)
        if if_absent or if_match is not None:
            return await table.compare_and_set(typed_bytes(key), data, if_match)
        return await table.put(typed_bytes(key), data)

    etag = with_client(agent, work)
    if etag is None:
        raise _refused(topic, key, "there is a row already" if if_absent else f"its ETag is not {if_match}")
    tell(
        {"topic": topic, **_bytes_document("key", typed_bytes(key)), "etag": etag},
        output,
        _done(f"stored, ETag {etag}"),
    )


@tables.command(
    "delete", epilog=example("shoal table delete users ada", "shoal table delete users ada --if-match 17")
)
@tables.command("rm", hidden=True, epilog=example("shoal table rm users ada"))
def delete(
    topic: TopicArgument,
    key: KeyArgument,
    if_match: IfMatchOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a row; no error where there is none, but with --if-match exit code 1."""
    if not with_client(agent, lambda client: client.table(topic).delete(typed_bytes(key), if_match)):
        raise _refused(topic, key, f"its ETag is not {if_match}")
    tell(
        {"topic": topic, **_bytes_document("key", typed_bytes(key)), "deleted": True},
        output,
        _done("deleted"),
    )


def _refused(topic: str, key: str, why: str) -> CliError:
    return CliError(
        f"{topic} row {key!r}: {why} (precondition-failed)", f"`shoal table get {topic} KEY -o json` shows it"
    )


def _done(text: str) -> str:
    """For people only: a script has the exit code."""
    return text if sys.stderr.isatty() else ""


@tables.command(
    "scan",
    epilog=example(
        "shoal table scan users",
        "shoal table scan users --prefix eu/ --limit 20",
        "shoal table scan users -o json > users.ndjson",
    ),
)
def scan(
    topic: TopicArgument,
    prefix: PrefixOption = "",
    after: Annotated[str | None, option("KEY", "Only rows behind this key.", "--after")] = None,
    limit: Annotated[
        int | None, option("N", f"At most N rows; default {ROWS_SHOWN} as a table.", "--limit", "-n", min=1)
    ] = None,
    local: LocalOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: RowFormatOption = RowFormat.TABLE,
) -> None:
    """Show rows in the order of their keys' bytes."""
    most = limit or (ROWS_SHOWN if output is RowFormat.TABLE else None)
    shown: list[TableEntry] = []

    async def work(client: AsyncClient) -> bool:
        """Whether more rows are left."""
        count = 0
        behind = None if after is None else typed_bytes(after)
        rows = client.table(topic, local=local).entries(typed_bytes(prefix), behind)
        async with contextlib.aclosing(rows):
            async for entry in rows:
                if count == most:
                    return True
                count += 1
                if output is RowFormat.JSON:
                    _put_line(row_document(entry))
                else:
                    shown.append(entry)
        return False

    try:
        more = with_client(agent, work)
    except BrokenPipeError:
        drop_stdout()  # the reader (`| head`) has closed the pipe: nothing failed
        return
    if output is RowFormat.TABLE and shown:
        rows = [
            [_shown(one.key), _shown(one.value, cut=True), str(one.etag), format_time(one.timestamp_us)]
            for one in shown
        ]
        show_table(["KEY", "VALUE", "ETAG", "TIME"], rows, spare=("TIME", "ETAG"))
    if more and limit is None:
        say(f"more rows follow: --limit N, or --after {shown[-1].key.decode(errors='backslashreplace')}")


@tables.command(
    "watch",
    epilog=example("shoal table watch users", "shoal table watch users --prefix eu/ -o json | jq .value"),
)
def watch(
    topic: TopicArgument,
    prefix: PrefixOption = "",
    limit: Annotated[int | None, option("N", "End after N rows and changes.", "--limit", "-n", min=1)] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: RowFormatOption = RowFormat.TABLE,
) -> None:
    """Show all rows, then each change as it is committed, until Ctrl-C.

    A line has what happened (row, current, put, delete), the key and the value. `current` stands behind the
    last row: from there on lines are changes.
    """

    async def work(client: AsyncClient) -> None:
        count = 0
        async with client.table(topic).watch(typed_bytes(prefix)) as changes:
            with interruptible() as task:
                try:
                    async for change in changes:
                        _put_change(change, output)
                        count += bool(change.key)
                        if count == limit:
                            return
                except asyncio.CancelledError:
                    task.uncancel()

    try:
        with_client(agent, work)
    except BrokenPipeError:
        drop_stdout()


def row_document(entry: TableEntry) -> dict[str, Any]:
    """A row as JSON."""
    return {
        **_bytes_document("key", entry.key),
        **_bytes_document("value", entry.value),
        "etag": entry.etag,
        "partition": entry.partition,
        "offset": entry.offset,
        "timestamp": format_time(entry.timestamp_us),
    }


def _bytes_document(name: str, value: bytes | None) -> dict[str, Any]:
    """As agents write it: text, or base64 for bytes that are none."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value or b"").decode("ascii")}


def _shown(value: bytes, *, cut: bool = False) -> str:
    """On one line, whatever bytes they are; `cut`: the beginning, on a terminal."""
    text = value.decode(errors="backslashreplace")
    text = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    if cut and len(text) > VALUE_CHARACTERS_MAX and sys.stdout.isatty():
        return text[: VALUE_CHARACTERS_MAX - 3] + "..."
    return text


def _put_change(change: TableChange, output: RowFormat) -> None:
    if output is RowFormat.TABLE:
        words = [change.kind.value.ljust(len("current")), _shown(change.key)]
        words += [] if change.value is None else [_shown(change.value)]
        print("  ".join(words).rstrip(), flush=True)
        return
    document: dict[str, Any] = {"kind": change.kind.value}
    if change.key or change.offset >= 0:
        document |= _bytes_document("key", change.key) | _bytes_document("value", change.value)
        document |= {"partition": change.partition, "offset": change.offset}
        document["timestamp"] = format_time(change.timestamp_us)
    _put_line(document)


def _put_line(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")), flush=True)
