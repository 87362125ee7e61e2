"""What users of the Python client get wrong, or try first: refused where it is said, or simply working."""

from __future__ import annotations

import gc
import json
import logging
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from blocking_fixtures import cluster_on_thread
from fake_cluster import FakeCluster

import shoal
from shoal import AsyncClient, BatchingConfig, Client, ClientConfig, ClientError, RetryPolicy, ShoalError
from shoal.client.blocking import _close_all
from shoal.client.produce.producer import batch_of
from shoal.format.timestamps import timestamp_us

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000, first_contact_ms=100)
ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """One agent, on a thread of its own."""
    with cluster_on_thread(1) as fake:
        yield fake


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    """A client of it."""
    with Client(cluster.urls[0], QUICK) as client:
        yield client


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"compression": "snappy"}, "compression is lz4, zstd or None, not 'snappy'"),
    ({"acks": "quorum"}, "acks is one of all, leader, none, not 'quorum'"),
    ({"acks": 1}, "acks is one of"),
    ({"partition": -1}, "a partition is a number from 0 on, not -1"),
    ({"partition": "0"}, "a partition is a number from 0 on, not '0'"),
    ({"batching": BatchingConfig(linger_ms=-1)}, "linger_ms must not be negative"),
    ({"batching": {"linger_ms": 5}}, "batching is a BatchingConfig"),
]


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS, ids=[words for _, words in WRONG_OPTIONS])
def test_a_producers_options_are_checked_where_they_are_given(
    cluster: FakeCluster, client: Client, options: dict[str, Any], words: str
) -> None:
    """Nothing was asked of an agent, and nothing is open that could fail later."""
    cluster.create("t")
    cluster.requests.clear()
    with pytest.raises(ShoalError, match=words):
        client.producer("t", **options)
    with pytest.raises(ShoalError, match=words):
        AsyncClient(cluster.urls).producer("t", **options)
    assert cluster.requests == []


def test_a_bug_while_sending_is_raised_and_not_printed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever flushes gets it; no `Task exception was never retrieved` besides."""

    def broken(*_: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr("shoal.client.produce.producer.encode_stream", broken)
    cluster.create("t")
    client = Client(cluster.urls[0], QUICK)
    client.send("t", b"x")
    with pytest.raises(RuntimeError, match="a bug"):
        client.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_the_interpreters_end_closes_all_clients_whatever_one_of_them_says(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the failure, no traceback; what others have sent is flushed."""
    clients = [Client(cluster.urls[0], QUICK) for _ in range(3)]
    monkeypatch.setattr("shoal.client.blocking._OPEN", clients)
    cluster.create("t")
    for client in clients:
        client.send("t", b"x")
    real = AsyncClient.finish

    async def failing(self: AsyncClient) -> None:
        if self is clients[0]._inner:
            raise shoal.ProduceFailed("nobody took it", cause_code="unreachable", definite=True)
        await real(self)

    monkeypatch.setattr(AsyncClient, "finish", failing)
    monkeypatch.setattr(
        "shoal.client.blocking._OPEN", type("Open", (list,), {"discard": lambda *_: None})(clients)
    )
    with caplog.at_level(logging.ERROR, "shoal.client"):
        _close_all()
    assert [record.getMessage() for record in caplog.records] == [
        "at the interpreter's end ProduceFailed: nobody took it"
    ]
    assert len(cluster.topics["t"].partitions[0].values()) >= 2


def test_positions_survive_json(cluster: FakeCluster, client: Client) -> None:
    """Its keys come back as text; a reading goes on where it was, and seeks there."""
    for log in cluster.create("t", 2).partitions:
        log.append([batch_of([b"a", b"b", b"c"])], None)
    first = client.consumer("t")
    first.seek(0, 1)
    first.seek(1, 2)
    kept = json.loads(json.dumps(first.positions()))
    assert kept == {"0": 1, "1": 2}
    again = client.consumer("t", start=kept)
    assert sorted((record.partition, record.offset) for record in again) == [(0, 1), (0, 2), (1, 2)]
    for wrong in ({"one": 1}, {None: 1}, {1.5: 1}, {True: 1}):
        with pytest.raises(ShoalError, match="is no partition, which is a number"):
            client.consumer("t", start=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "words"), [(1, "it has 1 partition, numbered 0"), (3, "numbered 0 to 2")])
def test_a_partition_that_is_not_there_is_told_with_those_that_are(
    cluster: FakeCluster, client: Client, count: int, words: str
) -> None:
    """`only 1` read as if partition 1 were the one that exists."""
    cluster.create("t", count)
    attempts: list[Callable[[], object]] = [
        lambda: client.consumer("t", partitions=[7]),
        lambda: client.consumer("t", start={7: 0}),
        lambda: client.producer("t", partition=7),
        lambda: client.send("t", b"x", partition=7),
    ]
    for attempt in attempts:
        with pytest.raises(ShoalError, match=words):
            attempt()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (1_795_345_789, "if these are seconds, multiply by 1_000_000"),
        (1_795_345_789_688, "if these are milliseconds, multiply by 1_000"),
        (1_795_345_789_688_328_000, "if these are nanoseconds, divide by 1_000"),
        (17, "use a datetime"),
        (-1, "use a datetime"),
        (2**63, "use a datetime"),
    ],
)
def test_a_time_that_is_clearly_of_another_unit_is_refused(
    cluster: FakeCluster, client: Client, number: int, advice: str
) -> None:
    """It would be stored as some day of 1970, silently."""
    cluster.create("t")
    with pytest.raises(ShoalError, match=advice):
        client.send("t", b"x", timestamp=number)
    with client.consumer("t") as consumer, pytest.raises(ShoalError, match=advice):
        consumer.seek_to_time(number)


