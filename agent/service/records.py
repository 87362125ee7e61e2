"""Records of partitions that this agent leads: appends, reads, ends of logs, trims.

Law of this file: it finds the partition and passes on to the host. The host knows agents, not URLs; what it
refuses is told here so that a client can go on: to the leader, or to another holder.

The first record at or after a time is found through a reader, as any consumer reads. Producers' timestamps
need not rise with the offsets, so no halving finds the place. The log's index has the newest timestamp of
each entry, and of whole segments, and names the next batch that may have such a record. One batch is read
then. Where the index does not know, batches are looked through by their stamps alone. It does
not know entries that an earlier version wrote, or that are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.durable.ids import GroupId
from shoal.agent.fetch import Fetch, FetchRequest, Offsets
from shoal.agent.host.host import Host
from shoal.agent.interface import Topic
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.status import ServingState
from shoal.agent.service.cluster_view import ClusterView, not_leader
from shoal.agent.submission import Answer, Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import Offset, parse_stamp, timestamps_of

ONE_BATCH_BYTES = 1  # a read gives one, however large
READ_BYTES = 4 << 20  # one step where the index does not know; between steps the loop serves others


class RecordService(ClusterView):
    """See the module. Raises ShoalError not-leader, with the leader's URL, for what is led elsewhere."""

    @contextmanager
    def _led_here(self, topic: Topic, partition: int) -> Iterator[tuple[Host, GroupId]]:
        """The host and the partition's group, while something is asked of them; refusals are translated."""
        host, group = self._parts().host, self._group(topic, partition)
        try:
            yield host, group
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    def _elsewhere(self, topic: Topic, partition: int) -> ShoalError:
        leader = self._leader_of(GroupId(topic.id, partition))
        where = f"partition {partition} of {topic.name}"
        if leader is None or leader.local:
            return ShoalError("no-leader", f"{where} has no leader at present")
        return not_leader(where, leader)

    def _instead_of_here(self, error: ShoalError, topic: Topic, partition: int) -> ShoalError:
        """The replica here does not serve: its leader does, or soon another holder, who is named. Alone it
        says what is wrong."""
        host, group = self._parts().host, self._group(topic, partition)
        if not host.has(group):
            return self._elsewhere(topic, partition)
        status = host.status(group)
        if status.state is ServingState.ACTIVE:
            return error
        elsewhere = self._elsewhere(topic, partition)
        if elsewhere.code == "not-leader":
            return elsewhere
        leadership = self._leadership(group)
        entry = self._catalog.by_id(topic.id)
        births = () if entry is None else entry.partitions[partition].voters
        holders = births if leadership is None else leadership.voters
        urls = self._roster.urls()
        others = [urls[item] for item in holders if item != self.agent_id and item in urls]
        if not others:
            return error
        why = f"the replica here is {status.state}: {status.reason}; others are at {', '.join(others)}"
        return ShoalError("no-leader", f"{elsewhere.detail}; {why}", replica_urls=list(others))

    def _translated(self, error: ShoalError, topic: Topic, partition: int) -> ShoalError:
        """The host knows agents, not URLs: say who leads in a way that a client can use."""
        if not error.definite:  # what may have happened here must not be tried elsewhere
            return error
        if error.code == "stopping" and not self.stopping:
            self.topic(topic.name)  # raises, where the replica was closed with its topic
            return self._elsewhere(topic, partition)
        if error.code != "not-leader":
            return self._instead_of_here(error, topic, partition)
        elsewhere = self._elsewhere(topic, partition)
        if "high_watermark" in error.extra:  # a local read beyond what the replica here knows
            elsewhere.extra["high_watermark"] = error.extra["high_watermark"]
        return elsewhere

    async def append(self, topic: Topic, partition: int, submission: Submission) -> Appended:
        """Records, gathered with all that arrive at the same time, or whole batches, into one partition."""
        with self._led_here(topic, partition) as (host, group):
            return await host.append(group, submission)

    def begin_append(self, topic: Topic, partition: int, submission: Submission, answer: Answer) -> None:
        """The same; `answer` gets the outcome. Raises ShoalError when nothing was proposed. Without the
        context manager: its three calls would be one in a hundred of an append's."""
        host, group = self._parts().host, self._group(topic, partition)
        try:
            host.begin_append(group, submission, answer)
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def read(self, topic: Topic, partition: int, request: FetchRequest) -> Fetch:
        """Committed batches from the one that holds the offset on."""
        with self._led_here(topic, partition) as (host, group):
            return await host.reader(group).read(request)

    async def offsets(self, topic: Topic, partition: int) -> Offsets:
        """The ends of the log, by a read index."""
        with self._led_here(topic, partition) as (host, group):
            return await host.reader(group).offsets()

    async def wait_past(self, topic: Topic, partition: int, offset: Offset, wait_ms: int) -> bool:
        """Whether something beyond the offset was committed in time, while this agent leads."""
        with self._led_here(topic, partition) as (host, group):
            return await host.reader(group).wait_past(offset, wait_ms)

    async def trim(self, topic: Topic, partition: int, before: Offset, timeout_ms: int) -> Offset:
        """Drop the segments wholly before the offset, on all replicas; where the log then starts."""
        with self._led_here(topic, partition) as (host, group):
            return await host.trim(group, before, timeout_ms)

    async def offset_at_time(self, topic: Topic, partition: int, time_us: int) -> Offset:
        """The first offset whose record is at or after the time; the end if there is none."""
        with self._led_here(topic, partition) as (host, group):
            return await offset_at_time(host.reader(group), time_us)


async def offset_at_time(reader: Reader, time_us: int) -> Offset:
    """The first offset whose record's timestamp is at or after `time_us`; the high watermark if there is
    none.

    Raises ShoalError as reads do.
    """
    ends = await reader.offsets()
    position, step_bytes = ends.log_start_offset, ONE_BATCH_BYTES
    while position < ends.high_watermark:
        position = await reader.find_time(time_us, position)
        if position >= ends.high_watermark:
            break
        fetch = await reader.read(FetchRequest(position, step_bytes, local=True))
        for frame in fetch.frames:
            stamp, _ = parse_stamp(frame, 0)
            if stamp.record_count and stamp.max_timestamp_us >= time_us:
                row = first_row_at(timestamps_of(frame, fetch.schema), time_us)
                return Offset(max(stamp.base_offset + row, position))
        if fetch.next_offset <= position:
            break
        position, step_bytes = fetch.next_offset, READ_BYTES
    return ends.high_watermark


def first_row_at(batch: pa.RecordBatch, time_us: int) -> int:
    """The first row whose timestamp is at or after the time; there is one. Vectorised but for the last
    step.
    """
    times = batch.column("timestamp").cast(pa.int64())
    late = pc.greater_equal(times, time_us)
    row: int = pc.index(late, pa.scalar(True)).as_py()
    assert row >= 0, "the stamp's newest timestamp is the batch's"
    return row
