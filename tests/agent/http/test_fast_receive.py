"""Receives the short way: they are taken when nothing is unusual, and their answers are the ordinary ones."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_fixtures import ARROW, Agent, Answer, one_agent, until_free

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.fast_receive import (
    WHOLE_ANSWER_BYTES,
    Ended,
    FastReceive,
    FastReceives,
    ReceiveFront,
)
from tests.agent.http.groups.group_requests import produce, receive

LIMITS = dataclasses.replace(HttpLimits(), send_stall_ms=300)
LARGE = 500
Bodies = list[dict[str, Any]]


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Topic t with one partition and ten records."""
    async with one_agent(LIMITS) as running:
        running.broker.cluster.create("t", 1)
        await produce(running, 0, *"0123456789")
        yield running


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Ended]:
    """What became of those that were taken the short way."""
    found: list[Ended] = []
    serve = FastReceives.serve

    async def noted(self: FastReceives, request: FastReceive, body: bytes, front: ReceiveFront) -> Ended:
        found.append(await serve(self, request, body, front))
        return found[-1]

    monkeypatch.setattr(FastReceives, "serve", noted)
    return found


def shown(answer: Answer, group: str) -> tuple[int, dict[str, str], str]:
    """Without what differs between two groups, and between two moments."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    own = ["date", "shoal-receipt", "shoal-delivered-at", "shoal-delivery"]
    assert {"date", "server", "content-type"} <= headers.keys()
    text = answer.body.decode("latin-1").replace(group, "GROUP")
    if headers["content-type"] == "application/json":
        document = answer.json
        heads = [document["receipt"] or "-", document["delivered_at"] or "-"]
        for head in heads:
            text = text.replace(head, "HEAD")
        text = text.replace(f'"delivery":{document["delivery"]}', "DELIVERY")
        headers.pop("content-length", None)
    return answer.status, headers | {name: "" for name in own if name in headers}, text


@pytest.mark.parametrize("media", ["application/json", ARROW])
@pytest.mark.parametrize(
    "bodies",
    [
        [{"limit": 3}],
        [{"limit": 100}, {"limit": 1}],
        [{"limit": 0}],
        [{"limit": 1, "ack": ["nonsense"]}],
        [{"unknown": 1}],
        [{"limit": 1, "visibility": "0s"}],
        [{"limit": 2, "consumer": "c", "request": "r"}] * 2,
    ],
    ids=str,
)
async def test_both_ways_answer_alike(agent: Agent, ends: list[Ended], media: str, bodies: Bodies) -> None:
    """Heads and bodies, of messages, of none, and of refusals."""
    answers = {}
    for group, more in (("short", {}), ("ordinary", {"X-Unusual": "1"})):
        path = f"/v1/topics/t/partitions/0/groups/{group}"
        assert (await agent.request("PUT", f"/v1/topics/t/groups/{group}")).status == 201
        asked = [await agent.post(f"{path}/receive", body, Accept=media, **more) for body in bodies]
        answers[group] = [shown(answer, group) for answer in asked]
    assert answers["short"] == answers["ordinary"]
    assert ends == [Ended.ANSWERED] * len(bodies)


@pytest.mark.parametrize("rows", [150, LARGE], ids=["one-piece", "pieces"])
@pytest.mark.parametrize("media", ["application/json", ARROW])
async def test_long_answers_come_whole(agent: Agent, ends: list[Ended], media: str, rows: int) -> None:
    """In Arrow with their length, in JSON in chunks; the connection serves the next request."""
    await produce(agent, 0, *(str(number) * 200 for number in range(1000, 1000 + rows)))
    bodies = []
    for group, more in (("short", {}), ("ordinary", {"X-Unusual": "1"})):
        assert (await agent.request("PUT", f"/v1/topics/t/groups/{group}")).status == 201
        body = {"limit": 1000, "max_bytes": 2**25}
        path = f"/v1/topics/t/groups/{group}/receive"
        answer = await agent.post(path, body, Accept=media, **more)
        assert len(answer.body) > 700 * rows > WHOLE_ANSWER_BYTES
        bodies.append(answer.body if media == ARROW else [m["value"] for m in answer.json["messages"]])
        assert (await agent.post(path, body, **more)).json["reason"] == "empty"
    assert bodies[0] == bodies[1]
    assert ends == [Ended.ANSWERED] * 2
    await until_free(agent)


async def test_what_is_not_known_or_not_led_here_goes_the_ordinary_way(
    agent: Agent, ends: list[Ended]
) -> None:
    """A group that nobody has made is made there; a partition without a leader is waited for."""
    path = "/v1/topics/t/partitions/0/groups/g"
    assert len((await receive(agent, path, limit=2))["messages"]) == 2
    assert ends == [Ended.MOVED]
    agent.broker.move("t", 0, None)
    waiting = asyncio.create_task(receive(agent, path, limit=2))
    while len(ends) < 2:
        await asyncio.sleep(0.001)
    agent.broker.move("t", 0, agent.broker.agent_id)
    assert [message["value"] for message in (await waiting)["messages"]] == ["2", "3"]
    assert ends == [Ended.MOVED] * 2
    answer = await agent.post("/v1/topics/other/groups/g/receive", {"limit": 1})
    answer.problem("unknown-topic")


def plain_request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_requests_behind_one_another_are_answered_in_order(agent: Agent, ends: list[Ended]) -> None:
    """Receives and appends of one connection that does not wait for answers."""
    assert (await agent.request("PUT", "/v1/topics/t/groups/g")).status == 201
    take = plain_request("/v1/topics/t/groups/g/receive", json.dumps({"limit": 1}).encode())
    put = plain_request("/v1/topics/t/partitions/0/records", b'{"records":[{"value":"new"}]}')
    closing = b"GET /v1/agent HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answered = await agent.raw(take + put + take + take + closing)
    assert answered.count(b"HTTP/1.1 200 OK") == 5
    places = [
        answered.index(text) for text in (b'"value":"0"', b'"appended"', b'"value":"1"', b'"value":"2"')
    ]
    assert places == sorted(places)
    assert ends == [Ended.ANSWERED] * 3


async def test_a_reader_that_takes_nothing_is_cut_off(agent: Agent) -> None:
    """What is held for its answer is given back."""
    for _ in range(20):
        await produce(agent, 0, *("x" * 100_000 for _ in range(4)))
    assert (await agent.request("PUT", "/v1/topics/t/groups/g")).status == 201
    body = json.dumps({"limit": 1000, "max_bytes": 2**25}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, limit=1024)
    writer.write(plain_request("/v1/topics/t/groups/g/receive", body))
    assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
    await until_free(agent)
    assert agent.runner.context.gate.waits == 0
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(2**24)
    writer.close()
