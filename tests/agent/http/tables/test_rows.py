"""Rows of tables over HTTP: any key by any agent, conditions, ETags; and what is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote

import pytest
from http_fixtures import Agent, Answer, one_agent, running, two_agents
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.http.tables.keys import from_base64, row_key
from shoal.errors import ShoalError
from shoal.format.hash_ranges import key_hash, partition_for
from tests.agent.fake_broker import FakeCluster

ODD_KEYS = [
    b"k", b"a/b", b"/a", b"a/", b"//", b".", b"..", b"a/../b", b"./x", b"%2F", b"%", b"100%", b"\0", b"a b+c",
    b"?x=1", b"#", "ü".encode(), b"\xff\x00\xfe", b"a;b=c", b"x" * 2_000, b"records", b"~!$&'()*,:@",
]  # fmt: skip


async def put(agent: Agent, path: str, body: bytes = b"v", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await agent.request("PUT", path, body, headers=sent)


async def delete(agent: Agent, path: str, **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await agent.request("DELETE", path, headers=sent)


def raw(key: bytes) -> str:
    """As little escaped as a request line allows."""
    return quote(key, safe="/:@!$&'()*+,;=~")


@pytest.mark.parametrize("key", ODD_KEYS, ids=repr)
async def test_any_key_is_its_own_row_at_any_agent(key: bytes) -> None:
    """Escaped, raw or in base64, at the leader or not: no path is another one than it was sent as."""
    async with two_agents() as (first, second):
        for name, leader in (("here", first), ("there", second)):
            topic = first.broker.cluster.create(name, 3, leader=leader.broker.agent_id, kind="table")
            places = [
                f"/v1/tables/{name}/{quote(key, safe='')}",
                f"/v1/tables/{name}/{raw(key)}",
                f"/v1/tables/{name}?key_base64={quote(b64encode(key))}",
            ]
            for number, place in enumerate(places):
                value = b"value %d" % number
                written = await put(first, place, value)
                assert written.status == 200, written.body
                (appended,) = written.json["appended"]
                assert appended["partition"] == partition_for(key_hash(key), topic.ranges)
                for other in places:
                    answer = await first.get(other)
                    assert (answer.status, answer.body) == (200, value), other
                    assert answer.headers["Etag"] == written.headers["Etag"] == f'"{number}"'
                    assert answer.headers["Shoal-As-Of"] == f"{appended['partition']}:{number + 1}"
                    assert answer.headers["Shoal-Partition"] == str(appended["partition"])
                    assert answer.headers["Content-Type"] == "application/octet-stream"
            assert (await delete(first, places[0])).status == 200
            for place in places:
                assert (await second.get(place)).problem("unknown-key")["status"] == 404
            stored = [one for part in range(3) for one in first.broker.cluster.values(name, part)]
            assert stored == [b"value 0", b"value 1", b"value 2", None]


@given(st.binary(min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_key_survives_its_path_and_its_query(key: bytes) -> None:
    """Every byte, however much of it is escaped."""
    for path in (quote(key, safe=""), raw(key), "".join(f"%{byte:02x}" for byte in key)):
        assert row_key(("t", path), {}) == key
    for text in (b64encode(key).decode(), b64encode(key, b"-_").decode()):
        assert row_key(("t",), {"key_base64": text}) == key
        assert from_base64({"x": text.replace("+", " ")}, "x") == key


async def test_values_are_kept_as_they_are_whatever_their_type() -> None:
    """Bytes, nothing at all, JSON with records, eight mebibytes; and as a whole row in JSON."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        large = bytes(range(256)) * (2**15 - 1)
        for media, value in (
            ("application/json", b'{"records":[1]}'), ("text/plain", b""), ("image/png", b"\x89\0"),
            ("application/x-www-form-urlencoded", b"{} {}"), ("multipart/form-data", b"x"), ("", large),
        ):  # fmt: skip
            sent = {"Content-Type": media} if media else {}
            assert (await first.request("PUT", "/v1/tables/t/k", value, headers=sent)).status == 200
            for agent in (first, second):
                assert (await agent.get("/v1/tables/t/k")).body == value
        for agent in (first, second):
            whole = await agent.get("/v1/tables/t/k", Accept="application/json")
            assert whole.json["value_base64"] == b64encode(large).decode()
            document = whole.json | {"value_base64": ""}
            timestamp = whole.headers["Shoal-Timestamp"]
            assert document == {
                "partition": 0, "offset": 5, "timestamp": timestamp, "key": "k", "value_base64": "",
                "headers": [],
            }  # fmt: skip
            (await agent.get("/v1/tables/t/k", Accept="image/png")).problem("not-acceptable")
        head = await first.request("HEAD", "/v1/tables/t/k")
        assert (head.status, head.body, head.headers["Etag"]) == (200, b"", '"5"')


