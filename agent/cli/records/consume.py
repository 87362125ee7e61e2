"""`shoal consume`: records to stdout, as text, JSON or Arrow.

Law of this file: it writes the chunks that topic_chunks.py reads, each as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.records.group_consume import ConsumerMode, GroupReading, consume_group
from shoal.agent.cli.records.lag import LagMeter
from shoal.agent.cli.records.topic_chunks import TopicsRequest, chunks_of, ready_to_read
from shoal.agent.cli.terminal.amounts import start_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.interruption import interruptible
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    PartitionOption,
    argument,
    example,
    flag,
    name_of,
    option,
)
from shoal.agent.cli.terminal.output import UsageError, drop_stdout
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.consume.fetch import Fetched

BATCH_MAX = 100_000
NO_VALUE = b"\\N"
FORMAT_HELP = (
    "As %k %v\\n: %t topic, %p partition, %o offset, %k key, %v value, %h headers, %d time, %T its ms."
)

app = typer.Typer()


class Format(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"
    ARROW = "arrow"


StartOption = Annotated[
    str,
    option(
        "WHERE",
        "earliest, latest, -N (the last N of each partition), an offset, -1h, @TIME or @DATE.",
        "--from",
    ),
]
LagOption = Annotated[
    bool | None,
    flag(
        "Each partition's lag on stderr; default: a status line where records do not go to the terminal.",
        "--lag/--no-lag",
    ),
]
FormatOption = Annotated[Format, flag("Values as lines, JSON records, or an Arrow stream.", "--output", "-o")]
GroupOption = Annotated[
    str | None,
    option("GROUP", "Share the messages with all who name this group.", callback=name_of),
]
CommandOption = Annotated[
    str | None, option("CMD", "With --group: run for each message, on its stdin.", "--exec")
]
ConsumerOption = Annotated[
    str | None, option("NAME", "With --group: this consumer's name.", callback=name_of)
]
ModeOption = Annotated[ConsumerMode | None, flag("With --group: the mode of a group that is new.")]
BatchOption = Annotated[
    int | None, option("N", "With --group: messages held at a time.", min=1, max=BATCH_MAX)
]
AckOption = Annotated[bool, flag("With --group: --no-ack looks and gives back.", "--ack/--no-ack")]


@app.command(
    epilog=example(
        "shoal consume flights --limit 5",
        "shoal consume flights --from -10 --follow --output json | jq .value",
        "shoal consume flights --from -1h -f '%o %k %v\\n'",
        "shoal consume flights orders --follow -f '%t %k %v\\n'",
        "shoal consume flights --lag > flights.ndjson",
        "shoal consume payments --group billing --follow --exec ./charge.sh",
    )
)
def consume(
    topics: Annotated[list[str], argument("TOPIC", "The topics, one or several.", complete_topic)],
    start: StartOption = "earliest",
    partition: PartitionOption = None,
    limit: Annotated[int | None, option("N", "End after N records.", "--limit", "-n", min=0)] = None,
    follow: Annotated[bool, flag("Wait for later records.", "--follow", "-F")] = False,
    output: FormatOption = Format.TEXT,
    template: Annotated[str | None, option("TEMPLATE", FORMAT_HELP, "--format", "-f")] = None,
    lag: LagOption = None,
    group: GroupOption = None,
    command: CommandOption = None,
    consumer: ConsumerOption = None,
    mode: ModeOption = None,
    batch: BatchOption = None,
    ack: AckOption = True,
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Write records to stdout, partition by partition, up to the end of the log or without end (--follow).

    Several topics come one after the other, and with --follow as their records arrive. As text, a record
    without a value is \\N. --follow waits for a topic that does not exist yet.

    With --group each message goes to one of the group's consumers. It is acknowledged when it is written, or
    when CMD ends with 0; else it comes again after the group's delay. Without --follow the command ends when
    all messages of the group are done.
    """
    names = tuple(dict.fromkeys(topics))
    _check(names, output, template)
    arrow = ArrowStream(with_topic=len(names) > 1) if output is Format.ARROW else None
    write = _renderer(output, template, with_topic=len(names) > 1) if arrow is None else arrow.write
    if group is None:
        given = {"--exec": command, "--consumer": consumer, "--mode": mode, "--batch": batch}
        named = [name for name, value in given.items() if value is not None]
        if named or not ack:
            raise UsageError(f"{[*named, '--no-ack'][0]} is for consumer groups", "add --group GROUP")
        where = start_of(start, time.time_ns() // 1_000_000)
        request = TopicsRequest(names, where, partition, limit, follow)
        run = partial(_consume_topics, agent, request, lag, write)
    else:
        _check_grouped(names, start, lag)
        if command is not None:
            _check_command(command, output, template, ack)
        chosen = None if mode is None else str(mode)
        reading = GroupReading(
            names[0], group, consumer, chosen, batch, command, ack, partition, limit, follow
        )
        run = partial(consume_group, agent, reading, write)
    try:
        interrupted = run()
        if arrow is not None:
            arrow.close()
    except BrokenPipeError:
        drop_stdout()  # the reader (`| head`) has closed the pipe: nothing failed
        return
    if interrupted and not follow:
        raise typer.Exit(128 + signal.SIGINT)


def _check(names: tuple[str, ...], output: Format, template: str | None) -> None:
    if output is Format.ARROW and sys.stdout.isatty():
        raise UsageError("an Arrow stream is binary", "send it to a file or a program: `> records.arrows`")
    if wrong := next((name for name in names if "%" in name), None):
        raise UsageError(f"{wrong!r} is no topic name", "a template follows --format or -f; -F is --follow")
    if template is not None and output is not Format.TEXT:
        raise UsageError("--format is for text", "leave --output out")


def _check_grouped(names: tuple[str, ...], start: str, lag: bool | None) -> None:
    """A group keeps its own place, and belongs to one topic."""
    if len(names) > 1:
        raise UsageError("a consumer group belongs to one topic", "run a command for each topic")
    if start != "earliest":
        raise UsageError(
            "--from is not for groups, which go on where they are", "`shoal group seek` sets another place"
        )
    if lag:
        raise UsageError("--lag is not for groups", "`shoal group describe` shows a group's lag")


def _check_command(command: str, output: Format, template: str | None, ack: bool) -> None:
    """It gets each value as it is, and its status settles the message."""
    if not command.strip():
        raise UsageError("--exec is empty", "a command that does nothing would acknowledge all messages")
    if output is not Format.TEXT or template is not None:
        raise UsageError(
            "--output and --format are not for --exec, whose command gets each value on its standard input",
            "leave them out",
        )
    if not ack:
        raise UsageError("--no-ack is not for --exec, whose command decides", "leave one of them out")


def _consume_topics(
    agent: str, request: TopicsRequest, lag: bool | None, write: Callable[[str, Fetched], None]
) -> bool:
    """Whether a signal ended it."""

    async def work(client: AsyncClient) -> bool:
        meter = LagMeter(lag, beside_records=sys.stdout.isatty(), with_topic=len(request.topics) > 1)
        wanted = await ready_to_read(client, request, all_exist=meter.summarises)
        if meter.summarises:  # partitions without records have a lag too
            await _begin(client, wanted, meter)
        try:
            interrupted = await _write_all(chunks_of(client, wanted), write, meter)
        finally:
            meter.clear()
        meter.summary()
        return interrupted

    return with_client(agent, work)


async def _begin(client: AsyncClient, wanted: TopicsRequest, meter: LagMeter) -> None:
    """Tell the meter of every partition, where it is read from, and its end."""
    from shoal.client.consume.fetch import first_offset

    at = wanted.start[1:] if wanted.start.startswith("@") else None
    for topic in wanted.topics:
        for known in await client.offsets(topic, at):
            if wanted.partition in (None, known.partition):
                offset = first_offset(wanted.start, known)
                meter.begins(known.partition, offset, known.high_watermark, topic)


async def _write_all(
    chunks: AsyncGenerator[tuple[str, Fetched]], write: Callable[[str, Fetched], None], meter: LagMeter
) -> bool:
    """Write until the end, or until a signal; returns whether a signal ended it."""
    async with contextlib.aclosing(chunks):
        with interruptible() as task:
            try:
                async for topic, found in chunks:
                    write(topic, found)
                    meter.saw(found, topic)
            except asyncio.CancelledError:
                task.uncancel()
                return True
    return False


def _renderer(output: Format, template: str | None, *, with_topic: bool) -> Callable[[str, Fetched], None]:
    """Writes a chunk of a topic's records as text, JSON, or by the template."""
    if template is not None:
        from shoal.agent.cli.records.record_format import Template
        from shoal.client.consume.record import records_of

        parsed = Template(template)
        return lambda topic, found: _put(parsed.render(records_of(topic, found)))
    if output is Format.TEXT:
        return lambda _, found: _put(_text_lines(found))
    return lambda topic, found: _put(_json_lines(found, topic if with_topic else None))


def _text_lines(found: Fetched) -> bytes:
    """Values as they were produced, a line each; no value differs from the text `null`."""
    values = found.batch.column("value").to_pylist()
    return b"".join((NO_VALUE if value is None else value) + b"\n" for value in values)


def _json_lines(found: Fetched, topic: str | None) -> bytes:
    """One JSON object a line: topic where one is given, partition, offset, timestamp, key, value, headers."""
    from shoal.format.record_text import render_ndjson

    lines = render_ndjson(found.batch, found.base_offset)
    # Line feeds inside a JSON text are escaped, so these open an object that is a record.
    named = b"" if topic is None else b'"topic":%s,' % json.dumps(topic).encode()
    opening = b'{%b"partition":%d,' % (named, found.partition)
    return (b"\n" + lines[:-1]).replace(b"\n{", b"\n" + opening)[1:] + b"\n"


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class ArrowStream:
    """One Arrow IPC stream on stdout: `topic` where there are several, `partition`, `offset`, then the
    topics' columns. Without records it has the schema alone."""

    def __init__(self, *, with_topic: bool = False) -> None:
        self._with_topic = with_topic
        self._has_due_times = False
        """Of the first chunk, which decides the columns."""
        self._stream: Any = None

    def write(self, topic: str, found: Fetched) -> None:
        """Write a chunk; the first one decides the schema."""
        import pyarrow as pa

        from shoal.format.arrow_stream import DEFAULT_SCHEMA, DELIVER_AT_COLUMN, with_due_times
        from shoal.format.tabular import placed

        rows = found.batch
        if self._stream is None:
            self._has_due_times = DELIVER_AT_COLUMN in rows.schema.names
        elif self._has_due_times != (DELIVER_AT_COLUMN in rows.schema.names):  # topics of both kinds
            rows = with_due_times(rows) if self._has_due_times else rows.select(DEFAULT_SCHEMA.names)
        batch = placed(rows, found.partition, found.base_offset)
        if self._with_topic:
            names = pa.repeat(pa.scalar(topic), batch.num_rows)
            schema = pa.schema([_topic_field(), *batch.schema])
            batch = pa.RecordBatch.from_arrays([names, *batch.columns], schema=schema)
        self._stream = self._stream or pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        self._stream.write_batch(batch)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """End the stream."""
        if self._stream is None:
            import pyarrow as pa

            from shoal.format.batch import DEFAULT_SCHEMA
            from shoal.format.tabular import PLACED_FIELDS

            named = [_topic_field()] if self._with_topic else []
            schema = pa.schema([*named, *PLACED_FIELDS, *DEFAULT_SCHEMA])
            self._stream = pa.ipc.new_stream(sys.stdout.buffer, schema)
        self._stream.close()
        sys.stdout.buffer.flush()


def _topic_field() -> Any:
    import pyarrow as pa

    return pa.field("topic", pa.string(), nullable=False)
