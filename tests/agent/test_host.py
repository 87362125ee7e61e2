"""Hosts with real disks and links: one alone, three together, failures, restarts."""

import asyncio
from pathlib import Path

import pytest

from shoal.agent.waiting import Appended
from shoal.batch import Offset, ProducerStamp, producer_id_from_text
from shoal.errors import ShoalError
from shoal.segment_store.config import LogConfig
from tests.agent.harness import GROUP, Cluster, columns, message, read_values, until

TINY = LogConfig(segment_bytes=8192, first_allocation_bytes=4096, max_allocation_step_bytes=8192)
ALICE = producer_id_from_text("alice")


async def test_one_voter_leads_appends_and_reads(tmp_path: Path) -> None:
    """Alone it elects itself; offsets are dense; what was acknowledged is read back in order."""
    async with Cluster(str(tmp_path), 1) as cluster:
        node = await cluster.leader()
        assert await cluster.append("a", "b") == Appended(Offset(0), 2)
        assert await node.host.append_records(GROUP, columns("c"), timeout_ms=1_000) == Appended(Offset(2), 1)
        assert await read_values(node) == ["a", "b", "c"]
        offsets = await node.host.offsets(GROUP)
        assert (offsets.log_start_offset, offsets.high_watermark, offsets.log_end_offset) == (0, 3, 3)
        node.host.replica(GROUP).core.check_invariants()
