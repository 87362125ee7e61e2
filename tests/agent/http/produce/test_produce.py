"""Produce over HTTP: every body type, keys, producers, acks, chunks, and what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from fake_broker import FakeCluster
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent, running

from shoal.agent.http.admission.limits import HttpLimits
from shoal.errors import ShoalError
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        running_agent.broker.cluster.create("six", 6)
        yield running_agent


@pytest.mark.parametrize(
    ("media", "body", "stored"),
    [
        (
            "application/json",
            b'{"records":[{"value":"a"},{"value":{"n":1}},{"value":null}]}',
            [b"a", b'{"n":1}', None],
        ),
        ("application/json; charset=UTF-8", b'{"records":[{"value_base64":"AAH/"}]}', [b"\x00\x01\xff"]),
        (NDJSON, b'{"a":1}\n"two"\n\n3', [b'{"a":1}', b'"two"', b"3"]),
        (NDJSON, b'{"a":1}\r\n', [b'{"a":1}']),
        ("text/plain", b"one value\nof two lines", [b"one value\nof two lines"]),
        ("application/x-www-form-urlencoded", b"a=1&b=2", [b"a=1&b=2"]),
        (None, b"no type at all", [b"no type at all"]),
        (ARROW, arrow_stream(arrow_batch([b"x", b"y"]), arrow_batch([b"z"])), [b"x", b"y", b"z"]),
    ],
)
async def test_body_types(agent: Agent, media: str | None, body: bytes, stored: list[bytes | None]) -> None:
    """Each body type stores its values verbatim and says where."""
    answer = await agent.post("/v1/topics/t/partitions/0/records", body, media=media)
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    count = len(stored)
    assert answer.json == {"count": count, "appended": [{"partition": 0, "base_offset": 0, "count": count}]}
    assert agent.broker.cluster.values("t") == stored


async def test_key_decides_the_partition(agent: Agent) -> None:
    """The key-routed forms agree with the routing rule; the answer names every partition once."""
    ranges = hash_ranges(6)
    keys = [f"user-{number}" for number in range(20)]
    records = [{"key": key, "value": key} for key in keys]
    answer = await agent.post("/v1/topics/six/records", {"records": records})
    assert answer.status == 200
    assert answer.json["count"] == 20
    assert sum(entry["count"] for entry in answer.json["appended"]) == 20
    lines = "\n".join(json.dumps({"k": key}) for key in keys).encode()
    assert (await agent.post("/v1/topics/six/records?key_field=k", lines, media=NDJSON)).status == 200
    batch = arrow_batch([key.encode() for key in keys], [key.encode() for key in keys])
    assert (await agent.post("/v1/topics/six/records", arrow_stream(batch), media=ARROW)).status == 200
    for partition in range(6):
        mine = [key.encode() for key in keys if partition_for(key_hash(key.encode()), ranges) == partition]
        stored = agent.broker.cluster.values("six", partition)
        assert stored[: len(mine)] == mine
        assert stored[2 * len(mine) :] == mine
        assert len(stored) == 3 * len(mine)


async def test_raw_key_parameter(agent: Agent) -> None:
    """?key= is percent-decoded and stored with the value."""
    await agent.post("/v1/topics/six/records?key=caf%C3%A9", b"v")
    partition = partition_for(key_hash("café".encode()), hash_ranges(6))
    answer = await agent.get(f"/v1/topics/six/partitions/{partition}/records")
    assert [record["key"] for record in answer.json["records"]] == ["café"]


async def test_records_without_key_stay_together_and_spread(agent: Agent) -> None:
    """One request's keyless records go to one partition; requests spread over all."""
    used = set()
    for _ in range(24):
        answer = await agent.post("/v1/topics/six/records", {"records": [{"value": "a"}, {"value": "b"}]})
        assert len(answer.json["appended"]) == 1
        used.add(answer.json["appended"][0]["partition"])
    assert used == set(range(6))


