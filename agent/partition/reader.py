"""Reads of one replica: committed records only, and statements about the ends that hold.

Law of this file: bytes below the high watermark are immutable and served without asking anyone. A leader
tells where the log ends or begins (an empty answer, the watermark alone, trimmed, beyond-end) only after a
read index (safety 23). All questions of one round trip share it. It never decodes a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NoReturn

from shoal.agent.fetch import Fetch, FetchRequest, Offsets, Pieces
from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.replica import Replica
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import LogIndex, Offset, parse_stamp
from shoal.replication.errors import NotLeader
from shoal.replication.errors import Overloaded as CoreOverloaded
from shoal.segment_store.errors import Damaged, OffsetOutOfRange, StoreError
from shoal.segment_store.log.chunked_read import StoredPieces

READ_INDEX_TIMEOUT_MS = 2_000
"""Two election timeouts and a little: a leader that cannot confirm itself for so long is none."""
MAX_WAITING_READERS = 4_096
"""Long polls per replica."""
MAX_FETCH_BYTES = 64 * 2**20
LONG_FETCH_BYTES = 512 * 2**10
"""From here on a fetch may be read while it is sent: two pieces, below which there is nothing to gain."""
WRITTEN_POLL_MS = 2


class FetchPieces:
    """The frames of a long fetch, read while they are sent. Damage that it meets is told as any other
    read's."""

    def __init__(self, replica: Replica, stored: StoredPieces) -> None:
        self._replica = replica
        self._stored = stored
        self.size_bytes = stored.size_bytes
        self.held_bytes = stored.held_bytes
        self.at_once = stored.at_once
        self.prepare_lending = stored.prepare_lending
        self.lend = stored.lend

    async def next(self) -> bytes | memoryview | None:
        """Whole verified frames, in memory that the next call uses again; None behind the last. Raises
        ShoalError damaged, trimmed, internal: the fetch ends there, and another one may begin there."""
        try:
            return await self._stored.next()
        except Damaged as error:
            raise damaged(self._replica, error) from error
        except OffsetOutOfRange as error:
            raise ShoalError("trimmed", f"removed while it was being read: {error}") from error
        except StoreError as error:
            raise ShoalError("internal", f"the log cannot be read: {error}") from error

    async def let_go(self) -> None:
        """Keep no file of the log until the next piece is asked for."""
        await self._stored.let_go()


def damaged(replica: Replica, error: Damaged) -> ShoalError:
    """Have the damage remembered and repaired; the error for the reader that met it."""
    replica.met(error)
    offset = "" if error.offsets is None else f"the batch at offset {error.offsets[0]} is damaged here: "
    return ShoalError("damaged", f"{offset}{error}")


