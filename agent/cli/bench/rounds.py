"""The rounds of `shoal bench` against a cluster: produce, consume and single appends by the client that users
have, bare sockets in between.

Law of this file: it measures and counts. Every record that was written is read back, or the run fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.agent.cli.bench import floors
from shoal.agent.cli.bench.figures import BenchFigures, Throughput
from shoal.agent.cli.bench.plan import ROUNDS, BenchPlan
from shoal.agent.cli.terminal.output import CliError

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.produce.producer import AsyncProducer

BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
HANDSHAKES = 20  # a round
# Of a bare socket, in a round: enough for a rate and a median. Its thread does not hear of an interruption.
COPY_BYTES_MAX = 64 << 20
ROUND_TRIPS_MAX = 500
SETTLE_SECONDS = 0.002  # a follower's next question is at the agent by then
ARRIVAL_SECONDS = 30.0
"""A record that an agent has acknowledged reaches a follower in milliseconds, and after an election within
seconds."""


class BenchRounds:
    """One run. `told` hears the share that is done, from 0 to 1, and what is being done."""

    def __init__(self, client: AsyncClient, plan: BenchPlan, told: Callable[[float, str], None]) -> None:
        self.client = client
        self._plan = plan
        self._told = told
        self._value = os.urandom(plan.value_bytes)
        self._positions: dict[int, int] = {}
        """Where the next round's records begin, by partition."""
        throughputs = (Throughput(plan.value_bytes), Throughput(plan.value_bytes))
        self.figures = BenchFigures(*throughputs)

    async def run(self) -> BenchFigures:
        """All rounds. Connections are made and the leader is found before, unmeasured.
        Raises ShoalError, Unreachable, CliError, and ProduceFailed as CliError."""
        from shoal.client.produce.producer import ProduceFailed

        try:
            async with (
                self.client.producer(self._plan.topic) as producer,
                self.client.producer(self._plan.topic, partition=0) as single,
            ):
                await single.append(self._value)
                await self._send(producer, 1, float("inf"))
                await self._read()
                for number in range(ROUNDS):
                    await self._round(number, producer, single)
        except ProduceFailed as error:
            raise CliError(str(error), "`shoal status` shows what is in trouble") from error
        return self.figures

    async def _round(self, number: int, producer: AsyncProducer, single: AsyncProducer) -> None:
        plan, figures = self._plan, self.figures
        records = share(plan.records, number)
        samples = share(plan.samples, number)

        def tell(step: int, what: str) -> None:
            self._told((number + step / 4) / ROUNDS, f"round {number + 1} of {ROUNDS}: {what}")

        tell(0, "produce")
        copied_bytes = min(records * plan.value_bytes, COPY_BYTES_MAX)
        figures.copies.append(await asyncio.to_thread(floors.copy_rate, copied_bytes))
        sent, seconds = await self._send(producer, records, plan.round_seconds)
        figures.produce.rounds.append((sent, seconds))
        tell(1, "consume")
        read, seconds = await self._read()
        if read != sent:
            raise CliError(f"{sent:,} records were acknowledged and {read:,} read", "please report this")
        figures.consume.rounds.append((read, seconds))
        tell(2, "single appends")
        trips = min(samples, ROUND_TRIPS_MAX)
        figures.round_trip.samples_s += await asyncio.to_thread(floors.round_trips, trips, plan.value_bytes)
        figures.handshake.samples_s += await asyncio.to_thread(
            floors.handshakes, self.client.asked, min(samples, HANDSHAKES)
        )
        figures.append.samples_s += await self._appends(single, samples)
        tell(3, "appends to a follower")
        figures.arrival.samples_s += await self._arrivals(single, samples)
        await self._read()

    async def _send(self, producer: AsyncProducer, records: int, limit_s: float) -> tuple[int, float]:
        """So many records in batches, fewer when time is up; and the seconds until all were acknowledged."""
        from shoal.client.produce.producer import batch_of

        size = max(1, min(BATCH_RECORDS_MAX, BATCH_BYTES_MAX // self._plan.value_bytes, records))
        batch = batch_of([self._value] * size)
        sent, started = 0, time.perf_counter()
        while sent < records and (sent == 0 or time.perf_counter() - started < limit_s):
            rows = min(size, records - sent)
            await producer.send_batch(batch.slice(0, rows))
            sent += rows
            await asyncio.sleep(0)  # answers come in
        await producer.flush()
        return sent, time.perf_counter() - started

    async def _read(self) -> tuple[int, float]:
        """All records behind those that were read before: how many, and the seconds since the consumer was
        open."""
        found = 0
        start: Any = self._positions or "earliest"
        async with self.client.consumer(self._plan.topic, start=start) as consumer:
            started = time.perf_counter()
            async for rows in consumer.chunks():
                found += rows.batch.num_rows
            seconds = time.perf_counter() - started
            self._positions = consumer.positions()
        return found, seconds

    async def _appends(self, single: AsyncProducer, count: int) -> list[float]:
        """Seconds of each append, from the call to its acknowledgement."""
        found: list[float] = []
        until = time.perf_counter() + self._plan.round_seconds
        while len(found) < count and (not found or time.perf_counter() < until):
            started = time.perf_counter()
            await single.append(self._value)
            found.append(time.perf_counter() - started)
        return found

    async def _arrivals(self, single: AsyncProducer, count: int) -> list[float]:
        """Seconds from the call of each append until a consumer that waits for it has the record."""
        found: list[float] = []
        until = time.perf_counter() + self._plan.round_seconds
        async with self.client.consumer(
            self._plan.topic, partitions=[0], start="latest", follow=True
        ) as consumer:
            while len(found) < count and (not found or time.perf_counter() < until):
                arriving = asyncio.create_task(consumer.poll(ARRIVAL_SECONDS))
                try:
                    await asyncio.sleep(SETTLE_SECONDS)
                    started = time.perf_counter()
                    await single.append(self._value)
                    rows = await arriving
                finally:
                    arriving.cancel()
                if rows is None:
                    said = f"an acknowledged record was not read within {ARRIVAL_SECONDS:g} s"
                    raise CliError(said, "`shoal status` shows what is in trouble")
                found.append(time.perf_counter() - started)
        return found


def share(total: int, number: int) -> int:
    """The part of one round, at least 1: the parts of all rounds are the whole."""
    return max(1, total * (number + 1) // ROUNDS - total * number // ROUNDS)
