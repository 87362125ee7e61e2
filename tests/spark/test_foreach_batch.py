"""foreachBatch's function: which write a micro-batch is, and how it comes to a Connect server. No Java."""

from __future__ import annotations

import json
import pathlib
import pickle
import site
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import shoal.spark
from shoal.spark import batches, foreach_batch
from shoal.spark.options.errors import SourceError
from shoal.spark.options.write_options import parse_sink_options
from shoal.spark.pyspark_api import connect_session
from shoal.spark.ship import shipment


class Frame:
    """A DataFrame of a session; its writes are noted."""

    def __init__(self, session: Any) -> None:
        self.sparkSession = session
        self.written: list[dict[str, str]] = []

    @property
    def write(self) -> Any:
        """A writer whose steps give itself."""
        steps = SimpleNamespace(save=lambda: None)
        steps.format = steps.mode = lambda name: steps
        steps.options = lambda **options: self.written.append(options) or steps
        return steps


def classic(query: str | None) -> Frame:
    """In the thread of this query."""
    found = {"sql.streaming.queryId": query}
    return Frame(SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=found.get)))


def connected(*queries: tuple[str, str | None]) -> Frame:
    """In the server's process, with these queries' ids and names in the session."""
    active = [SimpleNamespace(id=query, name=name) for query, name in queries]
    return Frame(SimpleNamespace(streams=SimpleNamespace(active=active)))


def test_a_micro_batch_is_a_write_of_its_query() -> None:
    """The same after a restart; functions with names are writes of their own."""
    frame = classic("q-1")
    batches(topic="t", agent="h:1")(frame, 7)
    batches(name="second")(frame, 7)
    assert frame.written == [
        {"topic": "t", "agent": "h:1", "txnId": "q-1", "txnBatch": "7"},
        {"txnId": "q-1/second", "txnBatch": "7"},
    ]
    longest = parse_sink_options({"txnId": f"{'i' * 36}/{'n' * 40}", "txnBatch": "4294967295"}, {})
    assert longest.txn_batch == 2**32 - 1
    with pytest.raises(SourceError, match=r"^this function is for writeStream\.foreachBatch"):
        batches(topic="t")(classic(None), 0)


def test_through_connect_the_query_is_looked_up() -> None:
    """The only one, or the one of the name: never a guess."""
    alone = connected(("q-1", None))
    batches(topic="t")(alone, 0)
    several = connected(("q-1", None), ("q-2", "mine"), ("q-3", "other"))
    batches(topic="t", query_name="mine")(several, 0)
    assert [alone.written[0]["txnId"], several.written[0]["txnId"]] == ["q-1", "q-2"]
    with pytest.raises(SourceError, match=r"^3 queries run in this session: .*queryName\(NAME\)"):
        batches(topic="t")(several, 1)
    with pytest.raises(SourceError, match=r"^0 queries called 'no' run in this session"):
        batches(topic="t", query_name="no")(several, 1)
    assert len(several.written) == 1


def test_frames_of_a_copied_session_are_of_the_users_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.3 runs micro-batches in a copy of the session, which has no queries of its own."""
    users = connected(("q-1", None)).sparkSession
    monkeypatch.setattr(foreach_batch, "connect_session", lambda: users)
    monkeypatch.setattr(shipment, "received", None)  # as before, once this process has unpickled one
    write = pickle.loads(pickle.dumps(batches(topic="t")))
    frame = connected()
    write(frame, 3)
    assert frame.written == [{"topic": "t", "txnId": "q-1", "txnBatch": "3"}]


def test_only_a_connect_server_has_a_users_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the frame's own session is the query's."""
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    assert connect_session() is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topic": "no topic"}, "topic"),
        ({"topic": "t", "agent": "h:port"}, "agent"),
        ({"name": "two words"}, "without spaces"),
        ({"name": "n" * 41}, "at most 40 characters"),
    ],
)
def test_mistakes_are_told_at_once(arguments: dict[str, str], says: str) -> None:
    """Before a query begins."""
    with pytest.raises(SourceError, match=says):
        batches(**arguments)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"txnBatch": "1"}, "of one txnId, which is not given"),
        ({"txnId": "x", "txnBatch": "-1"}, "a number from 0 to 4294967295"),
        ({"txnId": "x", "txnBatch": "4294967296"}, "a number from 0 to 4294967295"),
        ({"txnId": "x", "txnBatch": "one"}, "a number from 0 to 4294967295"),
    ],
)
def test_a_batch_has_a_number(options: dict[str, str], says: str) -> None:
    """Of an epoch's width, and of something."""
    with pytest.raises(SourceError, match=says):
        parse_sink_options({"topic": "t", **options}, {})


SERVER = """
import json, pickle, sys, tempfile
sys.path.append(SITE)
tempfile.tempdir = "."
function = pickle.loads(open("function", "rb").read())
again = pickle.loads(pickle.dumps(function))
print(json.dumps([vars(function), vars(again), type(function).__module__]))
"""


def test_every_name_of_the_package_loads() -> None:
    """Each is looked up where it is said to be; one stays a function when its module is loaded."""
    for name in (*shoal.spark.__all__, *shoal.spark.__all__):
        assert callable(getattr(shoal.spark, name)), name
    with pytest.raises(AttributeError, match="'Batches'"):
        _ = shoal.spark.Batches


def test_it_takes_shoal_along(tmp_path: pathlib.Path) -> None:
    """A Connect server has no Shoal, and nobody has registered anything in the process that calls it."""
    function = batches(topic="t", query_name="mine")
    (tmp_path / "function").write_bytes(pickle.dumps(function))
    text = SERVER.replace("SITE", repr(site.getsitepackages()[0]))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    first, second, module = json.loads(ran.stdout)
    assert first == second == vars(function)
    assert module == "shoal.spark.foreach_batch"
