"""What `shoal produce` makes records of and how `shoal consume` writes them, there and back again."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import pty
import sys
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from command_line import COMMAND_SECONDS, assert_one_line, finish, run, start
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.cli.records.produce_input import CARRIED_ON, is_consumed
from shoal.agent.cli.records.record_format import Template
from shoal.client.consume.record import Record
from shoal.client.produce.producer import batch_of
from shoal.errors import ShoalError
from shoal.format.record_text import render_ndjson
from shoal.format.records import RecordColumns, columns_to_batch, parse_json_lines


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One agent and a topic of one partition."""
    async with FakeCluster(1) as fake:
        fake.create("t")
        yield fake


def rows(cluster: FakeCluster, topic: str = "t") -> list[dict[str, Any]]:
    return [
        row for log in cluster.topics[topic].partitions for batch in log.batches for row in batch.to_pylist()
    ]


def brief(cluster: FakeCluster, topic: str = "t") -> list[tuple[Any, Any]]:
    return [(row["key"], row["value"]) for row in rows(cluster, topic)]


async def test_records_come_back_as_they_were(cluster: FakeCluster) -> None:
    """`consume --output json | produce`: keys, tombstones, headers, bytes and times."""
    made = batch_of([b"one", None, b"\xff\x00", b'{"a": 1}'], [b"k", b"gone", None, b"\xfe"])
    pairs = pa.array(
        [[{"key": "trace", "value": b"\xff"}, {"key": "n", "value": None}], None, [], None],
        made.schema.field("headers").type,
    )
    made = pa.RecordBatch.from_arrays(
        [made.column(0), made.column(1), made.column(2), pairs], schema=made.schema
    )
    cluster.topics["t"].partitions[0].append([made], None)
    out = await run("consume", "t", "--output", "json", agent=cluster.urls[0])
    back = await run("produce", "copy", agent=cluster.urls[0], stdin=b"\n" + out.stdout.encode())
    assert back.code == 0, back.stderr
    assert "records of `consume --output json`; --format text" in back.stderr
    plain = [row | {"headers": row["headers"] or None} for row in rows(cluster)]
    assert [row | {"headers": row["headers"] or None} for row in rows(cluster, "copy")] == plain


async def test_a_record_as_json_is_stored_as_a_line_on_request(cluster: FakeCluster) -> None:
    """--format text; beside options for plain lines it is refused, and nothing is stored."""
    line = b'{"partition":0,"offset":3,"timestamp":"2026-01-01T00:00:00Z","key":null,"value":"x"}'
    agent = cluster.urls[0]
    for options in (("-k", "ann"), ("--key-field", "value"), ("-H", "a=b"), ("--null", "x")):
        ran = await run("produce", "t", *options, agent=agent, stdin=line + b"\n")
        assert ran.code == 2
        assert (
            "a record of `consume --output json`, with its own key and headers; leave the options"
            in ran.stderr
        )
    assert brief(cluster) == []
    assert (await run("produce", "t", "--format", "text", agent=agent, stdin=line + b"\n")).code == 0
    assert brief(cluster) == [(None, line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b' {"offset":1,"timestamp":"t","key":null,"value":null,"headers":[]}', True),
        (b'{"topic":"a","partition":0,"offset":1,"timestamp":"t","key_base64":"","value_base64":""}', True),
        (b'{"offset":1,"timestamp":"t","value":1,"city":"Ulm"}', False),
        (b'{"offset":1,"value":1}', False),
        (b'{"offset":1,"timestamp":"t"}', False),
        (b'["offset"]', False),
        (b'{"offset"', False),
        (b'"offset"', False),
        (b"", False),
    ],
)
def test_a_record_of_consume_is_known_by_its_fields(line: bytes, expected: bool) -> None:
    """All that it must have, and none that it cannot have."""
    assert is_consumed(line) is expected


TEXTS = st.one_of(st.none(), st.binary(max_size=12))
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), TEXTS), max_size=3)


@given(st.lists(st.tuples(TEXTS, TEXTS, HEADERS, st.integers(0, 10**16)), min_size=1, max_size=5))
def test_every_record_survives_its_json(records: list[Any]) -> None:
    """Whatever bytes there are."""
    columns = RecordColumns()
    for key, value, headers, time_us in records:
        columns.append(time_us, key, value, headers)
    batch = columns_to_batch(columns, 0)
    lines = render_ndjson(batch, 17).splitlines()
    again = columns_to_batch(parse_json_lines(lines, CARRIED_ON, 0), 0)
    assert [row | {"headers": row["headers"] or []} for row in again.to_pylist()] == [
        row | {"headers": row["headers"] or []} for row in batch.to_pylist()
    ]


