"""One sorted view of a partition's committed records: runs on the disk, and the newest rows in memory.

Law of this file: the view takes committed batches in order, by `apply`, and says how far it goes. Everything
up to `saved` lies in synced runs and survives a crash without the log. It decides nothing of retention and
knows no consumer. run_maker.py makes and merges runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import crc32c
import pyarrow as pa

from shoal.agent.partition.plan import StateMachine
from shoal.agent.views.manifest import MANIFEST_FILES, NOTHING, Manifest, Reached, RunEntry
from shoal.agent.views.manifest_file import load_manifest, save_manifest
from shoal.agent.views.memory_rows import MemoryRows
from shoal.agent.views.row_order import RowOrder
from shoal.agent.views.run_format import parse_run_name
from shoal.agent.views.run_reader import SortedRun
from shoal.format.batch import STAMP_BYTES, Frame, LogIndex, Offset, Stamp
from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.errors import Damaged

logger = logging.getLogger(__name__)


class ViewNotReady(Exception):
    """A run is damaged and is being made again: nothing is read from the view before it is whole."""


@dataclass(frozen=True, slots=True)
class ViewLimits:
    """`run_bytes`, `run_rows`: of batches that become one run; in memory it takes some three times that while
    it is made. `held_rows`, `held_bytes`: in memory; above it no more batches are taken until a run has been
    made."""

    run_bytes: int = 32 * 2**20
    run_rows: int = 500_000
    held_rows: int = 4_000_000
    held_bytes: int = 128 * 2**20


@dataclass(frozen=True, slots=True)
class ViewFiles:
    """Where a view lies. `seed`: of the log's identity, with which every checksum begins."""

    disk: Disk
    directory: str
    open_files: OpenFiles
    seed: int


