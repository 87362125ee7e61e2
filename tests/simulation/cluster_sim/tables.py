"""A table beside the other topics: its clients, and what must be true of what they saw.

Law of this file: it starts, reads at the end, and judges. What clients do is table_clients.py's, what must
hold of what they saw table_history.py's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from log_clients import BAD_REQUEST, Connections, NoAnswer
from table_clients import RowClient, TableWork
from table_history import Stored, TableHistory, anomalies
from table_watchers import StreamWatcher, TableWatcher

from cluster_sim.invariants import InvariantViolation

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

TOPIC = "rows"
PARTITIONS = 2
CLIENTS = 4
READ_LIMIT_S = 60.0
RETRY_S = 0.2
FINAL_LIMIT = 1_000
LAST = "last"
"""The client that gets every row once all is over."""


class Tables:
    """See the head of this file. Nothing happens in a simulation without tables."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self.history = TableHistory()
        self._work = TableWork(simulation.work, TOPIC, PARTITIONS, self.history, simulation.knobs.padding)

    @property
    def is_on(self) -> bool:
        """Tables need a level that an upgrade, or a disaster, holds back."""
        simulation = self._simulation
        knobs = simulation.knobs
        return knobs.tables and not knobs.upgrades and not simulation.holds_level

    def summary(self) -> str:
        """A part of a line; empty without tables."""
        known = sum(act.status is not None for act in self.history.acts)
        told = sum(len(watch.changes) for watch in self.history.watches)
        scans = len(self.history.scans)
        return f"{known} acts on rows, {scans} scans, {told} changes watched, " if self.is_on else ""

    async def start(self) -> None:
        """The topic, as a client."""
        simulation = self._simulation
        await simulation.topics.create(TOPIC, simulation.topic_body(PARTITIONS) | {"kind": "table"})

    def clients(self) -> list[RowClient | TableWatcher | StreamWatcher]:
        """Some send each request once, others repeat it; two watch."""
        pause_s = self._simulation.knobs.producer_pause_ms / 1_000
        found: list[RowClient | TableWatcher | StreamWatcher] = [
            RowClient(self._work, f"t{number}", pause_s, sequenced=number % 2 == 0)
            for number in range(CLIENTS)
        ]
        return [*found, TableWatcher(self._work, "w"), StreamWatcher(self._work, "s")]

    # ---- the end ---------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Read every row once more, and the log. Raises InvariantViolation."""
        reader = RowClient(self._work, LAST, 0.0, sequenced=False)
        for key in sorted({act.key for act in self.history.acts}):
            await self._until_read(lambda key=key: reader.get(key))
        connections = Connections()
        for number in range(PARTITIONS):
            await self._until_read(lambda number=number: self._read_log(connections, number))
        connections.close()
        found = anomalies(self.history)
        if found:
            raise InvariantViolation("TableHistory", " | ".join(map(str, found)))

    async def _until_read(self, read: Any) -> None:
        end_s = self._simulation.loop.time() + READ_LIMIT_S
        while not await read():
            if self._simulation.loop.time() > end_s:
                raise InvariantViolation("Liveness", f"{TOPIC} cannot be read at the end")
            await asyncio.sleep(RETRY_S)

    async def _read_log(self, connections: Connections, number: int) -> bool:
        """Whether all of it could be read."""
        records: dict[int, Stored] = {}
        offset: int | str = "earliest"
        while True:
            path = f"/v1/topics/{TOPIC}/partitions/{number}/records?offset={offset}&limit={FINAL_LIMIT}"
            try:
                answer = await connections.request(self._simulation.work.some_agent(), "GET", path)
            except NoAnswer:
                return False
            if answer.status >= BAD_REQUEST:
                return False
            page = answer.body
            records |= {
                record["offset"]: Stored(record["key"], record["value"]) for record in page["records"]
            }
            offset = page["next_offset"]
            if offset >= page["high_watermark"]:
                self.history.logs[number] = records
                self.history.starts[number] = page["log_start_offset"]
                return True
