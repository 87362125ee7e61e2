"""The data source inside a real Spark: local mode, two cores, found by its name without registration."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from typing import Any, TypeAlias

import pytest

from shoal.spark import java
from shoal.spark.pyspark_api import COMPARISONS, HAS_READ_LIMITS, VERSION

Cluster: TypeAlias = Any  # conftest's
# All of it takes 60 s on two idle cores, ten minutes beside other work; a step of it a twelfth of that, and
# Java's end as much as the longest.
SILENCE_SECONDS_MAX = 400.0
SECONDS_MAX = 2_000.0
LINES_MAX = 8  # of Spark's message for a fault; of a stream's, without Spark's own account of the query
TOKEN = "shoal_planted1_a8Kq03vT5w_mZ"
FAULTS = ("unknown_option", "unknown_topic", "no_agent", "malformed", "own_schema")


def run_while_it_goes_on(command: list[str], **options: Any) -> tuple[int, list[str], str]:
    """Exit code, lines and complaints of a program that is ended when it has said nothing for too long."""
    with tempfile.TemporaryFile("w+") as complaints:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, **options)
        assert running.stdout is not None
        lines: list[str] = []
        try:
            while True:
                silence = threading.Timer(SILENCE_SECONDS_MAX, running.kill)
                silence.start()
                line = running.stdout.readline()
                silence.cancel()
                if not line:
                    break
                lines.append(line)
            code = running.wait(SILENCE_SECONDS_MAX)
        finally:
            running.kill()
            running.wait()
            running.stdout.close()
        complaints.seek(0)
        return code, lines, complaints.read()


def check_written(cluster: Cluster, said: dict[str, str]) -> None:
    """Each record once, though it was all written twice; the stream copied a topic; errors in one line."""
    stored = {
        topic: sum(log.high_watermark for log in cluster.topics[topic].values()) for topic in cluster.topics
    }
    assert stored["written"] == 500
    assert stored["copied"] == 40
    assert stored["people"] == 2  # the page's example
    # Two micro-batches of the totals, or one where there are no limits.
    assert {epoch for _, _, epoch, _, _ in cluster.writes} == set(range(1 + HAS_READ_LIMITS))
    assert "there is no column value; make one" in said["no_value"]
    assert "unknown topic 'writen': make it first" in said["unknown_topic"]
    assert 'use .mode("append")' in said["overwrite"]
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in said["default_mode"]
    assert "did you mean txnId?" in said["misspelt"]
    assert "column value is int, but string or binary is written" in said["wrong_type"]
    assert "no agent answers" in said["nobody"]
    assert "a record has 9437184 bytes" in said["too_large"]


def check_totals(said: dict[str, Any]) -> None:
    """Each micro-batch once: two of them, or one without limits, of which the first was written twice. 40
    records have 4 keys."""
    assert "behind the write" in said["ended"][0]
    assert said["ended"][1] == "no failure"
    assert said["batches"] == list(range(1 + HAS_READ_LIMITS))
    assert "this function is for writeStream.foreachBatch" in said["outside"]
    assert len(said["written"]) == 4 * len(said["batches"])
    keys = Counter(
        "none" if offset % 7 == 0 else f"key-{offset % 3}" for rows in (10, 30) for offset in range(rows)
    )
    assert said["newest"] == sorted(f"{key} {count}" for key, count in keys.items())


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_spark_reads_topics(cluster: Cluster, keeps_classes: dict[str, str], tmp_path: pathlib.Path) -> None:
    """Counts, ranges, headers, splitting, an empty range, and the errors' first words, in one session."""
    cluster.fill("written", (), ())
    cluster.fill("again", (), ())
    cluster.fill("copied", ())
    cluster.fill("people", ())
    cluster.fill("totals", ())
    cluster.fill("counts", ())
    environment = {
        **os.environ,
        **keeps_classes,
        "JAVA_HOME": str(java.find(tmp_path / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SHOAL_AGENT": cluster.url(1),
        "PLANTED_TOKEN": TOKEN,
    }
    (tmp_path / "checkpoints").mkdir()
    program = pathlib.Path(__file__).with_name("program.py")
    agents = f"127.0.0.1:9,{cluster.url(0)}"
    command = [sys.executable, str(program), agents, str(tmp_path / "checkpoints")]
    code, lines, complaints = run_while_it_goes_on(command, env=environment, cwd=tmp_path)
    assert code == 0, (lines, complaints[-3_000:])
    results = json.loads(next(line for line in reversed(lines) if line.startswith('{"schema"')))
    check_token(cluster, tmp_path / "checkpoints", "".join(lines), complaints)
    assert results["schema"] == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int>"
    )
    assert results["count"] == results["distinct"] == 40
    assert results["by_partition"] == [[0, 10, 0, 9], [1, 30, 0, 29]]
    assert results["tasks"] in (6, 7)
    assert results["range"] == ["0:8", "1:29"]
    assert results["headers"] == [{"key": "n", "value": "1"}]
    assert results["empty"] == 0
    assert results["timestamps"] == 1_700_000_000_000_003
    assert "unknown option 'startingoffset'" in results["unknown_option"]
    assert "unknown topic 'fligths'" in results["unknown_topic"]
    assert "leave out .schema(...)" in results["own_schema"]
    assert results["registered"] == [40, "true"]
    before, (copied, *after) = results["settings"]
    assert copied == 40
    if results["replaced"]:
        assert set(before) == set(after), "Spark adds settings: two queries at once may damage them"
        assert "SPARK_PYTHON_RUNTIME" in before
    else:  # the found source stays: docs/spark.md says what that means
        assert "SPARK_PYTHON_RUNTIME" not in before
    assert results["replaced"] == (VERSION[:4] != "4.0.")
    assert "no agent answers" in results["no_agent"]
    assert "option startingOffsets must be earliest or latest or JSON like" in results["malformed"]
    assert list(results["view"].values()) == [40, 29]
    pushed = 9 if COMPARISONS else 20
    assert results["pushed"] == [20, pushed, 20, 18]
    # An option that a newer Spark adds here has to be among SPARKS, or named streams cannot write to topics.
    assert results["seen"] == {
        "read": [], "readStream": [], "write": [], "writeStream": ["checkpointlocation", "queryname"]
    }  # fmt: skip
    assert [complaints.count(f"effect: {name}\n") for name in ("kafka.group.id", "kafka.acks")] == [1, 1]
    told = [*results["written"].values(), *(results[name] for name in FAULTS)]
    told.append(results["stream"]["unknown_topic"].partition("=== Streaming Query ===")[0])
    assert [text for text in told if len(text.splitlines()) > LINES_MAX or "Traceback" in text] == []
    check_written(cluster, results["written"])
    check_totals(results["totals"])
    check_streams(results["stream"])


def check_token(cluster: Cluster, directory: pathlib.Path, *said: str) -> None:
    """Requests have carried it. No plan, error, line of a log, checkpoint or event of Spark's has it."""
    assert f"Bearer {TOKEN}" in cluster.credentials
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert [path.name for path in files if path.name.startswith("events_")] != []
    assert [text for text in said if TOKEN in text] == []


def check_streams(stream: dict[str, Any]) -> None:
    """Each record once, with a limit or the one line that says why there is none; it ends, and it waits."""
    if HAS_READ_LIMITS:
        assert stream["batches"] == [12, 12, 12, 4]
        told, of_first = stream["lags"]
        assert [told[:4], of_first] == [
            [["limited", behind] for behind in (28, 16, 4, 0)], [28, 0, 21, pytest.approx(28 / 3)]
        ]  # fmt: skip
        assert [json.loads(text)["flights"]["1"] for text in stream["lag_of_first"]] == [9, 30]
    else:
        assert "option maxOffsetsPerTrigger needs Spark 4.2 or newer" in stream["limit"]
        assert stream["batches"] == [40]
        read = [ast.literal_eval(text) for text in stream["lag_of_first"]]  # PySpark's text is no JSON there
        assert [offsets["flights"]["1"] for offsets in read] == [30, 30]
    assert stream["records"] == [[0, n] for n in range(10)] + [[1, n] for n in range(30)]
    assert stream["again"] == 0
    assert stream["stopped_seconds"] < 25
    assert "unknown topic 'fligths'" in stream["unknown_topic"]
    assert "option endingOffsets is for batch queries (spark.read) only" in stream["unfit"]
