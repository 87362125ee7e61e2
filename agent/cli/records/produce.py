"""`shoal produce`: lines into a topic, at a rate, until every one is acknowledged.

Law of this file: it moves chunks from the reader to the producer and counts; batching, routing and retries
are the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.records.produce_input import InputFormat, Shape, good_lines, headers_of, whole_file
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    example,
    plural,
    say,
    show_json,
)
from shoal.agent.cli.terminal.run import ADVICE, with_client

if TYPE_CHECKING:
    from shoal.agent.cli.records.input_lines import Chunk, LineReader
    from shoal.agent.cli.terminal.progress import Progress
    from shoal.client.async_client import AsyncClient, Producer
    from shoal.client.produce.batcher import Pacer

INTERRUPTED_GRACE_SECONDS = 2.0  # after Ctrl-C, what is in flight may still be answered
PROGRESS_SECONDS = 0.1
LINGER_MS = 25  # at 20,000 records/s over 6 partitions: requests of 80 records, 240 of them a second


KeyFieldOption = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Lines are JSON objects; this field is the record's key."),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines are a key, this text, and a value."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record; repeatable."),
]
NullOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="A line, or value, that is TEXT stands for no value, as \\N."),
]
PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        metavar="P",
        help="Send everything to this partition instead of by key.",
    ),
]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; default: on a terminal.")
]


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
    """What one run of the command was told."""

    topic: str
    paths: tuple[str, ...]
    shape: Shape
    compression: str | None
    partition: int | None
    acks: str
    rate: float | None
    progress: bool | None


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    sent: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    retries: int = 0
    leader_changes: int = 0
    interrupted: bool = False
    error: CliError | None = None


def register(app: typer.Typer) -> None:
    """Add the command to `shoal`."""
    app.command(
        epilog=example(
            "echo hello | shoal produce greetings",
            "shoal produce flights flights.ndjson --key-field carrier --rate 20000",
            "shoal consume flights --output json | shoal produce copy --format json",
            "shoal produce people --key ann --tombstone",
        )
    )(produce)


def produce(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic; created if it does not exist.", autocompletion=complete_topic
        ),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files of lines; none or - is standard input."),
    ] = None,
    key_field: KeyFieldOption = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of every record.")
    ] = None,
    key_separator: KeySeparatorOption = None,
    header: HeaderOption = None,
    form: Annotated[
        InputFormat,
        typer.Option("--format", help="Lines as they are, or records as `consume --output json` has them."),
    ] = InputFormat.TEXT,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one value, and not lines.")] = False,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", help="Send one record with this --key and no value.")
    ] = False,
    null: NullOption = None,
    compression: Annotated[
        Compression | None, typer.Option("--compression", "-z", help="Of the stored batches.")
    ] = None,
    partition: PartitionOption = None,
    acks: Annotated[
        Acks, typer.Option(help="Wait for a majority of disks, the leader's disk, or nothing.")
    ] = Acks.ALL,
    rate: Annotated[float | None, typer.Option(metavar="N", help="At most N records a second.")] = None,
    progress: ProgressOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send lines as records. Blank lines are skipped. Retries never store a line twice.

    The exit code is 0 only if every record was acknowledged.
    """
    if rate is not None and not rate > 0:
        raise CliError(
            f"--rate {rate:g} is not positive", "leave it out to send as fast as possible", exit_code=2
        )
    pairs = headers_of(header or [])
    shape = Shape(form, key_field, key, key_separator, pairs, null, whole, tombstone)
    shape.check(tuple(files or ()))
    paths = () if tombstone else tuple(files or ["-"])
    if "-" in paths and not whole and sys.stdin.isatty():
        say("each line is a record; Ctrl-D ends")
        progress = bool(progress)  # unless it was asked for: it would be drawn over what is typed
    z = None if compression is None else str(compression)
    settings = Settings(topic, paths, shape, z, partition, str(acks), rate, progress)
    outcome = with_client(agent, lambda client: _run(client, settings))
    _report(outcome, output)
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise typer.Exit(128 + signal.SIGINT)


async def _run(client: AsyncClient, settings: Settings) -> Outcome:
    from shoal.agent.cli.records.input_lines import LineReader
    from shoal.agent.cli.terminal.progress import Progress
    from shoal.client.produce.batcher import BatchingConfig

    try:
        reader = LineReader(() if settings.shape.whole else settings.paths)
    except OSError as error:
        raise CliError(
            f"{error.filename}: {error.strerror}", "name readable files, or - for standard input"
        ) from error
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    producer = client.producer(
        settings.topic,
        acks=settings.acks,  # type: ignore[arg-type]
        partition=settings.partition,
        compression=settings.compression,  # type: ignore[arg-type]
        batching=BatchingConfig(linger_ms=LINGER_MS),
    )
    run = _Run(client, producer, settings, reader, Progress(reader.total_bytes, shown=settings.progress))
    return await run.until(interrupted)


