"""Tables on the command line: values as they are on stdout, words on stderr, exit codes for scripts."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator

import pytest
from command_line import assert_one_line, finish, run, start
from fake_cluster import FakeCluster
from fake_table_routes import FakeTables


@pytest.fixture
async def tables() -> AsyncIterator[FakeTables]:
    """One agent with a table of two partitions, users."""
    cluster = FakeCluster(1)
    tables = FakeTables(cluster)
    async with cluster:
        tables.create("users", 2)
        yield tables


def url(tables: FakeTables) -> str:
    return tables.cluster.urls[0]


async def test_a_row_is_put_got_and_deleted(tables: FakeTables) -> None:
    """A value comes out byte by byte; commands whose output is piped say nothing; an absent key is 1."""
    agent = url(tables)
    absent = await run("table", "get", "users", "ada", agent=agent)
    assert_one_line(absent, "users has no row 'ada'", "shoal table scan users")
    assert absent.code == 1
    assert (await run("table", "put", "users", "ada", "Lovelace", agent=agent))[:] == (0, "", "")
    assert (await run("table", "get", "users", "ada", agent=agent)).stdout == "Lovelace"
    raw = b"\x01\n{}"
    assert (await run("table", "put", "users", "a/../b%2F", agent=agent, stdin=raw)).code == 0
    assert list(tables.rows("users")) == [b"a/../b%2F", b"ada"]
    assert (await run("table", "get", "users", "a/../b%2F", agent=agent)).stdout.encode() == raw
    assert (await run("table", "delete", "users", "ada", agent=agent))[:] == (0, "", "")
    assert (await run("table", "delete", "users", "ada", agent=agent)).code == 0
    assert list(tables.rows("users")) == [b"a/../b%2F"]


async def test_conditions_decide_and_say_so(tables: FakeTables) -> None:
    """--if-absent and --if-match: 1 where they do not hold, and nothing is stored."""
    agent = url(tables)
    made = await run("table", "put", "users", "ada", "1", "--if-absent", "--json", agent=agent)
    etag = json.loads(made.stdout)["etag"]
    assert (
        json.loads((await run("table", "get", "users", "ada", "--json", agent=agent)).stdout)["etag"] == etag
    )
    again = await run("table", "put", "users", "ada", "2", "--if-absent", agent=agent)
    assert_one_line(again, "there is a row already (precondition-failed)")
    stale = str(etag + 7)
    for words in (("put", "users", "ada", "2"), ("delete", "users", "ada")):
        refused = await run("table", *words, "--if-match", stale, agent=agent)
        assert_one_line(refused, f"its ETag is not {stale}")
        assert refused.code == 1
    assert tables.rows("users")[b"ada"].value == b"1"
    assert (await run("table", "put", "users", "ada", "2", "--if-match", str(etag), agent=agent)).code == 0
    both = await run("table", "put", "users", "ada", "3", "--if-match", "1", "--if-absent", agent=agent)
    assert both.code == 2


async def test_rows_are_scanned_as_columns_and_as_json(tables: FakeTables) -> None:
    """Aligned, by key, on one line each whatever the bytes; JSON is one object a line."""
    for number in range(5):
        tables.put("users", b"eu/%d" % number, b"v%d" % number)
    tables.put("users", b"us/1", b"a\nb\xff")
    agent = url(tables)
    shown = await run("table", "scan", "users", "--prefix", "eu/", "--limit", "3", agent=agent)
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "ETAG", "TIME"]
    assert [line.split()[:2] for line in lines[1:]] == [["eu/0", "v0"], ["eu/1", "v1"], ["eu/2", "v2"]]
    behind = await run("table", "scan", "users", "--after", "eu/3", agent=agent)
    assert [line.split()[:2] for line in behind.stdout.splitlines()[1:]] == [
        ["eu/4", "v4"],
        ["us/1", "a\\nb\\\\xff"],
    ]
    documents = [
        json.loads(line)
        for line in (await run("table", "scan", "users", "--json", agent=agent)).stdout.splitlines()
    ]
    assert [one.get("value") for one in documents] == ["v0", "v1", "v2", "v3", "v4", None]
    assert documents[-1]["value_base64"] == "YQpi/w=="
    assert (await run("table", "scan", "users", "--prefix", "x", agent=agent))[:] == (0, "", "")


async def test_a_long_table_says_that_there_is_more(tables: FakeTables) -> None:
    """A table for people ends after a thousand rows, and says how to go on."""
    for number in range(1_001):
        tables.put("users", b"%04d" % number, b"v")
    shown = await run("table", "scan", "users", agent=url(tables))
    assert len(shown.stdout.splitlines()) == 1_001
    assert shown.stderr == "more rows follow: --limit N, or --after 0999\n"


async def test_a_watch_shows_rows_and_changes_until_it_is_interrupted(tables: FakeTables) -> None:
    """Rows, `current`, then changes; Ctrl-C ends it well."""
    tables.put("users", b"ada", b"1")
    agent = url(tables)
    process = await start("table", "watch", "users", agent=agent)
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().split() == ["row", "ada", "1"]
    assert (await process.stdout.readline()).decode().split() == ["current"]
    tables.put("users", b"ada", None)
    assert (await process.stdout.readline()).decode().split() == ["delete", "ada"]
    process.send_signal(signal.SIGINT)
    out, err = await finish(process)
    assert (process.returncode, out, err) == (0, b"", b"")
    tables.put("users", b"bob", b"2")
    limited = await run("table", "watch", "users", "--json", "--limit", "1", agent=agent)
    (line,) = map(json.loads, limited.stdout.splitlines())
    assert (line["kind"], line["key"], line["value"]) == ("row", "bob", "2")


async def test_a_log_is_no_table(tables: FakeTables) -> None:
    """The line says what to do."""
    tables.cluster.create("log")
    assert_one_line(
        await run("table", "get", "log", "k", agent=url(tables)),
        "wrong-kind",
        "shoal topic create NAME --kind table",
    )
