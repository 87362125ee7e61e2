"""Watches of tables before a made-up cluster: contents, then every change, over pages and leaders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from fake_cluster import FakeCluster
from fake_table_routes import FakeTables

from shoal import AsyncClient, ClientConfig, RetryPolicy, ShoalError, TableChange, TableChangeKind
from shoal.client.tables.scan import TablePage
from shoal.client.tables.watch import AsyncTableWatch, SeenCuts

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000)
ROW, CURRENT, PUT, DELETE = TableChangeKind


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents, with tables."""
    fake = FakeCluster(3)
    fake.tables = FakeTables(fake)  # type: ignore[attr-defined]
    async with fake:
        yield fake


@pytest.fixture
def tables(cluster: FakeCluster) -> FakeTables:
    """The cluster's tables; `t` has two partitions."""
    found: FakeTables = cluster.tables  # type: ignore[attr-defined]
    found.create("t", 2)
    return found


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    """A client that knows one agent."""
    async with AsyncClient(cluster.urls[:1], QUICK) as client:
        yield client


async def told(watch: AsyncTableWatch, count: int) -> list[TableChange]:
    """So many changes."""
    async with asyncio.timeout(30):
        return [await anext(watch) for _ in range(count)]


def short(changes: list[TableChange]) -> list[tuple[TableChangeKind, bytes, bytes | None]]:
    return [change[:3] for change in changes]


async def test_contents_then_the_word_current_then_changes(tables: FakeTables, client: AsyncClient) -> None:
    """Rows by key, and each change as it is committed; a deletion has no value."""
    tables.put("t", b"b", b"old")
    tables.put("t", b"b", b"1")
    tables.put("t", b"a", b"{}")
    async with client.table("t").watch() as watch:
        assert watch.positions() is None
        first = await told(watch, 3)
        assert short(first) == [(ROW, b"a", b"{}"), (ROW, b"b", b"1"), (CURRENT, b"", None)]
        assert first[0].json() == {}
        tables.put("t", b"b", b"2")
        assert short(await told(watch, 1)) == [(PUT, b"b", b"2")]
        tables.put("t", b"b", None)
        (gone,) = await told(watch, 1)
        assert (gone.kind, gone.key, gone.json()) == (DELETE, b"b", None)


async def test_an_empty_table_is_current_at_once(tables: FakeTables, client: AsyncClient) -> None:
    """Nobody waits for a first row to hear that there is none."""
    watch = client.table("t").watch()
    assert short(await told(watch, 1)) == [(CURRENT, b"", None)]


async def test_a_prefix_bounds_rows_and_changes(tables: FakeTables, client: AsyncClient) -> None:
    """Other keys are not told."""
    for key in (b"x/1", b"y/1", b"x/2"):
        tables.put("t", key, b"v")
    watch = client.table("t").watch("x/")
    assert [change.key for change in await told(watch, 3)] == [b"x/1", b"x/2", b""]
    tables.put("t", b"y/2", b"v")
    tables.put("t", b"x/3", b"v")
    assert short(await told(watch, 1)) == [(PUT, b"x/3", b"v")]


@pytest.mark.parametrize("seed", range(4))
async def test_changes_between_pages_are_told_once_and_in_order(
    tables: FakeTables, client: AsyncClient, seed: int
) -> None:
    """At the word `current`, and after each change, the told rows are those of the table at some moment;
    no key goes back to an older value."""
    rng = random.Random(seed)
    tables.page_rows = 3
    keys = [b"k%02d" % number for number in range(20)]
    for key in keys[::2]:
        tables.put("t", key, b"first")

    def change() -> None:
        for _ in range(rng.randrange(6)):
            tables.put("t", rng.choice(keys), rng.choice([None, b"%d" % rng.randrange(1_000)]))

    tables.on_page = change
    watch = client.table("t").watch()
    copy: dict[bytes, bytes] = {}
    newest: dict[bytes, int] = {}
    current = 0
    async with asyncio.timeout(60):
        async for step in watch:
            if step.kind is CURRENT:
                current += 1
                for key in rng.sample(keys, 5):
                    tables.put("t", key, rng.choice([None, b"last"]))
                tables.put("t", b"end", b"end")
                continue
            assert step.offset > newest.get(step.key, -1), "told again, or out of order"
            newest[step.key] = step.offset
            copy.pop(step.key, None)
            if step.value is not None:
                copy[step.key] = step.value
            if step.key == b"end":
                break
        while copy != {key: row.value for key, row in tables.rows("t").items()}:
            step = await anext(watch)
            copy.pop(step.key, None)
            if step.value is not None:
                copy[step.key] = step.value
    assert current == 1


async def test_a_watch_goes_on_over_leaders_and_from_positions(
    cluster: FakeCluster, tables: FakeTables, client: AsyncClient
) -> None:
    """When a leader dies nothing is told twice; a later watch begins where this one was."""
    tables.put("t", b"a", b"1")
    watch = client.table("t").watch()
    await told(watch, 2)
    await cluster.kill(cluster.topics["t"].partitions[0].leader)
    for number in range(20):
        tables.put("t", b"k%d" % number, b"v")
    assert len({change.key for change in await told(watch, 20)}) == 20
    positions = watch.positions()
    assert positions == {number: log.end for number, log in enumerate(cluster.topics["t"].partitions)}
    await watch.close()
    tables.put("t", b"later", b"v")
    later = client.table("t").watch(start=positions)
    assert short(await told(later, 1)) == [(PUT, b"later", b"v")]


async def test_a_watch_that_fell_behind_the_log_says_so(tables: FakeTables, client: AsyncClient) -> None:
    """The table must be read anew: changes are missing."""
    for number in range(10):
        tables.put("t", b"k%d" % number, b"v")
    tables.cluster.topics["t"].start = 2
    watch = client.table("t").watch(start={0: 0, 1: 0})
    with pytest.raises(ShoalError) as caught:
        await told(watch, 1)
    assert caught.value.code == "trimmed"


async def test_a_closed_watch_ends(tables: FakeTables, client: AsyncClient) -> None:
    """Its loop ends, also when the client has closed it."""
    watch = client.table("t").watch()
    await told(watch, 1)
    tables.put("t", b"k", b"v")
    await client.close()
    assert [change async for change in watch] == []
    assert "closed" in repr(watch)


def test_pages_of_one_cut_count_as_one() -> None:
    """A watch of a quiet table remembers a single cut, however many pages its contents had."""
    seen = SeenCuts()
    for last_key, end in ((b"c", 5), (b"f", 5), (b"k", 9), (None, 9)):
        seen.add(TablePage(None, {0: end}, last_key))
    assert repr(seen.start) == "{0: 5}"
    assert seen.end == {0: 9}
    assert len(seen._cuts) == 2
    assert seen.has_seen(0, b"f", 4)
    assert not seen.has_seen(0, b"f", 5), "the page had not seen it"
    assert seen.has_seen(0, b"g", 8)
    assert not seen.has_seen(0, b"z", 9)