def test_lines_that_are_no_records_are_counted() -> None:
    """The place is that of the line; fields that nobody knows are refused."""
    for line, words in (
        (b"{", "is not JSON"),
        (b"7", "must be an object"),
        (b'{"valeu": 1}', "unknown field"),
    ):
        with pytest.raises(ShoalError, match=words) as error:
            parse_json_lines([b'{"value": 1, "offset": 3}', line], CARRIED_ON, 0)
        assert error.value.extra["record"] == 1


async def test_a_fault_in_json_is_told_by_its_line(cluster: FakeCluster) -> None:
    """What stands before it is sent."""
    lines = b'{"value": "good"}\n\n{"values": "bad"}\n'
    ran = await run("produce", "t", "--format", "json", agent=cluster.urls[0], stdin=lines)
    assert ran.code == 1
    assert "standard input:3: unknown field 'values'" in ran.stderr
    assert brief(cluster) == [(None, b"good")]


async def test_keys_and_headers_are_given(cluster: FakeCluster) -> None:
    """For all, or before a separator; a line without it is a fault with its place."""
    agent = cluster.urls[0]
    assert (
        await run(
            "produce", "t", "-k", "ann", "-H", "trace=af:31", "-H", "n: 2", agent=agent, stdin=b"a\nb\n"
        )
    ).code == 0
    assert brief(cluster) == [(b"ann", b"a"), (b"ann", b"b")]
    assert rows(cluster)[1]["headers"] == [{"key": "trace", "value": b"af:31"}, {"key": "n", "value": b"2"}]
    split = await run(
        "produce", "u", "-K", ":", "--null", "NULL", agent=agent, stdin=b"x:1:2\ny:NULL\nplain\n"
    )
    assert split.code == 1
    assert "standard input:3: the line has no ':' between key and value" in split.stderr
    assert brief(cluster, "u") == [(b"x", b"1:2"), (b"y", None)]


async def test_arguments_may_be_any_bytes(cluster: FakeCluster) -> None:
    """Keys, separators, values of headers and templates are stored and written as they were typed. A name has
    to be UTF-8, and one that is not is told in a line."""
    agent = cluster.urls[0]
    for options in ((b"-k", b"\xff"), (b"-K", b"\xfe")):
        ran = await run(
            "produce", "t", *map(os.fsdecode, (*options, b"-H", b"h=\xfd ")), agent=agent, stdin=b"\xfb\xfev"
        )
        assert ran.code == 0, ran.stderr
    assert brief(cluster) == [(b"\xff", b"\xfb\xfev"), (b"\xfb", b"v")]
    assert [row["headers"] for row in rows(cluster)] == [[{"key": "h", "value": b"\xfd "}]] * 2
    ran = await run("produce", "t", "--null", "\udcff", agent=agent, stdin=b"\xff\nx\n")
    assert brief(cluster)[2:] == [(None, None), (None, b"x")]
    process = await start("consume", "t", "-f", "\udcfc%v;", "-n", "1", agent=agent)
    assert await finish(process) == (b"\xfc\xfb\xfev;", b"")
    for words in (
        ("consume", "\udcff"),
        ("topic", "describe", "\udcff"),
        ("produce", "t", "-H", "\udcff=x"),
        ("--agent", "http://\udcff", "members"),
        ("force-leave", "\udcff"),
    ):
        assert_one_line(await run(*words, agent=agent), r"\xff", "is not UTF-8")


async def test_whole_files_and_tombstones(cluster: FakeCluster, tmp_path: pathlib.Path) -> None:
    """A file as one value, newlines and all; standard input too; and a record without a value."""
    agent = cluster.urls[0]
    (tmp_path / "a.json").write_bytes(b'{\n "a": 1\n}\n')
    ran = await run(
        "produce", "t", "--whole", "-k", "doc", str(tmp_path / "a.json"), "-", agent=agent, stdin=b"x\ny"
    )
    assert ran.code == 0, ran.stderr
    assert (await run("produce", "t", "-k", "doc", "--tombstone", agent=agent)).code == 0
    assert brief(cluster) == [(b"doc", b'{\n "a": 1\n}\n'), (b"doc", b"x\ny"), (b"doc", None)]
    large = tmp_path / "large"
    large.write_bytes(b"x" * ((8 << 20) + 1))
    refused = await run("produce", "t", "--whole", str(large), agent=agent)
    assert (refused.code, "is longer than 8 MiB" in refused.stderr) == (1, True)
    missing = await run("produce", "t", "--whole", str(tmp_path / "none"), agent=agent)
    assert (missing.code, "No such file" in missing.stderr) == (1, True)


