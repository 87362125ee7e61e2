"""One replica's head: a leader proposes what may go, every replica drops it once that is committed.

Law of this file: retention.py decides which entries may go, the group which are committed. Here the log and
then the core drop them, in one step, so that neither names entries that the other has dropped. Files go
behind the log's own writes.
"""

import asyncio
import logging
from collections.abc import Callable

from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.plan import ViewKind
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state.log_time import SegmentAges
from shoal.agent.partition.state.retention import droppable, encode_trim, known_from, saved_elsewhere
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Offset
from shoal.segment_store.errors import LogClosed, StoreError

logger = logging.getLogger(__name__)


class Trimmer(ReplicaObserver):
    """One per replica. `check` is called from time to time; commits are heard of by themselves."""

    def __init__(self, replica: Replica, clocks: PeerClocks, measures: Measures) -> None:
        self._replica = replica
        self.done_before: Callable[[], Offset | None] = lambda: None
        """See Retention.to_trim; of a log with consumer groups."""
        self._measures = measures
        self._clocks = clocks
        self._removals: set[asyncio.Future[None]] = set()
        self._stopped = False
        self._ages = SegmentAges()
        self._noted_index = LogIndex(0)
        self._note(by_this_leader=False)
        self.committed()

    def role_changed(self) -> None:
        """The clock behind the entries until now is not known here."""
        self._note(by_this_leader=False)

    def committed(self) -> None:
        """Drop what the group has agreed to drop, as far as this replica's own log has got."""
        replica = self._replica
        before, log = replica.state.trim_before, replica.log
        if before <= log.first_index:
            return
        pinned_index = replica.shipments.pinned_index(replica.host.clock.now_ms())
        if pinned_index is not None:  # somebody copies from here; the check after that is in time
            before = min(before, pinned_index)
        machine = replica.plan.machine
        if machine is not None:  # what it has not saved stands in the log alone
            before = min(before, known_from(log.spans(), machine.saved_offset()))
        if before <= log.first_index or self._stopped or replica.failure is not None:
            return
        if replica.disk.log_is_behind or log.last_index < before:
            return  # the log is still to be told of entries up to there: the next commit or check is in time
        first_before, start_before, bytes_before = log.first_index, log.start_offset, log.size_bytes
        removal = log.trim(before)
        if log.first_index > first_before:
            self._measures.trimmed_records += log.start_offset - start_before
            self._measures.trimmed_bytes += bytes_before - log.size_bytes
            logger.debug("%s: trimmed; the log starts at offset %d", replica.group, log.start_offset)
            replica.core.trimmed(log.first_index)
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if removal.cancelled() or (error := removal.exception()) is None or isinstance(error, LogClosed):
            return
        reason = f"trimmed segments cannot be removed: {error}"
        self._replica.fail("damaged" if isinstance(error, StoreError) else "internal", reason)

    def check(self) -> None:
        """As a leader: start a segment where the active one is old, and propose a trim where something may
        go."""
        replica = self._replica
        if replica.failure is not None or self._stopped:
            return
        self.committed()
        self._note(by_this_leader=replica.is_leader)
        if not replica.serves:
            return
        try:
            self._propose()
        except ShoalError as error:  # overloaded, or leadership is on its way elsewhere: the next check
            logger.debug("%s: cannot trim now: %s", replica.group, error)

    def _note(self, *, by_this_leader: bool) -> None:
        """Take down when segments grew, and how far the log's own time is. Entries before this agent began to
        lead were not appended by it."""
        replica = self._replica
        if replica.failure is not None:
            return
        now_ms = replica.host.clock.now_ms()
        replica.time.passed(replica.state.tail.append_time_us, now_ms)
        if replica.log.last_index != self._noted_index:
            self._noted_index = replica.log.last_index
            self._ages.note(replica.log.spans(), now_ms, by_this_leader=by_this_leader)

    def _propose(self) -> None:
        replica, retention = self._replica, self._replica.plan.retention
        spans = replica.log.spans()
        if not spans:
            return
        now_ms = replica.host.clock.now_ms()
        log_now_us = replica.time.passed(replica.state.tail.append_time_us, now_ms)
        stamped_us = self._clocks.now_us(
            now_ms
        )  # however little is known of it: a segment begun early costs nothing
        if retention.should_roll(
            spans[-1], lambda span: self._ages.of_first(span, log_now_us, stamped_us, now_ms)
        ):
            replica.roll()
        commit_index, held_index = replica.state.committed.last_index, self._held_index()
        machine = replica.plan.machine
        limits: list[LogIndex | None] = []
        if replica.plan.view is not None and machine is not None:  # the log goes on for what is not there yet
            saved_offset = machine.saved_offset()
            limits.append(
                saved_elsewhere(
                    spans, saved_offset=saved_offset, commit_index=commit_index, held_index=held_index
                )
            )
        if replica.plan.view is not ViewKind.TIMER and retention.is_unlimited:
            return
        if replica.plan.view is not ViewKind.TIMER:  # a timer's time counts in its view
            now_us = self._clocks.believed_now_us(replica)
            limits.append(
                retention.to_trim(
                    spans,
                    commit_index=commit_index,
                    held_index=held_index,
                    age_us=lambda span: self._ages.of_last(span, log_now_us, now_us, now_ms),
                    done_before=self.done_before(),
                )
            )
        before = None if None in limits else min(limit for limit in limits if limit is not None)
        if before is not None and before > replica.state.trim_asked:
            replica.propose_control(Kind.TRIM, encode_trim(before))

    def _held_index(self) -> LogIndex:
        """The last entry that every replica is known to hold."""
        core = self._replica.core
        return min([core.last_index, *core.match_indexes.values()])

    def control_for(self, before: Offset) -> bytes | None:
        """The TRIM that drops what lies wholly before the offset and every replica holds; None when nothing
        does. Raises ShoalError: beyond-end, and why this replica does not lead."""
        replica = self._replica
        replica.require_leader()
        state = replica.state
        if before > state.high_watermark:
            raise ShoalError(
                "beyond-end",
                f"offset {before} lies beyond the end",
                log_start_offset=replica.log.start_offset,
                high_watermark=state.high_watermark,
            )
        spans = replica.log.spans()
        wanted = sum(span.end_offset <= before for span in spans)
        count = min(wanted, droppable(spans, min(state.committed.last_index, self._held_index())))
        if not count or spans[count].first_index <= state.trim_before:
            return None
        return encode_trim(spans[count].first_index)

    def stop(self) -> None:
        """Start nothing more; removals under way end with the log."""
        self._stopped = True
