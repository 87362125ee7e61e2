"""A leader whose disk has synced takes another turn only where somebody has something to say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.agent.submission import Appended, Submission
from shoal.replication.state.ready import Ready
from tests.agent.harness import GROUP, RAFT, Cluster, Node, columns, until


def append(leader: Node, value: str) -> asyncio.Future[Appended]:
    """One small submission."""
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    leader.host.begin_append(GROUP, Submission.of(columns(value), timeout_ms=60_000), answer)
    return answer


async def test_a_sync_asks_for_a_turn_where_submissions_waited_for_it(tmp_path: Path) -> None:
    """Cut off from its followers the leader commits nothing, so that its own sync alone is no news; what was
    gathered while it lasted goes to the disk next."""
    async with Cluster(str(tmp_path), 3, raft_config=replace(RAFT, check_quorum=False)) as cluster:
        await cluster.append("first")
        leader = await cluster.leader()
        replica = leader.host.replica(GROUP)
        await until(lambda: not replica.disk.unsynced_frames)
        leader.cut_off()
        asked: list[bool] = []
        durable = replica.disk._on_durable

        def counted(ready: Ready) -> None:
            leader.host.turns.dirty.pop(replica, None)
            durable(ready)
            if ready.append:
                asked.append(replica in leader.host.turns.dirty)

        replica.disk._on_durable = counted
        begin, held = replica.log.begin_append, list[tuple[Any, Any]]()
        replica.log.begin_append = lambda *asked_for: held.append(asked_for)  # type: ignore[method-assign]
        answers = [append(leader, "second")]
        await until(lambda: held)  # on its way to the disk
        answers.append(append(leader, "third"))
        await until(lambda: replica.agenda.gathered_ms is not None)
        replica.log.begin_append = begin  # type: ignore[method-assign]
        begin(*held[0])
        await until(lambda: len(asked) == 2)
        assert asked == [True, False]
        assert replica.core.stable_index == replica.core.last_index > replica.core.commit_index
        assert not any(answer.done() for answer in answers)
        for answer in answers:
            answer.cancel()
