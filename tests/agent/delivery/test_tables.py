"""Rows of a table at its leader: linearizable gets, conditions, refusals that rest on committed entries,
scans; over fail-over, restarts, trims, copies and damage."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from memory_disk import MemoryDisk
from waiting import PATIENCE_S, until

from shoal.agent.delivery.table_keeper import TableKeeper
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.partition.plan import ViewKind
from shoal.agent.partition.state import retention
from shoal.agent.partition.state.retention import Retention
from shoal.agent.submission import Appended, Submission
from shoal.agent.table import NO_CONDITION, Condition, RowLookup, ScanRequest
from shoal.agent.views.merge_plan import runs_to_merge
from shoal.agent.views.upkeep import view_set
from shoal.agent.views.view import SortedView, ViewLimits
from shoal.errors import ShoalError
from shoal.format.batch import Kind, Offset, ProducerStamp, message_from_batch
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.segment_store import LogConfig
from tests.agent.harness import GROUP, RAFT, Cluster, Node
from tests.agent.linearizability import Operation, is_linearizable, register_outcome
from tests.agent.memory_cluster import SMALL, memory_cluster

ABSENT = Condition(if_absent=True)
T = TypeVar("T")


@pytest.fixture(autouse=True)
def runs_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to put into one."""
    monkeypatch.setattr(view_set, "LOOK_MS", 5)
    monkeypatch.setattr(view_set, "SEAL_AFTER_MS", 40)
    monkeypatch.setattr(view_set, "TROUBLE_MS", 50)


def table_cluster(
    seed: int = 1, *, count: int = 3, patient: bool = True, log_config: LogConfig = SMALL
) -> tuple[Cluster, dict[str, MemoryDisk]]:
    """Replicas that keep views by key, with their disks. `patient`: a leader stays one on a busy machine."""
    cluster, disks = memory_cluster(count, seed=seed, log_config=log_config)
    for node in cluster.nodes:
        node.raft_config = replace(RAFT, election_timeout_ms=1_500, quiet_after_ms=2_000) if patient else RAFT
    cluster.plan_options = {"view": ViewKind.TABLE, "retention": Retention(size_bytes=20_000)}
    return cluster, disks


def keeper_of(node: Node) -> TableKeeper:
    return node.host.for_append(GROUP, least_bytes=0).rows


def put_of(key: bytes, value: bytes | None, producer: ProducerStamp | None = None) -> Submission:
    """One record."""
    columns = RecordColumns([None], [key], [value], [None])
    return Submission.of(columns, timeout_ms=2_000, producer=producer)


def deadline_ms(seconds: float = 5) -> int:
    return time.monotonic_ns() // 1_000_000 + int(seconds * 1_000)


async def put(
    where: Node | Cluster,
    key: bytes,
    value: bytes | None,
    condition: Condition = NO_CONDITION,
    **options: ProducerStamp,
) -> Appended:
    """At this node, once; or at the leader, whoever that is by then."""
    submission = put_of(key, value, **options)

    async def at(node: Node) -> Appended:
        if not condition.is_asked:
            return await node.host.append(GROUP, submission)
        return await keeper_of(node).put(submission, condition, deadline_ms())

    return await at(where) if isinstance(where, Node) else await led(where, at)


async def get(where: Node | Cluster, key: bytes, *, local: bool = False) -> RowLookup:
    """As put."""

    async def at(node: Node) -> RowLookup:
        return await keeper_of(node).get(key, deadline_ms(), local=local)

    return await at(where) if isinstance(where, Node) else await led(where, at)


