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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.records.lag import LagMeter
from shoal.agent.cli.records.topic_chunks import TopicsRequest, chunks_of, ready_to_read
from shoal.agent.cli.terminal.amounts import start_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    PartitionOption,
    argument,
    example,
    flag,
    option,
)
from shoal.agent.cli.terminal.output import UsageError, drop_stdout
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.consume.fetch import Fetched

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


@app.command(
    epilog=example(
        "shoal consume flights --limit 5",
        "shoal consume flights --from -10 --follow --output json | jq .value",
        "shoal consume flights --from -1h -f '%o %k %v\\n'",
        "shoal consume flights orders --follow -f '%t %k %v\\n'",
        "shoal consume flights --lag > flights.ndjson",
    )
)
def consume(
    topics: Annotated[list[str], argument("TOPIC", "The topics, one or several.", complete_topic)],
    start: Annotated[
        str,
        option(
            "WHERE",
            "earliest, latest, -N (the last N of each partition), an offset, -1h, @TIME or @DATE.",
            "--from",
        ),
    ] = "earliest",
    partition: PartitionOption = None,
    limit: Annotated[int | None, option("N", "End after N records.", "--limit", "-n", min=0)] = None,
    follow: Annotated[bool, flag("Wait for later records.", "--follow", "-F")] = False,
    output: Annotated[
        Format, flag("Values as lines, JSON records, or an Arrow stream.", "--output", "-o")
    ] = Format.TEXT,
    template: Annotated[str | None, option("TEMPLATE", FORMAT_HELP, "--format", "-f")] = None,
    lag: Annotated[
        bool | None,
        flag(
            "Each partition's lag on stderr; default: a status line where records do not go to the terminal.",
            "--lag/--no-lag",
        ),
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Write records to stdout, partition by partition, up to the end of the log or without end (--follow).

    Several topics come one after the other, and with --follow as their records arrive. As text, a record
    without a value is \\N. --follow waits for a topic that does not exist yet.
    """
    names = tuple(dict.fromkeys(topics))
    if output is Format.ARROW and sys.stdout.isatty():
        raise UsageError("an Arrow stream is binary", "send it to a file or a program: `> records.arrows`")
    if wrong := next((name for name in names if "%" in name), None):
        raise UsageError(f"{wrong!r} is no topic name", "a template follows --format or -f; -F is --follow")
    where = start_of(start, time.time_ns() // 1_000_000)
    if template is not None and output is not Format.TEXT:
        raise UsageError("--format is for text", "leave --output out")
    several = len(names) > 1
    arrow = ArrowStream(with_topic=several) if output is Format.ARROW else None
    write = _renderer(output, template, with_topic=several) if arrow is None else arrow.write

    async def work(client: AsyncClient) -> bool:
        meter = LagMeter(lag, beside_records=sys.stdout.isatty(), with_topic=several)
        request = TopicsRequest(names, where, partition, limit, follow)
        wanted = await ready_to_read(client, request, all_exist=meter.summarises)
        if meter.summarises:  # partitions without records have a lag too
            await _begin(client, wanted, meter)
        try:
            interrupted = await _write_all(chunks_of(client, wanted), write, meter)
        finally:
            meter.clear()
        if arrow is not None:
            arrow.close()
        meter.summary()
        return interrupted

    try:
        interrupted = with_client(agent, work)
    except BrokenPipeError:
        drop_stdout()  # the reader (`| head`) has closed the pipe: nothing failed
        return
    if interrupted and not follow:
        raise typer.Exit(128 + signal.SIGINT)


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
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    async with contextlib.aclosing(chunks):
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
    from shoal.format.records import render_ndjson

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
        self._stream: Any = None

    def write(self, topic: str, found: Fetched) -> None:
        """Write a chunk; the first one decides the schema."""
        import pyarrow as pa

        from shoal.format.tabular import placed

        batch = placed(found.batch, found.partition, found.base_offset)
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
