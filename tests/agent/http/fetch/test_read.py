"""Partition reads over HTTP: where they begin, how much they bring, in which form, and how they wait."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from http_fixtures import Agent, one_agent

from shoal.format.timestamps import format_time

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
PATH = "/v1/topics/t/partitions/0/records"


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """An agent whose topic t holds the values 0 to 9 in four batches: 0-3, 4-6, 7, 8-9."""
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        for first, last in ((0, 3), (4, 6), (7, 7), (8, 9)):
            lines = "".join(f"{number}\n" for number in range(first, last + 1)).encode()
            assert (await running_agent.post(PATH, lines, media=NDJSON)).status == 200
        yield running_agent


def offsets_of(document: dict[str, list[dict[str, int]]]) -> list[int]:
    return [record["offset"] for record in document["records"]]


@pytest.mark.parametrize(
    ("query", "offsets", "next_offset"),
    [
        ("", list(range(10)), 10),
        ("?offset=earliest", list(range(10)), 10),
        ("?offset=5", [5, 6, 7, 8, 9], 10),
        ("?offset=5&limit=2", [5, 6], 7),
        ("?offset=5&limit=3", [5, 6, 7], 8),
        ("?offset=-3", [7, 8, 9], 10),
        ("?offset=-300", list(range(10)), 10),
        ("?offset=-0", [], 10),
        ("?offset=latest", [], 10),
        ("?offset=10", [], 10),
        ("?limit=1", [0], 1),
        ("?max_bytes=1", [0], 1),
        ("?max_bytes=100", [0, 1, 2], 3),
        ("?offset=2&max_bytes=1&limit=1", [2], 3),
        ("?offset=@0", list(range(10)), 10),
        ("?offset=@32503680000000", [], 10),
        ("?offset=@3000-01-01T00:00:00%2B00:00", [], 10),
        ("?offset=@3000-01-01T00:00:00+00:00", [], 10),
    ],
)
async def test_where_a_read_begins_and_ends(
    agent: Agent, query: str, offsets: list[int], next_offset: int
) -> None:
    """Every form of offset, with limits; next_offset continues without gap or repetition."""
    answer = await agent.get(PATH + query)
    assert answer.status == 200, answer.body
    document = answer.json
    assert offsets_of(document) == offsets
    assert [record["value"] for record in document["records"]] == [str(offset) for offset in offsets]
    assert document["next_offset"] == next_offset
    assert (document["log_start_offset"], document["high_watermark"]) == (0, 10)
    assert (document["topic"], document["partition"]) == ("t", 0)
    assert answer.headers["Shoal-Next-Offset"] == str(next_offset)


async def test_following_next_offset_reads_everything_once(agent: Agent) -> None:
    """Pages of any size add up to the log."""
    for limit in (1, 2, 3, 7):
        seen: list[int] = []
        offset = 0
        while True:
            document = (await agent.get(f"{PATH}?offset={offset}&limit={limit}")).json
            if not document["records"]:
                break
            seen += offsets_of(document)
            offset = document["next_offset"]
        assert seen == list(range(10))


async def test_default_limit_is_for_json_only(agent: Agent) -> None:
    """JSON answers stop at 100 records, Arrow answers do not."""
    await agent.post(PATH, b"x\n" * 0 + b"1\n" * 500, media=NDJSON)
    assert len((await agent.get(PATH)).json["records"]) == 100
    assert len((await agent.get(PATH + "?limit=400")).json["records"]) == 400
    answer = await agent.get(PATH, Accept=ARROW)
    assert answer.headers["Shoal-Next-Offset"] == "510"


async def test_a_record_as_json(agent: Agent) -> None:
    """Key, value, time and headers come back as they were given; bytes as base64."""
    record = {
        "key": "k", "value": {"a": [1, None]}, "timestamp": "2026-01-02T03:04:05.000006Z",
        "headers": {"h": "v"},
    }  # fmt: skip
    binary = {"key_base64": "/w==", "value_base64": "/w=="}
    await agent.post(PATH, {"records": [record, binary, {"value": None}]})
    first, second, third = (await agent.get(PATH + "?offset=10")).json["records"]
    assert first == {
        "offset": 10, "timestamp": "2026-01-02T03:04:05.000006Z", "key": "k", "value": '{"a":[1,null]}',
        "headers": [{"key": "h", "value": "v"}],
    }  # fmt: skip
    assert (second["key_base64"], second["value_base64"]) == ("/w==", "/w==")
    assert "value" not in second
    assert (third["key"], third["value"], third["headers"]) == (None, None, [])
    embedded = (await agent.get(PATH + "?offset=10&limit=1&value=json")).json["records"][0]
    assert embedded["value"] == {"a": [1, None]}


async def test_ndjson(agent: Agent) -> None:
    """One record a line, or the values alone byte for byte; the same headers as Arrow answers."""
    answer = await agent.get(PATH + "?offset=8", Accept=NDJSON)
    assert answer.headers["Content-Type"] == NDJSON
    assert answer.body.count(b"\n") == 2
    assert b'"offset":8' in answer.body
    values = await agent.get(PATH + "?offset=8&view=value", Accept=NDJSON)
    assert values.body == b"8\n9\n"
    assert values.headers["Shoal-Next-Offset"] == "10"
    unasked = await agent.get(PATH + "?offset=8&view=value")
    assert (unasked.headers["Content-Type"], unasked.body) == (NDJSON, values.body)
    refused = await agent.get(PATH + "?offset=8&view=value", Accept="application/json")
    assert refused.problem("bad-request")["invalid_params"] == ["view"]
    empty = await agent.get(PATH + "?offset=latest", Accept=NDJSON)
    assert (empty.status, empty.body) == (200, b"")


async def test_arrow(agent: Agent) -> None:
    """Whole stored batches from the one that holds the offset, readable by pyarrow."""
    answer = await agent.get(PATH + "?offset=5", Accept=ARROW)
    assert answer.headers["Content-Type"] == ARROW
    table = pa.ipc.open_stream(io.BytesIO(answer.body)).read_all()
    assert table.column("value").to_pylist() == [str(number).encode() for number in range(4, 10)]
    names = ("Base-Offset", "Next-Offset", "High-Watermark", "Log-Start-Offset")
    assert [answer.headers[f"Shoal-{name}"] for name in names] == ["4", "10", "10", "0"]
    limited = await agent.get(PATH + "?limit=5", Accept=ARROW)
    assert limited.headers["Shoal-Next-Offset"] == "7"
    table = pa.ipc.open_stream(io.BytesIO(limited.body)).read_all()
    assert table.num_rows == 7
    inside = await agent.get(PATH + "?offset=2&limit=3", Accept=ARROW)
    assert (inside.headers["Shoal-Base-Offset"], inside.headers["Shoal-Next-Offset"]) == ("0", "7")
    empty = await agent.get(PATH + "?offset=latest", Accept=ARROW)
    assert pa.ipc.open_stream(io.BytesIO(empty.body)).read_all().num_rows == 0


async def test_large_answers(agent: Agent) -> None:
    """Answers beyond the transport's buffer arrive whole, in every form."""
    value = b"v" * 300_000
    for _ in range(10):
        await agent.post(PATH, value)
    arrow = await agent.get(PATH + "?offset=10&max_bytes=64000000", Accept=ARROW)
    values = pa.ipc.open_stream(io.BytesIO(arrow.body)).read_all().column("value").to_pylist()
    assert values == [value] * 10
    lines = await agent.get(PATH + "?offset=10&max_bytes=64000000&view=value", Accept=NDJSON)
    assert lines.body == (value + b"\n") * 10
    document = (await agent.get(PATH + "?offset=10&max_bytes=64000000")).json
    assert offsets_of(document) == list(range(10, 20))
    head = await agent.request("HEAD", PATH + "?offset=10&max_bytes=64000000", headers={"Accept": ARROW})
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(arrow.body)
    assert agent.runner.context.gate.bytes_in_flight == 0


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        (f"{NDJSON}, application/json;q=0.9", NDJSON),
        (f"application/json;q=0.2, {ARROW}", ARROW),
        ("APPLICATION/JSON", "application/json"),
        ("text/html", None),
        ("text/event-stream;q=0.1, application/json", "application/json"),
        (f"{ARROW};q=0", None),
        (f"{ARROW};q=nan", None),
    ],
)
async def test_what_the_client_accepts(agent: Agent, accept: str | None, media: str | None) -> None:
    """Accept decides the form; 406 when nothing fits."""
    headers = {} if accept is None else {"Accept": accept}
    answer = await agent.request("GET", PATH, headers=headers)
    if media is None:
        assert answer.problem("not-acceptable")["status"] == 406
    else:
        assert answer.headers["Content-Type"] == media


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("offset=", "offset"), ("offset=abc", "offset"), ("offset=--1", "offset"),
        ("offset=1.5", "offset"), ("offset=%2B1", "offset"), ("offset=@", "offset"),
        ("offset=@yesterday", "offset"), ("offset=%D9%A1", "offset"),
        ("offset=99999999999999999999", "offset"), ("limit=0", "limit"), ("limit=-1", "limit"),
        ("limit=x", "limit"), ("max_bytes=0", "max_bytes"), ("max_bytes=67108865", "max_bytes"),
        ("wait=5x", "wait"), ("wait=61s", "wait"), ("wait=-1s", "wait"), ("timeout=soon", "timeout"),
        ("view=key", "view"), ("value=xml", "value"),
        ("consistency=any", "consistency"), ("forward=maybe", "forward"), ("offest=1", "offest"),
        ("limit=1&limit=2", "limit"), ("=1", ""),
    ],
)  # fmt: skip
async def test_wrong_parameters_are_named(agent: Agent, query: str, parameter: str) -> None:
    """Every wrong, unknown or repeated parameter is a 400 that names it."""
    agent.broker.cluster.leaders["t", 0] = agent.broker.agent_id if "forward" not in query else None
    problem = (await agent.get(f"{PATH}?{query}")).problem("bad-request")
    assert problem["invalid_params"] == [parameter]
    assert parameter in problem["detail"]


