"""produce and consume, as processes, against a cluster in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import re
import select
import signal
import sys
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from aiohttp import web
from command_line import COMMAND_SECONDS, assert_one_line, finish, run, start
from fake_cluster import FakeCluster, refuse, reset_after_storing
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.cli.records.input_lines import (
    Chunk,
    LineReader,
    LineTooLong,
    keys_of,
    located,
    without_blanks,
)
from shoal.agent.cli.records.lag import LagMeter
from shoal.agent.cli.records.produce_input import Shape
from shoal.client.consume.fetch import Fetched
from shoal.client.produce.producer import batch_of
from shoal.errors import ShoalError
from shoal.format.batch import MAX_RECORD_BYTES
from shoal.format.record_text import render_ndjson
from shoal.format.records import parse_ndjson


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents and a topic of three partitions."""
    async with FakeCluster(3) as fake:
        fake.create("t", 3)
        yield fake


def stored(cluster: FakeCluster, topic: str = "t") -> list[bytes]:
    return [value for log in cluster.topics[topic].partitions for value in log.values()]


def flights(count: int) -> list[bytes]:
    return [b'{"carrier": "%c%c", "number": %d}' % (65 + n % 7, 66 + n % 3, n) for n in range(count)]


async def test_lines_of_files_and_standard_input_become_records(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """Blank lines are skipped, the last line needs no end, - is standard input; the talk is on stderr."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\n two \nthree")
    ran = await run("produce", "t", str(path), "-", agent=cluster.urls[0], stdin=b"four\n\nfive\n")
    assert (ran.code, ran.stdout) == (0, "")
    assert sorted(stored(cluster)) == [b" two ", b"five", b"four", b"one", b"three"]
    assert re.match(
        r"5 records acknowledged in [\d.]+ s \([\d,]+/s\), 0 retries, 0 leader changes$", ran.stderr.strip()
    )


async def test_keys_come_from_a_field_and_faults_do_not_double_anything(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """10,000 keyed lines while connections break after storing and leaders move: exactly once, in key
    order.
    """
    lines = flights(10_000)
    path = tmp_path / "flights"
    path.write_bytes(b"\n".join(lines) + b"\n")
    cluster.faults.extend(
        [reset_after_storing, refuse("no-leader"), reset_after_storing, refuse("timeout")] * 3
    )
    ran = await run(
        "produce", "t", str(path), "--key-field", "carrier", "--output", "json", agent=cluster.urls[2]
    )
    assert ran.code == 0, ran.stderr
    assert sorted(stored(cluster)) == sorted(lines)
    for log in cluster.topics["t"].partitions:
        for carrier in {json.loads(value)["carrier"] for value in log.values()}:
            numbers = [json.loads(v)["number"] for v in log.values() if json.loads(v)["carrier"] == carrier]
            assert numbers == [n for n, line in enumerate(lines) if json.loads(line)["carrier"] == carrier]
    summary = json.loads(ran.stdout)
    assert (summary["sent"], summary["acknowledged"]) == (10_000, 10_000)
    assert summary["retries"] > 0


async def test_the_agent_it_was_given_may_die_in_mid_stream(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """The stream goes on with the others; every line is stored once."""
    lines = flights(6_000)
    path = tmp_path / "flights"
    path.write_bytes(b"\n".join(lines))
    process = await start(
        "produce", "t", str(path), "--key-field", "carrier", "--rate", "4000", agent=cluster.urls[0]
    )
    while len(stored(cluster)) < 1_000:
        await asyncio.sleep(0.02)
    await cluster.kill(0)
    _, err = await finish(process)
    assert process.returncode == 0, err
    assert sorted(stored(cluster)) == sorted(lines)


async def test_a_rate_is_kept(cluster: FakeCluster) -> None:
    """2,000 records at 1,000/s take two seconds, not less. That it is no multiple of it where there is time,
    the tests of its pacer say in virtual time."""
    stdin = b"".join(b"%d\n" % number for number in range(2_000))
    ran = await run("produce", "t", "--rate", "1000", "--output", "json", agent=cluster.urls[0], stdin=stdin)
    summary = json.loads(ran.stdout)
    assert summary["acknowledged"] == 2_000
    assert summary["seconds"] >= 1.9


async def test_a_partition_may_be_named(cluster: FakeCluster) -> None:
    """Everything goes there; one that does not exist is one line."""
    assert (await run("produce", "t", "--partition", "2", agent=cluster.urls[0], stdin=b"a\nb\n")).code == 0
    assert cluster.topics["t"].partitions[2].values() == [b"a", b"b"]
    ran = await run("produce", "t", "--partition", "3", agent=cluster.urls[0], stdin=b"a\n")
    assert_one_line(ran, "no partition 3")


async def test_a_bad_line_is_named_and_those_before_it_are_kept(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """FILE:LINE, what is wrong, and how many were acknowledged; exit code 1."""
    path = tmp_path / "flights"
    path.write_bytes(b'{"carrier":"UA"}\n\n{"carrier":\n')
    ran = await run("produce", "t", str(path), "--key-field", "carrier", agent=cluster.urls[0])
    assert ran.code == 1
    assert f"{path}:3: " in ran.stderr
    assert "not JSON" in ran.stderr
    assert "1 record acknowledged" in ran.stderr
    assert stored(cluster) == [b'{"carrier":"UA"}']
    path.write_bytes(b"short\n" + b"x" * (MAX_RECORD_BYTES + 500_000))
    ran = await run("produce", "t", str(path), agent=cluster.urls[0])
    assert (ran.code, b"short" in stored(cluster)) == (1, True)
    assert f"{path}:2: the line is longer than 8 MiB; the lines before it were sent" in ran.stderr
    missing = await run("produce", "t", str(tmp_path / "nothing"), agent=cluster.urls[0])
    assert_one_line(missing, "No such file")


async def test_a_directory_among_the_files_is_named(cluster: FakeCluster, tmp_path: pathlib.Path) -> None:
    """It opens like a file, and only reading it fails."""
    ran = await run("produce", "t", str(tmp_path), agent=cluster.urls[0])
    assert ran.code == 1
    assert f"shoal: {tmp_path}: Is a directory" in ran.stderr


async def test_records_that_are_refused_end_it_with_exit_code_1(cluster: FakeCluster) -> None:
    """One line with the code and what to do, after the count of those acknowledged."""
    cluster.faults.append(refuse("too-large"))
    ran = await run("produce", "t", agent=cluster.urls[0], stdin=b"a\n")
    assert ran.code == 1
    assert "is not stored: too-large" in ran.stderr
    assert "0 records acknowledged" in ran.stderr
    assert "1 record sent and not acknowledged: not stored" in ran.stderr
    assert "may or may not" not in ran.stderr
    assert "Traceback" not in ran.stderr


async def test_of_records_beside_a_refusal_it_says_which_fate_is_known(cluster: FakeCluster) -> None:
    """One partition answers 403, which is definite; what was sent to the others may have been stored."""
    cluster.create("t2", 2)

    async def never(_: object, __: object) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    cluster.faults.extend([never, refuse("forbidden")])
    lines = b"".join(line + b"\n" for line in flights(100))
    ran = await run("produce", "t2", "--key-field", "carrier", agent=cluster.urls[0], stdin=lines)
    assert ran.code == 1
    refused = re.search(r"a batch of (\d+) records is not stored: forbidden", ran.stderr)
    assert refused is not None
    assert 0 < int(refused[1]) < 100
    told = f"{refused[1]} of them are not stored, the others may or may not be"
    assert f"100 records sent and not acknowledged: {told}" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interruption_says_how_many_were_acknowledged(cluster: FakeCluster, number: int) -> None:
    """Ctrl-C while standard input stays open: what was sent is flushed, the count is true, exit code 130."""
    process = await start("produce", "t", agent=cluster.urls[0])
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\n")
    while len(stored(cluster)) < 3:
        await asyncio.sleep(0.02)
    process.send_signal(number)
    async with asyncio.timeout(COMMAND_SECONDS):
        await process.wait()
    assert process.stderr is not None
    err = (await process.stderr.read()).decode()
    assert process.returncode == 130
    assert err.startswith("interrupted: 3 records acknowledged")
    assert len(err.strip().splitlines()) == 1


async def test_an_interruption_ends_the_wait_for_a_whole_file(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """Standard input or a named pipe whose writer is silent: nothing is stored, and nothing is waited for."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in ("-", str(fifo)):
        process = await start("produce", "t", "--whole", path, "--progress", agent=cluster.urls[0])
        assert process.stderr is not None
        assert process.stdin is not None
        process.stdin.write(b"half of it")
        await asyncio.wait_for(process.stderr.readline(), COMMAND_SECONDS)  # the progress shows that it reads
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(COMMAND_SECONDS):
            err = (await process.stderr.read()).decode()
            assert await process.wait() == 130
        assert "interrupted: 0 records acknowledged" in err
        assert "Traceback" not in err
    assert stored(cluster) == []


async def test_an_interruption_counts_what_was_never_acknowledged(cluster: FakeCluster) -> None:
    """Nobody leads: Ctrl-C ends it within seconds and says that the records may or may not be stored."""
    cluster.faults.extend([refuse("no-leader")] * 10_000)
    process = await start("produce", "t", agent=cluster.urls[0])
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\n")
    while not any("POST" in request for request in cluster.requests):
        await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    async with asyncio.timeout(COMMAND_SECONDS):
        err = (await process.stderr.read()).decode()
        assert await process.wait() == 130
    assert err.startswith("interrupted: 0 records acknowledged")
    assert "3 records sent and not acknowledged" in err


async def test_a_topic_deleted_in_mid_stream_ends_it_with_the_count(cluster: FakeCluster) -> None:
    """Although standard input stays open: exit code 1, and how many were acknowledged before."""
    process = await start("produce", "t", "--partition", "0", agent=cluster.urls[0])
    assert process.stdin is not None
    process.stdin.write(b"a\n")
    while not stored(cluster):
        await asyncio.sleep(0.02)
    del cluster.topics["t"]
    process.stdin.write(b"b\n")
    _, err = await finish(process)
    assert process.returncode == 1
    assert b"1 record acknowledged" in err
    assert b"unknown-topic" in err
    assert b"Traceback" not in err


async def test_progress_is_shown_where_it_was_asked_for(cluster: FakeCluster) -> None:
    """With --progress a line a second; by default none when stderr is no terminal (the other tests)."""
    stdin = b"x\n" * 2_500
    shown = await run("produce", "t", "--rate", "2000", "--progress", agent=cluster.urls[0], stdin=stdin)
    assert re.search(r"^[\d,]+ records  [\d,]+/s$", shown.stderr, re.MULTILINE)


async def test_progress_on_a_terminal_is_one_line_that_is_redrawn(
    cluster: FakeCluster, tmp_path: pathlib.Path
) -> None:
    """A bar while it runs; at the end the line is cleared and the summary stands alone."""
    path = tmp_path / "lines"
    path.write_bytes(b"x\n" * 3_000)
    arguments = ["produce", "t", str(path), "--rate", "4000", "--agent", cluster.urls[0]]
    master, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal.agent", *arguments, stderr=terminal, env={**os.environ, "COLUMNS": "80"}
    )
    os.close(terminal)
    await finish(process)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert process.returncode == 0
    assert "[####" in shown
    assert shown.rpartition("\r\x1b[K")[2].startswith("3,000 records acknowledged")


