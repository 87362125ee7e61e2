"""Bad input, by table: the right code, the right definiteness, nothing stored, no topic made, the server
unharmed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent

from shoal.errors import ERRORS
from shoal.format.batch import DEFAULT_SCHEMA

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
RECORDS = "/v1/topics/t/records"
PARTITION = "/v1/topics/t/partitions/0/records"
GOOD = b'{"records":[{"value":"v"}]}'


class Case(NamedTuple):
    """A request and what is wrong with it; `says`: what the detail has to name."""

    code: str
    says: str
    body: bytes = b"v"
    media: str | None = JSON
    path: str = RECORDS
    method: str = "POST"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


def dictionary_stream() -> bytes:
    schema = DEFAULT_SCHEMA.set(1, pa.field("key", pa.dictionary(pa.int8(), pa.binary())))
    batch = arrow_batch([b"v"])
    columns = [
        batch.column(0),
        pa.array([b"k"]).dictionary_encode().cast(schema.field(1).type),
        *batch.columns[2:],
    ]
    return arrow_stream(pa.record_batch(columns, schema=schema), schema=schema)


def null_timestamp_stream() -> bytes:
    batch = arrow_batch([b"v"])
    return arrow_stream(
        batch.set_column(0, DEFAULT_SCHEMA.field(0), pa.array([None], pa.timestamp("us", "UTC")))
    )


def other_schema_stream() -> bytes:
    batch = pa.record_batch({"value": pa.array(["text"])})
    return arrow_stream(batch, schema=batch.schema)


BIG = b"x" * (8 * 2**20 + 1)
GOOD_ARROW = arrow_stream(arrow_batch([b"v"] * 10))

CASES = {
    # JSON
    "not JSON": Case("bad-request", "JSON", b"{records}"),
    "no body": Case("bad-request", "empty", b""),
    "no records": Case("bad-request", '{"records"', b'{"user":"a"}'),
    "no records says NDJSON": Case("bad-request", "ndjson", b'{"user":"a"}'),
    "records no list": Case("bad-request", "records", b'{"records":{}}'),
    "a record no object": Case("bad-request", "record 1", b'{"records":[{"value":"a"},3]}'),
    "unknown member": Case("bad-request", "record 0", b'{"records":[{"vale":"a"}]}'),
    "both values": Case("bad-request", "record 0", b'{"records":[{"value":"a","value_base64":"YQ=="}]}'),
    "wrong base64": Case("bad-request", "record 0", b'{"records":[{"value_base64":"%%"}]}'),
    "wrong time": Case("bad-request", "record 0", b'{"records":[{"value":"a","timestamp":"noon"}]}'),
    "wrong headers": Case("bad-request", "record 0", b'{"records":[{"value":"a","headers":[1]}]}'),
    "not UTF-8": Case("bad-request", "", b'{"records":[{"value":"\xff"}]}'),
    "deep": Case("bad-request", "", b'{"records":' + b"[" * 200_000),
    "an array": Case("bad-request", "", b"[1,2]"),
    "forward": Case("bad-request", "forward", GOOD, path=RECORDS + "?forward=maybe"),
    "digits": Case(
        "bad-request", "a number has too many digits", b'{"records":[{"value":' + b"9" * 5_000 + b"}]}"
    ),
    "NaN": Case("bad-request", "", b'{"records":[{"value":NaN}]}'),
    "charset": Case("unsupported-media-type", "latin-1", GOOD, "application/json; charset=latin-1"),
    "gzip": Case("unsupported-media-type", "gzip", GOOD, headers={"Content-Encoding": "gzip"}),
    "key with JSON": Case("bad-request", "key", GOOD, path=RECORDS + "?key=k"),
    "key_field with JSON": Case("bad-request", "key_field", GOOD, path=RECORDS + "?key_field=k"),
    "body over 8 MiB": Case("too-large", "8388608", b'{"records":["' + BIG),
    # raw
    "form with records": Case("ambiguous-body", "--json", GOOD, FORM),
    "form with records, key route": Case("ambiguous-body", "--json", GOOD, FORM, PARTITION),
    "raw empty": Case("bad-request", "empty", b"", None),
    "raw over 8 MiB": Case("too-large", "8388608", BIG, None),
    "key_field with raw": Case("bad-request", "key_field", b"v", None, RECORDS + "?key_field=k"),
    # NDJSON
    "NDJSON empty": Case("bad-request", "empty", b"", NDJSON),
    "NDJSON bad line": Case("bad-request", "record 1", b'{"a":1}\n{"a":\n{"a":2}\n', NDJSON),
    "NDJSON no key field": Case("bad-request", "user", b'{"a":1}\n', NDJSON, RECORDS + "?key_field=user"),
    "NDJSON long line": Case("too-large", "", b'"' + BIG + b'"\n', NDJSON),
    "NDJSON endless line": Case("too-large", "", b'"' + BIG + BIG, NDJSON),
    "key with NDJSON": Case("bad-request", "key_field", b"1\n", NDJSON, RECORDS + "?key=k"),
    # Arrow
    "Arrow empty": Case("bad-request", "empty", b"", ARROW),
    "Arrow garbage": Case("bad-request", "Arrow", b"this is no Arrow stream at all, is it", ARROW),
    "Arrow cut": Case("bad-request", "Arrow", GOOD_ARROW[:-40], ARROW),
    "Arrow cut in the head": Case("bad-request", "Arrow", GOOD_ARROW[:100], ARROW),
    "Arrow other schema": Case("schema-mismatch", "Arrow", other_schema_stream(), ARROW),
    "Arrow null timestamp": Case("bad-request", "timestamp", null_timestamp_stream(), ARROW),
    "Arrow key": Case("bad-request", "key", GOOD_ARROW, ARROW, RECORDS + "?key=k"),
    # parameters
    "acks": Case("bad-request", "acks", GOOD, path=RECORDS + "?acks=some"),
    "timeout": Case("bad-request", "timeout", GOOD, path=RECORDS + "?timeout=1h"),
    "unknown parameter": Case("bad-request", "ack", GOOD, path=RECORDS + "?ack=all"),
    "unknown parameters": Case("bad-request", "'x', 'y'", GOOD, path=RECORDS + "?x=1&y=2"),
    "repeated parameter": Case("bad-request", "acks", GOOD, path=RECORDS + "?acks=all&acks=all"),
    "parameter not UTF-8": Case("bad-request", "", b"v", None, RECORDS + "?key=%FF"),
    "path not UTF-8": Case("bad-request", "", GOOD, path="/v1/topics/%FF/records"),
    # places
    "illegal name": Case("illegal-name", "letters", GOOD, path="/v1/topics/a%2Fb/records"),
    "system topic": Case("illegal-name", "system", GOOD, path="/v1/topics/_catalog/records"),
    "unknown partition": Case("unknown-partition", "", GOOD, path="/v1/topics/t/partitions/9/records"),
    "negative partition": Case("unknown-partition", "-1", GOOD, path="/v1/topics/t/partitions/-1/records"),
    "unknown route": Case("unknown-route", "/v1", GOOD, path="/v1/topics/t/messages"),
    "trailing slash": Case("unknown-route", "/v1", GOOD, path="/v1/topics/t/records/"),
    "empty segment": Case("unknown-route", "/v1", GOOD, path="/v1/topics//records"),
    "root": Case("method-not-allowed", "GET", GOOD, path="/"),
    "PUT records": Case("method-not-allowed", "--data-binary", GOOD, path=RECORDS, method="PUT"),
    "PUT partition": Case("method-not-allowed", "--data-binary", GOOD, path=PARTITION, method="PUT"),
    "POST topic": Case("method-not-allowed", "PUT", GOOD, path="/v1/topics/t"),
    "GET records": Case("bad-request", "partitions/0/records", b"", path=RECORDS + "?offset=1", method="GET"),
    "DELETE records": Case("method-not-allowed", "POST", b"", path=RECORDS, method="DELETE"),
    "OPTIONS": Case("method-not-allowed", "POST", b"", path=RECORDS, method="OPTIONS"),
    # who asks
    "foreign page": Case("foreign-origin", "evil", GOOD, headers={"Origin": "http://evil.example"}),
    "sandboxed page": Case("foreign-origin", "null", GOOD, headers={"Origin": "null"}),
    "rebound name": Case("foreign-origin", "evil", GOOD, headers={"Host": "evil.example:7070"}),
    "strange host": Case("bad-request", "Host", GOOD, headers={"Host": "[::1"}),
}


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_nothing_is_stored(agent: Agent, case: Case) -> None:
    """The request is refused with a definite problem that helps, and the next one works."""
    headers = dict(case.headers)
    if case.media is not None:
        headers["Content-Type"] = case.media
    answer = await agent.request(case.method, case.path, case.body or None, headers=headers)
    problem = answer.problem(case.code)
    assert answer.status == ERRORS[case.code].status
    assert problem["definite"] is True
    assert case.says in problem["detail"]
    assert agent.broker.cluster.stored() == 0
    assert list(agent.broker.cluster.topics) == ["t"]
    assert agent.runner.context.gate.bytes_in_flight == 0
    assert agent.runner.context.gate.requests == 0
    assert (await agent.post(RECORDS, {"records": [{"value": "v"}]})).status == 200


async def test_dictionaries_are_refused(agent: Agent) -> None:
    """A dictionary-encoded column is refused, whatever the word."""
    answer = await agent.post(RECORDS, dictionary_stream(), media=ARROW)
    assert answer.json["code"] in ("schema-mismatch", "unsupported-media-type")
    assert agent.broker.cluster.stored() == 0


async def test_one_record_over_the_limit(agent: Agent) -> None:
    """A record over 8 MiB in an Arrow stream is too large, like one in JSON."""
    answer = await agent.post(RECORDS, arrow_stream(arrow_batch([BIG])), media=ARROW)
    answer.problem("too-large")
    assert agent.broker.cluster.stored() == 0


async def test_405_says_what_is_possible(agent: Agent) -> None:
    """Allow is there, HEAD with every GET."""
    for method, path, allow in (
        ("PATCH", RECORDS, "GET, HEAD, POST"), ("PATCH", PARTITION, "GET, HEAD, POST"),
        ("POST", "/v1/topics/t", "DELETE, GET, HEAD, PATCH, PUT"), ("PATCH", "/v1/members", "GET, HEAD"),
    ):  # fmt: skip
        answer = await agent.request(method, path)
        answer.problem("method-not-allowed")
        assert answer.headers["Allow"] == allow


async def test_own_page_and_own_names_pass(agent: Agent) -> None:
    """The agent's own origin, numbers and local names are welcome."""
    host = f"127.0.0.1:{agent.port}"
    for headers in (
        {"Origin": f"http://{host}", "Host": host}, {"Host": f"localhost:{agent.port}"},
        {"Host": "[::1]:7070"}, {"Host": "192.168.1.9"}, {"Host": "LOCALHOST"}, {"Host": "localhost."},
    ):  # fmt: skip
        assert (await agent.request("GET", "/livez", headers=headers)).status == 200, headers


async def test_later_routes_are_plainly_unknown(agent: Agent) -> None:
    """What is not built answers 404, not a stub."""
    for path in ("/v1/tables", "/topics", "/api/topics"):
        (await agent.get(path)).problem("unknown-route")


def test_every_answer_is_ascii_json() -> None:
    """Broken text of a client cannot break the problem document that quotes it."""
    from shoal.agent.http.core.problems import json_bytes
    from shoal.errors import ShoalError

    document: Any = json.loads(json_bytes(ShoalError("bad-request", "\udcff \x00 é").to_problem()))
    assert document["detail"] == "\udcff \x00 é"


@pytest.mark.parametrize(
    "path",
    [
        "/.git/config",
        "/.git/HEAD",
        "/.svn/entries",
        "/.env",
        "/shoal.toml",
        "/agent.key",
        "/data/",
        "/docs/..",
    ],
)
async def test_no_file_of_the_host_is_served(agent: Agent, path: str) -> None:
    """There are routes, and no directories behind them."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = await agent.raw(request.encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code": "unknown-route"' in answer or b'"code":"unknown-route"' in answer
