"""Rows of tables in partitions that this agent leads, or has a replica of.

Law of this file: it finds the partition and passes on, as records.py does.
"""

from __future__ import annotations

from shoal.agent.interface import Topic
from shoal.agent.service.records import RecordService
from shoal.agent.submission import Appended, Submission
from shoal.agent.table import Condition, RowLookup, ScanPage, ScanRequest
from shoal.errors import ShoalError


class TableService(RecordService):
    """See the module. Raises ShoalError as RecordService does, and wrong-kind for topics of other kinds. A
    catalog of this version holds no table."""

    async def get_row(
        self, topic: Topic, partition: int, key: bytes, *, local: bool, timeout_ms: int
    ) -> RowLookup:
        """The row of a key, if there is one."""
        raise wrong_kind(topic)

    async def put_row(
        self, topic: Topic, partition: int, submission: Submission, condition: Condition, timeout_ms: int
    ) -> Appended:
        """One record, stored if the condition holds. ShoalError precondition-failed, which rests on committed
        entries."""
        raise wrong_kind(topic)

    async def scan_rows(
        self, topic: Topic, partition: int, request: ScanRequest, *, local: bool, timeout_ms: int
    ) -> ScanPage:
        """The rows of a range of keys, at one cut."""
        raise wrong_kind(topic)


def wrong_kind(topic: Topic) -> ShoalError:
    """The refusal of an operation on rows, for a topic that has none."""
    return ShoalError("wrong-kind", f"topic {topic.name} is a {topic.kind}, not a table")
