"""Tables as a mapping, before a made-up cluster: which agent is asked, what is stored, and how often."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from fake_cluster import FakeCluster, refuse, reset_after_storing, reset_before_storing
from fake_table_routes import FakeTables

from shoal import AsyncClient, ClientConfig, RetryPolicy, ShoalError
from shoal.client.tables.entries import bytes_parameter, cut_of, row_place, table_path

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000)
ODD_KEYS = (
    b"a/b/c",
    b"..",
    b".",
    b"a/../b",
    b"/",
    b"//x//",
    b"100%",
    b"%2F",
    b"%2e%2e",
    b"a b+c?d#e",
    b"\x00\xff\x80",
    "Zürich".encode(),
    b"k" * 7_900,
    b"\xff" * 1_900,
)
"""Keys that a path, a proxy or a decoder might make another one of."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents, with tables."""
    fake = FakeCluster(3)
    fake.tables = FakeTables(fake)  # type: ignore[attr-defined]
    async with fake:
        yield fake


@pytest.fixture
def tables(cluster: FakeCluster) -> FakeTables:
    """The cluster's tables; `t` has four partitions."""
    found: FakeTables = cluster.tables  # type: ignore[attr-defined]
    found.create("t", 4)
    return found


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    """A client that knows one agent."""
    async with AsyncClient(cluster.urls[:1], QUICK) as client:
        yield client


def count(tables: FakeTables) -> int:
    """The records of table t."""
    return sum(log.end for log in tables.cluster.topics["t"].partitions)


async def test_rows_are_put_read_replaced_and_deleted(tables: FakeTables, client: AsyncClient) -> None:
    """A row is the newest record of its key, and its ETag that record's offset."""
    table = client.table("t")
    assert await table.get("ada") is None
    assert await table.get("ada", b"nobody") == b"nobody"
    assert not await table.contains("ada")
    etag = await table.put("ada", "Lovelace")
    entry = await table.entry(b"ada")
    assert entry is not None
    assert (entry.key, entry.value, entry.etag) == (b"ada", b"Lovelace", etag)
    assert entry.timestamp.tzinfo is not None
    await table.put_json("ada", {"born": 1815})
    assert await table.get_json("ada") == {"born": 1815}
    assert await table.delete("ada")
    assert await table.get_json("ada", 7) == 7
    assert await table.delete("ada"), "a row that is not there is no error"


async def test_an_empty_value_is_a_row(tables: FakeTables, client: AsyncClient) -> None:
    """Null deletes; an empty value does not."""
    table = client.table("t")
    await table.put("empty", b"")
    assert await table.get("empty") == b""
    assert await table.contains("empty")


@pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: repr(key)[:20])
async def test_every_key_arrives_as_it_is(tables: FakeTables, client: AsyncClient, key: bytes) -> None:
    """Slashes, dots, percent signs and NUL belong to the key."""
    table = client.table("t")
    await table.put(key, b"v")
    assert list(tables.rows("t")) == [key]
    assert await table.get(key) == b"v"
    assert [entry.key async for entry in table.entries(prefix=key[:3])] == [key]
    await table.delete(key)
    assert tables.rows("t") == {}


async def test_compare_and_set_takes_the_newest_version_only(tables: FakeTables, client: AsyncClient) -> None:
    """A refusal stores nothing, and is no error."""
    table = client.table("t")
    first = await table.compare_and_set("k", b"1", expected=None)
    assert first is not None
    assert await table.compare_and_set("k", b"x", expected=None) is None
    second = await table.compare_and_set("k", b"2", expected=first)
    assert second is not None
    assert await table.compare_and_set("k", b"x", expected=first) is None
    assert not await table.delete("k", expected=first)
    assert await table.get("k") == b"2"
    assert await table.delete("k", expected=second)
    assert await table.get("k") is None
    assert count(tables) == 3


async def test_remove_is_for_rows_that_are_there(tables: FakeTables, client: AsyncClient) -> None:
    """`del table[key]` of a mapping."""
    table = client.table("t")
    with pytest.raises(KeyError):
        await table.remove("k")
    await table.put("k", b"v")
    await table.remove("k")
    assert tables.rows("t") == {}
    assert count(tables) == 2


async def test_requests_go_straight_to_leaders_and_follow_them(
    cluster: FakeCluster, tables: FakeTables, client: AsyncClient
) -> None:
    """A partition that moves costs one refusal; an agent that dies costs a retry, and nothing is lost."""
    table = client.table("t")
    for number in range(40):
        await table.put(f"k{number}", b"%d" % number)
    assert client.retries == 0
    for partition in range(4):
        await cluster.move("t", partition, 2)
    for number in range(40):
        await table.put(f"k{number}", b"%d again" % number)
    assert client.retries <= 4
    await cluster.kill(2)
    assert [await table.get(f"k{number}") for number in range(40)] == [
        b"%d again" % number for number in range(40)
    ]


