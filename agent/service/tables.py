"""Rows of tables in partitions that this agent leads, or has a replica of.

Law of this file: it finds the partition's keeper and passes on to it, as records.py does to the host.
"""

from __future__ import annotations

from shoal.agent.interface import Topic
from shoal.agent.service.records import RecordService
from shoal.agent.submission import Appended, Submission
from shoal.agent.table import Condition, RowLookup, ScanPage, ScanRequest
from shoal.errors import ShoalError


class TableService(RecordService):
    """See the module. Raises ShoalError as RecordService does, and wrong-kind for topics of other kinds."""

    async def get_row(
        self, topic: Topic, partition: int, key: bytes, *, local: bool, timeout_ms: int
    ) -> RowLookup:
        """The row of a key, if there is one."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        if topic.kind != "table":
            raise wrong_kind(topic)
        with self._led_here(topic, partition) as (host, group):
            return await host.for_append(group, least_bytes=0).rows.get(key, deadline_ms, local=local)

    def row_at_once(self, topic: Topic, partition: int, key: bytes) -> RowLookup | None:
        """As get_row, where that takes no wait; None: get_row tells it, or why not."""
        try:
            entry = self._parts().host.for_append(self._group(topic, partition), least_bytes=0)
        except ShoalError:
            return None
        return None if entry.table is None else entry.table.get_at_once(key)

    async def put_row(
        self, topic: Topic, partition: int, submission: Submission, condition: Condition, timeout_ms: int
    ) -> Appended:
        """One record, stored if the condition holds. ShoalError precondition-failed, which rests on committed
        entries."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        if topic.kind != "table":
            raise wrong_kind(topic)
        with self._led_here(topic, partition) as (host, group):
            if not condition.is_asked:
                return await host.append(group, submission)
            return await host.for_append(group, submission.size_bytes).rows.put(
                submission, condition, deadline_ms
            )

    async def scan_rows(
        self, topic: Topic, partition: int, request: ScanRequest, *, local: bool, timeout_ms: int
    ) -> ScanPage:
        """The rows of a range of keys, at one cut."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        if topic.kind != "table":
            raise wrong_kind(topic)
        with self._led_here(topic, partition) as (host, group):
            return await host.for_append(group, least_bytes=0).rows.scan(request, deadline_ms, local=local)


def wrong_kind(topic: Topic) -> ShoalError:
    """The refusal of an operation on rows, for a topic that has none."""
    return ShoalError("wrong-kind", f"topic {topic.name} is a {topic.kind}, not a table")
