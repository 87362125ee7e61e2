"""What a read says of the end holds: a leader asks a majority first, a replica that follows does not say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from shoal.agent.fetch import FetchRequest
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import Offset
from tests.agent.harness import GROUP, Cluster, Node, message


def cut_off(node: Node) -> None:
    """Its process lives and its clock runs; nothing leaves it, and nothing arrives."""
    links: Any = node.links
    links.send_control = links.send_bulk = lambda *_: False
    links.frame = lambda *_: None


async def outcome(work: Any) -> Any:
    (result,) = await asyncio.gather(work, return_exceptions=True)
    return result


async def test_a_leader_that_is_cut_off_says_nothing_of_the_end(tmp_path: Path) -> None:
    """From the moment on in which another may lead: not while it still believes that it leads, nor later.
    What is committed and held is served all the same, since it never changes."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        old = await cluster.leader()
        assert (await old.host.offsets(GROUP)).high_watermark == 1
        cut_off(old)
        assert old.leads
        questions = [
            asyncio.create_task(outcome(old.host.offsets(GROUP))),
            asyncio.create_task(outcome(old.host.reader(GROUP).read(FetchRequest(Offset(1), max_bytes=1)))),
            asyncio.create_task(outcome(old.host.reader(GROUP).read(FetchRequest(Offset(2), max_bytes=1)))),
        ]
        fetch = await old.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=1))
        assert fetch.next_offset == 1
        others = [node for node in cluster.nodes if node is not old]
        successor = await until(lambda: next((node for node in others if node.leads), None))
        assert (
            await successor.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000))
        ).base_offset == 1
        for answer in await asyncio.gather(*questions):
            assert isinstance(answer, ShoalError), answer
            assert answer.code in ("no-leader", "not-leader")
        assert (await successor.host.offsets(GROUP)).high_watermark == 2
        assert (
            await old.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=1, local=True))
        ).high_watermark == 1
        with pytest.raises(ShoalError) as refused:
            await old.host.reader(GROUP).read(FetchRequest(Offset(2), max_bytes=1, local=True))
        assert (refused.value.code, refused.value.extra["high_watermark"]) == ("not-leader", 1)


async def test_a_limit_spares_what_nobody_wants(tmp_path: Path) -> None:
    """Batches up to the one with the last record wanted, however many bytes may come; also beyond the end."""
    async with Cluster(str(tmp_path), 1) as cluster:
        for number in range(8):
            await cluster.append(f"{number}a", f"{number}b", f"{number}c")
        host = (await cluster.leader()).host
        for offset, limit, end in (
            (0, 1, 3),
            (0, 3, 3),
            (0, 4, 6),
            (2, 1, 3),
            (2, 2, 6),
            (4, 17, 21),
            (4, 99, 24),
        ):
            fetch = await host.reader(GROUP).read(FetchRequest(Offset(offset), max_bytes=2**20, limit=limit))
            assert (fetch.base_offset, fetch.next_offset) == (offset // 3 * 3, end), (offset, limit)
        fetch = await host.reader(GROUP).read(FetchRequest(Offset(5), max_bytes=1, limit=9))
        assert fetch.next_offset == 6


async def test_every_acknowledged_record_is_in_the_next_read_of_any_leader(tmp_path: Path) -> None:
    """While leadership goes round: whoever answers for the end names at least what was acknowledged before it
    was asked, a new leader that has not committed in its term included."""
    async with Cluster(str(tmp_path), 3) as cluster:
        acknowledged = reads = 0
        ended = asyncio.Event()

        async def read_at(node: Node) -> None:
            nonlocal reads
            while not ended.is_set():
                before = acknowledged
                try:
                    offsets = await node.host.offsets(GROUP)
                except ShoalError:
                    await asyncio.sleep(0.002)
                    continue
                reads += 1
                assert offsets.high_watermark >= before

        async def hand_round() -> None:
            while not ended.is_set():
                leader = await cluster.leader()
                await leader.host.transfer_all(200)
                await asyncio.sleep(0.03)

        readers = [asyncio.create_task(read_at(node)) for node in cluster.nodes]
        moving = asyncio.create_task(hand_round())
        leaders = set()
        async with asyncio.timeout(PATIENCE_S):
            while acknowledged < 60 or reads <= 60 or len(leaders) == 1:
                appended = await cluster.append(f"{acknowledged}")
                acknowledged = max(acknowledged, appended.base_offset + 1)
                leaders.add((await cluster.leader()).agent_id)
        ended.set()
        await asyncio.gather(moving, *readers)
