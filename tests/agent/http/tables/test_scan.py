"""Scans of tables over HTTP: any number of partitions as one sequence of keys, page by page, in any form."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from http_fixtures import ARROW, NDJSON, Agent, one_agent, two_agents, until_free
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.http.tables.scan import OFFLOADED_ROWS, merge
from shoal.agent.interface import ScanPage, Submission
from shoal.agent.table import NO_CONDITION
from shoal.format.batch import DEFAULT_SCHEMA, Offset
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for
from shoal.format.records import RecordColumns, columns_to_batch

ROWS_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), False),
        pa.field("append_time", pa.timestamp("us", "UTC"), False),
        *DEFAULT_SCHEMA,
    ]
)


async def filled(agent: Agent, rows: dict[bytes, bytes | None], partitions: int, leader: str) -> None:
    """A table `t` with these, written at its leader."""
    cluster = agent.broker.cluster
    topic = cluster.create("t", partitions, leader=leader, kind="table")
    for key, value in rows.items():
        submission = Submission.of(RecordColumns([5], [key], [value], [None]), timeout_ms=1_000)
        partition = partition_for(key_hash(key), topic.ranges)
        await cluster.brokers[leader].put_row(topic, partition, submission, NO_CONDITION, 1_000)


async def all_pages(agent: Agent, limit: int, query: str = "") -> tuple[list[Any], int]:
    """Every row's JSON, by pages; and how many these were."""
    found: list[Any] = []
    pages, after = 0, ""
    while True:
        answer = await agent.get(f"/v1/tables/t?limit={limit}{query}{after}")
        assert answer.status == 200, answer.body
        document = answer.json
        assert len(document["rows"]) <= limit
        assert answer.headers["Shoal-As-Of"] == document["as_of"]
        assert answer.headers["Shoal-Is-Last"] == json.dumps(document["is_last"])
        found += document["rows"]
        pages += 1
        if document["is_last"]:
            return found, pages
        last = document["rows"][-1]
        key = last["key"].encode() if "key" in last else None
        code = b64encode(key).decode() if key is not None else last["key_base64"]
        after = f"&after_base64={quote(code)}"


@pytest.mark.parametrize("partitions", [1, 3, 20])
async def test_all_rows_in_the_order_of_their_keys_at_any_agent(partitions: int) -> None:
    """Whoever leads, by pages of any size, each row once, deleted ones not."""
    rows: dict[bytes, bytes | None] = {b"k%d" % number: b"v%d" % number for number in range(90)}
    rows |= {b"k%d" % number: None for number in range(0, 90, 7)}
    rows |= {b"\xff\xfe": b"bytes", b"a/b": b"slash", b"\0": b""}
    kept = sorted(key for key, value in rows.items() if value is not None)
    async with two_agents() as (first, second):
        await filled(first, rows, partitions, second.broker.agent_id)
        first.broker.cluster.leaders["t", 0] = first.broker.agent_id
        for agent in (first, second):
            for limit in (1, 7, 10_000):
                found, pages = await all_pages(agent, limit)
                told = [row.get("key", "").encode() or row.get("key_base64") for row in found]
                assert told == [b64encode(k).decode() if k == b"\xff\xfe" else k for k in kept]
                assert pages <= 2 * len(kept) // limit + 2
            assert {row["key"]: row["value"] for row in found if "key" in row}["k1"] == "v1"
            ends = [first.broker.cluster.logs["t", number].end for number in range(partitions)]
            cut = ",".join(f"{number}:{end}" for number, end in enumerate(ends))
            assert (await agent.get("/v1/tables/t")).headers["Shoal-As-Of"] == cut
        await until_free(first, second)


