"""A table beside the other topics. Its clients, and the verdict over what they saw, are table_work.py's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from group_work import NotInTime
from table_work import TableClient, TableRun

from cluster_sim.invariants import InvariantViolation

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

TOPIC = "rows"
PARTITIONS = 2
CLIENTS = 4
READ_LIMIT_S = 60.0


class Tables:
    """See the head of this file. Nothing happens in a simulation without tables."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._run = TableRun(
            simulation.work, TOPIC, PARTITIONS, limit_s=READ_LIMIT_S, padding=simulation.knobs.padding
        )

    @property
    def is_on(self) -> bool:
        """Tables need a level that an upgrade, or a disaster, holds back."""
        simulation = self._simulation
        knobs = simulation.knobs
        return knobs.tables and not knobs.upgrades and not simulation.holds_level

    def summary(self) -> str:
        """A part of a line; empty without tables."""
        return f"{self._run.summary}, " if self.is_on else ""

    async def start(self) -> None:
        """The topic, as a client."""
        simulation = self._simulation
        await simulation.topics.create(TOPIC, simulation.topic_body(PARTITIONS) | {"kind": "table"})

    def clients(self) -> list[TableClient]:
        """Of this run."""
        return self._run.clients(CLIENTS, self._simulation.knobs.producer_pause_ms / 1_000)

    async def judge(self) -> None:
        """Read every row once more, and the log. Raises InvariantViolation."""
        running = [node.http for node in self._simulation.nodes if node.is_running]
        try:
            found = await self._run.finish(running)
        except NotInTime as error:
            raise InvariantViolation("Liveness", str(error)) from None
        if found:
            raise InvariantViolation("TableHistory", " | ".join(map(str, found)))