@pytest.mark.cold_start
async def test_consume_writes_what_was_produced(cluster: FakeCluster) -> None:
    """Text by default, to the end; JSON with partition and offset; limits and starts."""
    lines = b"".join(b"line %d\n" % number for number in range(100))
    await run("produce", "t", "--partition", "1", agent=cluster.urls[0], stdin=lines)
    ran = await run("consume", "t", agent=cluster.urls[0])
    assert (ran.code, ran.stdout.encode(), ran.stderr) == (0, lines, "")
    records = (await run("consume", "t", "--from", "-2", "-o", "json", agent=cluster.urls[0])).stdout
    first, second = (json.loads(line) for line in records.splitlines())
    assert (first["partition"], first["offset"], first["value"]) == (1, 98, "line 98")
    assert second["offset"] == 99
    limited = await run(
        "consume", "t", "--from", "7", "--partition", "1", "--limit", "2", agent=cluster.urls[0]
    )
    assert limited.stdout == "line 7\nline 8\n"


async def test_consume_writes_arrow_that_opens(cluster: FakeCluster) -> None:
    """The topic's columns after partition and offset; an empty topic gives a stream without rows."""
    await run("produce", "t", "--partition", "1", agent=cluster.urls[0], stdin=b"a\nb\n")
    for topic, expected in [("t", [(1, 0, b"a"), (1, 1, b"b")]), ("empty", [])]:
        if topic == "empty":
            cluster.create("empty")
        process = await start("consume", topic, "--output", "arrow", agent=cluster.urls[0])
        out, err = await finish(process)
        assert process.returncode == 0, err
        table = pa.ipc.open_stream(out).read_all()
        rows = zip(
            *(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True
        )
        assert list(rows) == expected


async def test_consume_ends_quietly_when_its_reader_has_seen_enough(cluster: FakeCluster) -> None:
    """`| head` closes the pipe: no traceback, no complaint, exit code 0."""
    await run("produce", "t", agent=cluster.urls[0], stdin=b"x" * 100 + b"\n" + b"y\n" * 100_000)
    consume = f"{sys.executable} -m shoal.agent consume t --agent {cluster.urls[0]}"
    command = f"{consume} | head -n 1; echo ${{PIPESTATUS[0]}}"
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await finish(process)
    assert err == b""
    assert out.splitlines()[-1] == b"0"


async def test_consume_follows_until_interrupted(cluster: FakeCluster) -> None:
    """Records that arrive later are written at once; Ctrl-C ends it with exit code 0 and silence."""
    process = await start("consume", "t", "--from", "latest", "--follow", agent=cluster.urls[0])
    while not any("/partitions/0/records" in request for request in cluster.requests):
        await asyncio.sleep(0.02)
    await run("produce", "t", agent=cluster.urls[0], stdin=b"news\n")
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(COMMAND_SECONDS):
        assert await process.stdout.readline() == b"news\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert await process.stderr.read() == b""


async def test_lag_is_told_where_it_was_asked_for(cluster: FakeCluster) -> None:
    """Per partition that was read, on stderr; stdout stays the same. By default nothing, piped."""
    for partition, count in (("0", 3), ("2", 5)):
        stdin = b"x\n" * count
        await run("produce", "t", "--partition", partition, agent=cluster.urls[0], stdin=stdin)
    ran = await run("consume", "t", "--lag", agent=cluster.urls[0])
    assert (ran.code, ran.stdout) == (0, "x\n" * 8)
    assert ran.stderr.splitlines() == [
        "partition 0: next offset 3 of 3, lag 0",
        "partition 1: next offset 0 of 0, lag 0",
        "partition 2: next offset 5 of 5, lag 0",
    ]
    ran = await run("consume", "t", "--lag", "--partition", "2", "--limit", "1", agent=cluster.urls[0])
    assert ran.stderr == "partition 2: next offset 1 of 5, lag 4\n"
    ran = await run("consume", "t", "--lag", "--from", "latest", agent=cluster.urls[0])
    assert (ran.code, ran.stdout) == (0, "")
    assert [line.rpartition(", ")[2] for line in ran.stderr.splitlines()] == ["lag 0"] * 3
    ran = await run("consume", "t", "--lag", "--limit", "3", agent=cluster.urls[0])
    assert sum(int(line.rpartition(" ")[2]) for line in ran.stderr.splitlines()) == 5
    assert (await run("consume", "t", agent=cluster.urls[0])).stderr == ""


async def test_lag_on_a_terminal_is_a_line_that_goes_away(cluster: FakeCluster) -> None:
    """Redrawn while records go to a file; after Ctrl-C nothing of it is left, and the exit code is that of a
    reader that was told to stop."""
    await run("produce", "t", "--partition", "1", agent=cluster.urls[0], stdin=b"x\n" * 3)
    master, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal.agent", "consume", "t", "--follow", "--agent", cluster.urls[0],
        stdout=asyncio.subprocess.PIPE, stderr=terminal, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    os.close(terminal)
    assert process.stdout is not None
    async with asyncio.timeout(COMMAND_SECONDS):
        for _ in range(3):
            await process.stdout.readline()
        shown = b""
        while b"lag 0" not in shown:
            await asyncio.sleep(0.15)  # the line is redrawn ten times a second at most
            await run("produce", "t", "--partition", "1", agent=cluster.urls[0], stdin=b"x\n")
            await process.stdout.readline()
            shown += os.read(master, 1 << 16) if select.select([master], [], [], 0)[0] else b""
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    with contextlib.suppress(OSError):  # EIO, once all is read that anybody wrote
        while True:
            shown += os.read(master, 1 << 16)
    os.close(master)
    assert shown.endswith(b"\r\x1b[K")


def test_who_is_furthest_behind_is_named() -> None:
    """Four of them; the others are in the sum."""
    meter = LagMeter(False, beside_records=False)
    batch = pa.record_batch({"value": [b"x"]})
    for partition in range(7):
        meter.saw(Fetched(partition, 9, batch, 10, 10 + partition * 1_000))
    assert meter.text() == "lag 21,000 (6: 6,000, 5: 5,000, 4: 4,000, 3: 3,000, ...)"
    meter.saw(Fetched(6, 6_009, batch, 6_010, 6_010))
    assert meter.text().startswith("lag 15,000 (5: ")
    even = LagMeter(False, beside_records=False)
    even.saw(Fetched(0, 9, batch, 10, 10))
    assert even.text() == "lag 0"


async def test_an_unknown_topic_is_one_line(cluster: FakeCluster) -> None:
    """With what to do."""
    assert_one_line(await run("consume", "nope", agent=cluster.urls[0]), "unknown-topic", "shoal topic list")


json_keys = st.one_of(
    st.text(max_size=5), st.integers(), st.none(), st.booleans(), st.lists(st.integers(), max_size=2)
)


@given(keys=st.lists(json_keys, min_size=1, max_size=20), text_only=st.booleans())
def test_keys_of_a_chunk_are_those_of_the_agents_rule(keys: list[object], text_only: bool) -> None:
    """The quick way over whole chunks gives what parsing line by line gives."""
    if text_only:
        keys = [str(key) for key in keys]
    lines = [json.dumps({"other": 1.5, "k": key}).encode() for key in keys]
    assert keys_of(lines, "k").to_pylist() == parse_ndjson(b"\n".join(lines), "k").keys


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b'{"k":"a"}{"k":"b"}', b'{"k":NaN}', b"\xff"])
def test_a_line_that_the_agents_would_refuse_is_refused_here(line: bytes) -> None:
    """And located by file and line, blank lines counted."""
    chunk = Chunk("f", 10, [b'{"k":"x"}', b"", line], 0)
    lines, numbers = without_blanks(chunk, strip=True)
    with pytest.raises(ShoalError) as refused:
        keys_of(lines, "k")
    assert located(refused.value, chunk, numbers) == ("f:12", 1)