class _Run:
    """One run: the task that sends, the one that shows progress, and how they end."""

    def __init__(
        self,
        client: AsyncClient,
        producer: Producer,
        settings: Settings,
        reader: LineReader,
        progress: Progress,
    ) -> None:
        self._client = client
        self._producer = producer
        self._settings = settings
        self._reader = reader
        self._progress = progress
        self._read_bytes = 0
        self._pacer: Pacer | None = None

    async def until(self, interrupted: asyncio.Event) -> Outcome:
        """Send everything, or what can be sent before `interrupted`."""
        outcome = Outcome()
        started = time.monotonic()
        sending = asyncio.create_task(self._send())
        stopper = asyncio.create_task(interrupted.wait())
        showing = asyncio.create_task(self._show())
        failing = asyncio.create_task(self._producer.failure())  # standard input may be silent meanwhile
        try:
            await asyncio.wait((sending, stopper, failing), return_when=asyncio.FIRST_COMPLETED)
            outcome.interrupted = stopper.done() and not sending.done()
            if not sending.done():
                sending.cancel()
            outcome.error = await self._finished(sending)
            if outcome.error is None and failing.done():
                outcome.error = _explained(failing.result())
        finally:
            for task in (stopper, showing, failing):
                task.cancel()
            self._progress.close()
        counts = self._producer.statistics
        outcome.seconds = time.monotonic() - started
        outcome.sent, outcome.acknowledged = counts.records_sent, counts.records_acknowledged
        outcome.retries, outcome.leader_changes = self._client.retries, self._client.leader_changes
        return outcome

    async def _finished(self, sending: asyncio.Task[None]) -> CliError | None:
        from shoal.agent.cli.records.input_lines import LineTooLong
        from shoal.client.async_client import ProduceFailed
        from shoal.errors import ShoalError

        try:
            await sending
        except asyncio.CancelledError:
            return None
        except ProduceFailed as error:
            return _explained(error)
        except ShoalError as error:
            if not self._producer.statistics.records_sent:
                raise
            return CliError(f"{error.detail} ({error.code})", ADVICE.get(error.code, ""))
        except LineTooLong as error:
            return CliError(str(error), ADVICE["too-large"])
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            return CliError(f"{error.filename or 'input'}: {error.strerror}", "name readable files")
        except CliError as error:
            return error
        return None

    async def _send(self) -> None:
        from shoal.agent.cli.records.input_lines import LineTooLong
        from shoal.client.async_client import ProduceFailed
        from shoal.client.produce.batcher import Pacer

        async with self._producer as producer:
            if self._settings.rate is not None:
                self._pacer = Pacer(self._settings.rate, time.monotonic() * 1_000)
            try:
                await self._send_whole(producer)
                while (chunk := await self._reader.next()) is not None:
                    done_bytes = self._read_bytes + chunk.read_bytes
                    await self._send_chunk(producer, chunk)
                    self._read_bytes = done_bytes
            except asyncio.CancelledError:
                with contextlib.suppress(TimeoutError, ProduceFailed):  # the count says what is missing
                    async with asyncio.timeout(INTERRUPTED_GRACE_SECONDS):
                        await producer.flush()
                raise
            except (CliError, LineTooLong, OSError):
                await producer.flush()  # what was read before the fault is whole
                raise

    async def _send_whole(self, producer: Producer) -> None:
        """Files that are a value each, and the tombstone."""
        shape = self._settings.shape
        if shape.tombstone:
            await self._send_batch(producer, shape.one(None), 0)
        for path in self._settings.paths if shape.whole else ():
            data = await asyncio.to_thread(whole_file, path)
            await self._send_batch(producer, shape.one(data), len(data))

    async def _send_chunk(self, producer: Producer, chunk: Chunk) -> None:
        from shoal.agent.cli.records.input_lines import located
        from shoal.errors import ShoalError

        shape = self._settings.shape
        lines, numbers = good_lines(chunk, shape)
        if not lines:
            return
        bad: CliError | None = None
        try:
            batch = shape.batch(lines)
        except ShoalError as error:
            where, good = located(error, chunk, numbers)
            what = error.detail.partition(": ")[2] or error.detail
            bad = CliError(f"{where}: {what}", "the lines before it were sent: mend it and send the rest")
            batch = shape.batch(lines[:good]) if good else None
        if batch is not None:
            await self._send_batch(producer, batch, chunk.read_bytes)
        if bad is not None:
            raise bad

    async def _send_batch(self, producer: Producer, batch: Any, read_bytes: int) -> None:
        if self._pacer is None:
            await producer.send_batch(batch)
            await asyncio.sleep(0)  # neither send_batch nor the next chunk need have waited: let answers in
            return
        sent = 0
        while sent < batch.num_rows:
            rows = self._pacer.take(batch.num_rows - sent, time.monotonic() * 1_000)
            if rows:
                await producer.send_batch(batch.slice(sent, rows))
                sent += rows
                self._read_bytes += read_bytes * rows // batch.num_rows
            else:
                await asyncio.sleep(self._pacer.wait_ms(batch.num_rows - sent) / 1_000)

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            remark = _retries(self._client.retries) if self._client.retries else ""
            self._progress.update(self._producer.statistics.records_acknowledged, self._read_bytes, remark)


def _explained(error: Exception) -> CliError:
    from shoal.client.async_client import ProduceFailed

    if not isinstance(error, ProduceFailed):
        raise error  # a bug, and no fault of the cluster: it is not to be explained away
    return CliError(str(error), ADVICE.get(error.cause_code, ""))


def _retries(count: int) -> str:
    return "1 retry" if count == 1 else f"{count:,} retries"


def _report(outcome: Outcome, output: Output) -> None:
    rate = outcome.acknowledged / max(outcome.seconds, 0.001)
    if output is Output.JSON:
        document: dict[str, Any] = {
            "sent": outcome.sent,
            "acknowledged": outcome.acknowledged,
            "seconds": round(outcome.seconds, 3),
            "records_per_second": round(rate),
            "retries": outcome.retries,
            "leader_changes": outcome.leader_changes,
        }
        show_json(document)
    text = (
        f"{plural(outcome.acknowledged, 'record')} acknowledged in {outcome.seconds:.1f} s ({rate:,.0f}/s), "
        f"{_retries(outcome.retries)}, {plural(outcome.leader_changes, 'leader change')}"
    )
    missing = outcome.sent - outcome.acknowledged
    if missing:
        text += f"; {plural(missing, 'record')} sent and not acknowledged: they may or may not be stored"
    say(f"interrupted: {text}" if outcome.interrupted else text)