async def test_every_form_has_the_same_rows() -> None:
    """JSON, lines, values alone, Arrow with partition and offset; an empty table too."""
    async with two_agents() as (first, second):
        rows: dict[bytes, bytes | None] = {b"k%d" % number: b'{"n":%d}' % number for number in range(30)}
        await filled(first, rows, 3, second.broker.agent_id)
        first.broker.cluster.create("empty", 2, kind="table")
        expected = (await second.get("/v1/tables/t")).json["rows"]
        assert [row["key"].encode() for row in expected] == sorted(rows)
        lines = await first.get("/v1/tables/t", Accept=NDJSON)
        assert [json.loads(line) for line in lines.body.splitlines()] == expected
        values = await first.get("/v1/tables/t?view=value")
        assert values.body.decode().splitlines() == [row["value"] for row in expected]
        embedded = (await first.get("/v1/tables/t?value=json")).json["rows"]
        assert [row["value"] for row in embedded] == [json.loads(row["value"]) for row in expected]
        for agent in (first, second):
            answer = await agent.get("/v1/tables/t", Accept=ARROW)
            table = pa.ipc.open_stream(answer.body).read_all()
            assert table.schema.names[:3] == ["partition", "offset", "append_time"]
            for name in ("partition", "offset"):
                assert table.column(name).to_pylist() == [row[name] for row in expected]
            assert table.column("key").to_pylist() == sorted(rows)
            assert table.column("value").to_pylist() == [row["value"].encode() for row in expected]
            nothing = await agent.get("/v1/tables/empty", Accept=ARROW)
            assert pa.ipc.open_stream(nothing.body).read_all().num_rows == 0
            assert (await agent.get("/v1/tables/empty")).json == {
                "topic": "empty", "rows": [], "as_of": "0:0,1:0", "is_last": True
            }  # fmt: skip


async def test_parts_of_a_table() -> None:
    """By prefix, behind a key, of one partition; with odd bytes as base64."""
    keys_of_all = (b"a", b"a/1", b"a/2", b"a+", b"b", b"\xff", b"\xff\x01", b"a\0")
    rows: dict[bytes, bytes | None] = dict.fromkeys(keys_of_all, b"v")
    async with two_agents() as (first, second):
        await filled(first, rows, 3, second.broker.agent_id)

        async def keys(query: str) -> list[bytes]:
            answer = await first.get(f"/v1/tables/t?{query}", Accept=ARROW)
            assert answer.status == 200, answer.body
            found: list[bytes] = pa.ipc.open_stream(answer.body).read_all().column("key").to_pylist()
            return found

        assert await keys("prefix=a/") == [b"a/1", b"a/2"]
        assert await keys("prefix=a%2B") == [b"a+"]
        assert await keys("prefix=") == sorted(rows)
        assert await keys("prefix_base64=/w==") == [b"\xff", b"\xff\x01"]
        assert await keys("prefix_base64=_w==&after_base64=_w==") == [b"\xff\x01"]
        assert await keys("after=a/1") == [b"a/2", b"b", b"\xff", b"\xff\x01"]
        assert await keys("prefix=a&after=a%00&limit=2") == [b"a+", b"a/1"]
        of_parts = [await keys(f"partition={number}") for number in range(3)]
        assert sorted(itertools.chain(*of_parts)) == sorted(rows)
        for number, found in enumerate(of_parts):
            assert all(partition_for(key_hash(key), hash_ranges(3)) == number for key in found)


async def test_pages_are_bounded_in_bytes() -> None:
    """A page has one row at least, and about as much as was asked for."""
    rows: dict[bytes, bytes | None] = {
        b"k%02d" % number: bytes([65 + number]) * 40_000 for number in range(20)
    }
    async with two_agents() as (first, second):
        await filled(first, rows, 2, second.broker.agent_id)
        answer = await first.get("/v1/tables/t?max_bytes=1")
        assert len(answer.json["rows"]) >= 1
        assert not answer.json["is_last"]
        answer = await first.get("/v1/tables/t?max_bytes=200000")
        assert 1 < len(answer.json["rows"]) < 8
        assert len((await all_pages(first, 100, "&max_bytes=200000"))[0]) == 20
        await until_free(first, second)


