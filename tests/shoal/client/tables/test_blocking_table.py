"""The blocking client's tables: a mapping, and a watch that Ctrl-C loses nothing of."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from blocking_fixtures import QUICK, Interrupts, cluster_on_thread
from fake_cluster import FakeCluster
from fake_table_routes import FakeTables

from shoal import Client, Table, TableChangeKind


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three agents, on a thread of their own, with tables."""
    with cluster_on_thread(3, FakeTables) as fake:
        yield fake


@pytest.fixture
def tables(cluster: FakeCluster) -> FakeTables:
    """The cluster's tables; `t` has two partitions."""
    found: FakeTables = cluster.more_routes[0].__self__  # type: ignore[attr-defined]
    found.create("t", 2)
    return found


@pytest.fixture
def table(tables: FakeTables) -> Iterator[Table]:
    """Table t."""
    with Client(tables.cluster.urls[0], QUICK) as client:
        yield client.table("t")


def test_a_table_is_a_mapping(tables: FakeTables, table: Table) -> None:
    """[], []=, del, in, and loops over keys in their order."""
    table["b"] = b"2"
    table[b"a"] = "1"
    assert table["a"] == b"1"
    assert "a" in table
    assert "c" not in table
    assert list(table) == [b"a", b"b"]
    assert dict(table.items()) == {b"a": b"1", b"b": b"2"}
    assert list(table.keys("b")) == [b"b"]
    del table["a"]
    with pytest.raises(KeyError):
        table["a"]
    with pytest.raises(KeyError):
        del table["a"]
    assert table.get("a", b"none") == b"none"
    assert repr(table) == "<Table 't'>"


def test_the_number_of_rows_is_refused_with_a_reason(table: Table) -> None:
    """Nobody keeps it; an empty table is still a table."""
    with pytest.raises(TypeError, match="count them by sum"):
        len(table)
    assert table
    assert sum(1 for _ in table) == 0
    table["k"] = b"v"
    assert list(table) == [b"k"], "list() asks for the length first"


def test_a_counter_by_compare_and_set(table: Table) -> None:
    """The loop that users write."""
    for _ in range(5):
        while True:
            entry = table.entry("visits")
            number = 0 if entry is None else entry.json()
            if table.compare_and_set("visits", json.dumps(number + 1), entry and entry.etag) is not None:
                break
    assert table.get_json("visits") == 5
    entry = table.entry("visits")
    assert entry is not None
    assert not table.delete("visits", expected=entry.etag + 1)
    assert table.delete("visits", expected=entry.etag)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_watch_loses_nothing(tables: FakeTables, table: Table) -> None:
    """Ctrl-C between any two steps: the loop that follows goes on with the next change."""
    for number in range(200):
        tables.put("t", b"k%03d" % number, b"v")
    seen: list[bytes] = []
    watch = table.watch()
    with Interrupts(0.005) as interrupts:
        while len(seen) < 201:
            try:
                interrupts.arm()
                for change in watch:
                    seen.append(change.key)
                    if len(seen) == 201:
                        break
                interrupts.disarm()
            except KeyboardInterrupt:
                continue
    assert seen == [*(b"k%03d" % number for number in range(200)), b""]
    tables.put("t", b"later", b"v")
    with watch:
        for change in watch:
            assert (change.kind, change.key) == (TableChangeKind.PUT, b"later")
            break
    assert list(watch) == []
