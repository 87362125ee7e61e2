"""Lag from the progress of queries, as PySpark's objects and as JSON; the listener without Java."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

import shoal.spark
from shoal.spark import LagListener, TopicLag, lag

ENDS = {"flights": {"0": 10, "1": 20, "2": 0}}
LATEST = {"flights": {"0": 10, "1": 30, "2": 5, "3": 4}}
BEHIND = {"flights": TopicLag(records=19, least=0, most=10, mean=4.75)}


def progress(*sources: dict[str, Any], name: str | None = "named") -> StreamingQueryProgress:
    """As a listener gets it: Spark writes its offsets down as text."""
    document: dict[str, Any] = {
        "id": str(uuid.UUID(int=1)), "runId": str(uuid.UUID(int=2)), "name": name, "timestamp": "",
        "batchId": 1, "batchDuration": 1, "durationMs": {}, "eventTime": {}, "stateOperators": [],
        "sink": {"description": "noop", "numOutputRows": 0}, "observedMetrics": {},
        "sources": [
            {"description": "", "startOffset": None, "numInputRows": 0, "inputRowsPerSecond": 0.0,
             "processedRowsPerSecond": 0.0, "metrics": {}, **source}
            for source in sources
        ],
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(document)


def source(ends: Any, latest: Any) -> dict[str, Any]:
    """One of a query's."""
    return {"endOffset": ends, "latestOffset": latest}


def test_lag_is_what_lies_behind_the_end() -> None:
    """By topic over its partitions; a new partition counts from its beginning."""
    assert lag({"sources": [source(ENDS, LATEST)]}) == BEHIND
    assert lag(progress(source(ENDS, LATEST))) == BEHIND
    assert lag(progress(source(json.dumps(ENDS), json.dumps(LATEST)))) == BEHIND
    assert lag(progress(source(str(ENDS), str(LATEST)))) == BEHIND  # as PySpark before 4.2 writes them
    ahead = {"flights": {"0": 12}}  # the ends that are known may be older
    assert lag(progress(source(ahead, ENDS)))["flights"].least == 0


def test_sources_of_one_query_are_put_together() -> None:
    """Each topic once; the source that is furthest behind counts where two read the same one."""
    trains = source({"trains": {"0": 1}}, {"trains": {"0": 8}})
    later = source(LATEST, LATEST)
    assert lag(progress(source(ENDS, LATEST), trains, later)) == {**BEHIND, "trains": TopicLag(7, 7, 7, 7.0)}


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        {},
        {"sources": []},
        {"sources": [source(None, LATEST)]},
        {"sources": [source(ENDS, None)]},
        {"sources": [source("None", "None")]},
        {"sources": [source(5, 9)]},
        {"sources": [source("5", "9")]},
        {"sources": [source("{'t': {'0': 5", "{'t': {'0': 7}")]},
        {"sources": [source("{" * 500, "(" * 5_000)]},
        {"sources": [source({"logOffset": 3}, {"logOffset": 7})]},
        {"sources": [source({"shard": {"a": 3}}, {"shard": {"a": 7}})]},
        {"sources": [source({"t": {"0": "x"}}, {"t": {"0": 7}})]},
    ],
)
def test_other_sources_have_no_lag(nothing: Any) -> None:
    """Nor has a query before its first micro-batch."""
    assert lag(nothing) == {}


def test_the_listener_tells_of_queries_that_read_topics(caplog: pytest.LogCaptureFixture) -> None:
    """By name, or by id; into the log, or to a function."""
    told: list[tuple[str, dict[str, TopicLag]]] = []
    listener = LagListener(lambda query, behind: told.append((query, behind)))
    events = [SimpleNamespace(progress=progress(source(ENDS, LATEST), name=name)) for name in ("named", None)]
    other: Any = SimpleNamespace(progress=progress(source(5, 9)))
    with caplog.at_level(logging.INFO, "shoal.spark.lag"):
        for event in (*events, other):
            listener.onQueryProgress(event)
            LagListener().onQueryProgress(event)
    assert told == [("named", BEHIND), (str(uuid.UUID(int=1)), BEHIND)]
    assert [record.getMessage() for record in caplog.records] == [
        f"query {name} is 19 records behind in topic flights (a partition: 0 to 10, mean 4.8)"
        for name in ("named", uuid.UUID(int=1))
    ]


def test_lag_needs_no_pyspark() -> None:
    """A monitor may read progress that others have written down. Asked twice, it is the same function."""
    program = (
        "import sys; from shoal.spark import lag; from shoal.spark import lag as again, SourceError;"
        "assert lag is again and lag({}) == {} and SourceError('x').args;"
        "assert not any(name.split('.')[0] == 'pyspark' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert all(hasattr(shoal.spark, name) for name in shoal.spark.__all__)
