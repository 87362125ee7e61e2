"""`shoal produce`: lines into a topic, at a rate, until every one is acknowledged.

Law of this file: it moves chunks from the reader to the producer and counts. The client batches, routes and
retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.agent.cli.records.produce_input import InputFormat, Shape, due_options, headers_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.interruption import on_interruption
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    name_of,
    option,
)
from shoal.agent.cli.terminal.output import CliError, UsageError, plural, say, show_json
from shoal.agent.cli.terminal.run import ADVICE, with_client

if TYPE_CHECKING:
    from shoal.agent.cli.records.input_lines import Chunk, LineReader
    from shoal.agent.cli.terminal.progress import Progress
    from shoal.client.async_client import AsyncClient
    from shoal.client.produce.accumulator import DueOptions
    from shoal.client.produce.batcher import Pacer
    from shoal.client.produce.producer import AsyncProducer

INTERRUPTED_GRACE_SECONDS = 2.0  # after Ctrl-C, requests in flight may still be answered
PROGRESS_SECONDS = 0.1
LINGER_MS = 25  # at 20,000 records/s over 6 partitions: requests of 80 records, 240 of them a second

app = typer.Typer()


class Acks(StrEnum):
    """When a record counts as acknowledged."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class Compression(StrEnum):
    """Of stored batches."""

    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run of the command."""

    topic: str
    paths: tuple[str, ...]
    shape: Shape
    compression: str | None
    partition: int | None
    acks: str
    rate: float | None
    progress: bool | None
    due: DueOptions


class Outcome(NamedTuple):
    """How a run ended."""

    sent: int
    acknowledged: int
    seconds: float
    retries: int
    leader_changes: int
    interrupted: bool
    error: CliError | None
    not_stored: int
    """Of those that were sent: how many are certainly not stored."""


@app.command(
    epilog=example(
        "echo hello | shoal produce greetings",
        "shoal produce flights flights.ndjson --key-field carrier --rate 20000",
        "shoal consume flights --output json | shoal produce copy",
        "shoal produce people --key ann --tombstone",
        "echo tea | shoal produce reminders --delay 4m",
    )
)
def produce(
    topic: Annotated[str, argument("TOPIC", "The topic; created if it does not exist.", complete_topic)],
    files: Annotated[
        list[str] | None, argument("FILE", "Files of lines; none or - is standard input.")
    ] = None,
    key_field: Annotated[
        str | None,
        option("FIELD", "Lines are JSON objects; this field is the record's key.", callback=name_of),
    ] = None,
    key: Annotated[str | None, option("KEY", "The key of every record.", "--key", "-k")] = None,
    key_separator: Annotated[
        str | None, option("TEXT", "Lines are a key, this text, and a value.", "--key-separator", "-K")
    ] = None,
    header: Annotated[
        list[str] | None, option("NAME=VALUE", "A header of every record; repeatable.", "--header", "-H")
    ] = None,
    form: Annotated[
        InputFormat | None,
        flag(
            "Lines as they are, or records as `consume --output json` writes them; default: what the first"
            " line is.",
            "--format",
        ),
    ] = None,
    whole: Annotated[bool, flag("Each file is one value, not lines.", "--whole")] = False,
    tombstone: Annotated[bool, flag("Send one record with this --key and no value.", "--tombstone")] = False,
    null: Annotated[
        str | None, option("TEXT", "A line or value that is TEXT means no value, as \\N.")
    ] = None,
    compression: Annotated[Compression | None, flag("Of the stored batches.", "--compression", "-z")] = None,
    partition: Annotated[
        int | None, option("P", "Send all records to this partition, not by key.", "--partition", "-p", min=0)
    ] = None,
    delay: Annotated[
        str | None, option("TIME", "Topics of kind timer: groups see the records so much later, as 10m.")
    ] = None,
    deliver_at: Annotated[
        str | None, option("TIME", "The same as a time, 2030-01-01T09:00:00Z.", "--deliver-at")
    ] = None,
    acks: Annotated[Acks, flag("Wait for a majority of disks, the leader's disk, or nothing.")] = Acks.ALL,
    rate: Annotated[float | None, option("N", "At most N records a second.")] = None,
    progress: Annotated[
        bool | None, flag("Show progress; default: on a terminal.", "--progress/--no-progress")
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send lines as records. Blank lines are skipped. Retries store no line twice.

    The exit code is 0 only if every record was acknowledged.
    """
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"--rate {rate:g} is no rate", "leave it out to send as fast as possible")
    pairs = headers_of(header or [])
    shape = Shape(form, key_field, key, key_separator, pairs, null, whole, tombstone)
    shape.check(tuple(files or ()))
    paths = () if tombstone else tuple(files or ["-"])
    if "-" in paths and sys.stdin.isatty():
        say("all that is typed is one record; Ctrl-D ends" if whole else "each line is a record; Ctrl-D ends")
        progress = bool(progress)  # by default none: it would be drawn over the typed text
    z = None if compression is None else str(compression)
    due = due_options(delay, deliver_at)
    settings = Settings(topic, paths, shape, z, partition, str(acks), rate, progress, due)
    outcome = with_client(agent, lambda client: _run(client, settings))
    _report(outcome, output)
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise typer.Exit(128 + signal.SIGINT)


