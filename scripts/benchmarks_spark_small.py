"""Spark's small work: micro-batches of few records, partitions of few records, a filter for few of many.

Law of this file: each number stands beside the same records another way, in the same run, by turns. "Before"
is another checkout's Shoal if SHOAL_PARENT names one, in a Spark of its own; else this one with its short
ways turned off by options, which leaves a task for each partition.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import bench_topics
import benchmarks_spark
import cluster
import load
import terminal
from row import Row

PARENT = "SHOAL_PARENT"
LONE = "lone"
LONE_RECORDS = 200
FEW = "few"
MANY = 64
MICRO_BATCH_RECORDS = 256
MICRO_BATCHES = 30  # of each topic, to be read in so many micro-batches
MEASURED_BATCHES = 15
SKIPPED_BATCHES = 5
SENT_RECORDS = 15
SKIPPED_RECORDS = 5
PARTITION_RECORDS = 2_000
COUNTS = 3  # in each turn: they take less than a second, and one may meet a collection of garbage
FILTERED_RECORDS = 5_000_000
MICRO_BATCH_LARGE = 1_000_000


class Before(NamedTuple):
    """What "before" is: a Spark, and options of its streams and of its batch queries."""

    name: str
    spark: benchmarks_spark.Program
    commit: str = ""  # of another checkout

    def floor(self, measured: str) -> str:
        """A row's text. Parts in brackets do not make it another row."""
        return f"{self.name} {measured}" + (f" ({self.commit})" if self.commit else "")

    def options(self, partitions: int, *, stream: bool) -> dict[str, str]:
        """For a topic of so many partitions."""
        if self.commit:
            return {}
        off = {"prefetchBytes": "0"} if stream else {}
        return {"minPartitions": str(partitions), **off}


@contextlib.contextmanager
def sparks(directory: pathlib.Path) -> Iterator[tuple[benchmarks_spark.Program, Before]]:
    """This checkout's Spark session, and what stands for the parent commit."""
    parent = os.environ.get(PARENT)
    with contextlib.ExitStack() as stack:
        (directory / "own").mkdir(parents=True)
        own = stack.enter_context(benchmarks_spark.program(directory / "own"))
        if not parent:
            yield own, Before("short ways off", own)
            return
        (directory / "parent").mkdir()
        checkout = pathlib.Path(parent).resolve()
        commit = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        other = stack.enter_context(benchmarks_spark.program(directory / "parent", checkout))
        yield own, Before("parent commit", other, commit)


def source(url: str, topic: str, **options: Any) -> dict[str, Any]:
    """A query's format and options."""
    chosen = {name: str(value) for name, value in options.items()}
    return {"format": "shoal", "options": {"agent": url, "subscribe": topic, **chosen}}


def fill(url: str, topic: str, partitions: int, records: int, batches: int) -> None:
    """A topic with so many stored batches of so many records in each partition."""
    bench_topics.create_topic(url, topic, partitions, 1)
    body = bench_topics.arrow_body(records)
    for partition in range(partitions):
        target = f"{url}/v1/topics/{topic}/partitions/{partition}/records"
        request = load.request_bytes("POST", target, body, Content_Type=bench_topics.ARROW)
        bench_topics.post(request, url, connections=1, requests=batches)


def turns(
    rounds: int, name: str, ours: Callable[[], list[float]], other: Callable[[], list[float]]
) -> tuple[list[float], list[float]]:
    """The milliseconds that both measured, by turns, after a turn that warms the JVM."""
    for warm in (other, ours):
        warm()
    mine: list[float] = []
    theirs: list[float] = []
    bar = terminal.Bar(name)
    for number in range(rounds):
        theirs += other()
        mine += ours()
        bar.update(
            (number + 1) / rounds, f"{statistics.median(mine):.0f} to {statistics.median(theirs):.0f} ms"
        )
    return mine, theirs