async def led(cluster: Cluster, call: Callable[[Node], Awaitable[T]]) -> T:
    """At the leader; again at the next one where nothing has happened."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call(await cluster.leader())
            except ShoalError as error:
                if not error.retriable or not error.definite:
                    raise
            await asyncio.sleep(0.02)


async def test_a_get_sees_every_put_that_was_answered() -> None:
    """At the leader; a follower says so, and tells its own rows when asked for these."""
    cluster, _ = table_cluster()
    async with cluster:
        assert await get(cluster, b"k") == RowLookup(None, Offset(0))
        for number in range(30):
            await put(cluster, b"k", b"%d" % number)
            row, as_of = await get(cluster, b"k")
            assert row is not None
            assert (row.value, row.offset, as_of) == (b"%d" % number, number, number + 1)
        await put(cluster, b"k", None)
        assert await get(cluster, b"k") == RowLookup(None, Offset(31))
        leader = await cluster.leader()
        other = next(node for node in cluster.alive if node is not leader)
        with pytest.raises(ShoalError, match="not-leader"):
            await get(other, b"k")
        async with asyncio.timeout(PATIENCE_S):
            while (await get(other, b"k", local=True)).as_of < 31:
                await asyncio.sleep(0.01)


async def test_a_sole_voter_answers_at_once() -> None:
    """As long as it leads, and its view has all that is committed: else it waits, as one of several voters
    always does."""
    cluster, disks = table_cluster(count=1)
    for disk in disks.values():
        disk.resident = "/view/"
    async with cluster:
        leader = await cluster.leader()
        told = 0
        for number in range(60):
            appended = await put(leader, b"k%d" % (number % 7), b"%d" % number)
            found = keeper_of(leader).get_at_once(b"k%d" % (number % 7))
            if found is not None:
                told += 1
                assert found.row is not None
                assert (found.row.value, found.row.offset) == (b"%d" % number, appended.base_offset)
                assert found.as_of > appended.base_offset
            assert (await get(leader, b"k%d" % (number % 7))).row is not None
            # None where an entry without records is just being committed, such as a trim.
            assert keeper_of(leader).get_at_once(b"none") in (None, RowLookup(None, Offset(number + 1)))
        made = leader.host.views.get(GROUP)
        assert made is not None
        await until(lambda: made.view.saved.offset == 60)
        for number in range(7):
            at_once = keeper_of(leader).get_at_once(b"k%d" % number)
            assert at_once is None or at_once == await get(leader, b"k%d" % number)
            told += at_once is not None
        assert told >= 7
        held, made.view.limits = made.view.limits, ViewLimits(held_rows=0)
        await put(leader, b"k1", b"new")
        assert keeper_of(leader).get_at_once(b"k1") is None
        assert keeper_of(leader).get_at_once(b"none") is None
        made.view.limits = held
        row, _ = await get(leader, b"k1")
        assert row is not None
        assert row.value == b"new"
        keeper = keeper_of(leader)
        leader.host.replica(GROUP).fail("damaged", "for a test")
        assert keeper.get_at_once(b"k1") is None
    several, _ = table_cluster()
    async with several:
        leader = await several.leader()
        await put(leader, b"k", b"1")
        await get(leader, b"k")
        assert [keeper_of(node).get_at_once(b"k") for node in several.alive] == [None] * 3


async def test_conditions_are_judged_against_entries_that_are_not_committed_yet() -> None:
    """Of many who come at once one is stored, and the others are told of that one."""
    cluster, _ = table_cluster(seed=2)
    async with cluster:
        tries = [put(cluster, b"k", b"%d" % number, ABSENT) for number in range(20)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        [stored] = [item for item in outcomes if isinstance(item, Appended)]
        refused = [item for item in outcomes if isinstance(item, ShoalError)]
        assert {(item.code, item.extra["current"]) for item in refused} == {
            ("precondition-failed", stored.base_offset)
        }
        assert len(refused) == 19
        again = await put(cluster, b"k", b"new", Condition(if_offset=stored.base_offset))
        with pytest.raises(ShoalError, match="precondition-failed"):
            await put(cluster, b"k", b"newer", Condition(if_offset=stored.base_offset))
        await put(cluster, b"k", None, Condition(if_offset=again.base_offset))
        with pytest.raises(ShoalError, match="precondition-failed") as caught:
            await put(cluster, b"k", b"late", Condition(if_offset=again.base_offset))
        assert caught.value.extra == {"current": None}
        await put(cluster, b"k", b"back", ABSENT)


async def test_a_refusal_waits_for_the_entry_that_it_rests_on() -> None:
    """A leader whom nobody hears has a row that may never be: it refuses nobody because of it, and the one
    who wrote it does not hear either."""
    cluster, _ = table_cluster(seed=3)
    async with cluster:
        leader = await cluster.leader()
        await put(leader, b"other", b"1")
        for node in cluster.alive:
            if node is not leader:
                node.cut_off()
        leader.cut_off()
        writing = asyncio.create_task(put(leader, b"k", b"never", ABSENT))
        replica = leader.host.replica(GROUP)
        await until(lambda: replica.state.tail.end_offset == 2)
        refused = asyncio.create_task(put(leader, b"k", b"mine", ABSENT))
        stale = asyncio.create_task(put(leader, b"other", b"mine", ABSENT))
        for task in (refused, stale, writing):
            with pytest.raises(ShoalError) as caught:
                await task
            assert caught.value.code != "precondition-failed"
            assert caught.value.definite == (task is not writing)


async def test_a_leader_that_was_deposed_and_elected_again_refuses_nothing_by_what_it_knew() -> None:
    """What it judged by is committed in the end, by its next term. Others may have led in between, and have
    taken it back before the put came: so nothing has happened, and the same put is judged anew."""
    cluster, _ = table_cluster(seed=9)
    async with cluster:
        leader = await cluster.leader()
        await put(leader, b"other", b"1")
        replica = leader.host.replica(GROUP)
        term = replica.core.term
        for node in cluster.alive:
            node.cut_off()
        writing = asyncio.create_task(put(leader, b"k", b"first"))
        await until(lambda: replica.state.tail.end_offset == 2)
        mine = put_of(b"k", b"mine")
        refused = asyncio.create_task(keeper_of(leader).put(mine, ABSENT, deadline_ms(PATIENCE_S)))
        await until(lambda: not replica.is_leader)
        assert not refused.done()
        follower = next(node for node in cluster.alive if node is not leader)
        for node in (leader, follower):
            node.come_back()
        with pytest.raises(ShoalError) as caught:
            await refused
        assert (caught.value.code, caught.value.definite) == ("no-leader", True)
        assert replica.core.term > term
        assert replica.state.committed.end_offset == 2
        await asyncio.gather(writing, return_exceptions=True)
        with pytest.raises(ShoalError, match="precondition-failed"):
            await put(cluster, b"k", b"mine", ABSENT)


async def test_a_repeated_put_gets_the_first_answer() -> None:
    """By producer and sequence, though the condition does not hold any more, since it was stored."""
    cluster, _ = table_cluster(seed=4)
    async with cluster:
        producer = ProducerStamp(b"p" * 16, 0, 0)
        first = await put(cluster, b"k", b"1", ABSENT, producer=producer)
        again = await put(cluster, b"k", b"1", ABSENT, producer=producer)
        assert again == first._replace(duplicate=True)
        with pytest.raises(ShoalError, match="precondition-failed"):
            await put(cluster, b"k", b"2", ABSENT, producer=producer._replace(sequence=1))
        with pytest.raises(ShoalError, match="sequence-gap"):
            await put(cluster, b"k", b"2", ABSENT, producer=producer._replace(sequence=7))


@pytest.mark.parametrize("form", ["columns", "batch"])
async def test_a_record_without_a_key_is_refused_in_every_form(form: str) -> None:
    """And one whose key is empty, or too long. Nothing is stored of what is refused."""
    cluster, _ = table_cluster(seed=5)
    async with cluster:
        for key, code in (
            (None, "bad-request"), (b"", "bad-request"), (b"k" * 65_536, "too-large"),
            (b"k" * 2**20, "too-large"), (b"k" * 65_535, None),
        ):  # fmt: skip
            columns = RecordColumns([None] * 2, [b"a", key], [b"1", b"2"], [None] * 2)
            records = columns if form == "columns" else [message_from_batch(columns_to_batch(columns, 1))]
            submission = Submission.of(records, timeout_ms=2_000)
            appending = led(cluster, lambda node, item=submission: node.host.append(GROUP, item))
            if code is None:
                assert (await appending).base_offset == 0
                continue
            with pytest.raises(ShoalError) as caught:
                await appending
            assert (caught.value.code, caught.value.definite) == (code, True)


async def fill(cluster: Cluster, model: dict[bytes, bytes], count: int, rng: random.Random) -> None:
    """Puts and deletions over several segments, conditional ones too, at whoever leads."""
    for _ in range(count):
        key, value = b"k%d" % rng.randrange(40), rng.randbytes(600)
        gone = rng.random() < 0.2
        columns = RecordColumns([7], [key], [None if gone else value], [None])
        await cluster.append_message(message_from_batch(columns_to_batch(columns, 7)))
        model.pop(key, None)
        model |= {} if gone else {key: value}


async def rows_of(node: Node) -> dict[bytes, bytes]:
    """Every row that the node has, page by page."""
    found: dict[bytes, bytes] = {}
    request = ScanRequest(limit=7)
    while True:
        page = await keeper_of(node).scan(request, deadline_ms(), local=True)
        keys = page.rows.column("key").to_pylist()
        found |= dict(zip(keys, page.rows.column("value").to_pylist(), strict=True))
        if page.is_last:
            return found
        request = request._replace(after=keys[-1])


async def equal_rows(cluster: Cluster, model: dict[bytes, bytes]) -> None:
    """Every replica has the model's rows, sooner or later."""
    for node in cluster.alive:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ShoalError):
                    if await rows_of(node) == model:
                        break
                await asyncio.sleep(0.02)