async def test_headers_of_a_record_are_shown_with_its_row() -> None:
    """A record that came by another route is a row as well."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t", kind="table")
        record = {"key": "k", "value": "v", "timestamp": 5, "headers": {"a": "1"}}
        assert (await agent.post("/v1/topics/t/records", {"records": [record]})).status == 200
        row = (await agent.get("/v1/tables/t/k", Accept="application/json")).json
        assert row["headers"] == [{"key": "a", "value": "1"}]
        assert row["timestamp"] == "1970-01-01T00:00:00.005000Z"


async def test_compare_and_set() -> None:
    """A row is replaced, made or deleted only as expected; a refusal says what is there."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        for agent in (first, second):
            key = f"/v1/tables/t/{agent.broker.name}"
            made = await put(agent, key, b"1", If_None_Match="*")
            tag = made.headers["Etag"]
            refused = (await put(agent, key, b"2", If_None_Match="*")).problem("precondition-failed")
            assert (refused["status"], refused["current"], refused["definite"]) == (412, int(tag[1:-1]), True)
            set_ = await put(agent, key, b"2", If_Match=tag)
            assert set_.status == 200
            (await put(agent, key, b"3", If_Match=tag)).problem("precondition-failed")
            (await delete(agent, key, If_Match=tag)).problem("precondition-failed")
            assert (await agent.get(key)).body == b"2"
            assert (await delete(agent, key, If_Match=set_.headers["Etag"])).status == 200
            gone = (await put(agent, key, b"4", If_Match=tag)).problem("precondition-failed")
            assert gone["current"] is None
            assert (await delete(agent, key)).status == 200, "a row that is not there may be deleted"


