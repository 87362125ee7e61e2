"""A topic whose messages fall due beside the other clients, with groups of all modes, and the sorted views
that its replicas keep.

Law of this file: it makes views small, so that a short run has many runs, merges and trims of the log; it
drains and judges as queues.py does, in the order (due, offset). What a view must have is what its own replica
says of every offset, not what a client remembers.

ViewHasAll       each offset stands once in the view, in order, with the record that was appended there, and
                 alike at every replica; a record that is due in a year too
ViewBehindLog    what the log has no more is saved in the view, whenever something is committed
DueAsAsked       no record is due before its producer wants it, nor before it was appended
LogIsTrimmed     in the end the log keeps no segment that every view has saved, whatever is pending in it;
                 while a replica of a lost disk counts, the others keep what that lacks
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from group_clients import KeyProducer, key_of
from group_history import Logged
from group_operator import Deed
from group_work import SETTINGS
from log_clients import now_s

import shoal.agent.partition.state.retention as retention_module
import shoal.agent.views.merge_plan as merge_module
import shoal.agent.views.row_order as order_module
import shoal.agent.views.timer_view as timer_view_module
import shoal.agent.views.upkeep.shipment as shipment_module
import shoal.agent.views.upkeep.view_set as view_set_module
import shoal.agent.views.view as view_module
from cluster_sim.invariants import InvariantViolation
from cluster_sim.queues import Queues
from cluster_sim.world import EPOCH_S
from shoal.agent.partition.plan import ViewKind
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, Range
from shoal.agent.views.timer_view import END, ChunksMissing
from shoal.agent.views.upkeep.timer_records import read_records
from shoal.agent.views.upkeep.view_set import ReplicaView
from shoal.agent.views.view import ViewLimits, ViewNotReady
from shoal.format.batch import TIMER_SCHEMA
from shoal.segment_store.errors import StoreError

if TYPE_CHECKING:
    from cluster_sim.node import Node
    from cluster_sim.simulation import ClusterSimulation

TOPIC = "timers"
SECOND_US = 1_000_000
YEAR_US = 365 * 86_400 * SECOND_US
SMALL = {"run_bytes": 8_192, "run_rows": 60, "held_rows": 400}
SEAL_AFTER_MS = 1_500
PATIENCE_BYTES = 48 * 1_024
WHOLE_LIMIT_S = 60.0
LOOK_S = 0.1
LOOK_ROWS = 500
START = DuePlace(0, 0)


class Row(NamedTuple):
    """One record, as a view has it."""

    due_us: int
    offset: int
    value: str


class TimerProducer(KeyProducer):
    """Its records are due in the past, soon, together, later, in a year, or say nothing. `asked`: when."""

    asked: dict[str, int]

    def _body(self, values: tuple[str, ...]) -> bytes:
        """A body that is sent again says the same."""
        wanted = [self._due_us(value) for value in values]
        timestamp, key, value, headers, deliver_at = (field.type for field in TIMER_SCHEMA)
        keys = [key_of(item) for item in values]
        columns = [
            pa.array(range(len(values)), pa.int64()).cast(timestamp),
            pa.array([None if item is None else item.encode() for item in keys], key),
            pa.array([item.encode() for item in values], value),
            pa.nulls(len(values), headers),
            pa.array(wanted, pa.int64()).cast(deliver_at),
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, TIMER_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=TIMER_SCHEMA))
        return sink.getvalue().to_pybytes()

    def _due_us(self, value: str) -> int | None:
        if value not in self.asked:
            rng, now_us = self._work.rng, int((EPOCH_S + now_s()) * SECOND_US)
            self.asked[value] = rng.choice(
                (
                    0,
                    now_us - 5 * SECOND_US,
                    now_us + rng.randrange(2 * SECOND_US),
                    (now_us // SECOND_US + 1) * SECOND_US,
                    now_us + rng.randrange(10 * SECOND_US),
                    now_us + YEAR_US,
                )
            )
        return self.asked[value] or None


class Timers(Queues):
    """See the head of this file. Nothing happens in a simulation without timers."""

    topic = TOPIC
    noun = "timed messages"
    by_due = True
    first_producer = 300

    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(simulation)
        self.asked: dict[str, int] = {}
        """By value: when the producer wants it delivered; 0 at once."""
        simulation.invariants.also.append(self.look)

    def _modes(self) -> tuple[str, ...]:
        return tuple(SETTINGS) if self._simulation.knobs.timers else ()

    def _leaves_letters(self) -> bool:
        return False

    def _deeds(self) -> tuple[Deed, ...]:
        return ()

    def topic_body(self) -> dict[str, Any]:
        """See Queues."""
        body = super().topic_body()
        body.pop("retention", None)
        return body | {"kind": "timer"}

    def producer(self, place: tuple[str, int]) -> TimerProducer:
        """See Queues."""
        knobs = self._simulation.knobs
        producer = TimerProducer(
            self._simulation.work,
            f"t{place[1]}",
            place,
            producer_id=f"{self.first_producer + place[1]:032x}",
            batch_max=knobs.batch_max,
            pause_s=2 * knobs.producer_pause_ms / 1_000,
            padding=knobs.padding,
            arrow=True,
        )
        producer.asked = self.asked
        return producer

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """Small views."""
        parts = merge_module.merge_parts
        return [
            (view_module, "ViewLimits", partial(ViewLimits, **SMALL)),
            (view_set_module, "SEAL_AFTER_MS", SEAL_AFTER_MS),
            (merge_module, "MERGED_RUNS", 3),
            (parts, "__defaults__", (2_048,)),
            (order_module, "CHUNK_ROWS", 8),
            (order_module, "SLICE_ROWS", 32),
            (timer_view_module, "MAX_HELD_CHUNKS", 6),
            (shipment_module, "PIECE_BYTES", 2_048),
            (retention_module, "VIEW_PATIENCE_BYTES", PATIENCE_BYTES),
        ]

    # ---- what must hold --------------------------------------------------------------------------

    def look(self, where: str, replica: Replica, generation: int) -> None:
        """ViewBehindLog, at a replica whose commit index has moved."""
        if replica.plan.view is None:
            return
        for node in self._simulation.nodes:
            made = None if node.host is None else node.host.views.get(replica.group)
            if made is None or made.replica is not replica or replica.failure is not None:
                continue
            view = made.view
            view.check_invariants()
            if view.saved.offset < replica.log.start_offset and not node.disk.is_damaged:
                said = (
                    f"{where}: the log begins at {replica.log.start_offset}, and of what was before {view!r}"
                )
                self._simulation.invariants.fail("ViewBehindLog", said)

    def append_time_us(self, partition: int) -> int | None:
        """See Queues: of whoever leads, the earliest."""
        times = [
            replica.append_time_us(replica.host.clock.now_ms())
            for node, replica in self._replicas(partition)
            if replica.serves
        ]
        return min(times, default=0)

    def _replicas(self, partition: int) -> list[tuple[Node, Replica]]:
        found = []
        for node in self._simulation.nodes:
            host = node.host
            for entry in () if host is None else host._groups.values():
                replica = entry.replica
                if replica.plan.view is ViewKind.TIMER and replica.group.partition == partition:
                    found.append((node, replica))
        return found

    async def judge_views(self) -> None:
        """Of every replica. Raises InvariantViolation."""
        for place in self.places():
            contents: dict[str, list[Row]] = {}
            for node, replica in self._replicas(place[1]):
                rows = await self._content(node, replica)
                if rows is not None:
                    contents[node.name] = rows
            first_name, rows = next(iter(contents.items()))
            for name, others in contents.items():
                if others != rows:
                    said = (
                        f"{place}: {first_name} and {name} have {sorted(set(rows) ^ set(others))[:6]} apart"
                    )
                    raise InvariantViolation("ViewHasAll", said)
            self._judge_dues(place, rows)
            log = {row.offset: Logged(row.value, key_of(row.value), row.due_us) for row in rows}
            self.history.logs[place] = log
        await self._judge_trims()
        self.check()

    async def _content(self, node: Node, replica: Replica) -> list[Row] | None:
        """All that the view has, once it is whole; None of a replica that has failed, or moved to another
        agent meanwhile. Raises InvariantViolation."""
        loop = self._simulation.loop
        end_s, said = loop.time() + WHOLE_LIMIT_S, ""
        while loop.time() < end_s:
            if replica.failure is not None or (node, replica) not in self._replicas(replica.group.partition):
                return None
            made = node.host.views.get(replica.group) if node.host is not None else None
            if made is None or made.replica is None:
                said = "no view is open"
            elif made.view.applied.offset < made.replica.state.high_watermark:
                said = f"{made.view!r} has not everything"
            else:
                try:
                    return await self._rows(node.name, made)
                except (ViewNotReady, StoreError) as error:
                    said = str(error)
            await asyncio.sleep(LOOK_S)
        raise InvariantViolation("Liveness", f"the view of {replica.group} at {node.name}: {said}")

    async def _rows(self, name: str, made: ReplicaView) -> list[Row]:
        timers, replica = made.timers, made.replica
        assert timers is not None
        assert replica is not None
        found: list[Row] = []
        after = START
        while ranges := await self._due(made, after):
            for piece, rows in zip(ranges, await read_records(timers, replica.log, ranges), strict=True):
                values = rows.column("value").to_pylist()
                offsets = rows.column("offset").to_pylist()
                if offsets != list(range(piece.first, piece.first + piece.count)):
                    said = f"{name} {replica.group}: of {piece} there are {offsets}"
                    raise InvariantViolation("ViewHasAll", said)
                found += [
                    Row(piece.due_us, offset, value.decode())
                    for offset, value in zip(offsets, values, strict=True)
                ]
            after = ranges[-1].end
        if found != sorted(found) or {row.offset for row in found} != set(range(made.view.applied.offset)):
            missing = set(range(made.view.applied.offset)) - {row.offset for row in found}
            said = f"{name} {made.view!r}: {len(found)} rows, without {sorted(missing)[:9]}"
            raise InvariantViolation("ViewHasAll", said)
        if len(found) != made.view.applied.offset:
            raise InvariantViolation("ViewHasAll", f"{name} {made.view!r}: {len(found)} rows, some twice")
        return found

    @staticmethod
    async def _due(made: ReplicaView, after: DuePlace) -> list[Range]:
        assert made.timers is not None
        while True:
            try:
                return made.timers.due(after, END, LOOK_ROWS)
            except ChunksMissing as missing:
                await made.timers.load(missing.chunks)

    def _judge_dues(self, place: tuple[str, int], rows: list[Row]) -> None:
        by_value: dict[str, Row] = {row.value: row for row in rows}
        for row in rows:
            if row.due_us < self.asked[row.value]:
                raise InvariantViolation("DueAsAsked", f"{place} {row}, asked {self.asked[row.value]}")
        for append in self._simulation.history.appends:
            if append.partition != place or append.outcome != "ok" or append.base_offset is None:
                continue
            for offset, value in enumerate(append.values, append.base_offset):
                if value not in by_value or by_value[value].offset != offset:
                    said = f"{place}: {value} is not at {offset}, but {by_value.get(value)}"
                    raise InvariantViolation("ViewHasAll", said)

    async def _judge_trims(self) -> None:
        """LogIsTrimmed."""
        loop = self._simulation.loop
        if self._simulation.nemesis.exchanged is not None:
            return
        end_s = loop.time() + WHOLE_LIMIT_S
        while said := self._untrimmed():
            if loop.time() > end_s:
                raise InvariantViolation("LogIsTrimmed", said)
            await asyncio.sleep(LOOK_S)

    def _untrimmed(self) -> str | None:
        for _, partition in self.places():
            held = self._replicas(partition)
            views = [node.host.views.get(replica.group) for node, replica in held if node.host is not None]
            saved = min(made.view.saved.offset for made in views if made is not None)
            for node, replica in held:
                spans = replica.log.spans()
                kept = [span for span in spans[:-1] if span.end_offset <= saved]
                if kept:
                    return f"{node.name} {replica.group} keeps {kept[:3]}, and all views have {saved}"
        return None