async def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: pathlib.Path) -> None:
    """Over 8 MiB no record would be accepted."""
    path = tmp_path / "long"
    path.write_bytes(b"a\n" + b"x" * (MAX_RECORD_BYTES + 1_000_000))
    reader = LineReader([str(path)])
    first = await reader.next()
    assert first is not None
    assert first.lines == [b"a"]
    with pytest.raises(LineTooLong, match="line 2"):
        await reader.next()


async def test_the_largest_record_comes_back_from_its_json(tmp_path: pathlib.Path) -> None:
    """As JSON it is longer than a record may be: here six times. A line as text may not be as long."""
    value = b"\x01" * (MAX_RECORD_BYTES - 1_000)
    batch = batch_of([value])
    path = tmp_path / "lines"
    path.write_bytes(render_ndjson(batch, 5) + b"short\n" + b"x" * (MAX_RECORD_BYTES + 1))
    shape = Shape(None)
    reader = LineReader([str(path)], line_bytes_max=shape.line_bytes_max)
    found = [line for chunk in [await reader.next(), await reader.next()] if chunk for line in chunk.lines]
    assert len(found[0]) > 6 * len(value)
    assert shape.seen(found[0]).batch(found[:1]).column("value").to_pylist() == [value]
    with pytest.raises(ShoalError, match="record 1: the line is longer than 8 MiB") as error:
        Shape().batch(found[1:])
    assert error.value.extra["record"] == 1
    for plain in (Shape(), Shape(None, key="k"), Shape(None, headers=(("a", b""),))):
        assert plain.line_bytes_max == MAX_RECORD_BYTES


@pytest.mark.parametrize("sizes", [[0], [1], [300_000, 5, 0, 262_144, 262_143, 1]])
async def test_lines_across_reads_come_whole(tmp_path: pathlib.Path, sizes: list[int]) -> None:
    """Whatever lies at the edge of a read, lines and their numbers are right."""
    path = tmp_path / "lines"
    lines = [b"%d" % size + b"x" * size for size in sizes]
    path.write_bytes(b"\n".join(lines) + b"\n")
    reader, found = LineReader([str(path)]), []
    while (chunk := await reader.next()) is not None:
        found += [(chunk.first_line + place, line) for place, line in enumerate(chunk.lines)]
    assert found == list(enumerate(lines, 1))