class Reader(ReplicaObserver):
    """One per replica."""

    def __init__(self, replica: Replica, measures: Measures) -> None:
        self._replica = replica
        self._measures = measures
        self._waiting: set[asyncio.Future[None]] = set()
        self._asking: asyncio.Future[LogIndex] | None = None
        self._next_round: asyncio.Future[LogIndex] | None = None
        self._token = 0

    # Waiting for a commit

    def committed(self) -> None:
        """Readers that wait for the end to move look again."""
        if self._waiting:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    async def _next_commit(self, timeout_ms: int) -> None:
        """Return when the committed end moved, the role changed, or the time is up."""
        if len(self._waiting) >= MAX_WAITING_READERS:
            raise ShoalError("overloaded", f"{MAX_WAITING_READERS} readers wait at this partition already")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait((waiting,), timeout=timeout_ms / 1000)
        finally:
            self._waiting.discard(waiting)

    # Read index

    async def confirm(self) -> LogIndex:
        """The commit index that a majority has confirmed after this call. Raises ShoalError.

        Callers of one turn share one question; who comes while one is under way shares the next.
        """
        self._replica.require_leader()
        if self._asking is None:
            asked = _question()
            self._ask(asked)
        else:
            asked = self._next_round = self._next_round or _question()
        try:
            async with asyncio.timeout(READ_INDEX_TIMEOUT_MS / 1000):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise ShoalError("no-leader", "no majority confirmed this leader in time") from None

    def _ask(self, asked: asyncio.Future[LogIndex]) -> None:
        self._token += 1
        try:
            self._replica.core.read_index(self._token, self._replica.host.clock.now_ms())
        except CoreOverloaded as error:
            raise ShoalError("overloaded", str(error)) from error
        except NotLeader:
            self._replica.require_leader()
            raise
        self._asking = asked
        self._replica.host.schedule(self._replica)

    def reads_confirmed(self, read_states: Sequence[tuple[int, LogIndex]]) -> None:
        """Answer the question under way, and ask for those who came meanwhile."""
        for token, index in read_states:
            if token == self._token and self._asking is not None:
                asking, self._asking = self._asking, None
                if not asking.done():
                    asking.set_result(index)
        if self._asking is None and self._next_round is not None:
            following, self._next_round = self._next_round, None
            try:
                self._ask(following)
            except ShoalError as error:
                following.set_exception(error)

    def role_changed(self) -> None:
        """A deposed leader's questions are never answered (Ready)."""
        self.committed()
        if self._replica.is_leader:
            return
        asking, self._asking = self._asking, None
        following, self._next_round = self._next_round, None
        for asked in (asking, following):
            if asked is not None and not asked.done():
                asked.set_exception(ShoalError("no-leader", "leadership moved while the read was confirmed"))

    # Reading

    async def offsets(self, *, local: bool = False) -> Offsets:
        """Confirmed by a majority, unless `local`. Raises ShoalError."""
        if not local:
            await self.confirm()
        replica = self._replica
        state = replica.state
        return Offsets(replica.log.start_offset, state.high_watermark, state.tail.end_offset)

    async def wait_past(self, offset: Offset, wait_ms: int) -> bool:
        """Whether the high watermark has passed the offset (it lies beyond it): at once if it has, else when
        it does. False when the time is up, or this replica leads no longer. Raises ShoalError.

        Committed entries stay so: yes needs no read index, and no is no statement about the end."""
        replica = self._replica
        replica.require_leader()
        deadline_ms = replica.host.clock.now_ms() + wait_ms
        while replica.state.high_watermark <= offset:
            remaining_ms = deadline_ms - replica.host.clock.now_ms()
            if remaining_ms <= 0 or not replica.is_leader:
                return False
            await self._next_commit(remaining_ms)
        return True

    async def find_time(self, time_us: int, from_offset: Offset) -> Offset:
        """As the log's, of what is written here; `from_offset` itself where the log is not to be asked: it
        has been trimmed to behind it, or is behind itself. Raises ShoalError damaged."""
        try:
            return await self._replica.log.find_time(time_us, from_offset)
        except OffsetOutOfRange:
            return from_offset
        except Damaged as error:
            self._replica.met(error)
            raise ShoalError("damaged", f"the index is damaged here: {error}") from error

    async def read(self, request: FetchRequest) -> Fetch:
        """Raises ShoalError trimmed, beyond-end, not-leader, damaged."""
        replica, offset, local = self._replica, request.offset, request.local
        if not local or replica.failure is not None:
            replica.require_leader()
        deadline_ms = replica.host.clock.now_ms() + request.wait_ms
        confirmed = local
        while True:
            if offset < replica.log.start_offset:
                await self._refuse("trimmed", f"offset {offset} has been removed", local)
            if offset < replica.state.high_watermark:
                return await self._fetch_when_written(request)
            remaining_ms = deadline_ms - replica.host.clock.now_ms()
            if offset > replica.state.high_watermark and not confirmed:
                await self.confirm()
                confirmed = True
                continue
            if offset > replica.state.high_watermark and (remaining_ms <= 0 or not local):
                await self._refuse("beyond-end", f"offset {offset} lies beyond the end", local)
            if remaining_ms <= 0:
                return await self._empty(request)
            await self._next_commit(remaining_ms)
            if not local:
                replica.require_leader()

    async def _refuse(self, code: ErrorCode, detail: str, local: bool) -> NoReturn:
        """Raises; a follower never claims where the log ends (safety 23)."""
        if local and code == "beyond-end":
            raise ShoalError(
                "not-leader",
                f"{detail} known here",
                leader=self._replica.leader_agent_id,
                high_watermark=self._replica.state.high_watermark,
            )
        offsets = await self.offsets(local=local)
        raise ShoalError(
            code, detail, log_start_offset=offsets.log_start_offset, high_watermark=offsets.high_watermark
        )

    async def _empty(self, request: FetchRequest) -> Fetch:
        offset, offsets = request.offset, await self.offsets(local=request.local)
        if offsets.high_watermark > offset:
            # It came while the end was confirmed.
            return await self._fetch_when_written(FetchRequest(offset, 1, limit=1))
        return Fetch(
            self._replica.plan.schema, [], offset, offset, offsets.high_watermark, offsets.log_start_offset
        )

    async def _fetch_when_written(self, request: FetchRequest) -> Fetch:
        """The group may commit an entry before this replica's own log was given it: then wait for the log."""
        clock, offset = self._replica.host.clock, request.offset
        deadline_ms = clock.now_ms() + READ_INDEX_TIMEOUT_MS
        while True:
            fetch = await self._fetch(request)
            if fetch is not None:
                return fetch
            if offset < self._replica.log.start_offset:
                await self._refuse("trimmed", f"offset {offset} has been removed", local=True)
            if clock.now_ms() >= deadline_ms or self._replica.failure is not None:
                raise ShoalError("not-ready", f"offset {offset} is committed, and not written here yet")
            await asyncio.sleep(WRITTEN_POLL_MS / 1000)

    async def _fetch(self, request: FetchRequest) -> Fetch | None:
        """None when the committed entry is not in this replica's log yet."""
        log, offset, limit, admit = self._replica.log, request.offset, request.limit, request.admit
        began_ns = time.monotonic_ns()
        try:
            first = await log.find_offset(offset)
            last = self._replica.readable_index
            if first > last:
                return None
            # Beyond what is written nothing is looked up: then the bytes decide where it ends.
            if limit is not None and offset + limit <= log.end_offset:
                last = min(last, await log.find_offset(Offset(offset + limit - 1)))
            max_bytes = min(request.max_bytes, MAX_FETCH_BYTES)
            stored = await log.pieces(first, self._sound(first, last), max_bytes)
            if admit is not None and stored.size_bytes >= LONG_FETCH_BYTES:
                asked_ns = time.monotonic_ns()
                await admit(stored.held_bytes)
                began_ns += time.monotonic_ns() - asked_ns  # it may wait for room
                await stored.begin()
                pieces = FetchPieces(self._replica, stored)
                return self._found([], stored.base_offset, stored.next_offset, pieces, began_ns)
            frames = await stored.whole()
        except OffsetOutOfRange:
            return None
        except Damaged as error:
            raise damaged(self._replica, error) from error
        except StoreError as error:
            raise ShoalError("internal", f"the log cannot be read: {error}") from error
        head, _ = parse_stamp(frames[0], 0)
        tail = head if len(frames) == 1 else parse_stamp(frames[-1], 0)[0]
        next_offset = Offset(tail.base_offset + tail.record_count)
        return self._found(frames, head.base_offset, next_offset, None, began_ns)

    def _sound(self, first: LogIndex, last: LogIndex) -> LogIndex:
        """The last entry that can be promised with the first: before the next known damage."""
        starts = (item.first_index for item in self._replica.damaged_ranges if item.costs_entries)
        return LogIndex(min(last, min((start - 1 for start in starts if start > first), default=last)))

    def _found(
        self,
        frames: list[bytes | memoryview],
        base_offset: Offset,
        next_offset: Offset,
        pieces: Pieces | None,
        began_ns: int,
    ) -> Fetch:
        replica, measures = self._replica, self._measures
        measures.fetch.observe(time.monotonic_ns() - began_ns)
        measures.fetched_records += next_offset - base_offset
        measures.fetched_bytes += sum(map(len, frames)) if pieces is None else pieces.size_bytes
        high_watermark, log_start = replica.state.high_watermark, replica.log.start_offset
        return Fetch(replica.plan.schema, frames, base_offset, next_offset, high_watermark, log_start, pieces)


def _question() -> asyncio.Future[LogIndex]:
    asked: asyncio.Future[LogIndex] = asyncio.get_running_loop().create_future()
    asked.add_done_callback(_retrieve)
    return asked


def _retrieve(asked: asyncio.Future[LogIndex]) -> None:
    """The asker may have run out of time: an error that nobody awaits any more is no bug."""
    if not asked.cancelled():
        asked.exception()