async def test_outside_the_log(agent: Agent) -> None:
    """410 and 416 carry the range that can be read."""
    problem = (await agent.get(PATH + "?offset=11")).problem("beyond-end")
    assert (problem["status"], problem["log_start_offset"], problem["high_watermark"]) == (416, 0, 10)
    agent.broker.cluster.logs["t", 0].start = 4
    problem = (await agent.get(PATH + "?offset=3")).problem("trimmed")
    assert (problem["status"], problem["log_start_offset"], problem["high_watermark"]) == (410, 4, 10)
    assert offsets_of((await agent.get(PATH + "?limit=1")).json) == [4]


async def test_unknown_places(agent: Agent) -> None:
    """Unknown topics and partitions are 404, those the system could have too; illegal names 400."""
    (await agent.get("/v1/topics/none/partitions/0/records")).problem("unknown-topic")
    (await agent.get("/v1/topics/_none/partitions/0/records")).problem("unknown-topic")
    (await agent.get("/v1/topics/t/partitions/1/records")).problem("unknown-partition")
    for partition in ("x", "-1", "1_0", "9999999999", "%D9%A1"):
        (await agent.get(f"/v1/topics/t/partitions/{partition}/records")).problem("unknown-partition")
    (await agent.get("/v1/topics/a%2Fb/partitions/0/records")).problem("illegal-name")