def first_index(node: Node) -> int:
    """Of the node's log; 0 while it is not open."""
    replica = node.host.open_replica(GROUP)
    return 0 if replica is None else replica.log.first_index


async def test_rows_outlive_the_log_and_restarts() -> None:
    """Retention drops the head of the log once every view has its rows, and no row goes with it."""
    cluster, _ = table_cluster(seed=6)
    async with cluster:
        model: dict[bytes, bytes] = {}
        await fill(cluster, model, 120, random.Random(6))
        await until(lambda: min(map(first_index, cluster.alive)) > 20)
        await equal_rows(cluster, model)
        for node in list(cluster.alive):
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
        await equal_rows(cluster, model)
        for key in (b"k%d" % number for number in range(40)):
            row, _ = await get(cluster, key)
            assert (None if row is None else row.value) == model.get(key)


@pytest.mark.parametrize("empty", [True, False])
async def test_a_replica_without_the_head_gets_the_rows_and_then_the_log(
    empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it had nothing or fell behind."""
    monkeypatch.setattr(retention, "VIEW_PATIENCE_BYTES", 20_000)
    cluster, _ = table_cluster(seed=7)
    async with cluster:
        model: dict[bytes, bytes] = {}
        rng = random.Random(7)
        await fill(cluster, model, 5, rng)
        third = cluster.nodes[2]
        await cluster.stop(third)
        if empty:
            await third.make_disk().remove_tree("data/3")
        await fill(cluster, model, 150, rng)
        await until(lambda: min(map(first_index, cluster.alive)) > 30)
        await cluster.start(third)
        await fill(cluster, model, 5, rng)
        await equal_rows(cluster, model)
        assert first_index(third) > 1


async def test_a_damaged_run_comes_from_a_peer_where_the_log_is_gone() -> None:
    """The scrubber finds it; a reader gets no row before it is mended."""
    cluster, disks = table_cluster(seed=8)
    async with cluster:
        model: dict[bytes, bytes] = {}
        await fill(cluster, model, 120, random.Random(8))
        await until(lambda: min(map(first_index, cluster.alive)) > 20)
        await equal_rows(cluster, model)
        found = [node.host.views.get(GROUP) for node in cluster.alive]
        views = [item.view for item in found if item is not None]
        await until(lambda: not any(runs_to_merge(view.manifest.runs, replaces_rows=True) for view in views))
        victim = cluster.nodes[1]
        made = victim.host.views.get(GROUP)
        assert made is not None
        with made.view.pinned() as runs:
            path, position = runs[0].path, runs[0].index.chunk(0).position + 50
        disks[victim.agent_id].damage(path, position)
        scrubber = Scrubber(
            victim.host, victim.disk, "data/2", victim.host.clock, bytes_per_s=2**30, pass_interval_ms=10
        )
        task = asyncio.create_task(scrubber.run())
        async with asyncio.timeout(PATIENCE_S):
            while await disks[victim.agent_id].exists(path):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await equal_rows(cluster, model)


async def test_a_view_that_lags_holds_gets_and_conditions_back() -> None:
    """Neither answers from rows of before."""
    cluster, _ = table_cluster(seed=9)
    async with cluster:
        leader = await cluster.leader()
        await put(leader, b"k", b"1")
        await get(leader, b"k")
        made = leader.host.views.get(GROUP)
        assert made is not None
        held, made.view.limits = made.view.limits, ViewLimits(held_rows=0)
        await put(leader, b"k", b"2")
        with pytest.raises(ShoalError, match="not-ready"):
            await keeper_of(leader).get(b"k", deadline_ms(0.2), local=False)
        with pytest.raises(ShoalError, match="precondition-failed") as caught:
            await put(leader, b"k", b"3", ABSENT)
        assert caught.value.extra == {"current": 1}
        made.view.limits = held
        row, _ = await get(leader, b"k")
        assert row is not None
        assert row.value == b"2"


@pytest.mark.parametrize("seed", range(2))
async def test_a_table_is_a_dict(seed: int) -> None:
    """Gets, scans, puts and deletions, with conditions that hold or not, while runs are made and merged, the
    log is trimmed and the agent starts again: each answer is that of a dict of (value, offset)."""
    cluster, _ = table_cluster(20 + seed, count=1)
    rng = random.Random(seed)
    keys = [b"\x00", b"\xff", *(b"k%d" % number for number in range(12))]
    model: dict[bytes, tuple[bytes, int]] = {}
    async with cluster:
        [node] = cluster.nodes
        for step in range(300):
            key = rng.choice(keys)
            there = model[key][1] if key in model else None
            value = rng.choice((None, b"", rng.randbytes(300), rng.randbytes(900)))
            some = Offset(rng.choice((there or 0, rng.randrange(step + 1))))
            condition = rng.choice((NO_CONDITION, ABSENT, Condition(if_offset=some)))
            if not condition.holds(there):
                with pytest.raises(ShoalError, match="precondition-failed") as caught:
                    await put(cluster, key, value, condition)
                assert caught.value.extra["current"] == there
            else:
                stored = await put(cluster, key, value, condition)
                model.pop(key, None)
                model |= {} if value is None else {key: (value, stored.base_offset)}
            looked = rng.choice(keys)
            row, _ = await get(cluster, looked)
            assert (None if row is None else (row.value, row.offset)) == model.get(looked)
            if step % 20 == 0:
                page = await keeper_of(node).scan(ScanRequest(), deadline_ms(), local=False)
                columns = (page.rows.column(name).to_pylist() for name in ("key", "value", "offset"))
                assert list(zip(*columns, strict=True)) == [(at, *model[at]) for at in sorted(model)]
            if step in (90, 180, 270):
                await cluster.stop(node)
                await cluster.start(node)
        await until(lambda: first_index(node) > 100)
        assert max(run.level for run in view_of(node).manifest.runs) >= 1


def view_of(node: Node) -> SortedView:
    """It is open."""
    made = node.host.views.get(GROUP)
    assert made is not None
    return made.view


async def test_a_condition_waits_for_no_record_behind_entries_that_have_none() -> None:
    """Entries without records that the log alone has, as after a restart: the put goes on as soon as they are
    committed, though nobody else writes."""
    cluster, _ = table_cluster(seed=11, log_config=replace(SMALL, tail_cache_bytes=0))
    async with cluster:
        await put(cluster, b"k", b"1")
        leader = await cluster.leader()
        replica, links = leader.host.replica(GROUP), leader.links
        leader.cut_off()
        for _ in range(2):  # the last one stays in memory
            replica.propose_control(Kind.NOOP, b"")
            await until(lambda: replica.log.synced_index == replica.state.tail.last_index)
        putting = asyncio.create_task(put(leader, b"k", b"2", ABSENT))
        await until(lambda: bool(keeper_of(leader)._waiting))
        del links.send_control, links.send_bulk, links.frame
        with pytest.raises(ShoalError, match="precondition-failed") as caught:
            await asyncio.wait_for(putting, 3)
        assert caught.value.extra == {"current": 0}


@pytest.mark.parametrize("seed", [10])
async def test_gets_and_puts_are_linearizable_over_fail_over(seed: int) -> None:
    """Per key: plain and conditional puts and gets of several clients, while leaders are stopped and
    restarted."""
    cluster, _ = table_cluster(seed=seed, patient=False)
    rng = random.Random(seed)
    keys = [b"a", b"b", b"c", b"d", b"e", b"f"]
    history: dict[bytes, list[Operation]] = {key: [] for key in keys}

    async def client(number: int) -> None:
        seen: dict[bytes, tuple[str, Offset] | None] = {}
        step = 0
        while step < 30:  # that may have happened
            leaders = [node for node in cluster.alive if node.leads]
            key, node = rng.choice(keys), rng.choice(leaders or cluster.alive)
            kind = rng.choice(("get", "get", "put", "put-if"))
            written, before = f"{number}.{step}", seen.get(key)
            value: str | None = written
            begun, status = time.monotonic(), None
            expected = None
            try:
                if kind == "get":
                    row, _ = await get(node, key)
                    value = None if row is None else row.value.decode()
                    status = 404 if row is None else 200
                    seen[key] = None if row is None else (row.value.decode(), row.offset)
                elif kind == "put":
                    done = await put(node, key, written.encode())
                    status, seen[key] = 200, (written, done.base_offset)
                else:
                    expected = None if before is None else before[0]
                    condition = ABSENT if before is None else Condition(if_offset=before[1])
                    done = await put(node, key, written.encode(), condition)
                    status, seen[key] = 200, (written, done.base_offset)
            except ShoalError as error:
                if error.code == "precondition-failed":
                    status = 412
                elif error.definite:
                    await asyncio.sleep(0.02)
                    continue
            ended = time.monotonic()
            history[key].append(Operation(kind, value, status, begun, ended, expected))
            step += 1

    async with cluster:
        await cluster.leader()
        clients = [asyncio.create_task(client(number)) for number in range(4)]
        for _ in range(2):
            await asyncio.sleep(0.1)
            victim = await cluster.leader()
            await cluster.stop(victim)
            await asyncio.sleep(0.1)
            await cluster.start(victim)
        await asyncio.gather(*clients)
    assert sum(len(items) for items in history.values()) == 4 * 30
    for items in history.values():
        assert is_linearizable(items, outcome=register_outcome)
