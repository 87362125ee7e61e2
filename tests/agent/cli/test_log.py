"""`shoal log` on the directory of a stopped agent: what it shows, tells and writes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Ran, assert_one_line

from shoal.agent.cli.main import main
from shoal.agent.cli.records.export import Exporter, ExportFormat
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.cluster_file import ClusterRecord, save_cluster
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    TIMER_SCHEMA,
    Flag,
    LogIdentity,
    LogIndex,
    Offset,
    Term,
    message_from_batch,
    stamp_message,
)
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.segment_store import DirectoryLock, LogConfig, PartitionLog, ThreadDisk
from shoal.segment_store.check.examination import StoredFrame

CLUSTER_ID = b"c" * 16
TOPIC_ID = b"t" * 16


@pytest.fixture
async def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data directory with two partitions: three segments of two batches of two records, and one batch."""
    disk = ThreadDisk(1)
    directory = tmp_path / "data"
    await disk.make_directory(str(directory))
    with DirectoryLock(str(directory)):
        record = ClusterRecord("test", CLUSTER_ID, ("a" * 32,), Catalog().to_bytes())
        await save_cluster(disk, str(directory), record)
        for partition, segments in ((0, 3), (1, 1)):
            await _fill(disk, directory, partition, segments)
    await disk.close()
    return directory


async def _fill(disk: ThreadDisk, directory: pathlib.Path, partition: int, segments: int) -> None:
    path = str(directory / "topics" / TOPIC_ID.hex() / str(partition))
    identity = LogIdentity(CLUSTER_ID, TOPIC_ID, partition)
    log = await PartitionLog.open(disk, path, identity, DEFAULT_SCHEMA, LogConfig())
    for place in range(2 * segments):
        columns = [
            pa.array([1_000_000, 2_000_000], pa.timestamp("us", tz="UTC")),
            pa.array([b"k", None], pa.binary()),
            pa.array([b"%d" % log.end_offset, b"%d" % (log.end_offset + 1)], pa.binary()),
            pa.array([None, None], DEFAULT_SCHEMA.field(3).type),
        ]
        message = message_from_batch(pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA))
        frame = stamp_message(
            message,
            identity,
            flags=Flag.NONE if place % 2 else Flag.FIRST_OF_SEGMENT,
            base_offset=log.end_offset,
            term=Term(1),
            previous_term=log.last_term,
            index=LogIndex(log.last_index + 1),
            append_time_us=1_700_000_000_000_000,
        )
        await log.append([frame])
    await log.close()