async def test_waiting_for_records(agent: Agent) -> None:
    """A read at the end returns when something is appended; empty, and 200, when nothing is."""
    started = time.monotonic()
    answer = await agent.get(PATH + "?offset=10&wait=80ms")
    assert (answer.status, answer.json["records"]) == (200, [])
    assert time.monotonic() - started >= 0.07
    waiting = asyncio.create_task(agent.get(PATH + "?offset=latest&wait=60s"))
    while agent.runner.context.gate.waits == 0:
        await asyncio.sleep(0.001)
    await agent.post(PATH, b"news")
    async with asyncio.timeout(40):
        document = (await waiting).json
    assert [(record["offset"], record["value"]) for record in document["records"]] == [(10, "news")]
    assert agent.runner.context.gate.waits == 0


async def test_reads_change_nothing(agent: Agent) -> None:
    """GET and HEAD leave the log and the topics as they were."""
    for path in (PATH, PATH + "?offset=-1", "/v1/topics/new/partitions/0/records", "/v1/topics/new"):
        await agent.get(path)
    assert list(agent.broker.cluster.topics) == ["t"]
    assert agent.broker.cluster.stored() == 10


async def test_reading_by_time(agent: Agent) -> None:
    """@TIME begins at the first batch that holds something of then or later."""
    await asyncio.sleep(0.01)
    now = format_time(time.time_ns() // 1000)
    await agent.post(PATH, b"later")
    document = (await agent.get(f"{PATH}?offset=@{now}")).json
    assert [record["value"] for record in document["records"]] == ["later"]


async def test_all_attempts_share_one_timeout(agent: Agent) -> None:
    """A reader that has seen more than the log holds is told so when its time is up, and not after as long
    again because the only agent leads."""
    loop = asyncio.get_running_loop()
    began, began_by_the_machine = loop.time(), time.monotonic()
    answer = await agent.get(PATH + "?consistency=local&timeout=2s", **{"Shoal-High-Watermark": "11"})
    assert (
        answer.problem("not-leader")["detail"] == "this replica knows the log up to 10, the client up to 11"
    )
    # An agent goes by the machine's clock. The loop's is behind that one, and does not count stand-stills.
    assert time.monotonic() - began_by_the_machine >= 1.9
    assert loop.time() - began < 3.9
