"""Producers and readers of the Shoal that is on the path, for as long as agents are changed under them.

Arguments: agents' URLs with commas, topic, partitions, a name, seconds between two appends of a producer.
Each line of the output is a JSON array: what was appended or read, and when, or the error that a user of the
library would have seen. SIGTERM ends it, when what is under way is known.

Law of this file: it uses what users import from `shoal`, and nothing of the tests: it runs with the library
of any version beside it.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
import signal
import sys
import time
from dataclasses import dataclass, field

import pyarrow as pa

import shoal
from shoal import AsyncClient, AsyncProducer

BATCH_MAX = 20
WAYS = ("alone", "gathered", "batch")
POLL_SECONDS = 0.5


@dataclass
class Work:
    """What all clients of this process share."""

    client: AsyncClient
    topic: str
    name: str
    pause_seconds: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


def write(*line: object) -> None:
    """One line, at once: whoever reads it waits for it."""
    print(json.dumps(line), flush=True)


async def produce(work: Work, partition: int) -> None:
    """One after the other, in each of the ways that a producer has."""
    name = f"{work.name}.{partition}"
    rng = random.Random(name)
    number = 0
    async with work.client.producer(work.topic, partition=partition) as producer:
        for sequence in range(sys.maxsize):
            if work.over.is_set():
                return
            way = rng.choice(WAYS)
            values = [f"{name}-{number + place}" for place in range(rng.randint(1, BATCH_MAX))]
            values = values if way == "batch" else values[:1]
            number += len(values)
            began = time.monotonic()
            base = await sent(producer, way, values)
            write("append", name, sequence, partition, values, began, time.monotonic(), base)
            await asyncio.sleep(rng.uniform(0, 2 * work.pause_seconds))


async def sent(producer: AsyncProducer, way: str, values: list[str]) -> int | None:
    """The offset of the first value, once all are acknowledged."""
    if way == "alone":
        return (await producer.append(values[0])).offset
    if way == "gathered":
        delivery = await producer.send(values[0])
    else:
        delivery = await producer.send_batch(pa.table({"value": values}))
    await producer.flush()
    return delivery.place(0).offset


async def read(work: Work, *, nearest: bool) -> None:
    """Follow all partitions from their beginnings."""
    name = f"{work.name}.{'nearest' if nearest else 'leader'}"
    async with work.client.consumer(work.topic, follow=True, nearest=nearest) as consumer:
        while not work.over.is_set():
            before, began = consumer.positions(), time.monotonic()
            found = await consumer.poll(POLL_SECONDS)
            if found is None:
                continue
            values = [value.decode() for value in found.batch.column("value").to_pylist()]
            records = list(enumerate(values, found.base_offset))
            position, after = before[found.partition], found.base_offset + len(records)
            times = (began, time.monotonic())
            write("poll", name, nearest, found.partition, position, records, after, *times)


async def main() -> None:
    """Until SIGTERM, or an error."""
    urls, topic, partitions, name, pause_seconds = sys.argv[1:6]
    async with AsyncClient(urls.split(",")) as client:
        work = Work(client, topic, name, float(pause_seconds))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.over.set)
        write("library", str(pathlib.Path(shoal.__file__).resolve()))
        async with asyncio.TaskGroup() as tasks:
            for partition in range(int(partitions)):
                tasks.create_task(produce(work, partition))
            for nearest in (False, True):
                tasks.create_task(read(work, nearest=nearest))


def errors_in(error: BaseException) -> list[BaseException]:
    """Those of a group, each once."""
    if isinstance(error, BaseExceptionGroup):
        return [inner for member in error.exceptions for inner in errors_in(member)]
    return [error]


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except BaseException as problem:
        for found in errors_in(problem):
            write("error", f"{type(found).__name__}: {found}")
        raise