@pytest.mark.parametrize(
    "fault", [reset_after_storing, reset_before_storing, refuse("timeout"), refuse("no-leader")]
)
@pytest.mark.parametrize("expects", [False, True])
async def test_a_write_whose_answer_is_lost_is_stored_once(
    tables: FakeTables, client: AsyncClient, fault: object, expects: bool
) -> None:
    """Repeated, it is told what its first attempt did: a compare and set that won is not told that it lost.
    The write after it is stored, too."""
    table = client.table("t")
    await table.put("k", b"0")
    tables.write_faults.append(fault)  # type: ignore[arg-type]
    if expects:
        entry = await table.entry("k")
        assert entry is not None
        etag = await table.compare_and_set("k", b"1", expected=entry.etag)
        assert etag is not None
    else:
        etag = await table.put("k", b"1")
    assert tables.rows("t")[b"k"][1] == etag
    assert count(tables) == 2
    await table.put("k", b"2")
    assert await table.get("k") == b"2"


async def test_a_refused_condition_leaves_the_producer_in_order(
    tables: FakeTables, client: AsyncClient
) -> None:
    """It takes no sequence, so the next write follows the last one that was stored."""
    table = client.table("t")
    await table.put("k", b"0")
    for _ in range(5):
        assert await table.compare_and_set("k", b"x", expected=99) is None
        await table.put("k", b"1")
    producers = tables.cluster.topics["t"].partitions[tables.rows("t")[b"k"].partition].producers
    assert len(producers) == 1, "one write after the other needs one producer"


async def test_writes_at_the_same_time_have_producers_of_their_own(
    tables: FakeTables, client: AsyncClient
) -> None:
    """Each is stored once, whatever the others meet."""
    table = client.table("t")
    faults = itertools.cycle([reset_after_storing, refuse("no-leader"), reset_before_storing])
    tables.write_faults.extend(fault for _, fault in zip(range(30), faults, strict=False))
    await asyncio.gather(*(table.put(f"k{number}", b"%d" % number) for number in range(100)))
    assert len(tables.rows("t")) == count(tables) == 100


async def test_local_reads_ask_the_nearest_replica(
    cluster: FakeCluster, tables: FakeTables, client: AsyncClient
) -> None:
    """An absent key is its answer, too: nobody else is asked."""
    cluster.slow_agents = {0: 0.05, 1: 0.05}
    for partition in range(4):
        await cluster.move("t", partition, 0)
    table = client.table("t", local=True)
    await table.put("k", b"v")
    assert await table.get("k") == b"v"
    assert await table.get("absent") is None
    assert await table.get("k") == b"v"
    assert cluster.local_reads == {2: 3}


async def test_rows_come_in_the_order_of_their_keys(tables: FakeTables, client: AsyncClient) -> None:
    """From all partitions, page by page, each once."""
    tables.page_rows = 7
    table = client.table("t")
    keys = sorted(f"k{number}".encode() for number in range(40))
    for key in keys:
        tables.put("t", key, b"of " + key)
    tables.put("t", b"other", b"x")
    tables.put("t", b"gone", b"x")
    tables.put("t", b"gone", None)
    assert [key async for key in table.keys("k")] == keys
    assert [item async for item in table.items("k1")] == [
        (key, b"of " + key) for key in keys if key[:2] == b"k1"
    ]
    assert [entry.key async for entry in table.entries(after="k35")] == [
        *keys[keys.index(b"k35") + 1 :],
        b"other",
    ]
    assert [key async for key in table.keys("nothing")] == []


async def test_faults_have_their_codes(cluster: FakeCluster, tables: FakeTables, client: AsyncClient) -> None:
    """A log is no table; bad arguments ask nobody."""
    cluster.create("log")
    for call in (client.table("log").get("k"), client.table("log").put("k", b"v")):
        with pytest.raises(ShoalError) as caught:
            await call
        assert caught.value.code == "wrong-kind"
    with pytest.raises(ShoalError) as caught:
        await client.table("nowhere").get("k")
    assert caught.value.code == "unknown-topic"
    asked = len(tables.asked)
    for call in (
        client.table("t").compare_and_set("k", b"v", expected=-1),
        client.table("t").compare_and_set("k", b"v", expected="1"),  # type: ignore[arg-type]
        client.table("t").put("k", None),  # type: ignore[arg-type]
        client.table("t").put_json("k", object()),
        client.table("t").put(b"k" * (1 << 20), b"v"),
    ):
        with pytest.raises(ShoalError) as caught:
            await call
        assert caught.value.code in ("bad-request", "too-large")
        assert "or None, not None" not in caught.value.detail
    assert len(tables.asked) == asked


def test_texts_of_keys_and_cuts() -> None:
    """Plain keys stand in the path; a cut of many partitions has a compact form."""
    assert row_place("t", b"users/ada.1") == ("/v1/tables/t/users/ada.1", {})
    assert row_place("t", b"") == ("/v1/tables/t", {"key_base64": ""})
    assert row_place("t", b"a//b")[1] == {"key_base64": "YS8vYg=="}
    assert bytes_parameter("after", b"\xff") == {"after_base64": "/w=="}
    assert table_path("a b") == "/v1/tables/a%20b"
    assert cut_of({"Shoal-As-Of": "0:17,2:9"}) == {0: 17, 2: 9}
    assert cut_of({"Shoal-As-Of": "pAQAAAAAAAAAHCwAD"}) == {0: 17, 2: 9}
    for text in ("", "x", "0:", "p", "pAA"):
        with pytest.raises(ShoalError, match="no cut"):
            cut_of({"Shoal-As-Of": text})
    with pytest.raises(ShoalError, match="illegal-name"):
        table_path("..")