async def test_a_reader_that_has_the_row_is_not_sent_it_again() -> None:
    """One ETag or several, weak ones of a proxy too."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        tag = (await put(first, "/v1/tables/t/k")).headers["Etag"]
        for agent in (first, second):
            for known in (tag, f"W/{tag}", f'"9", {tag}', "*"):
                answer = await agent.get("/v1/tables/t/k", If_None_Match=known)
                assert (answer.status, answer.body, answer.headers["Etag"]) == (304, b"", tag)
            assert (await agent.get("/v1/tables/t/k", If_None_Match='"9"')).status == 200


async def test_a_repeated_put_of_a_producer_has_the_first_answer() -> None:
    """Also where its condition would not hold any more."""
    producer = {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"}
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        once = await put(first, "/v1/tables/t/k", If_None_Match="*", **producer)
        again = await put(second, "/v1/tables/t/k", If_None_Match="*", **producer)
        assert again.json == once.json | {"duplicate": True}
        assert again.headers["Etag"] == once.headers["Etag"]
        assert first.broker.cluster.values("t") == [b"v"]


async def test_a_replica_may_answer_on_request_and_without_forwarding() -> None:
    """consistency=local is told what the replica here knows; else ?forward=false names the leader."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        await put(first, "/v1/tables/t/k", b"old")
        await put(first, "/v1/tables/t/k", b"new")
        first.broker.known_end = 1
        assert (await first.get("/v1/tables/t/k?consistency=local&forward=false")).body == b"old"
        assert (await first.get("/v1/tables/t/k")).body == b"new"
        for method in ("GET", "PUT", "DELETE"):
            refused = await first.request(method, "/v1/tables/t/k?forward=false", b"")
            assert refused.problem("not-leader")["leader_url"] == second.broker.url


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/v1/tables/t/", {}, "bad-request"),
        ("PUT", "/v1/tables/t/", {}, "bad-request"),
        ("DELETE", "/v1/tables/t/", {}, "bad-request"),
        ("PUT", "/v1/tables/t", {}, "bad-request"),
        ("PUT", "/v1/tables/t?key_base64=", {}, "bad-request"),
        ("GET", "/v1/tables/t?key_base64=a", {}, "bad-request"),
        ("GET", "/v1/tables/t?key_base64=YQ==&limit=1", {}, "bad-request"),
        ("GET", "/v1/tables/t?key_base64=!!!!", {}, "bad-request"),
        ("PUT", "/v1/tables/t/100%", {}, "bad-request"),
        ("GET", "/v1/tables/t/%zz", {}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": '"1", "2"'}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": 'W/"1"'}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": "1"}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": "*"}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": '"-1"'}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-Match": '"' + "9" * 30 + '"'}, "bad-request"),
        ("DELETE", "/v1/tables/t/k", {"If-Match": '"1", "2"'}, "bad-request"),
        ("DELETE", "/v1/tables/t/k", {"If-None-Match": "*"}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-None-Match": '"1"'}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"If-None-Match": "*", "If-Match": '"1"'}, "bad-request"),
        ("GET", "/v1/tables/t/k", {"If-Match": '"0"'}, "bad-request"),
        ("PUT", "/v1/tables/t/k", {"Shoal-Producer-Id": "p"}, "bad-request"),
        ("PUT", "/v1/tables/t/k?timeout=2h", {}, "bad-request"),
        ("GET", "/v1/tables/t/k?consistency=none", {}, "bad-request"),
        ("GET", "/v1/tables/t/k?misspelt=1", {}, "bad-request"),
        ("POST", "/v1/tables/t/k", {}, "method-not-allowed"),
        ("PATCH", "/v1/tables/t", {}, "method-not-allowed"),
        ("GET", "/v1/tables/log/k", {}, "wrong-kind"),
        ("PUT", "/v1/tables/log/k", {}, "wrong-kind"),
        ("DELETE", "/v1/tables/log/k", {}, "wrong-kind"),
        ("GET", "/v1/tables/log", {}, "wrong-kind"),
        ("GET", "/v1/tables/log", {"Accept": "text/event-stream"}, "wrong-kind"),
        ("GET", "/v1/tables/none/k", {}, "unknown-topic"),
        ("PUT", "/v1/tables/none/k", {}, "unknown-topic"),
        ("GET", "/v1/tables/none", {}, "unknown-topic"),
        ("GET", "/v1/tables/a%20b/k", {}, "illegal-name"),
        ("GET", "/v1/tables", {}, "unknown-route"),
        ("PUT", f"/v1/tables/t/{'k' * 9_000}", {}, "too-large"),
    ],
)
async def test_bad_requests(method: str, path: str, headers: Mapping[str, str], code: str) -> None:
    """A clear refusal each, and nothing is stored."""
    async with one_agent() as agent:
        cluster = agent.broker.cluster
        cluster.create("t", kind="table")
        cluster.create("log")
        await put(agent, "/v1/tables/t/k")
        if len(path) > 8_190:  # a client of tests would refuse it itself
            line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            assert code.encode() in await agent.raw(line.encode())
        else:
            problem = (await agent.request(method, path, b"", headers=headers)).problem(code)
            assert problem["definite"]
        assert cluster.stored() == 1
        assert sorted(cluster.topics) == ["log", "t"]


async def test_too_long_keys_and_values() -> None:
    """A record with its key has eight mebibytes at most."""
    with pytest.raises(ShoalError, match="too-large"):
        row_key(("t",), {"key_base64": b64encode(b"k" * 65_536).decode()})
    async with one_agent() as agent:
        agent.broker.cluster.create("t", kind="table")
        (await put(agent, "/v1/tables/t/k", bytes(8 * 2**20))).problem("too-large")
        (await put(agent, "/v1/tables/t/k", bytes(8 * 2**20 + 1))).problem("too-large")
        assert (await put(agent, "/v1/tables/t/k", bytes(8 * 2**20 - 1))).status == 200


async def test_a_leader_that_moves_is_followed() -> None:
    """A put goes to where the partition is led now, a get as well."""
    cluster = FakeCluster()
    async with running(cluster.add("one")) as first, running(cluster.add("two")) as second:
        cluster.create("t", leader=second.broker.agent_id, kind="table")
        assert (await put(first, "/v1/tables/t/k", b"1")).status == 200
        second.broker.move("t", 0, first.broker.agent_id)
        for agent in (first, second):
            assert (await put(agent, "/v1/tables/t/k", b"2")).status == 200
            assert (await agent.get("/v1/tables/t/k")).body == b"2"
        first.broker.move("t", 0, None)
        assert (await first.get("/v1/tables/t/k?timeout=100ms")).problem("no-leader")["retriable"]
