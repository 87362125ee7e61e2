"""The records of one or several topics as chunks, each with the name of its topic.

Law of this file: it reads and merges, and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.agent.cli.terminal.output import UsageError, say

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.consume.fetch import Fetched

# The first screen should come at once; a long read is best in large pieces.
FETCH_BYTES = 4 << 20
POLL_SECONDS = 0.5  # between two looks for a topic that does not exist yet


@dataclass(frozen=True, slots=True)
class TopicsRequest:
    """The records to read. `start`: as the client takes it; `limit` counts the records of all topics."""

    topics: tuple[str, ...]
    start: str
    partition: int | None
    limit: int | None
    follow: bool


async def ready_to_read(client: AsyncClient, wanted: TopicsRequest, *, all_exist: bool) -> TopicsRequest:
    """The same, with the partition that an offset belongs to. `all_exist`: return once all topics do, also
    while following. Raises UsageError, and ShoalError unknown-topic unless it follows."""
    where, topic = f"--from {wanted.start}", wanted.topics[0]
    needs_partition = wanted.partition is None and wanted.start.isdecimal()
    if needs_partition and len(wanted.topics) > 1:
        raise UsageError(f"{where}: an offset belongs to one partition of one topic", "name one topic")
    for name in wanted.topics:
        if wanted.follow and (all_exist or needs_partition):
            await wait_for_topic(client, name)
        elif not wanted.follow and len(wanted.topics) > 1:  # nothing is written before all are known to exist
            await client.offsets(name)
    if not needs_partition:
        return wanted
    known = await client.offsets(topic)
    if len(known) > 1:
        raise UsageError(
            f"{where}: an offset belongs to one partition, and {topic} has {len(known)}", "add --partition P"
        )
    return TopicsRequest(wanted.topics, wanted.start, known[0].partition, wanted.limit, wanted.follow)


async def wait_for_topic(client: AsyncClient, topic: str) -> None:
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


async def chunks_of(client: AsyncClient, wanted: TopicsRequest) -> AsyncGenerator[tuple[str, Fetched]]:
    """Topic after topic; following, all topics as their records come."""
    streams = [(topic, _stream(client, wanted, topic)) for topic in wanted.topics]
    left = wanted.limit
    for together in [streams] if wanted.follow else [[stream] for stream in streams]:
        async with contextlib.aclosing(_merged(together)) as chunks:
            async for topic, found in chunks:
                if left is not None:
                    found = found.first(left)
                    left -= found.batch.num_rows
                yield topic, found
                if left == 0:
                    return


Streams = Sequence[tuple[str, "AsyncGenerator[Fetched]"]]


async def _stream(client: AsyncClient, wanted: TopicsRequest, topic: str) -> AsyncGenerator[Fetched]:
    if wanted.follow:
        await wait_for_topic(client, topic)
    chunks = client.consume(
        topic,
        start=wanted.start,
        partition=wanted.partition,
        limit=wanted.limit,
        follow=wanted.follow,
        max_bytes=FETCH_BYTES,
    )
    async with contextlib.aclosing(chunks):
        async for found in chunks:
            yield found


async def _merged(streams: Streams) -> AsyncGenerator[tuple[str, Fetched]]:
    """Whichever comes first. One chunk of each topic is read ahead."""
    waiting = {asyncio.ensure_future(anext(stream)): (topic, stream) for topic, stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                topic, stream = waiting.pop(task)
                try:
                    found = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(stream))] = topic, stream
                yield topic, found
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _, stream in streams:
            await stream.aclose()