async def test_repeated_sequence_is_a_duplicate(agent: Agent) -> None:
    """A repeated sequence is answered with the first offsets and not stored, without a key too."""
    headers = {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"}
    for path in ("/v1/topics/t/partitions/0/records", "/v1/topics/six/records"):
        first = await agent.post(path, b"v", media=None, **headers)
        stored = agent.broker.cluster.stored()
        again = await agent.post(path, b"v", media=None, **headers)
        assert first.status == again.status == 200
        assert again.json == {**first.json, "duplicate": True}
        assert agent.broker.cluster.stored() == stored


async def test_a_producers_batch_is_one_sequence(agent: Agent) -> None:
    """With producer headers a body is one append, whatever its type; what cannot be one is refused."""
    headers = {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "3", "Shoal_Producer_Sequence": "0"}
    path = "/v1/topics/t/partitions/0/records"
    assert (await agent.post(path, b"1\n2\n3\n", media=NDJSON, **headers)).json["count"] == 3
    headers["Shoal_Producer_Sequence"] = "1"
    assert (
        await agent.post(path, arrow_stream(arrow_batch([b"x", b"y"])), media=ARROW, **headers)
    ).status == 200
    headers["Shoal_Producer_Sequence"] = "2"
    two = arrow_stream(arrow_batch([b"x"]), arrow_batch([b"y"]))
    assert (await agent.post(path, two, media=ARROW, **headers)).json["count"] == 2
    headers["Shoal_Producer_Sequence"] = "7"
    (await agent.post(path, b"v", **headers)).problem("sequence-gap")
    headers["Shoal_Producer_Epoch"] = "2"
    (await agent.post(path, b"v", **headers)).problem("producer-fenced")
    assert agent.broker.cluster.stored() == 7
    headers |= {"Shoal_Producer_Epoch": "4", "Shoal_Producer_Sequence": "0"}
    lines = b'"%s"\n' % (b"x" * 1_000) * 9_000
    (await agent.post(path, lines, media=NDJSON, **headers)).problem("too-large")
    many = b'{"records":[' + b'{"value":1},' * 140_000 + b'{"value":1}]}'
    (await agent.post(path, many, media="application/json", **headers)).problem("too-large")
    assert agent.broker.cluster.stored() == 7
    answer = await agent.post("/v1/topics/t/records", many, media="application/json")
    assert answer.json == {
        "count": 140_001,
        "appended": [{"partition": 0, "base_offset": 7, "count": 140_001}],
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"Shoal_Producer_Id": "p"},
        {"Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"},
        {"Shoal_Producer_Id": "", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"},
        {"Shoal_Producer_Id": "x" * 129, "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "0"},
        {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "-1", "Shoal_Producer_Sequence": "0"},
        {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "1_0"},
        {"Shoal_Producer_Id": "p", "Shoal_Producer_Epoch": "0", "Shoal_Producer_Sequence": "9" * 19},
    ],
)
async def test_incomplete_or_wrong_producers(agent: Agent, headers: dict[str, str]) -> None:
    """The three headers come together and are numbers, or nothing is stored."""
    answer = await agent.post("/v1/topics/t/partitions/0/records", b"v", **headers)
    assert answer.problem("bad-request")["definite"]
    assert agent.broker.cluster.stored() == 0


async def test_acks_and_timeout_reach_the_broker(agent: Agent) -> None:
    """acks and timeout are handed on; acks=none answers 202 with a count only."""
    answer = await agent.post("/v1/topics/t/records?acks=leader&timeout=1500ms", b"v")
    assert (answer.status, agent.broker.last_acks, agent.broker.last_timeout_ms) == (200, "leader", 1500)
    answer = await agent.post("/v1/topics/t/records?acks=none", b"v")
    assert (answer.status, answer.json) == (202, {"count": 1})
    answer = await agent.post("/v1/topics/t/records?acks=none", b"1\n2\n", media=NDJSON)
    assert (answer.status, answer.json) == (202, {"count": 2})
    assert (await agent.post("/v1/topics/t/records", b"v")).status == 200
    assert (agent.broker.last_acks, agent.broker.last_timeout_ms) == ("all", 5000)


async def test_unknown_topic_is_created(agent: Agent) -> None:
    """Producing creates the topic and says so once; not where it is switched off, not by a bad body."""
    answer = await agent.post("/v1/topics/fresh/records", b"v")
    assert (answer.status, answer.headers.get("Shoal-Created")) == (200, "true")
    assert "Shoal-Created" not in (await agent.post("/v1/topics/fresh/records", b"v")).headers
    answer = await agent.post("/v1/topics/fresh2/partitions/0/records", b"1\n2", media=NDJSON)
    assert (answer.status, answer.headers.get("Shoal-Created")) == (200, "true")
    (await agent.post("/v1/topics/other/partitions/3/records", b"v")).problem("unknown-topic")
    (await agent.post("/v1/topics/other/records", b"{", media="application/json")).problem("bad-request")
    (await agent.post("/v1/topics/other/records", b"{", media=NDJSON)).problem("bad-request")
    (await agent.post("/v1/topics/other/records?forward=false", b"v")).problem("unknown-topic")
    agent.broker.config.auto_create_topics = False
    (await agent.post("/v1/topics/other/records", b"v")).problem("unknown-topic")
    assert "other" not in agent.broker.cluster.topics


async def test_ndjson_streams_in_chunks() -> None:
    """A stream far over the chunk size is appended chunk by chunk, in order, with one answer."""
    cluster = FakeCluster()
    async with running(cluster.add("one"), HttpLimits(chunk_bytes=2_000, body_bytes=2_000)) as agent:
        cluster.create("t")
        lines = [json.dumps({"n": number, "pad": "x" * (number % 90)}) for number in range(2_000)]

        async def pieces() -> AsyncIterator[bytes]:
            body = "\n".join(lines).encode()
            for start in range(0, len(body), 777):
                yield body[start : start + 777]
                await asyncio.sleep(0.001)

        answer = await agent.request(
            "POST", "/v1/topics/t/records", pieces(), headers={"Content-Type": NDJSON}
        )
        assert answer.json == {"count": 2000, "appended": [{"partition": 0, "base_offset": 0, "count": 2000}]}
        assert cluster.values("t") == [line.encode() for line in lines]
        assert len(cluster.logs["t", 0].batches) > 10
        assert agent.runner.context.gate.bytes_in_flight == 0


async def test_a_bad_line_in_a_stream_says_what_was_stored() -> None:
    """Chunks before the bad line are stored; the problem counts them and is not definite."""
    cluster = FakeCluster()
    async with running(cluster.add("one"), HttpLimits(chunk_bytes=100)) as agent:
        cluster.create("t")

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(40):
                yield b'{"number":%d}\n' % number * 10
                await asyncio.sleep(0.001)
            yield b"not json\n" * 20

        answer = await agent.request(
            "POST", "/v1/topics/t/records", pieces(), headers={"Content-Type": NDJSON}
        )
        problem = answer.problem("bad-request")
        stored = cluster.stored()
        assert 0 < stored <= 400
        assert problem["first_unprocessed_record"] == stored == problem["count"]
        assert problem["appended"] == [{"partition": 0, "base_offset": 0, "count": stored}]
        assert problem["definite"] is False


async def test_partial_failure_over_partitions(agent: Agent) -> None:
    """When some partitions fail the answer is that failure, with what was stored beside it."""
    records = [{"key": f"user-{number}", "value": str(number)} for number in range(30)]
    agent.broker.fail_next = [ShoalError("disk-full", "no room"), ShoalError("timeout", "too late")]
    answer = await agent.post("/v1/topics/six/records", {"records": records})
    problem = answer.problem("timeout")
    assert problem["definite"] is False
    assert {entry["code"]: entry["definite"] for entry in problem["failed"]} == {
        "disk-full": True,
        "timeout": False,
    }
    assert len(problem["appended"]) == 4
    assert problem["count"] == agent.broker.cluster.stored() == sum(e["count"] for e in problem["appended"])
    assert problem["first_unprocessed_record"] == 0


@pytest.mark.parametrize(
    "code", ["overloaded", "disk-full", "timeout", "leadership-lost", "damaged", "no-leader", "stopping"]
)
async def test_the_brokers_errors_pass_through(agent: Agent, code: str) -> None:
    """A broker's error keeps code, status and definiteness on its way to the client."""
    error = ShoalError(code, "said the broker", seen=3)
    agent.broker.fail_next = [error, error, error]  # the short way, the ordinary one, and its delivery
    answer = await agent.post("/v1/topics/t/records?forward=false", b"v")
    problem = answer.problem(code)
    assert (answer.status, problem["definite"], problem["seen"]) == (error.status, error.definite, 3)
    expected = "1" if error.status in (429, 503) and code != "stopping" else None
    assert answer.headers.get("Retry-After") == expected


async def test_arrow_with_empty_batches(agent: Agent) -> None:
    """Empty batches store nothing; a stream of only those is a request for nothing."""
    body = arrow_stream(arrow_batch([]), arrow_batch([b"x"]), arrow_batch([]))
    answer = await agent.post("/v1/topics/t/records", body, media=ARROW)
    assert answer.json["count"] == 1
    answer = await agent.post("/v1/topics/t/records", arrow_stream(), media=ARROW)
    assert (answer.status, answer.json) == (200, {"count": 0, "appended": []})
    assert agent.broker.cluster.values("t") == [b"x"]


@pytest.mark.parametrize("path", ["/v1/topics/t/records", "/v1/topics/t/partitions/0/records"])
async def test_no_records_at_all(agent: Agent, path: str) -> None:
    """A list without records is a request for nothing, of a topic that exists as of one that does not."""
    for _ in range(2):
        answer = await agent.post(path, b'{"records":[]}', media="application/json")
        assert (answer.status, answer.json) == (200, {"count": 0, "appended": []})
        await agent.post("/v1/topics/t/records", b"v")


async def test_an_unexpected_failure_is_not_definite(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in the agent is a 500 that promises nothing and shows nothing of the inside."""
    agent.broker.fail_next = [RuntimeError("secret detail")]  # type: ignore[list-item]
    answer = await agent.post("/v1/topics/t/records", b"v")
    problem = answer.problem("internal")
    assert answer.status == 500
    assert problem["definite"] is False
    assert b"secret" not in answer.body
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("media", ["application/ndjson", "application/jsonl", "Application/X-JsonLines"])
async def test_other_names_of_json_lines(media: str) -> None:
    """A record a line, and answers in that form to whoever asks for it."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        path = "/v1/topics/t/partitions/0/records"
        answer = await agent.post(path, b'{"n":1}\n{"n":2}\n', media=media)
        assert (answer.status, answer.json["count"]) == (200, 2)
        read = await agent.get(path + "?view=value", Accept=media)
        assert (read.headers["Content-Type"], read.body) == ("application/x-ndjson", b'{"n":1}\n{"n":2}\n')
