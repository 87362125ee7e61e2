"""Spark's readers and writers with TLS and a token, without Spark: every way carries it, nothing shows it."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from secure_cluster import TOKEN, Files, server_context
from secure_cluster import files as files

from shoal.credentials import Credentials, Secret, token_of
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import SourceOptions, parse_source_options, parse_table_options
from shoal.spark.options.write_options import parse_sink_options
from shoal.spark.read import http as spark_http
from shoal.spark.read.fetch import RangeReader, Scan
from shoal.spark.read.http import Persistence, pool_of
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.prefetch import Prefetcher
from shoal.spark.read.stream import StreamPlanner
from shoal.spark.read.topics import Directory
from shoal.spark.write.send import Sink
from shoal.spark.write.write import TaskWriter

Cluster: TypeAlias = Any  # conftest's
BEARER = f"Bearer {TOKEN}"
ONCE = Persistence(attempts=1)


@pytest.fixture
def secure(cluster: Cluster, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    """The two agents of `cluster` again, with TLS; the others are not asked."""
    cluster.tls = server_context(tmp_path)
    for _ in range(2):
        cluster.start_agent()
    for logs in cluster.topics.values():
        for log in logs.values():
            log.leader += 2
    yield cluster
    for pool in spark_http._POOLS:
        pool.close()
    spark_http._POOLS.clear()


def given(cluster: Cluster, files: Files, **more: str) -> dict[str, str]:
    return {"agent": cluster.url(2), "token": files.token, "ca": files.ca, **more}


def options_of(cluster: Cluster, files: Files, **more: str) -> SourceOptions:
    return parse_source_options(given(cluster, files, subscribe="flights", **more), {})


def test_every_way_goes_over_tls_with_the_token(secure: Cluster, files: Files) -> None:
    """Plans, reads, pipelined reads, waits and appends."""
    options = options_of(secure, files, startingOffsets="earliest")
    directory = Directory(options.agents, pool=pool_of(options.credentials))
    states = directory.states(options.selection)["flights"]
    ranges = [OffsetRange("flights", number, 0, 10, states[number].urls) for number in (0, 1)]
    scans = [Scan(one, options.agents, ("value",), credentials=options.credentials) for one in ranges]
    assert [sum(map(len, RangeReader(scan).batches())) for scan in scans] == [10, 10]
    fetched = Prefetcher(options).fetch(ranges, directory.agents)
    assert fetched is not None
    assert sum(map(len, fetched)) == 20
    rows = pa.RecordBatch.from_pydict(
        {"key": pa.array([b"k"], pa.binary()), "value": pa.array([b"v"], pa.binary())}
    )
    parsed = parse_sink_options(given(secure, files, topic="flights"), {})
    sink = Sink(parsed.agents, parsed.topic, credentials=parsed.credentials)
    assert TaskWriter(sink, "w", 0, 0).write(iter([rows])).records == 1
    assert len(secure.requests) >= 6
    assert set(secure.credentials) == {BEARER}


def test_a_wait_is_not_ended_by_words_of_tls_itself(secure: Cluster, files: Files) -> None:
    """A server sends tickets behind each handshake: the socket of a silent agent becomes readable. The answer
    of the other is taken all the same."""
    secure.fill("silent", ())
    secure.fill("heard", (3,))
    for topic in ("silent", "heard"):
        secure.topics[topic][0].leader = 2
    options = parse_source_options(given(secure, files, subscribe="silent,heard"), {}, Mode.STREAM)
    directory = Directory(options.agents, pool=pool_of(options.credentials), pause=lambda _: None)
    heard = directory.wait(options.selection, {"silent": {0: 0}, "heard": {0: 0}}, 5.0)
    assert list(heard) == ["heard"]


def test_a_refused_token_is_told_at_once(secure: Cluster, files: Files) -> None:
    """Without another attempt, by plans and by tasks."""
    options = options_of(secure, files)
    states = Directory(options.agents, pool=pool_of(options.credentials)).states(options.selection)
    secure.refuses = BEARER
    secure.requests.clear()
    directory = Directory(options.agents, pool=pool_of(options.credentials), pause=pytest.fail)
    with pytest.raises(SourceError, match="401 unauthenticated: the token has expired"):
        directory.states(options.selection)
    piece = OffsetRange("flights", 0, 0, 10, states["flights"][0].urls)
    reader = RangeReader(Scan(piece, options.agents, credentials=options.credentials), pytest.fail)
    with pytest.raises(SourceError, match="401 unauthenticated: the token has expired"):
        list(reader.batches())
    assert len(secure.requests) == 2


def test_an_agent_that_is_not_to_be_trusted_is_told_when_the_query_is_planned(
    secure: Cluster, files: Files
) -> None:
    """At once, and no request has left."""
    options = parse_source_options({"agent": secure.url(2), "subscribe": "flights"}, {})
    with pytest.raises(SourceError, match=r"authority that is not known here: give the authority's, ca=FILE"):
        Directory(options.agents, pool=pool_of(options.credentials)).states(options.selection)
    secret = options_of(secure, files)
    assert secret.credentials.needs_tls
    directory = Directory((secure.url(0),), pool=pool_of(secret.credentials), pause=lambda _: None)
    with pytest.raises(SourceError, match="has no TLS, and the token goes only to agents with TLS"):
        directory.states(secret.selection)
    assert secure.requests == []


def test_executors_need_neither_the_tokens_file_nor_the_authoritys(files: Files) -> None:
    """Both go with the task; the token's text is in the pickle, and in nothing that is shown."""
    options = {"agent": "https://a:1", "token": files.token, "ca": files.ca}
    parsed: list[Any] = [
        parse_source_options({**options, "subscribe": "t"}, {}),
        parse_table_options({**options, "table": "t"}, {}, Mode.BATCH),
        parse_sink_options({**options, "topic": "t"}, {}),
        parse_sink_options({"topic": "t"}, {"SHOAL_TOKEN": TOKEN, "SHOAL_CA": files.ca}),
    ]
    for one in parsed:
        carried = pickle.loads(pickle.dumps(one)).credentials
        assert carried == one.credentials
        assert carried.token == Secret(TOKEN)
        assert carried.ca.startswith("-----BEGIN CERTIFICATE-----")
        assert TOKEN not in repr(one)
    piece = OffsetRange("t", 0, 0, 1, ())
    shown = [
        Scan(piece, (), credentials=parsed[0].credentials),
        Sink((), "t", credentials=parsed[0].credentials),
    ]
    assert TOKEN not in repr(shown)
    assert TOKEN not in repr(vars(StreamPlanner(parsed[0])))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token": "two words"}, "options token, ca, certificate, key: the token has a blank"),
        ({"token": "@/nowhere/at/all"}, "the token cannot be read"),
        ({"ca": "/nowhere/at/all"}, "the authority's certificate cannot be read"),
        ({"key": "k.pem"}, "a key without its certificate"),
        ({"tokne": "secret"}, "unknown option 'tokne'; did you mean token"),
    ],
)
def test_credentials_that_cannot_be_right_are_refused(changes: Mapping[str, str], says: str) -> None:
    """One line each, without the token."""
    with pytest.raises(SourceError) as refused:
        parse_source_options({"subscribe": "t", **changes}, {})
    assert says in str(refused.value)
    assert not [word for word in ("two words", "secret") if word in str(refused.value)]