class SortedView:
    """One per replica of a topic with a view; opened before the replica is. Use from one event loop.

    Give `machine` to the replica's applier, `load` the view before that begins, and let a RunMaker work on
    it.
    """

    def __init__(
        self, files: ViewFiles, order: RowOrder, memory: MemoryRows, limits: ViewLimits | None = None
    ) -> None:
        """Empty, until it is loaded: the directory of the log may have to be made first, or exchanged."""
        self.files = files
        self.order = order
        self.memory = memory
        self.limits = limits or ViewLimits()
        self.manifest = Manifest(order.kind, 0, NOTHING, ())
        self.applied = NOTHING
        self.applied_us = 0
        """Append time of the last batch that was taken in this run, 0 before the first."""
        self.on_applied: Callable[[], None] | None = None
        """Called once after the next batch was taken."""
        self.unsaved_bytes = 0
        """Of batches that no run has yet."""
        self.damage: dict[RunEntry, Damaged] = {}
        self._runs: list[SortedRun] = []
        self._retired: list[SortedRun] = []
        self._pins: dict[SortedRun, int] = {}
        self.machine = StateMachine(
            self.apply,
            lambda: self.applied.offset,
            lambda: self.saved.offset,
            is_full=lambda: (
                self.memory.rows >= self.limits.held_rows or self.memory.size_bytes >= self.limits.held_bytes
            ),
            answers_wait=False,
        )

    def __repr__(self) -> str:
        return (
            f"SortedView({self.files.directory}, up to entry {self.applied.index}, {len(self._runs)} runs"
            f" up to entry {self.saved.index}, {self.memory.rows} rows in memory)"
        )

    @classmethod
    async def open(
        cls, files: ViewFiles, order: RowOrder, memory: MemoryRows, limits: ViewLimits | None = None
    ) -> SortedView:
        """Made and loaded. Raises OSError."""
        view = cls(files, order, memory, limits)
        await view.load()
        return view

    async def load(self) -> None:
        """Take what the directory holds; nothing where there is no manifest, or none that can be read. A run
        that cannot be read is noted in `damage`. Files that belong to no run are removed. Raises OSError."""
        files = self.files
        await files.disk.make_directory(files.directory)
        manifest = await load_manifest(files.disk, files.directory, files.seed)
        if manifest is not None and manifest.kind is self.order.kind:
            self.manifest, self.applied = manifest, manifest.applied
        await self._remove_orphans()
        for entry in self.manifest.runs:
            try:
                run = await SortedRun.open(files.open_files, files.directory, entry, self.order, files.seed)
            except Damaged as damage:
                self.damage[entry] = damage
            else:
                self._runs.append(run)

    async def _remove_orphans(self) -> None:
        """Runs that a crash cut short, or that were replaced."""
        disk, directory = self.files.disk, self.files.directory
        known = {entry.name.file for entry in self.manifest.runs} | set(MANIFEST_FILES)
        orphans = [name for name in await disk.list(directory) if name not in known]
        for name in orphans:
            logger.debug("%s: removed %s, left by an interrupted change", directory, name)
            await disk.unlink(f"{directory}/{name}")
        if orphans:
            await disk.sync_directory(directory)
        # Their numbers are not used again: what a crash has left of such a file may come back by its name.
        numbers = [name.number for name in map(parse_run_name, orphans) if name is not None]
        sequence = max([self.manifest.sequence, *numbers])
        self.manifest = self.manifest._replace(sequence=sequence)

    # ---- what it holds

    @property
    def saved(self) -> Reached:
        """How far the runs go, durably."""
        return self.manifest.applied

    @property
    def is_whole(self) -> bool:
        """Whether every run can be read, as far as is known."""
        return not self.damage

    @property
    def wants_run(self) -> bool:
        """Whether a run should be made of the rows in memory."""
        return self.unsaved_bytes >= self.limits.run_bytes or self.memory.rows >= self.limits.run_rows

    def readable(self) -> tuple[SortedRun, ...]:
        """The runs, oldest first: each of the entries behind the one before, and memory of those behind all
        of them. For a look that awaits nothing. Raises ViewNotReady."""
        if self.damage:
            raise ViewNotReady(f"{self.files.directory} is being mended: {next(iter(self.damage.values()))}")
        return tuple(self._runs)

    @contextmanager
    def pinned(self) -> Iterator[tuple[SortedRun, ...]]:
        """As readable; their files stay until the block ends, also if they are merged meanwhile."""
        runs = self.readable()
        for run in runs:
            self._pins[run] = self._pins.get(run, 0) + 1
        try:
            yield runs
        finally:
            for run in runs:
                self._pins[run] -= 1
                if not self._pins[run]:
                    del self._pins[run]

    def whole_runs(self) -> list[SortedRun]:
        """As pinned, for a look that ends in this very turn."""
        if self.damage:
            raise ViewNotReady(f"{self.files.directory} is being mended")
        return self._runs

    def met(self, damage: Damaged) -> None:
        """A reader has met damage in a run: nothing is read before it is mended."""
        for run in [run for run in self._runs if run.path == damage.path]:
            self._runs.remove(run)
            self._retired.append(run)
            self.damage[run.entry] = damage

    # ---- taking committed batches

    def apply(self, frame: Frame) -> None:
        """Take a committed batch. One that the view has already changes nothing."""
        stamp = frame.stamp
        end = stamp.base_offset + stamp.record_count
        if end <= self.applied.offset:
            return
        assert stamp.base_offset >= self.applied.offset, f"{self}: {stamp} comes too early"
        self.memory.take(stamp, self.decoded(frame))
        self.applied, self.applied_us = after(self.applied, frame), stamp.append_time_us
        self.unsaved_bytes += len(frame.data)
        if self.on_applied is not None:
            tell, self.on_applied = self.on_applied, None
            tell()

    def decoded(self, frame: Frame) -> pa.RecordBatch:
        """A frame's records, in the topic's columns."""
        return pa.ipc.read_record_batch(pa.py_buffer(frame.data), self.order.topic_schema)

    # ---- changed by RunMaker alone

    async def replace(self, manifest: Manifest, made: list[SortedRun]) -> None:
        """The runs are those of the manifest from now on, durably. `made`: those that are new. Raises
        OSError: then nothing has changed here, and every file stays."""
        await save_manifest(self.files.disk, self.files.directory, manifest, self.files.seed)
        old = {run.entry: run for run in self._runs}
        new = {run.entry: run for run in made}
        self.manifest = manifest
        self._runs = [new.get(entry) or old[entry] for entry in manifest.runs if entry in new or entry in old]
        self._retired += [run for entry, run in old.items() if run not in self._runs]
        self.damage = {entry: item for entry, item in self.damage.items() if entry in manifest.runs}

    async def saved_up_to(self, manifest: Manifest, made: list[SortedRun], taken_bytes: int) -> None:
        """As replace, and memory lets go of the rows that the new run has."""
        await self.replace(manifest, made)
        self.memory.drop_before(self.saved.offset)
        self.unsaved_bytes = max(self.unsaved_bytes - taken_bytes, 0)

    async def exchange(self, manifest: Manifest, made: list[SortedRun]) -> None:
        """All runs are those of a peer's view from now on, which goes at least as far as these did. Raises
        OSError as replace."""
        assert manifest.applied.index >= self.saved.index
        await self.replace(manifest, made)
        self.memory.drop_before(self.saved.offset)
        if self.saved.index > self.applied.index:
            self.applied = self.saved

    async def remove_retired(self) -> None:
        """Remove the files of runs that are replaced and that nobody reads. Raises OSError; it may be called
        again."""
        for run in [run for run in self._retired if run not in self._pins]:
            await run.remove(self.files.disk)
            self._retired.remove(run)

    def check_invariants(self) -> None:
        """For tests and simulations."""
        assert self.saved.offset <= self.applied.offset
        assert self.saved.index <= self.applied.index
        assert [run.entry for run in self._runs] == [
            entry for entry in self.manifest.runs if entry not in self.damage
        ]
        assert self.memory.rows <= self.applied.offset - self.saved.offset


def after(applied: Reached, frame: Frame) -> Reached:
    """How far a view goes that has taken one more batch."""
    stamp: Stamp = frame.stamp
    head_bytes = 8 + int.from_bytes(frame.data[4:8], "little")
    digest = crc32c.crc32c(bytes(frame.data[head_bytes - STAMP_BYTES : head_bytes]), applied.digest)
    end = Offset(stamp.base_offset + stamp.record_count)
    return Reached(LogIndex(stamp.index), stamp.term, end, digest)