async def _run(client: AsyncClient, settings: Settings) -> Outcome:
    from shoal.agent.cli.records.input_lines import LineReader
    from shoal.agent.cli.terminal.progress import Progress
    from shoal.client.produce.batcher import BatchingConfig, Pacer

    try:
        shape = settings.shape
        reader = LineReader(settings.paths, line_bytes_max=shape.line_bytes_max, whole=shape.whole)
    except OSError as error:
        raise CliError(
            f"{error.filename}: {error.strerror}", "name readable files, or - for standard input"
        ) from error
    producer = client.producer(
        settings.topic,
        acks=settings.acks,  # type: ignore[arg-type]
        partition=settings.partition,
        compression=settings.compression,  # type: ignore[arg-type]
        batching=BatchingConfig(linger_ms=LINGER_MS),
    )
    pacer = None if settings.rate is None else Pacer(settings.rate, time.monotonic() * 1_000)
    progress = Progress(reader.total_bytes, shown=settings.progress)
    run = _Run(client, producer, settings, reader, progress, pacer, settings.shape)
    interrupted = asyncio.Event()
    with on_interruption(interrupted.set):
        return await run.until(interrupted)


@dataclass
class _Run:
    """One run: a task that sends, a task that shows progress, and how both end."""

    client: AsyncClient
    producer: AsyncProducer
    settings: Settings
    reader: LineReader
    progress: Progress
    pacer: Pacer | None
    shape: Shape
    read_bytes: int = 0
    not_stored: int = 0

    async def until(self, interrupted: asyncio.Event) -> Outcome:
        """Send all records, or those that can be sent before `interrupted`."""
        started = time.monotonic()
        sending = asyncio.create_task(self._send())
        stopper = asyncio.create_task(interrupted.wait())
        showing = asyncio.create_task(self._show())
        failing = asyncio.create_task(self.producer.failure())  # standard input may be silent meanwhile
        try:
            await asyncio.wait((sending, stopper, failing), return_when=asyncio.FIRST_COMPLETED)
            was_interrupted = stopper.done() and not sending.done()
            if not sending.done():
                sending.cancel()
            error = await self._finished(sending)
            if error is None and failing.done():
                error = self._explained(failing.result())
        finally:
            for task in (stopper, showing, failing):
                task.cancel()
            self.progress.close()
        counts, client = self.producer.statistics, self.client
        return Outcome(
            counts.records_sent,
            counts.records_acknowledged,
            time.monotonic() - started,
            client.retries,
            client.leader_changes,
            was_interrupted,
            error,
            self.not_stored,
        )

    async def _finished(self, sending: asyncio.Task[None]) -> CliError | None:
        from shoal.client.produce.producer import ProduceFailed
        from shoal.errors import ShoalError

        try:
            await sending
        except asyncio.CancelledError:
            return None
        except ProduceFailed as error:
            return self._explained(error)
        except ShoalError as error:
            if not self.producer.statistics.records_sent:
                raise
            return CliError(f"{error.detail} ({error.code})", ADVICE.get(error.code, ""))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            return CliError(f"{error.filename or 'input'}: {error.strerror}", "name readable files")
        except CliError as error:
            return error
        return None

    async def _send(self) -> None:
        from shoal.client.produce.producer import ProduceFailed

        async with self.producer as producer:
            try:
                if self.shape.tombstone:
                    await self._send_batch(producer, self.shape.one(None), 0)
                while (chunk := await self.reader.next()) is not None:
                    done_bytes = self.read_bytes + chunk.read_bytes
                    await self._send_chunk(producer, chunk)
                    self.read_bytes = done_bytes
            except asyncio.CancelledError:
                with contextlib.suppress(TimeoutError, ProduceFailed):  # the summary counts what is missing
                    async with asyncio.timeout(INTERRUPTED_GRACE_SECONDS):
                        await producer.flush()
                raise
            except (CliError, OSError):
                await producer.flush()  # the records before the fault are whole
                raise

    async def _send_chunk(self, producer: AsyncProducer, chunk: Chunk) -> None:
        from shoal.agent.cli.records.input_lines import located, without_blanks
        from shoal.errors import ShoalError

        if self.shape.whole:
            await self._send_batch(producer, self.shape.one(chunk.lines[0]), chunk.read_bytes)
            return
        shape = self._shape_of(chunk)
        lines, numbers = without_blanks(chunk, strip=shape.strips)
        if not lines:
            return
        bad: CliError | None = None
        try:
            batch = shape.batch(lines)
        except ShoalError as error:
            where, good = located(error, chunk, numbers)
            what = error.detail.partition(": ")[2] or error.detail
            bad = CliError(f"{where}: {what}", "the lines before it were sent: correct it and send the rest")
            batch = shape.batch(lines[:good]) if good else None
        if batch is not None:
            await self._send_batch(producer, batch, chunk.read_bytes)
        if bad is not None:
            raise bad

    def _shape_of(self, chunk: Chunk) -> Shape:
        """The shape of all lines; the first one that is not blank decides where no option has."""
        first = next((line for line in chunk.lines if line.strip()), None)
        if self.shape.form is None and first is not None:
            self.shape = self.shape.seen(first)
            if self.shape.form is InputFormat.JSON:
                say("the lines are records of `consume --output json`; --format text stores them as they are")
        return self.shape

    async def _send_batch(self, producer: AsyncProducer, batch: Any, read_bytes: int) -> None:
        if self.pacer is None:
            await producer.send_batch(batch, **self.settings.due)
            await asyncio.sleep(0)  # neither send_batch nor the next chunk need wait: let answers in
            return
        sent = 0
        while sent < batch.num_rows:
            rows = self.pacer.take(batch.num_rows - sent, time.monotonic() * 1_000)
            if rows:
                await producer.send_batch(batch.slice(sent, rows), **self.settings.due)
                sent += rows
                self.read_bytes += read_bytes * rows // batch.num_rows
            else:
                await asyncio.sleep(self.pacer.wait_ms(batch.num_rows - sent) / 1_000)

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            remark = _retries(self.client.retries) if self.client.retries else ""
            self.progress.update(self.producer.statistics.records_acknowledged, self.read_bytes, remark)

    def _explained(self, error: Exception) -> CliError:
        from shoal.client.produce.producer import ProduceFailed

        if not isinstance(error, ProduceFailed):
            raise error  # a bug, no fault of the cluster
        if error.definite:
            self.not_stored = error.records
        return CliError(str(error), ADVICE.get(error.cause_code, ""))


def _retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{count:,} retries"


def _report(outcome: Outcome, output: Output) -> None:
    rate = outcome.acknowledged / max(outcome.seconds, 0.001)
    if output is Output.JSON:
        document = outcome._asdict()
        del document["interrupted"], document["error"]
        show_json(document | {"seconds": round(outcome.seconds, 3), "records_per_second": round(rate)})
    text = (
        f"{plural(outcome.acknowledged, 'record')} acknowledged in {outcome.seconds:.1f} s ({rate:,.0f}/s), "
        f"{_retries(outcome.retries)}, {plural(outcome.leader_changes, 'leader change')}"
    )
    missing = outcome.sent - outcome.acknowledged
    if missing:
        text += (
            f"; {plural(missing, 'record')} sent and not acknowledged: {_fate(missing, outcome.not_stored)}"
        )
    say(f"interrupted: {text}" if outcome.interrupted else text)


def _fate(missing: int, not_stored: int) -> str:
    """Of records without an acknowledgement, of which some are certainly not stored."""
    if not not_stored:
        return "they may or may not be stored"
    if not_stored == missing:
        return "not stored"
    return f"{not_stored:,} of them are not stored, the others may or may not be"