async def test_no_value_is_not_the_text_null(cluster: FakeCluster) -> None:
    """A tombstone as text is \\N, which `--null` takes back."""
    cluster.topics["t"].partitions[0].append([batch_of([b"null", None, b""])], None)
    out = await run("consume", "t", agent=cluster.urls[0])
    assert out.stdout == "null\n\\N\n\n"
    back = await run("produce", "u", "--null", "\\N", agent=cluster.urls[0], stdin=out.stdout.encode())
    assert back.code == 0
    assert brief(cluster, "u") == [(None, b"null"), (None, None)]


async def test_records_are_written_by_a_template(cluster: FakeCluster) -> None:
    """Fields, escapes, and short options for how many and from where."""
    cluster.topics["t"].partitions[0].append([batch_of([b"one", None, b"three"], [b"k", b"l", None])], None)
    ran = await run(
        "consume", "t", "-f", "%t/%p/%o\\t%k=%v%%\\n", "-n", "2", "-p", "0", agent=cluster.urls[0]
    )
    assert ran.stdout == "t/0/0\tk=one%\nt/0/1\tl=%\n"
    from_one = await run("consume", "t", "--from", "1", "-f", "%o,", agent=cluster.urls[0])
    assert from_one.stdout == "1,2,"
    cluster.create("wide", 2)
    wide = await run("consume", "wide", "--from", "1", agent=cluster.urls[0])
    assert_one_line(wide, "an offset belongs to one partition, and wide has 2", "--partition")


def test_a_template_has_headers_times_and_bytes() -> None:
    """As they are stored; an escape may be any byte."""
    record = Record("t", 0, 1, 1_767_225_600_123_456, b"\xff", b"v", (("a", b"1"), ("b", None)))
    rendered = Template("%h|%d|%T|%k\\x00\\0\\\\").render([record])
    assert rendered == b"a=1,b=|2026-01-01T00:00:00.123456Z|1767225600123|\xff\0\0\\"


async def test_following_waits_for_a_topic_to_come(cluster: FakeCluster) -> None:
    """It says so once; without --follow an unknown topic is an error."""
    assert_one_line(await run("consume", "later", agent=cluster.urls[0]), "unknown-topic")
    process = await start("consume", "later", "--follow", agent=cluster.urls[0])
    assert process.stderr is not None
    assert process.stdout is not None
    said = await asyncio.wait_for(process.stderr.readline(), COMMAND_SECONDS)
    assert said.startswith(b"waiting for topic later;")
    cluster.create("later").partitions[0].append([batch_of([b"x"])], None)
    assert await asyncio.wait_for(process.stdout.readline(), COMMAND_SECONDS) == b"x\n"
    process.terminate()
    await finish(process)


async def test_several_topics_are_read_one_after_the_other(cluster: FakeCluster) -> None:
    """As text, JSON, Arrow and by a template; a limit counts the records of all."""
    cluster.create("u", 2)
    cluster.topics["t"].partitions[0].append([batch_of([b"a", b"b"])], None)
    cluster.topics["u"].partitions[1].append([batch_of([b"c", b"d"])], None)
    agent = cluster.urls[0]
    assert (await run("consume", "u", "t", "u", "-n", "3", agent=agent)).stdout == "c\nd\na\n"
    written = await run("consume", "t", "u", "-f", "%t/%p/%o=%v ", agent=agent)
    assert written.stdout == "t/0/0=a t/0/1=b u/1/0=c u/1/1=d "
    lines = [
        json.loads(line) for line in (await run("--json", "consume", "t", "u", agent=agent)).stdout.split()
    ]
    assert [(line["topic"], line["partition"], line["value"]) for line in lines] == [
        ("t", 0, "a"), ("t", 0, "b"), ("u", 1, "c"), ("u", 1, "d")
    ]  # fmt: skip
    lag = await run("consume", "t", "u", "--lag", "-n", "1", agent=agent)
    assert lag.stderr.splitlines() == [
        "t/0: next offset 1 of 2, lag 1",
        "u/0: next offset 0 of 0, lag 0",
        "u/1: next offset 0 of 2, lag 2",
    ]
    process = await start("consume", "t", "u", "-o", "arrow", agent=agent)
    with pa.ipc.open_stream((await finish(process))[0]) as stream:
        rows = stream.read_all().to_pylist()
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        ("t", 0, 0), ("t", 0, 1), ("u", 1, 0), ("u", 1, 1)
    ]  # fmt: skip