async def test_a_local_scan_is_of_what_this_replica_knows() -> None:
    """At its own cut; who wants the leader's rows is told where it is."""
    async with two_agents() as (first, second):
        await filled(first, {b"a": b"1", b"b": b"2"}, 1, second.broker.agent_id)
        first.broker.known_end = 1
        local = (await first.get("/v1/tables/t?consistency=local&forward=false")).json
        assert ([row["key"] for row in local["rows"]], local["as_of"]) == (["a"], "0:1")
        (await first.get("/v1/tables/t?forward=false")).problem("not-leader")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "bad-request"), ("limit=10001", "bad-request"), ("max_bytes=0", "bad-request"),
        ("partition=3", "unknown-partition"), ("partition=x", "bad-request"), ("partition=-1", "bad-request"),
        ("prefix=a&prefix_base64=YQ==", "bad-request"), ("after=a&after_base64=YQ==", "bad-request"),
        ("after_base64=Y", "bad-request"), ("prefix=%ff", "bad-request"), ("offset=1", "bad-request"),
        ("wait=1s", "bad-request"),
    ],
)  # fmt: skip
async def test_bad_scans(query: str, code: str) -> None:
    """Bounds, places and forms that no scan has."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t", 3, kind="table")
        (await agent.get(f"/v1/tables/t?{query}")).problem(code)


def page_of(keys: list[bytes], number: int, *, is_last: bool) -> ScanPage:
    rows = len(keys)
    columns = RecordColumns([0] * rows, list(keys), [b"%d" % number] * rows, [None] * rows)
    arrays = [
        pa.array(range(rows), pa.int64()),
        pa.array([0] * rows, ROWS_SCHEMA.field(1).type),
        *columns_to_batch(columns, 0).columns,
    ]
    return ScanPage(pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA), Offset(9), is_last)


@given(
    keys=st.sets(st.binary(min_size=1, max_size=2), max_size=40),
    shares=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    limit=st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_pages_of_partitions_make_no_row_behind_one_that_is_missing(
    keys: set[bytes], shares: list[int], limit: int
) -> None:
    """Merged pages are the first rows of all, and say truly whether these are all."""
    owned: list[list[bytes]] = [[] for _ in shares]
    for key in sorted(keys):
        owned[sum(key) % len(shares)].append(key)
    pages = {
        number: page_of(mine[:share], number, is_last=len(mine) <= share)
        for number, (mine, share) in enumerate(zip(owned, shares, strict=True))
    }
    merged = merge(pages, limit)
    schema = pa.schema([pa.field("partition", pa.int32(), False), *ROWS_SCHEMA])
    told = merged.batch(schema).column("key").to_pylist()
    assert told == sorted(keys)[: len(told)]
    assert merged.last_key == (told[-1] if told else None)
    assert merged.is_last == (len(told) == len(keys))
    assert len(told) >= min(limit, len(keys), min(shares))
    assert merged.batch(schema).column("partition").to_pylist() == merged.order


async def test_a_long_page_is_merged_aside() -> None:
    """In a thread, with the same result."""
    rows: dict[bytes, bytes | None] = {b"%06d" % number: b"v" for number in range(OFFLOADED_ROWS + 50)}
    async with one_agent() as agent:
        cluster = agent.broker.cluster
        topic = cluster.create("t", 2, kind="table")
        columns: dict[int, RecordColumns] = {0: RecordColumns(), 1: RecordColumns()}
        for key, value in rows.items():
            columns[partition_for(key_hash(key), topic.ranges)].append(0, key, value, None)
        for number, records in columns.items():
            await agent.broker.append(topic, number, Submission.of(records, timeout_ms=1_000))
        answer = await agent.get("/v1/tables/t?max_bytes=16000000", Accept=ARROW)
        assert pa.ipc.open_stream(answer.body).read_all().column("key").to_pylist() == sorted(rows)
        assert answer.headers["Shoal-Is-Last"] == "true"
