"""`shoal consume`: records to stdout, as text, JSON or Arrow.

Law of this file: it writes what the client reads, whole batches at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from shoal.agent.cli.records.lag import LagMeter
from shoal.agent.cli.terminal.amounts import start_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.output import DEFAULT_AGENT, AgentOption, CliError, drop_stdout, example, say
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.agent.cli.records.record_format import Template
    from shoal.client.async_client import AsyncClient, Fetched

# The first screen should come at once; a long read is best in large pieces.
FETCH_BYTES = 4 << 20
POLL_SECONDS = 0.5  # between two looks for a topic to come
NO_VALUE = b"\\N"
FORMAT_HELP = (
    "As %k %v\\n: %t topic, %p partition, %o offset, %k key, %v value, %h headers, %d time, %T its ms."
)


LagOption = Annotated[
    bool | None,
    typer.Option(
        "--lag/--no-lag",
        help="On stderr, how far behind the end each partition is; by default a status line on a "
        "terminal while the records go elsewhere.",
    ),
]


class Format(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"
    ARROW = "arrow"


class Writer(Protocol):
    """Writes chunks of one format to stdout."""

    def write(self, found: Fetched) -> None: ...

    def close(self) -> None: ...


def register(app: typer.Typer) -> None:
    """Add the command to `shoal`."""
    app.command(
        epilog=example(
            "shoal consume flights --limit 5",
            "shoal consume flights --from -10 --follow --output json | jq .value",
            "shoal consume flights --from -1h --format '%o %k %v\\n'",
            "shoal consume flights --lag > flights.ndjson",
        )
    )(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, -N (the last N of each partition), an offset, -1h, @TIME or @DATE.",
        ),
    ] = "earliest",
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="P", help="Only this partition.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="End after N records.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what arrives later.")] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="Values as lines, JSON records, or an Arrow stream.")
    ] = Format.TEXT,
    template: Annotated[
        str | None, typer.Option("--format", "-F", metavar="TEMPLATE", help=FORMAT_HELP)
    ] = None,
    lag: LagOption = None,
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Write records to stdout, partition by partition, to the end of the log (or on and on with --follow).

    As text a record without a value is \\N. --follow waits for a topic that is not there yet.
    """
    if output is Format.ARROW and sys.stdout.isatty():
        raise CliError(
            "an Arrow stream is binary", "send it to a file or a program: `> records.arrows`", exit_code=2
        )
    where = start_of(start, time.time_ns() // 1_000_000)
    if template is not None and output is not Format.TEXT:
        raise CliError("--format is for text", "leave --output out", exit_code=2)
    writer = _writer(topic, output, template)

    async def work(client: AsyncClient) -> bool:
        if follow:
            await _wait_for(client, topic)
        chosen = await _partition_of(client, topic, where) if partition is None else partition
        chunks = client.consume(
            topic, start=where, partition=chosen, limit=limit, follow=follow, max_bytes=FETCH_BYTES
        )
        meter = LagMeter(lag, beside_records=sys.stdout.isatty())
        if meter.summarises:
            await _name_all(meter, client, topic, where, chosen)
        try:
            interrupted = await _write_all(chunks, writer, meter)
        finally:
            meter.clear()
        writer.close()
        meter.summary()
        return interrupted

    try:
        interrupted = with_client(agent, work)
    except BrokenPipeError:
        drop_stdout()  # the reader has seen enough (`| head`): nothing failed
        return
    if interrupted and not follow:
        raise typer.Exit(128 + signal.SIGINT)


async def _wait_for(client: AsyncClient, topic: str) -> None:
    """Until the topic is there."""
    from shoal.errors import ShoalError

    waiting = False
    while True:
        try:
            await client.offsets(topic)
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise
        else:
            return
        if not waiting:
            say(f"waiting for topic {topic}; `shoal topic create {topic}` or the first record makes it")
        waiting = True
        await asyncio.sleep(POLL_SECONDS)


async def _partition_of(client: AsyncClient, topic: str, where: str) -> int | None:
    """The one that an offset belongs to: a topic's only one. None: all of them. Raises CliError."""
    if not where.isdecimal():
        return None
    known = await client.offsets(topic)
    if len(known) > 1:
        raise CliError(
            f"--from {where}: an offset belongs to one partition, and {topic} has {len(known)}",
            "add --partition P",
            exit_code=2,
        )
    return known[0].partition


async def _name_all(
    meter: LagMeter, client: AsyncClient, topic: str, start: str, partition: int | None
) -> None:
    """Also those that bring no record have a lag, if only none."""
    from shoal.client.consume.fetch import first_offset

    for known in await client.offsets(topic, start[1:] if start.startswith("@") else None):
        if partition in (None, known.partition):
            meter.begins(known.partition, first_offset(start, known), known.high_watermark)


async def _write_all(chunks: Any, writer: Writer, meter: LagMeter) -> bool:
    """Write until the end, or until a signal; returns whether a signal ended it."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    async with contextlib.aclosing(chunks):
        try:
            async for found in chunks:
                writer.write(found)
                meter.saw(found)
        except asyncio.CancelledError:
            task.uncancel()
            return True
    return False


def _writer(topic: str, output: Format, template: str | None) -> Writer:
    if template is not None:
        from shoal.agent.cli.records.record_format import Template

        return _FormatWriter(topic, Template(template))
    if output is Format.TEXT:
        return _TextWriter()
    if output is Format.JSON:
        return _JsonWriter()
    return _ArrowWriter()


class _FormatWriter:
    """Records as a template has them."""

    def __init__(self, topic: str, template: Template) -> None:
        self._topic = topic
        self._template = template

    def write(self, found: Fetched) -> None:
        from shoal.client.consume.record import records_of

        _put(self._template.render(records_of(self._topic, found)))

    def close(self) -> None:
        return


class _TextWriter:
    """Values as they were produced, a line each; none is not the text `null`."""

    def write(self, found: Fetched) -> None:
        values = found.batch.column("value").to_pylist()
        _put(b"".join((NO_VALUE if value is None else value) + b"\n" for value in values))

    def close(self) -> None:
        return


class _JsonWriter:
    """One JSON object a line: partition, offset, timestamp, key, value, headers."""

    def write(self, found: Fetched) -> None:
        from shoal.format.records import render_ndjson

        lines = render_ndjson(found.batch, found.base_offset)
        # Line feeds inside a JSON text are escaped, so these open an object that is a record.
        opening = b'{"partition":%d,' % found.partition
        _put((b"\n" + lines[:-1]).replace(b"\n{", b"\n" + opening)[1:] + b"\n")

    def close(self) -> None:
        return


class _ArrowWriter:
    """One Arrow IPC stream: the topic's columns after `partition` and `offset`. Without records, a schema
    alone.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    def write(self, found: Fetched) -> None:
        import pyarrow as pa

        batch, rows = found.batch, found.batch.num_rows
        columns = [
            pa.repeat(pa.scalar(found.partition, pa.int32()), rows),
            pa.array(range(found.base_offset, found.base_offset + rows), pa.int64()),
            *batch.columns,
        ]
        schema = self._open(batch.schema)
        self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        from shoal.format.batch import DEFAULT_SCHEMA

        self._open(DEFAULT_SCHEMA)
        self._stream.close()
        sys.stdout.buffer.flush()

    def _open(self, schema: Any) -> Any:
        import pyarrow as pa

        fields = [pa.field("partition", pa.int32()), pa.field("offset", pa.int64()), *schema]
        written = pa.schema(fields)
        if self._stream is None:
            self._stream = pa.ipc.new_stream(sys.stdout.buffer, written)
        return written


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
