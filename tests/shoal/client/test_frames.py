"""Frames of pandas and polars, sent and consumed, as those libraries make them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from blocking_fixtures import cluster_on_thread

from shoal import Client, ClientConfig, ShoalError
from shoal.client.http.routes import RetryPolicy
from shoal.format.tabular import batches_of

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000, first_contact_ms=100)
MOMENT = datetime(2013, 7, 1, 12, 30, 0, 123_456, tzinfo=UTC)
HEADERS = [[{"key": "n", "value": b"1"}], None, []]
COLUMNS = ["partition", "offset", "timestamp", "key", "value", "headers"]


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of one agent with topic t, of two partitions."""
    with cluster_on_thread(1) as cluster:
        cluster.create("t", 2)
        with Client(cluster.urls[0], QUICK) as client:
            yield client


def sent(client: Client, frame: Any) -> list[tuple[bytes | None, bytes | None]]:
    """(key, value) of a frame's records, as they are read back."""
    with client.producer("t", partition=1) as producer:
        producer.send_batch(frame)
    return [(record.key, record.value) for record in client.consumer("t")]


def columns(frame: Any) -> dict[str, list[Any]]:
    """A consumed frame as Python values."""
    table = pa.table(frame) if isinstance(frame, pl.DataFrame) else pa.Table.from_pandas(frame)
    return dict(table.to_pydict())


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_frame_comes_back_as_it_was_sent(client: Client, make: Any) -> None:
    """Text and bytes, nulls, headers and times; in front, where each record lies. What was consumed can be
    sent again as it is."""
    data = {
        "key": ["a", None, "c"],
        "value": [b"1", None, b""],
        "headers": HEADERS,
        "timestamp": [MOMENT] * 3,
    }
    with client.producer("t", partition=1) as producer:
        producer.send_batch(make(data))
    kind = make.__module__.split(".")[0]
    (frame,) = list(client.consumer("t").frames(kind))
    assert isinstance(frame, make)
    assert list(frame.columns) == COLUMNS
    expected = {
        "partition": [1, 1, 1],
        "offset": [0, 1, 2],
        "timestamp": [MOMENT] * 3,
        "key": [b"a", None, b"c"],
        "value": [b"1", None, b""],
        "headers": HEADERS,
    }
    assert columns(frame) == expected
    keep = COLUMNS[2:]
    with client.producer("t", partition=0) as producer:
        producer.send_batch(frame[keep])
    consumer = client.consumer("t", partitions=[0])
    (again,) = list(consumer.frames(kind))
    assert columns(again) == {**expected, "partition": [0, 0, 0]}


def test_consumed_frames_have_the_types_that_people_compute_with(client: Client) -> None:
    """Times with their zone, whole numbers, bytes: nothing of which is an object but what has to be."""
    with client.producer("t", partition=1) as producer:
        producer.send_batch(pd.DataFrame({"value": ["1", "2"], "timestamp": [pd.Timestamp(MOMENT)] * 2}))
    (frame,) = list(client.consumer("t").frames())
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "partition": "int32",
        "offset": "int64",
        "timestamp": "datetime64[us, UTC]",
        "key": "object",
        "value": "object",
        "headers": "object",
    }
    assert frame["timestamp"].dt.hour.tolist() == [12, 12]
    assert frame["value"].str.decode("utf-8").astype(int).sum() == 3
    (lazy,) = list(client.consumer("t").frames("polars"))
    assert lazy["value"].cast(pl.String).cast(pl.Int64).sum() == 3


def test_frames_have_about_as_many_rows_as_wanted(client: Client) -> None:
    """Several of them, as soon as they have enough; together everything in order."""
    with client.producer("t", partition=1) as producer:
        for first in range(0, 100, 10):
            values = [f"{row:100000}" for row in range(first, first + 10)]
            producer.send_batch(pd.DataFrame({"value": values}))
            producer.flush()
    frames = list(client.consumer("t").frames("pandas", rows=15))
    assert len(frames) > 1
    assert all(len(frame) >= 15 for frame in frames[:-1])
    assert pd.concat(frames)["value"].astype(int).tolist() == list(range(100))
    assert pd.concat(frames)["offset"].tolist() == list(range(100))


@pytest.mark.parametrize("kind", ["object", "string", "category", "bytes", "arrow"])
def test_all_of_pandas_kinds_of_text_are_taken(client: Client, kind: str) -> None:
    """Also where null is NaN or NA."""
    texts: list[Any] = ["a", None, "a"]
    made = {
        "object": lambda: pd.Series(["a", float("nan"), "a"], dtype=object),
        "string": lambda: pd.Series(texts, dtype="string"),
        "category": lambda: pd.Series(texts, dtype="category"),
        "bytes": lambda: pd.Series([b"a", None, b"a"], dtype=object),
        "arrow": lambda: pd.Series(texts, dtype=pd.ArrowDtype(pa.large_string())),
    }[kind]()
    assert sent(client, pd.DataFrame({"value": made})) == [(None, b"a"), (None, None), (None, b"a")]


def test_an_index_without_a_name_is_no_column(client: Client) -> None:
    """A filtered frame has one; an index that is called key is the key."""
    frame = pd.DataFrame({"key": ["a", "b", "c"], "value": ["1", "2", "3"]})
    assert sent(client, frame[frame["key"] != "a"]) == [(b"b", b"2"), (b"c", b"3")]
    by_key = frame.set_index("key")
    assert sent(client, by_key[by_key["value"] == "1"])[2:] == [(b"a", b"1")]
    with pytest.raises(ShoalError, match="this has 'row'"):
        sent(client, frame.rename_axis("row").set_axis(pd.Index([5, 7, 9], name="row")))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({"value": [b"x", "s", 3]}), "Conversion failed for column value"),
        (pd.DataFrame({"value": [1, 2]}), "column 'value': Unsupported cast from int64 to binary"),
        (pd.DataFrame([["a", "b"]], columns=["value", "value"]), "Duplicate column names found"),
        (pd.DataFrame({"value": ["x"], "timestamp": pd.to_datetime(["2013-01-01"])}), "has no time zone"),
        (pd.DataFrame({"value": ["x"], "delay": [3]}), "this has 'delay'"),
        (pd.DataFrame({"key": ["x"]}), "this has no 'value'"),
        (pd.DataFrame({"value": ["x"], "headers": [[("n", b"1")]]}), "column 'headers'"),
        (pl.DataFrame({"value": [1]}), "column 'value': Unsupported cast from int64 to binary"),
        (pl.DataFrame({"value": ["x"], "timestamp": [MOMENT.replace(tzinfo=None)]}), "has no time zone"),
        (pd.Series(["x"], name="value"), "not Series; send"),
    ],
)
def test_what_no_topic_takes_is_one_line(frame: Any, says: str) -> None:
    """Before anything of it is buffered."""
    with pytest.raises(ShoalError) as caught:
        batches_of(frame, "t", 0)
    assert caught.value.code == "schema-mismatch"
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_nothing_is_sent_of_a_frame_without_rows(client: Client, make: Any) -> None:
    """And all nulls are nulls."""
    assert sent(client, make({"value": []})) == []
    assert sent(client, make({"key": [None], "value": [None], "headers": [None]})) == [(None, None)]
