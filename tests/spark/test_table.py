"""The rows of a table as Spark's tasks read them: each partition at one cut, however it changes meanwhile."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from blocking_fixtures import cluster_on_thread
from fake_cluster import FakeCluster, refuse, reset_before_storing
from fake_table_routes import FakeTables

import shoal.spark.read.table
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import TABLE_COLUMNS, parse_table_options
from shoal.spark.options.write_options import parse_sink_options
from shoal.spark.read.table import TablePartitionReader, TableTask


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two agents on a thread of their own, with tables."""
    with cluster_on_thread(2, FakeTables) as fake:
        yield fake


@pytest.fixture
def tables(cluster: FakeCluster) -> FakeTables:
    """The cluster's tables; `t` has two partitions."""
    found: FakeTables = cluster.more_routes[0].__self__  # type: ignore[attr-defined]
    found.create("t", 2)
    return found


def read(tables: FakeTables, partition: int, **changes: object) -> list[pa.RecordBatch]:
    """A task's rows, without real pauses; pickled first, as Spark does."""
    urls = tuple(tables.cluster.urls)
    task = TableTask("t", partition, urls[partition:] + urls[:partition], urls, **changes)  # type: ignore[arg-type]
    return list(TablePartitionReader(pickle.loads(pickle.dumps(task)), lambda seconds: None).batches())


def rows(batches: list[pa.RecordBatch]) -> dict[bytes, tuple[bytes, int]]:
    """Key to value and offset; no key twice."""
    found = [row for batch in batches for row in batch.to_pylist()]
    by_key = {row["key"]: (row["value"], row["offset"]) for row in found}
    assert len(by_key) == len(found), "a row came twice"
    return by_key


def expected(tables: FakeTables, partition: int, prefix: bytes = b"") -> dict[bytes, tuple[bytes, int]]:
    return {
        key: (row.value, row.offset)
        for key, row in tables.rows("t", partition).items()
        if key.startswith(prefix)
    }


def test_a_quiet_partition_is_read_in_pages_from_its_leader(tables: FakeTables) -> None:
    """In the order of the keys, with the columns that the schema names; the log is not read."""
    for number in range(50):
        tables.put("t", b"k%02d" % number, b"v")
    tables.put("t", b"k03", None)
    batches = read(tables, 1, page_rows=4)
    assert all(batch.schema.names == list(TABLE_COLUMNS) for batch in batches)
    assert rows(batches) == expected(tables, 1)
    assert list(rows(batches)) == sorted(rows(batches))
    assert all("forward=false" in path for path in tables.asked)
    assert not any("/records" in path for path in tables.cluster.requests)
    assert rows(read(tables, 0, prefix=b"k1", page_rows=4)) == expected(tables, 0, b"k1")


def test_an_empty_partition_has_no_rows(tables: FakeTables) -> None:
    """One page, without rows."""
    assert rows(read(tables, 0)) == {}


@pytest.mark.parametrize("spooled", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_a_partition_that_changes_is_read_at_the_cut_of_its_last_page(
    tables: FakeTables, monkeypatch: pytest.MonkeyPatch, seed: int, spooled: int
) -> None:
    """Rows put, replaced and deleted on both sides of every page: all as they were at one moment."""
    monkeypatch.setattr(shoal.spark.read.table, "SPOOLED_BYTES_MAX", spooled)
    rng = random.Random(seed)
    keys = [b"k%02d" % number for number in range(40)]
    for key in keys[::2]:
        tables.put("t", key, b"first")
    at_cut: list[dict[bytes, tuple[bytes, int]]] = []

    def change() -> None:
        at_cut.append(expected(tables, 0, b"k"))
        for _ in range(rng.randrange(8)):
            tables.put("t", rng.choice([*keys, b"other"]), rng.choice([None, b"%d" % rng.randrange(1_000)]))

    tables.on_page = change
    found = rows(read(tables, 0, page_rows=3, prefix=b"k"))
    assert found == at_cut[-1]
    assert len(at_cut) > 2


def test_a_partition_is_followed_when_it_moves(tables: FakeTables) -> None:
    """A refusal names the leader; a broken connection is tried again."""
    for number in range(20):
        tables.put("t", b"k%02d" % number, b"v")
    tables.read_faults.extend([reset_before_storing, refuse("no-leader")])
    tables.cluster.topics["t"].partitions[0].leader = 1
    assert rows(read(tables, 0, page_rows=4)) == expected(tables, 0)


def test_faults_are_one_line(tables: FakeTables) -> None:
    """A log is no table; a history that is too short is named."""
    tables.names.clear()
    with pytest.raises(SourceError, match=r"says 409 wrong-kind: .* no table$"):
        read(tables, 0)
    tables.names.add("t")
    for number in range(20):
        tables.put("t", b"k%02d" % number, b"v")

    def trim() -> None:
        tables.put("t", b"k01", b"w")
        tables.cluster.topics["t"].start = max(log.end for log in tables.cluster.topics["t"].partitions)

    tables.on_page = trim
    with pytest.raises(SourceError, match=r"retention\.age may be too short") as caught:
        read(tables, tables.rows("t")[b"k01"].partition, page_rows=2)
    assert "\n" not in str(caught.value)


def test_options_of_a_table() -> None:
    """One table, perhaps a prefix; nothing of logs, no streams, and writes go by topic."""
    options = parse_table_options({"table": "t", "PREFIX": "é", "agent": "h:1"}, {}, Mode.BATCH)
    assert (options.table, options.prefix, options.agents) == ("t", "é".encode(), ("http://h:1",))
    with pytest.raises(SourceError, match=r'by spark\.read; its changes .*"subscribe", "TABLE"'):
        parse_table_options({"table": "t"}, {}, Mode.STREAM)
    with pytest.raises(SourceError, match=r"table and startingOffsets exclude each other"):
        parse_table_options({"table": "t", "startingOffsets": "latest"}, {}, Mode.BATCH)
    with pytest.raises(SourceError, match=r"is no topic's name"):
        parse_table_options({"table": "a/b"}, {}, Mode.BATCH)
    with pytest.raises(SourceError, match=r"unknown option 'prefx'; did you mean prefix"):
        parse_table_options({"table": "t", "prefx": "a"}, {}, Mode.BATCH)
    with pytest.raises(SourceError, match=r'"topic", "TABLE"'):
        parse_sink_options({"table": "t"}, {})
