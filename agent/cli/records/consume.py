"""`shoal consume`: records to stdout, as text, JSON or Arrow.

Law of this file: it writes the batches that the client reads, each as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.records.lag import LagMeter
from shoal.agent.cli.terminal.amounts import start_of
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    PartitionOption,
    TopicArgument,
    example,
    flag,
    option,
)
from shoal.agent.cli.terminal.output import UsageError, drop_stdout, say
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.consume.fetch import Fetched

# The first screen should come at once; a long read is best in large pieces.
FETCH_BYTES = 4 << 20
POLL_SECONDS = 0.5  # between two looks for a topic that does not exist yet
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
        "shoal consume flights --from -1h --format '%o %k %v\\n'",
        "shoal consume flights --lag > flights.ndjson",
    )
)
def consume(
    topic: TopicArgument,
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
    follow: Annotated[bool, flag("Wait for later records.", "--follow", "-f")] = False,
    output: Annotated[
        Format, flag("Values as lines, JSON records, or an Arrow stream.", "--output", "-o")
    ] = Format.TEXT,
    template: Annotated[str | None, option("TEMPLATE", FORMAT_HELP, "--format", "-F")] = None,
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

    As text, a record without a value is \\N. --follow waits for a topic that does not exist yet.
    """
    if output is Format.ARROW and sys.stdout.isatty():
        raise UsageError("an Arrow stream is binary", "send it to a file or a program: `> records.arrows`")
    where = start_of(start, time.time_ns() // 1_000_000)
    if template is not None and output is not Format.TEXT:
        raise UsageError("--format is for text", "leave --output out")
    arrow = ArrowStream() if output is Format.ARROW else None
    write = _renderer(topic, output, template) if arrow is None else arrow.write

    async def work(client: AsyncClient) -> bool:
        if follow:
            await _wait_for(client, topic)
        chosen = await _partition_of(client, topic, where) if partition is None else partition
        chunks = client.consume(
            topic, start=where, partition=chosen, limit=limit, follow=follow, max_bytes=FETCH_BYTES
        )
        meter = LagMeter(lag, beside_records=sys.stdout.isatty())
        if meter.summarises:  # partitions without records have a lag too
            from shoal.client.consume.fetch import first_offset

            for known in await client.offsets(topic, where[1:] if where.startswith("@") else None):
                if chosen in (None, known.partition):
                    meter.begins(known.partition, first_offset(where, known), known.high_watermark)
        try:
            interrupted = await _write_all(chunks, write, meter)
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


async def _wait_for(client: AsyncClient, topic: str) -> None:
    """Return once the topic exists."""
    from shoal.errors import ShoalError

    for attempt in itertools.count():
        try:
            await client.offsets(topic)
            return
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise
        if attempt == 0:
            say(f"waiting for topic {topic}; `shoal topic create {topic}` or the first record makes it")
        await asyncio.sleep(POLL_SECONDS)


async def _partition_of(client: AsyncClient, topic: str, where: str) -> int | None:
    """The partition that an offset belongs to: a topic's only one. None: all of them. Raises UsageError."""
    if not where.isdecimal():
        return None
    known = await client.offsets(topic)
    if len(known) > 1:
        raise UsageError(
            f"--from {where}: an offset belongs to one partition, and {topic} has {len(known)}",
            "add --partition P",
        )
    return known[0].partition


async def _write_all(chunks: Any, write: Callable[[Fetched], None], meter: LagMeter) -> bool:
    """Write until the end, or until a signal; returns whether a signal ended it."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    async with contextlib.aclosing(chunks):
        try:
            async for found in chunks:
                write(found)
                meter.saw(found)
        except asyncio.CancelledError:
            task.uncancel()
            return True
    return False


def _renderer(topic: str, output: Format, template: str | None) -> Callable[[Fetched], None]:
    """Writes a chunk of records as text, JSON, or by the template."""
    if template is not None:
        from shoal.agent.cli.records.record_format import Template
        from shoal.client.consume.record import records_of

        parsed = Template(template)
        return lambda found: _put(parsed.render(records_of(topic, found)))
    return lambda found: _put(_text_lines(found) if output is Format.TEXT else _json_lines(found))


def _text_lines(found: Fetched) -> bytes:
    """Values as they were produced, a line each; no value differs from the text `null`."""
    values = found.batch.column("value").to_pylist()
    return b"".join((NO_VALUE if value is None else value) + b"\n" for value in values)


def _json_lines(found: Fetched) -> bytes:
    """One JSON object a line: partition, offset, timestamp, key, value, headers."""
    from shoal.format.records import render_ndjson

    lines = render_ndjson(found.batch, found.base_offset)
    # Line feeds inside a JSON text are escaped, so these open an object that is a record.
    opening = b'{"partition":%d,' % found.partition
    return (b"\n" + lines[:-1]).replace(b"\n{", b"\n" + opening)[1:] + b"\n"


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class ArrowStream:
    """One Arrow IPC stream on stdout: `partition`, `offset`, then the topic's columns. Without records it has
    the schema alone."""

    def __init__(self) -> None:
        self._stream: Any = None

    def write(self, found: Fetched) -> None:
        """Write a chunk; the first one decides the schema."""
        import pyarrow as pa

        from shoal.format.tabular import placed

        batch = placed(found.batch, found.partition, found.base_offset)
        self._stream = self._stream or pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        self._stream.write_batch(batch)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """End the stream."""
        if self._stream is None:
            import pyarrow as pa

            from shoal.format.batch import DEFAULT_SCHEMA
            from shoal.format.tabular import PLACED_FIELDS

            self._stream = pa.ipc.new_stream(sys.stdout.buffer, pa.schema([*PLACED_FIELDS, *DEFAULT_SCHEMA]))
        self._stream.close()
        sys.stdout.buffer.flush()
