"""The pipeline of docs/spark.md, killed as it runs: its results are those of a batch computation."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import re
import signal

import flights
import pyarrow.parquet as pq
import pytest
from cluster import LocalCluster
from real_agents import leaders
from spark_kills import Driver, agents, append_lines, make_topic, records

from shoal.spark.pyspark_api import HAS_READ_LIMITS

FLIGHTS = 10_000  # of the first days of the year
LINES_PER_REQUEST = 500
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "spark.md"
# An hour far behind everything else closes all before it; its own stays open.
MARKER = '{"time_hour":"2013-12-01T00:00:00Z","origin":"END","dep_delay":0}'

# What docs/spark.md says of Spark before 4.2: no limits, a setting for runs that go on to the ends, and in
# 4.0 one query after the other.
BEFORE_4_2 = (
    ('    .option("maxOffsetsPerTrigger", 4000)\n', ""),
    ("settings = {\n", 'settings = {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",\n'),
    ("    return (\n", "    query = (\n"),
    (
        "        .start()\n    )\n",
        """        .start()
    )
    while query.isActive and not query.recentProgress:
        query.awaitTermination(0.1)
    return query
""",
    ),
)

Results = dict[tuple[str, str], tuple[int, int | None]]


def program(directory: pathlib.Path) -> pathlib.Path:
    """The page's program, as it stands there, or as it has to be for a Spark before 4.2."""
    code = re.search(r"```python pipeline\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    path = directory / "flights_pipeline.py"
    text = code[1]
    for written, changed in () if HAS_READ_LIMITS else BEFORE_4_2:
        assert text.count(written) == 1
        text = text.replace(written, changed)
    path.write_text(text)
    return path


def computed(lines: list[str]) -> Results:
    """Flights and summed delay by hour and airport, by a loop over the source."""
    counts: dict[tuple[str, str], int] = collections.Counter()
    delays: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for flight in map(json.loads, lines):
        place = (flight["time_hour"], flight["origin"])
        counts[place] += 1
        if flight["dep_delay"] is not None:
            delays[place].append(flight["dep_delay"])
    return {place: (count, sum(delays[place]) if delays[place] else None) for place, count in counts.items()}


def from_topic(url: str) -> list[tuple[tuple[str, str], tuple[int, int | None]]]:
    """What the topic holds, repetitions and all."""
    rows = [json.loads(value) for _, value in records(url, "hours", 2)]
    return [((f"{row['hour'][:19]}Z", row["origin"]), (row["flights"], row.get("delay"))) for row in rows]


def from_parquet(directory: pathlib.Path) -> list[tuple[tuple[str, str], tuple[int, int | None]]]:
    """What the file sink committed: files that its log names."""
    names: set[str] = set()
    for log in (directory / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            names |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
    rows = []
    for name in sorted(names):
        rows += pq.read_table(directory / name.rpartition("/")[2]).to_pylist()
    return [
        ((f"{row['hour']:%Y-%m-%dT%H:%M:%SZ}", row["origin"]), (row["flights"], row["delay"])) for row in rows
    ]


def fill(cluster: LocalCluster, lines: list[str], *, is_end: bool) -> None:
    """The flights, in turns into two partitions, and the marker behind the last of them."""
    url = cluster.agents[0].url
    for number, first in enumerate(range(0, len(lines), LINES_PER_REQUEST)):
        append_lines(url, "flights", number % 2, lines[first : first + LINES_PER_REQUEST])
    for partition in range(2 * is_end):
        append_lines(url, "flights", partition, [MARKER])


@pytest.mark.slow
@pytest.mark.timeout(900)  # 35 s on two idle cores: Spark starts twice
def test_the_pipeline_equals_a_batch_under_kills(tmp_path: pathlib.Path) -> None:
    """The driver is killed after a micro-batch and started again, then a leader dies: topic and Parquet hold
    every hour and airport exactly once, with the numbers of the source. Each update of the output mode
    update is there once."""
    lines = list(itertools.islice(flights.records(), FLIGHTS))
    with agents(tmp_path / "agents") as cluster:
        for topic in ("flights", "hours", "airports"):
            make_topic(cluster.agents[0].url, topic, 2)
        # Without limits a micro-batch takes all: what the second one is to read comes after the first.
        first = len(lines) if HAS_READ_LIMITS else len(lines) // 2
        fill(cluster, lines[:first], is_end=HAS_READ_LIMITS)
        urls = ",".join(agent.url for agent in cluster.agents)
        checkpoint = tmp_path / "checkpoint-shoal"
        driver = Driver(program(tmp_path), [urls, str(tmp_path)], tmp_path / "driver.log")
        try:
            driver.start()
            driver.reach(checkpoint, 0)
            driver.kill()
            if not HAS_READ_LIMITS:
                fill(cluster, lines[first:], is_end=True)
            driver.start()
            driver.reach(checkpoint, 1)
            leader = leaders(cluster.agents[0].url, "hours")[0]
            victim = next(agent for agent in cluster.agents if agent.url == leader)
            victim.signal(signal.SIGKILL)
            driver.finish()
        finally:
            driver.kill()
        survivor = next(agent for agent in cluster.agents if agent is not victim)
        in_topic = from_topic(survivor.url)
        updates = records(survivor.url, "airports", 2)
    expected = computed(lines)
    assert len(expected) > 500
    assert len(in_topic) == len(expected)
    assert dict(in_topic) == expected
    # Flights of an airport only grow: a micro-batch that came twice would show.
    assert len(updates) == len(set(updates))
    airports = collections.Counter(json.loads(line)["origin"] for line in [*lines, MARKER, MARKER])
    assert {key: int(value) for key, value in sorted(updates, key=lambda update: int(update[1]))} == airports
    in_files = from_parquet(tmp_path / "hours")
    assert len(in_files) == len(expected)
    assert dict(in_files) == expected
