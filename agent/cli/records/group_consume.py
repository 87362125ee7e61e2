"""`shoal consume --group`: messages of a consumer group to stdout, or each to a command of the user's.

Law of this file: a message is acknowledged after it was written, or after its command ended with 0. Messages
that were not begun, and those whose output nobody reads, are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.agent.cli.records.topic_chunks import wait_for_topic
from shoal.agent.cli.terminal.interruption import interruptible
from shoal.agent.cli.terminal.output import plural, say
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.consume.fetch import Fetched
    from shoal.client.subscribe.message import GroupMessage
    from shoal.client.subscribe.subscription import AsyncSubscription

BATCH_MESSAGES: Final = 100
QUIET_SECONDS: Final = 1.0
"""After so long without a message the group is asked whether it has any left."""
UNREAD_SECONDS: Final = 5.0
"""After so long without a message a command that follows looks whether anybody reads its output. What is held
until the end would be held for nobody."""
COMMAND_GRACE_SECONDS: Final = 5.0
"""For a command to end after it was told to, before it is killed."""
KEY_BYTES_MAX: Final = 100_000
"""Of SHOAL_KEY: Linux starts no command with a variable of 128 KiB."""


class ConsumerMode(StrEnum):
    """The order that a group keeps."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    KEY_ORDERED = "key-ordered"


class GroupReading(NamedTuple):
    """The options of `shoal consume --group`. `command`: of --exec. `batch` None: one message at a time for a
    command, which may be slow, else BATCH_MESSAGES."""

    topic: str
    group: str
    consumer: str | None
    mode: str | None
    batch: int | None
    command: str | None
    acks: bool
    partition: int | None
    limit: int | None
    follow: bool


class _Counts:
    """Messages that were worked on."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0

    def text(self, late: int) -> str:
        """For people, at the end."""
        parts = [f"{plural(self.done, 'message')} done"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{late:,} too late: they are delivered again"] if late else []
        return ", ".join(parts)


def consume_group(agent: str, reading: GroupReading, write: Callable[[str, Fetched], None]) -> bool:
    """Work until a signal, the limit, or with neither until the group has nothing left; whether a signal
    ended it. Raises CliError and BrokenPipeError."""

    most = 1 if reading.command is not None else BATCH_MESSAGES

    async def work(client: AsyncClient) -> bool:
        counts = _Counts()
        subscription = client.subscribe(
            reading.topic,
            group=reading.group,
            consumer=reading.consumer,
            mode=reading.mode,
            batch=reading.batch or min(most, reading.limit or most),
            partition=reading.partition,
        )
        try:
            with interruptible() as task:
                try:
                    await _each(client, subscription, reading, write, counts)
                    return False
                except asyncio.CancelledError:
                    task.uncancel()
                    return True
        finally:
            await subscription.close()
            if reading.command is not None:
                say(counts.text(subscription.late))

    return with_client(agent, work)


class _Rest:
    """The messages that a group has left."""

    def __init__(self, client: AsyncClient, reading: GroupReading) -> None:
        self._client = client
        self._reading = reading
        self._told: set[str] = set()
        """A line for each thing that an operator may change."""

    async def has_more(self) -> bool:
        """Whether messages are left that somebody may still be given: also those in other consumers' hands,
        which come again if these fail."""
        topic, group, only = self._reading.topic, self._reading.group, self._reading.partition
        document = await self._client.group(topic, group)
        wanted = [one for one in document["partitions"] if only in (None, one["partition"])]
        held = [one for one in wanted if one["lag"] > one["stopped"] + one["dying"]]
        lines = {
            f"{topic}/{one['partition']}: messages wait behind one that stopped; `shoal group decide`"
            for one in held
            if one["stopped"] and document["mode"] == "exclusive"
        }
        if held and document["paused"]:
            lines.add(f"group {group} is paused; `shoal group resume {topic} {group}` has it go on")
        for line in sorted(lines - self._told):
            say(line)
        self._told |= lines
        return bool(held)


async def _each(
    client: AsyncClient,
    subscription: AsyncSubscription,
    reading: GroupReading,
    write: Callable[[str, Fetched], None],
    counts: _Counts,
) -> None:
    if reading.follow:
        await wait_for_topic(client, reading.topic)
    rest = _Rest(client, reading)
    kept: list[GroupMessage] = []
    try:
        while reading.limit is None or counts.done + counts.failed < reading.limit:
            message = await subscription.poll(UNREAD_SECONDS if reading.follow else QUIET_SECONDS)
            if message is None and reading.follow and subscription.is_open:
                if _is_unread():  # all was written before the reader went: no write will tell
                    raise BrokenPipeError
                continue
            if message is None:
                if not reading.acks or not await rest.has_more():
                    break
                continue
            if reading.command is not None:
                await _run(message, reading.command, counts)
                continue
            if not reading.acks:
                kept.append(message)  # held until the end, or it would come again at once
            with _released_if_unread(message):
                write(message.topic, message.fetched)
            counts.done += 1
            if reading.acks:
                message.ack()
    finally:
        for message in kept:
            if message.settled is None:
                message.release()
    await subscription.flush()


@contextlib.contextmanager
def _released_if_unread(message: GroupMessage) -> Iterator[None]:
    """Nobody has it where its output went nowhere, or where no command started."""
    try:
        yield
    except OSError:
        message.release()
        raise


def _is_unread() -> bool:
    """Whether nobody reads the pipe that commands write to."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are reported unasked
    return bool(output.poll(0))