def test_a_file_of_a_token_has_one_pool_however_often_it_is_exchanged(files: Files) -> None:
    """The driver of a query that runs for weeks asks by the file, whose token is another one each hour."""
    found = Credentials(token_of(files.token))
    pool = pool_of(found)
    for number in range(2 * spark_http.POOLS_MAX):
        pathlib.Path(files.token[1:]).write_text(f"{TOKEN}{number}")
        assert pool_of(found) is pool
        assert pool.headers == {"Authorization": f"Bearer {TOKEN}{number}"}
    others = [Credentials(Secret(f"{TOKEN}of{number}")) for number in range(spark_http.POOLS_MAX)]
    assert len({id(pool_of(one)) for one in others}) == len(others)
    assert pool_of(found) is not pool


def test_one_process_keeps_connections_of_few_credentials(files: Files) -> None:
    """Each has its own; the oldest go."""
    made = [Credentials(Secret(f"token{number}")) for number in range(spark_http.POOLS_MAX + 3)]
    pools = [pool_of(one) for one in made]
    assert len({id(pool) for pool in pools}) == len(made)
    assert pool_of(made[-1]) is pools[-1]
    assert len(spark_http._POOLS) == spark_http.POOLS_MAX
    assert pool_of(replace(made[-1], token=None)) is spark_http.POOL
    spark_http._POOLS.clear()