async def test_of_several_topics_all_have_to_exist(cluster: FakeCluster) -> None:
    """Nothing is written before; an offset belongs to none of them in particular."""
    cluster.create("u")
    cluster.topics["t"].partitions[0].append([batch_of([b"a"])], None)
    assert_one_line(await run("consume", "t", "nope", agent=cluster.urls[0]), "unknown-topic", "nope")
    ran = await run("consume", "t", "u", "--from", "0", agent=cluster.urls[0])
    assert_one_line(ran, "one partition of one topic", "name one topic")


async def test_several_topics_are_followed_together(cluster: FakeCluster) -> None:
    """Records are written as they come, also those of a topic that is created later."""
    process = await start("consume", "t", "later", "-F", "-f", "%t=%v\\n", agent=cluster.urls[0])
    assert process.stdout is not None
    assert process.stderr is not None
    said = await asyncio.wait_for(process.stderr.readline(), COMMAND_SECONDS)
    assert said.startswith(b"waiting for topic later;")
    for topic, value in (("t", b"1"), ("later", b"2"), ("t", b"3"), ("later", b"4")):
        if topic not in cluster.topics:
            cluster.create(topic)
        cluster.topics[topic].partitions[0].append([batch_of([value])], None)
        line = await asyncio.wait_for(process.stdout.readline(), COMMAND_SECONDS)
        assert line == topic.encode() + b"=" + value + b"\n"
    process.terminate()
    out, err = await finish(process)
    assert (process.returncode, out, err) == (0, b"", b"")


async def test_options_may_stand_before_the_command(cluster: FakeCluster) -> None:
    """Whom to ask, and JSON, whichever command follows; the command's own options come first."""
    ran = await run("--agent", cluster.urls[0], "--json", "topic", "list", agent="http://127.0.0.1:1")
    assert [topic["name"] for topic in json.loads(ran.stdout)["topics"]] == ["t"]
    own = await run(
        "--json", "--agent", "http://127.0.0.1:1", "members", "--agent", cluster.urls[0], "-o", "table"
    )
    assert own.stdout.startswith("NAME")
    cluster.topics["t"].partitions[0].append([batch_of([b"x"])], None)
    for words in (("--json", "consume", "t"), ("consume", "t", "--json")):
        records = await run(*words, agent=cluster.urls[0])
        assert json.loads(records.stdout)["value"] == "x"
    deleted = await run("topic", "delete", "t", "--yes", "--json", agent=cluster.urls[0])
    assert (json.loads(deleted.stdout), deleted.stderr) == ({"topic": "t", "deleted": True}, "")


@pytest.mark.parametrize(("options", "value"), [((), b"hello"), (("--whole",), b"hello\n")])
async def test_nothing_is_drawn_over_what_is_typed(
    cluster: FakeCluster, options: tuple[str, ...], value: bytes
) -> None:
    """A terminal on both ends, and a pause in typing: one hint, then nothing but the summary at the end."""
    near, far = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.agent", "produce", "t", *options, "--agent", cluster.urls[0]),
            stdin=far, stdout=far, stderr=far,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        shown = b""
        while b"Ctrl-D" not in shown:
            shown += await asyncio.wait_for(loop.run_in_executor(None, os.read, near, 4096), COMMAND_SECONDS)
        await asyncio.sleep(0.5)  # five times as long as the status line waited
        os.write(near, b"hello\n\x04")
        assert await asyncio.wait_for(process.wait(), COMMAND_SECONDS) == 0
        async with asyncio.timeout(COMMAND_SECONDS):
            while b"acknowledged" not in shown:
                shown += await loop.run_in_executor(None, os.read, near, 4096)
    finally:
        os.close(near)
        os.close(far)
    assert b"\x1b[K" not in shown
    assert b"records  " not in shown
    assert b"1 record acknowledged" in shown
    assert brief(cluster) == [(None, value)]
