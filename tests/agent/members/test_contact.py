"""Meeting others: seeds, the snapshot and mDNS at once, each called until somebody answers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from shoal.agent.durable.gossip_snapshot import FILE_NAME, load_snapshot, save_snapshot
from shoal.agent.members import contact as module
from shoal.agent.members.contact import Address, PoolContact
from shoal.membership.interface import JoinError, Member
from shoal.membership.net.mdns import Found
from shoal.membership.serf.snapshot import Clocks, Peer, Snapshot
from shoal.segment_store.disk.threads import ThreadDisk


class Pool:
    """Who is there, who answers a call, and which calls were made; it is the roster as well."""

    def __init__(self) -> None:
        self.calls: list[Address] = []
        self.answering: set[Address] = set()
        self.present: list[Member] = []
        self.strangers: list[Member] = []
        self.called = asyncio.Event()
        self.hanging: set[Address] = set()
        self.under_way = 0
        self.most_under_way = 0

    async def join(self, addresses: Sequence[Address]) -> int:
        (address,) = addresses
        self.calls.append(address)
        self.called.set()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(3_600 if address in self.hanging else 0)
        finally:
            self.under_way -= 1
        if address not in self.answering:
            raise JoinError("nobody there yet")
        self.present.append(member(f"at-{address[1]}", port=address[1]))
        return 1

    def find(self, name: str) -> Any:
        return next((one for one in self.present if one.name == name), None)

    def members(self) -> tuple[Member, ...]:
        return tuple(self.present)

    def ours(self) -> list[Member]:
        return [one for one in self.present if one not in self.strangers]

    def neighbours(self) -> list[Member]:
        return self.present


def member(name: str, status: str = "alive", *, port: int = 7946) -> Member:
    return Member(name, "127.0.0.1", port, {}, status, 1, 0)


@asynccontextmanager
async def meeting(pool: Pool, **values: Any) -> AsyncIterator[tuple[PoolContact, list[Snapshot]]]:
    kept: list[Snapshot] = []

    async def remember(snapshot: Snapshot) -> None:
        kept.append(snapshot)

    defaults: dict[str, Any] = {
        "agent_id": "a",
        "cluster": "fish",
        "seeds": [],
        "remembered": [],
        "roster": cast("Any", pool),
        "rng": random.Random(1),
        "join": pool.join,
        "clocks": lambda: Clocks(7, 3, 2),
        "remember": remember,
    }
    made = PoolContact(**(defaults | values))
    running = asyncio.create_task(made.run())
    try:
        yield made, kept
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of the real times."""
    for name in ("RETRY_MS_MIN", "RETRY_MS_MAX", "REVISIT_MS", "RETRY_FOUND_MS_MIN", "RETRY_FOUND_MS_MAX"):
        monkeypatch.setattr(module, name, getattr(module, name) / 1_000)
    monkeypatch.setattr(module, "REMEMBER_INTERVAL_S", 0.005)


async def test_an_announced_agent_is_called_again_until_it_answers() -> None:
    """mDNS reports an agent once; it may not have listened yet. Strangers and this agent are never called."""
    pool = Pool()
    found = Found("at-7946", "fish", "127.0.0.1", 7946)
    heard = [found, Found("a", "fish", "127.0.0.1", 1), Found("c", "birds", "127.0.0.1", 2)]
    async with meeting(pool) as (made, _):
        made.heard = lambda: heard
        made.on_found(found)
        await until(lambda: len(pool.calls) >= 3)
        pool.answering = {("127.0.0.1", 7946)}
        await until(lambda: bool(pool.present))
        count = len(pool.calls)
        await asyncio.sleep(0.05)
    assert len(pool.calls) == count
    assert set(pool.calls) == {("127.0.0.1", 7946)}