def micro_rows(bench: benchmarks_spark.Bench) -> list[Row]:
    """Micro-batches of one record, of 256 records, and how soon a record is seen."""
    directory = bench.directory / "spark-micro"
    with bench.agents(1) as agents, sparks(directory) as (spark, before):
        url = agents.agents[0].url
        fill(url, LONE, 1, 1, LONE_RECORDS)
        for partitions in (4, MANY):
            fill(url, f"{FEW}-{partitions}", partitions, MICRO_BATCH_RECORDS // partitions, MICRO_BATCHES)
        found = [lone_record(bench, spark, url, directory), few_records(bench, spark, url, directory)]
        return [*found, sent_to_seen(bench, spark, before, url)]


def milliseconds(spark: benchmarks_spark.Program, directory: pathlib.Path, **query: Any) -> list[float]:
    """Of micro-batches, less waiting; each query has a checkpoint of its own."""
    number = len(list(directory.glob("checkpoint-*")))
    checkpoint = directory / f"checkpoint-{number}"
    checkpoint.mkdir()
    numbers = {"batches": MEASURED_BATCHES, "skipped": SKIPPED_BATCHES, "less_waiting": True}
    result = spark.run("stream", checkpoint=str(checkpoint), **numbers, **query)["result"]
    return [float(each) for each in result]


def lone_record(
    bench: benchmarks_spark.Bench, spark: benchmarks_spark.Program, url: str, directory: pathlib.Path
) -> Row:
    """Records that were appended one at a time, one to a micro-batch."""
    ours = source(url, LONE, startingOffsets="earliest", maxOffsetsPerTrigger=1)
    empty = {"format": "empty_stream", "options": {"tasks": "1"}}
    mine, least = turns(
        bench.rounds,
        "one record",
        lambda: milliseconds(spark, directory, **ours),
        lambda: milliseconds(spark, directory, **empty),
    )
    return Row(
        f"Spark micro-batch of one record, median of {len(mine)}",
        f"{statistics.median(mine):.0f} ms",
        f"empty Python source, one task {statistics.median(least):.0f} ms",
        statistics.median(mine) / statistics.median(least),
        0.8,
        True,
    )


def few_records(
    bench: benchmarks_spark.Bench, spark: benchmarks_spark.Program, url: str, directory: pathlib.Path
) -> Row:
    """256 records of 64 partitions, beside as many of four."""

    def query(partitions: int) -> list[float]:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": MICRO_BATCH_RECORDS}
        return milliseconds(spark, directory, **source(url, f"{FEW}-{partitions}", **options))

    mine, least = turns(bench.rounds, "64 partitions", lambda: query(MANY), lambda: query(4))
    return Row(
        f"Spark micro-batch, {MICRO_BATCH_RECORDS} records, 64 partitions, median of {len(mine)}",
        f"{statistics.median(mine):.0f} ms",
        f"four partitions {statistics.median(least):.0f} ms",
        statistics.median(mine) / statistics.median(least),
        1.5,
        True,
    )


def sent_to_seen(
    bench: benchmarks_spark.Bench, spark: benchmarks_spark.Program, before: Before, url: str
) -> Row:
    """A record sent to an idle query, until a function of foreachBatch has it."""
    bench_topics.create_topic(url, "seen", 4, 1)

    def latencies(spark: benchmarks_spark.Program, options: dict[str, str]) -> list[float]:
        query = source(url, "seen", **options)
        answer = spark.run("seen", records=SENT_RECORDS, skipped=SKIPPED_RECORDS, **query)
        return [float(each) for each in answer["result"]]

    mine, theirs = turns(
        bench.rounds,
        "sent to seen",
        lambda: latencies(spark, {}),
        lambda: latencies(before.spark, before.options(4, stream=True)),
    )
    return Row(
        f"Spark: record sent to seen in foreachBatch, median of {len(mine)}",
        f"{statistics.median(mine):.0f} ms, worst {max(mine):.0f} ms",
        before.floor(f"{statistics.median(theirs):.0f} ms"),
        statistics.median(mine) / statistics.median(theirs),
        0.75,
        True,
    )


def task_rows(bench: benchmarks_spark.Bench) -> list[Row]:
    """A batch count over many small partitions, and a filter for few records of a large one."""
    directory = bench.directory / "spark-tasks"
    with bench.agents(1) as agents, sparks(directory) as (spark, _):
        url = agents.agents[0].url
        records = MANY * PARTITION_RECORDS
        for partitions in (2, MANY):
            fill(url, f"{FEW}-{partitions}", partitions, 1_000, records // partitions // 1_000)
        benchmarks_spark.fill(url, FILTERED_RECORDS)
        for partitions in (2, MANY):  # the first query of each starts workers and warms the JVM
            spark.seconds("count", records, **source(url, f"{FEW}-{partitions}"))

        def count(partitions: int) -> float:
            query = source(url, f"{FEW}-{partitions}")
            return statistics.median(spark.seconds("count", records, **query) for _ in range(COUNTS))

        mine, least = bench.alternate(lambda: count(MANY), lambda: count(2))
        name = f"Spark count of {records:,} records in {MANY} partitions"
        found = [Row(name, f"{mine:.2f} s", f"in two partitions {least:.2f} s", mine / least, 1.5, True)]
        return [*found, ten_offsets(bench, spark, url)]


def ten_offsets(bench: benchmarks_spark.Bench, spark: benchmarks_spark.Program, url: str) -> Row:
    """Ten offsets of each of the two partitions, with Spark's setting on, and off."""
    query = {**source(url, benchmarks_spark.TOPIC), "first": FILTERED_RECORDS // 4}
    expected = 10 * benchmarks_spark.PARTITIONS
    for setting in ("true", "false"):
        spark.seconds("ten_offsets", expected, pushdown=setting, **query)
    on, off = bench.alternate(
        lambda: spark.seconds("ten_offsets", expected, pushdown="true", **query),
        lambda: spark.seconds("ten_offsets", expected, pushdown="false", **query),
    )
    name = f"Spark filter for ten offsets of {FILTERED_RECORDS / 1e6:g} M records, setting on"
    return Row(name, f"{on:.2f} s", f"off {off:.2f} s", on / off, 0.3, True)


def before_rows(bench: benchmarks_spark.Bench, records: int = benchmarks_spark.RECORDS) -> list[Row]:
    """Large work, which small work must not have made slower: count, group-by, write, large micro-batches."""
    directory = bench.directory / "spark-before"
    topic, partitions = benchmarks_spark.TOPIC, benchmarks_spark.PARTITIONS
    found = []
    with bench.agents(1) as agents, sparks(directory) as (spark, before):
        url = agents.agents[0].url
        benchmarks_spark.fill(url, records)
        ours = source(url, topic)
        other = source(url, topic, **before.options(partitions, stream=False))

        def compare(what: str, mine: Callable[[], float], theirs: Callable[[], float]) -> None:
            for warm in (mine, theirs):
                warm()
            rate, least = bench.alternate(mine, theirs)
            measured, floor = f"{rate / 1e6:.2f} M records/s", before.floor(f"{least / 1e6:.2f} M/s")
            found.append(
                Row(f"Spark {what} of {records / 1e6:g} M records", measured, floor, rate / least, 0.95)
            )

        for do, expected in (("count", records), ("group", [benchmarks_spark.KEYS, records])):
            compare(
                "count" if do == "count" else "group-by",
                lambda do=do, expected=expected: records / spark.seconds(do, expected, **ours),  # type: ignore[misc]
                lambda do=do, expected=expected: (  # type: ignore[misc]
                    records / before.spark.seconds(do, expected, **other)
                ),
            )
        limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": MICRO_BATCH_LARGE}
        mine = source(url, topic, **limit)
        theirs = source(url, topic, **limit, **before.options(partitions, stream=True))
        compare(
            "micro-batches of 1 M records, out",
            lambda: float(spark.run("large", **mine)["result"]),
            lambda: float(before.spark.run("large", **theirs)["result"]),
        )
        if before.commit:
            bench_topics.create_topic(url, benchmarks_spark.SINK_TOPIC, partitions, 1)
            made = str(directory / "parquet")
            spark.run("parquet", **ours, parquet=made)
            sink = {"format": "shoal", "options": {"agent": url, "topic": benchmarks_spark.SINK_TOPIC}}
            compare(
                "write",
                lambda: records / spark.seconds("write", parquet=made, **sink),
                lambda: records / before.spark.seconds("write", parquet=made, **sink),
            )
        else:
            terminal.problem(f"SKIPPED: the write beside another commit: no checkout is named ({PARENT}=DIR)")
    return found


def rows(bench: benchmarks_spark.Bench) -> list[Row]:
    """All of them. Raises ClusterProblem where a checkout does not run."""
    parent = os.environ.get(PARENT)
    if parent and not (pathlib.Path(parent) / "shoal" / "spark").is_dir():
        raise cluster.ClusterProblem(f"{PARENT}={parent} is no checkout of Shoal")
    return [*micro_rows(bench), *task_rows(bench), *before_rows(bench)]