async def _run(message: GroupMessage, command: str, counts: _Counts) -> None:
    """The command with the record's value on its standard input: 0 acks, anything else nacks. Raises
    BrokenPipeError where nobody reads what it would write, and OSError where it cannot be started."""
    with _released_if_unread(message):
        status = await _status_of(message, command, counts)
        if status != 0 and _is_unread():  # it may have ended of that, and the next ones would
            raise BrokenPipeError
    if status == 0:
        counts.done += 1
        message.ack()
        return
    counts.failed += 1
    message.nack(reason=_status_text(status))
    say(f"{message.topic}/{message.partition} offset {message.offset}: {_status_text(status)}")


async def _status_of(message: GroupMessage, command: str, counts: _Counts) -> int:
    """Of the command, once it has ended. Where this is cancelled the command is told to end, and the message
    is settled."""

    async def started() -> asyncio.subprocess.Process:
        """The value lies in a file of memory before the command starts: it never reads a part of it, also
        where this process is killed."""
        with os.fdopen(os.memfd_create("message"), "w+b") as value:
            value.write(message.value or b"")
            value.seek(0)
            return await asyncio.create_subprocess_shell(command, stdin=value, env=_environment(message))

    if _is_unread():
        raise BrokenPipeError
    starting = asyncio.ensure_future(started())
    try:
        process = await asyncio.shield(starting)  # it may run before this goes on, and has to be ended then
        return await process.wait()
    except asyncio.CancelledError:
        if await _ended(await starting) == 0:
            counts.done += 1
            message.ack()
        else:  # interrupted, and not failed
            message.release()
        raise


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Its status, after it was told to end."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(COMMAND_GRACE_SECONDS):
            return await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()


def _status_text(status: int) -> str:
    if status < 0:
        return f"the command was ended by {signal.Signals(-status).name}"
    return f"the command ended with {status}"


def _environment(message: GroupMessage) -> dict[bytes, bytes]:
    """The agent's own, and where the message is from."""
    told = {
        b"SHOAL_TOPIC": message.topic.encode(),
        b"SHOAL_PARTITION": b"%d" % message.partition,
        b"SHOAL_OFFSET": b"%d" % message.offset,
        b"SHOAL_ATTEMPT": b"%d" % message.attempt,
        b"SHOAL_TIMESTAMP_MS": b"%d" % (message.timestamp_us // 1_000),
    }
    if message.key is not None and b"\0" not in message.key and len(message.key) <= KEY_BYTES_MAX:
        told[b"SHOAL_KEY"] = message.key
    return {**dict(os.environb), **told}