def _run(capfd: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    code = main(["log", *map(str, arguments)])
    return Ran(code, *capfd.readouterr())


def _partition(data: pathlib.Path, number: int = 0) -> pathlib.Path:
    return data / "topics" / TOPIC_ID.hex() / str(number)


def _segments(data: pathlib.Path) -> list[pathlib.Path]:
    return sorted(_partition(data).glob("*.arrows"))


def _damage(path: pathlib.Path, back: int) -> None:
    """One bit, `back` bytes in front of the end of what is used (the zeros of preallocation follow)."""
    content = bytearray(path.read_bytes())
    content[len(content.rstrip(b"\0")) - back] ^= 1
    path.write_bytes(content)


def test_inspect_shows_partitions_then_segments_then_batches(
    data: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each path level in its own table, for people and for programs."""
    ran = _run(capfd, "inspect", data)
    assert (ran.code, ran.stderr) == (0, "")
    assert [line.split()[1:5] for line in ran.stdout.splitlines()[1:]] == [
        ["0", "3", "6", "12"],
        ["1", "1", "2", "4"],
    ]
    ran = _run(capfd, "inspect", _partition(data))
    assert [line.split()[1:4] for line in ran.stdout.splitlines()[1:]] == [
        ["1-2", "0-3", "4"],
        ["3-4", "4-7", "4"],
        ["5-6", "8-11", "4"],
    ]
    assert ran.stdout.splitlines()[3].endswith("active")
    ran = _run(capfd, "inspect", _segments(data)[1], "--output", "json")
    batches = json.loads(ran.stdout)["batches"]
    assert [(batch["entry"], batch["offset"], batch["records"]) for batch in batches] == [
        (3, 4, 2),
        (4, 6, 2),
    ]
    assert batches[0]["kind"] == "data, first of segment"


def test_verify_names_damage_by_file_position_and_offsets(
    data: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sound is exit code 0; one bit is exit code 1, a line on stderr, and a document for programs."""
    ran = _run(capfd, "verify", data)
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[1] == f"{TOPIC_ID.hex()}/1: sound: 2 batches, 4 records in 1 segment"
    _damage(_segments(data)[1], 100)  # inside the second batch of the second segment
    ran = _run(capfd, "verify", data)
    assert ran.code == 1
    assert "1 damaged: 5 batches, 10 records in 3 segments" in ran.stdout
    assert f"DAMAGED {_segments(data)[1]} at byte " in ran.stderr
    assert "costs entries 4 to 4, offsets 6 to 7" in ran.stderr
    ran = _run(capfd, "verify", data, "-o", "json")
    document = json.loads(ran.stdout)
    assert document["sound"] is False
    (damage,) = document["damage"]
    assert (damage["first_offset"], damage["end_offset"]) == (6, 8)


def test_export_writes_every_record_with_its_offset(
    data: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Arrow, Parquet and NDJSON hold the same; what exists is not overwritten."""
    expected = [(offset, b"%d" % offset) for offset in range(12)]
    for form in ("arrow", "parquet"):
        path = tmp_path / f"out.{form}"
        ran = _run(capfd, "export", _partition(data), "--output", form, "--to", path)
        assert (ran.code, ran.stdout, ran.stderr) == (0, "", "12 records exported\n")
        table = pq.read_table(path) if form == "parquet" else pa.ipc.open_stream(path.read_bytes()).read_all()
        assert table.column_names == ["offset", *DEFAULT_SCHEMA.names]
        assert list(zip(*(table.column(n).to_pylist() for n in ("offset", "value")), strict=True)) == expected
        assert_one_line(_run(capfd, "export", _partition(data), "-o", form, "--to", path), "exists", "--to")
    ran = _run(capfd, "export", _segments(data)[1], "--output", "ndjson")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(line["offset"], line["value"]) for line in lines] == [(n, str(n)) for n in range(4, 8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out.arrow", "out.parquet"]


def test_export_has_the_due_times_of_a_timer_topic(tmp_path: pathlib.Path) -> None:
    """Its batches show that they have the column; a log without records has a log's columns."""
    columns = RecordColumns()
    columns.append(1, b"k", b"v", None, 1_900_000_000_000_000)
    columns.append(2, None, b"w", None)
    frame = stamp_message(
        message_from_batch(columns_to_batch(columns, 0, TIMER_SCHEMA)),
        LogIdentity(CLUSTER_ID, TOPIC_ID, 0),
        base_offset=Offset(7),
        term=Term(1),
        previous_term=Term(1),
        index=LogIndex(9),
        append_time_us=0,
    )
    path = tmp_path / "out.arrow"
    with Exporter(ExportFormat.ARROW, str(path)) as exporter:
        exporter.take(StoredFrame(cast("Any", SimpleNamespace(base_offset=7)), frame.stamp, frame.data))
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    assert table.column_names == ["offset", *TIMER_SCHEMA.names]
    assert table.column("deliver_at").cast(pa.int64()).to_pylist() == [1_900_000_000_000_000, None]
    with Exporter(ExportFormat.ARROW, str(tmp_path / "empty.arrow")):
        pass
    empty = pa.ipc.open_stream((tmp_path / "empty.arrow").read_bytes())
    assert empty.schema.names == ["offset", *DEFAULT_SCHEMA.names]


def test_export_leaves_damage_out_and_says_so(
    data: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The good records on both sides, exit code 1."""
    _damage(_segments(data)[1], 100)
    ran = _run(capfd, "export", _partition(data))
    assert ran.code == 1
    offsets = [json.loads(line)["offset"] for line in ran.stdout.splitlines()]
    assert offsets == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert "10 records exported" in ran.stderr
    assert "offsets 6 to 7" in ran.stderr


def test_a_segment_that_was_copied_away_needs_the_cluster_id(
    data: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checksums depend on it; topic and partition are in the path."""
    aside = tmp_path / TOPIC_ID.hex() / "0"
    aside.parent.mkdir()
    _partition(data).rename(aside)
    assert_one_line(_run(capfd, "verify", aside), "--cluster-id")
    assert_one_line(_run(capfd, "verify", aside, "--cluster-id", "xyz"), "xyz", "32")
    assert _run(capfd, "verify", aside, "--cluster-id", CLUSTER_ID.hex()).code == 0
    assert _run(capfd, "verify", aside, "--cluster-id", "00" * 16).code == 1


def test_wrong_paths_and_running_agents_are_one_line(
    data: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong and what to do, and nothing on stdout."""
    assert_one_line(_run(capfd, "verify", tmp_path / "nowhere"), "nowhere does not exist")
    assert_one_line(_run(capfd, "verify", ""), "an empty path does not exist")
    assert_one_line(_run(capfd, "verify", data, "--cluster-id", "00" * 16), CLUSTER_ID.hex(), "leave")
    assert _run(capfd, "verify", data, "--cluster-id", CLUSTER_ID.hex()).code == 0
    assert_one_line(_run(capfd, "verify", data / "lock"), "lock is no segment")
    assert_one_line(_run(capfd, "export", data), "2 partitions", "one of them")
    assert_one_line(_run(capfd, "export", _partition(data), "-o", "csv"), "csv", "parquet")
    assert_one_line(_run(capfd, "export", _partition(data), "-o", "parquet"), "--to")
    (data / "empty").mkdir()
    assert_one_line(_run(capfd, "inspect", data / "empty"), "no log under")
    with DirectoryLock(str(data)):
        assert_one_line(_run(capfd, "verify", data), "in use by process", "stop that agent")
    for name in ("cluster.a", "cluster.b"):
        assert _run(capfd, "verify", data).code == 0
        (data / name).write_bytes((data / name).read_bytes()[:-1])
    assert_one_line(_run(capfd, "verify", data), "damaged", "--cluster-id")
    assert _run(capfd, "verify", data, "--cluster-id", CLUSTER_ID.hex()).code == 0


@pytest.mark.parametrize(
    ("command", "unbuffered", "code"),
    [("verify", "", 141), ("export", "", 141), ("inspect", "", 0), ("inspect", "1", 141)],
)
def test_a_reader_that_has_seen_enough(data: pathlib.Path, command: str, unbuffered: str, code: int) -> None:
    """`| head`: no traceback and no complaint, and neither 0 (sound) nor 1 (damaged) where the end was not
    reached. All that `inspect` says of a small partition is written at once, after its end."""
    reading, writing = os.pipe()
    os.close(reading)  # before the first byte
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shoal.agent", "log", command, str(_partition(data))],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (code, b"")