def test_times_that_are_microseconds_are_taken() -> None:
    """Of our age; any other by a datetime."""
    assert timestamp_us(1_795_345_789_688_328) == 1_795_345_789_688_328
    assert timestamp_us(0) == 0
    assert timestamp_us(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000
    assert timestamp_us(datetime(1066, 10, 14, tzinfo=UTC)) < 0
    with pytest.raises(ShoalError, match="a datetime or microseconds"):
        timestamp_us(True)


def test_frames_of_another_kind_are_refused_at_the_call(cluster: FakeCluster, client: Client) -> None:
    """To install what was named would not help."""
    cluster.create("t")
    with pytest.raises(ClientError, match=r"makes pandas, polars, arrow and not 'dask'.*'arrow'"):
        client.consumer("t").frames("dask")  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="not 'dask'"):
        AsyncClient(cluster.urls).consumer("t").frames("dask")  # type: ignore[arg-type]


def test_a_topics_settings_may_be_named(cluster: FakeCluster, client: Client) -> None:
    """As arguments or in a mapping; what is named comes first."""
    created, document = client.create_topic("t", partitions=3, replication_factor=1)
    assert (created, len(document["partitions"]), document["replication_factor"]) == (True, 3, 1)
    assert len(client.create_topic("u", {"partitions": 2}, replication_factor=1)[1]["partitions"]) == 2
    assert client.create_topic("v")[0]


def test_a_topics_settings_are_read_and_changed(cluster: FakeCluster, client: Client) -> None:
    """What is not named stays; a change that expects settings which are others by now changes nothing."""
    client.create_topic("t", partitions=2)
    read = client.topic_settings("t")
    assert {row["name"]: row["set"] for row in read["settings"]}["partitions"]
    version = read["version"]
    changed = client.alter_topic("t", replication_factor="all", retention={"age": "7d"}, if_version=version)
    assert (changed["replication_factor"], changed["retention"]["age"]) == ("all", "7d")
    with pytest.raises(ShoalError) as late:
        client.alter_topic("t", replication_factor=1, if_version=version)
    assert late.value.code == "settings-changed"
    assert client.alter_topic("t", segment={"age": "1h"})["replication_factor"] == "all"


def test_several_topics_at_once_are_refused_clearly(cluster: FakeCluster, client: Client) -> None:
    """Each has a consumer of its own."""
    with pytest.raises(ShoalError, match=r"a consumer reads one topic.*open one for each"):
        client.consumer(["a", "b"])  # type: ignore[arg-type]


def test_a_records_json_is_read(cluster: FakeCluster, client: Client) -> None:
    """None for a tombstone; what is no JSON says so."""
    cluster.create("t")
    client.send("t", json.dumps({"item": 7}))
    client.send("t", None)
    client.send("t", "seven")
    client.flush()
    document, tombstone, text = client.consumer("t")
    assert (document.json(), tombstone.json()) == ({"item": 7}, None)
    with pytest.raises(ValueError, match="Expecting value"):
        text.json()


def test_every_public_name_is_there_and_is_told_to_checkers_alike() -> None:
    """What is imported for checkers is what `_HOMES` loads."""
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    assert set(shoal._HOMES) | {"__version__"} == set(shoal.__all__)
    assert shoal.AsyncProducer.__module__ == "shoal.client.produce.producer"
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = shoal.Clinet


@pytest.mark.slow
def test_a_users_program_is_checked(tmp_path: pathlib.Path) -> None:
    """mypy knows the types of what `from shoal import` gives, and finds three mistakes and no others."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """\
            from shoal import AsyncClient, Client, Consumer, Delivery, Producer, Record, RetryPolicy

            client = Client("http://127.0.0.1:7070")
            consumer: Consumer = client.consumer("orders", start={"0": 17})
            producer: Producer = client.producer("orders")
            delivery: Delivery = client.send("orders", "text", key=b"key")
            records: list[Record] = list(consumer)
            names: list[str] = [topic["name"] for topic in client.topics()]
            client.create_topic("t", partitions=3, replication_factor="all", retention={"age": "7d"})
            client.send("orders", {"a": 1})
            client.producer("orders", acks="quorum")
            client.create_topic("t", partition=3)
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "setup.cfg"), str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    wrong = [line for line in ran.stdout.splitlines() if "program.py" in line and "error" in line]
    assert [int(line.split(":")[1]) for line in wrong] == [10, 11, 12], ran.stdout


def test_a_record_shows_its_time_and_place() -> None:
    """Not a number of microseconds."""
    record = shoal.Record("t", 0, 17, 1_767_225_600_000_000, b"k", b"v")
    assert repr(record) == "Record(t/0 offset 17, 2026-01-01T00:00:00.000000Z, key=b'k', value=b'v')"
    assert repr(record._replace(headers=(("a", None),))).endswith("value=b'v', headers=(('a', None),))")


def test_a_frame_of_own_columns_is_refused_with_what_makes_values_of_it(
    cluster: FakeCluster, client: Client
) -> None:
    """And that makes them, in the page's words."""
    cluster.create("t")
    frame = pd.DataFrame({"city": ["Ulm", "Bonn"], "amount": [1, 2]})
    with client.producer("t") as producer:
        with pytest.raises(ShoalError, match=r"this has 'amount', 'city'; .*to_json\(orient='records'"):
            producer.send_batch(frame)
        lines = frame.to_json(orient="records", lines=True).splitlines()
        producer.send_batch(pa.table({"value": lines, "key": frame["city"]}))
    assert {record.key: record.json()["amount"] for record in client.consumer("t")} == {b"Ulm": 1, b"Bonn": 2}