async def test_seeds_are_called_for_ever_and_by_name() -> None:
    """A name is given to the join as it stands, so that it is looked up anew each time; and one more time
    when the agent is alone again."""
    pool = Pool()
    async with meeting(pool, seeds=[("seed.example", 7946), ("seed.example", 7946)]):
        await until(lambda: len(pool.calls) >= 20)
        assert set(pool.calls) == {("seed.example", 7946)}
        pool.answering = {("seed.example", 7946)}
        await until(lambda: bool(pool.present))
        pool.answering.clear()
        pool.present.clear()
        pool.calls.clear()
        await until(lambda: len(pool.calls) >= 3)


async def test_a_seed_that_does_not_answer_is_named_with_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name would otherwise look like patience. Not at once, since agents start one after the
    other; once a while, not once a call; and no more when somebody else is there."""
    monkeypatch.setattr(module, "SEED_PATIENCE_S", 0.05)
    pool = Pool()
    async with meeting(pool, seeds=[("nohost", 7946)], remembered=[Peer("x", "10.0.0.2", 2)]):
        await until(lambda: len(pool.calls) >= 2)
        assert caplog.text == ""
        await until(lambda: bool(caplog.records))
        monkeypatch.setattr(module, "COMPLAINT_INTERVAL_S", 0.0)
        count = len(pool.calls)
        await until(lambda: len(pool.calls) >= count + 10)
        assert [record.getMessage() for record in caplog.records] == [
            "no answer from nobody there yet; trying again"
        ]
    pool = Pool()
    pool.present = [member("b")]
    caplog.clear()
    monkeypatch.setattr(module, "SEED_PATIENCE_S", 0.0)
    async with meeting(pool, seeds=[("nohost", 7946)]):
        await until(lambda: len(pool.calls) >= 3)
    assert caplog.text == ""


async def test_a_seed_that_hangs_delays_nobody() -> None:
    """It is one of several called at a time, and those are bounded."""
    pool = Pool()
    pool.hanging = {("10.0.0.1", 1)}
    pool.answering = {("10.0.0.9", 9)}
    seeds = [("10.0.0.1", 1), *(("10.0.1.1", port) for port in range(2, 40)), ("10.0.0.9", 9)]
    async with meeting(pool, seeds=seeds):
        await until(lambda: bool(pool.present))
    assert 1 < pool.most_under_way <= module.MAX_CALLS


async def test_a_pool_that_may_be_divided_calls_its_seeds_now_and_then() -> None:
    """Not alone, but the seed may be in the other half: one call per interval, for ever."""
    pool = Pool()
    pool.present = [member("b")]
    async with meeting(pool, seeds=[("10.0.0.1", 1)], remembered=[Peer("b", "10.0.0.2", 2)]):
        await until(lambda: len(pool.calls) >= 3)
    assert set(pool.calls) == {("10.0.0.1", 1)}


async def test_who_is_remembered_and_missing_is_called_until_he_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All have restarted, and two have met before the third was there. That one has forgotten everybody: if
    they did not call, nobody would."""
    pool = Pool()
    there, late, gone = ("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)
    pool.answering = {there}
    monkeypatch.setattr(module, "REVISIT_MS", 3_600_000)
    peers = [Peer("at-1", *there), Peer("at-2", *late), Peer("at-3", *gone)]
    async with meeting(pool, remembered=peers):
        await until(lambda: pool.calls.count(late) >= 3)
        assert pool.calls.count(there) == 1, "it is a member"
        pool.answering.add(late)
        await until(lambda: pool.find("at-2") is not None)
        calls = pool.calls.count(late)
        await until(lambda: pool.calls.count(gone) >= 6)
        assert pool.calls.count(late) == calls


async def test_another_who_answers_where_somebody_was_is_called_once() -> None:
    """The port of one remembered is another's now: he has been met, under whatever name."""
    pool = Pool()
    pool.present = [member("b")]
    taken, gone = ("10.0.0.1", 1), ("10.0.0.2", 2)
    pool.answering = {taken}
    async with meeting(pool, remembered=[Peer("x", *taken), Peer("y", *gone)]):
        await until(lambda: pool.calls.count(gone) >= 3)
    assert pool.calls.count(taken) == 1


async def test_a_seed_that_was_late_is_called_soon_by_those_that_met_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three agents of whom the first, which knows nobody, comes last: the others have met by then, and are no
    longer alone. It must not wait for the minute in which they look whether their pool is divided."""
    pool = Pool()
    pool.present = [member("b")]
    late, there = ("10.0.0.1", 1), ("10.0.0.2", 2)
    pool.answering = {there}
    monkeypatch.setattr(module, "REVISIT_MS", 3_600_000)
    async with meeting(pool, seeds=[late, there]):
        await until(lambda: pool.calls.count(late) >= 3)
        assert pool.calls.count(there) == 1, "it answered, and is looked at again in an hour"
        pool.answering.add(late)
        await until(lambda: pool.find("at-1") is not None)


async def test_a_restarted_agent_calls_whom_it_remembers() -> None:
    """Without a seed: some of them each time, another choice each time, until one answers."""
    pool = Pool()
    remembered = [Peer(f"p{number}", "10.0.0.1", number) for number in range(1, 60)]
    pool.answering = {("10.0.0.1", 59)}
    async with meeting(pool, remembered=remembered):
        await until(lambda: bool(pool.present))
    assert len(pool.calls[: module.REMEMBERED_A_ROUND]) == module.REMEMBERED_A_ROUND


async def test_who_is_remembered() -> None:
    """Ours first, the living before the failed, then the Serf agents of the pool; nobody who left, not
    ourselves; only when something has changed, and never an empty list over a full one."""
    pool = Pool()
    serf = member("serf")
    pool.strangers = [serf]
    pool.present = [
        serf,
        member("left", "left"),
        member("dead", "failed"),
        member("b"),
        member("a"),
        member("s", "suspect"),
    ]
    async with meeting(pool) as (_, kept):
        await until(lambda: bool(kept))
        assert [peer.name for peer in kept[0].peers] == ["b", "s", "dead", "serf"]
        assert kept[0].clocks == Clocks(7, 3, 2)
        await asyncio.sleep(0.05)
        assert len(kept) == 1
        pool.present = []
        await asyncio.sleep(0.05)
        assert len(kept) == 1
        pool.present = [member("b")]
        await until(lambda: len(kept) == 2)


async def test_the_snapshot_in_the_data_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Replaced whole; none is no fault; a damaged one is one warning and ignored, as is one of any size."""
    disk, directory = ThreadDisk(), str(tmp_path)
    assert await load_snapshot(disk, directory) == Snapshot()
    assert not caplog.records
    for peers in ((Peer("b", "127.0.0.1", 7946), Peer("c", "::1", 1)), (Peer("d", "10.0.0.1", 65_535),)):
        snapshot = Snapshot(peers, Clocks(1, 2, 3))
        await save_snapshot(disk, directory, snapshot)
        assert await load_snapshot(disk, directory) == snapshot
    path = tmp_path / FILE_NAME
    for data in (b"\xff\xff\nx\n", path.read_bytes()[:-1], b"", bytes(10_000_000)):
        caplog.clear()
        path.write_bytes(data)
        assert await load_snapshot(disk, directory) == Snapshot()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert FILE_NAME in caplog.text
    await disk.close()


async def test_a_disk_that_refuses_the_snapshot_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing else happens: it is a hint."""
    pool = Pool()
    pool.present = [member("b")]

    async def refuse(_: Snapshot) -> None:
        raise OSError(28, "No space left on device")

    async with meeting(pool, remember=refuse):
        await until(lambda: "cannot save" in caplog.text)
        await asyncio.sleep(0.02)
    assert caplog.text.count("cannot save") == 1


def test_a_found_agent_that_is_a_member_is_not_called() -> None:
    """Only one that is missing, failed or gone."""
    pool = Pool()
    pool.present = [member("b"), member("c", "failed")]
    made = PoolContact(
        agent_id="a",
        cluster="fish",
        seeds=[],
        remembered=[],
        roster=cast("Any", pool),
        rng=random.Random(1),
        join=pool.join,
        clocks=Clocks,
        remember=SimpleNamespace(),  # type: ignore[arg-type]
    )
    assert [made._is_missing(Found(name, "fish", "h", 1)) for name in "abcd"] == [False, False, True, True]
