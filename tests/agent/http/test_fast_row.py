"""Rows the short way: they are taken when nothing is unusual, and their answers are the ordinary ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from http_fixtures import Agent, Answer, one_agent, two_agents, until_free

from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.fast_receive import Ended, ReceiveFront
from shoal.agent.http.fast_row import FAST_VALUE_BYTES_MAX, FastRow, FastRows, PutAnswer
from shoal.errors import ShoalError
from shoal.format.batch import Offset

PRODUCER = {"Shoal-Producer-Id": "p", "Shoal-Producer-Epoch": "0"}
Asked = tuple[str, str, bytes, dict[str, str]]


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Tables `short` and `ordinary`, and a log."""
    async with one_agent() as running:
        for name in ("short", "ordinary"):
            running.broker.cluster.create(name, 2, kind="table")
        running.broker.cluster.create("log")
        yield running
        await until_free(running)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Ended]:
    """What became of those that were taken the short way: in the call, as appends, or by a task."""
    found: list[Ended] = []
    serve, at_once, begin = FastRows.serve, FastRows.at_once, FastRows.begin

    async def noted(self: FastRows, request: FastRow, body: bytes, front: ReceiveFront) -> Ended:
        found.append(await serve(self, request, body, front))
        return found[-1]

    def noted_at_once(self: FastRows, request: FastRow, guard: Guard) -> bytes | None:
        answer = at_once(self, request, guard)
        found.extend([] if answer is None else [Ended.ANSWERED])
        return answer

    def noted_append(self: FastRows, request: FastRow, body: bytes, answer: PutAnswer) -> bool:
        found.append(Ended.ANSWERED)
        if begun := begin(self, request, body, answer):
            return begun
        found[-1] = Ended.MOVED
        return False

    monkeypatch.setattr(FastRows, "serve", noted)
    monkeypatch.setattr(FastRows, "at_once", noted_at_once)
    monkeypatch.setattr(FastRows, "begin", noted_append)
    return found


def shown(answer: Answer, table: str) -> tuple[int, dict[str, str], bytes]:
    """Without what differs between two tables, and between two moments."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    for name in ("date", "shoal-timestamp"):
        if name in headers:
            headers[name] = ""
    if headers.get("content-type") != "application/octet-stream":
        headers.pop("content-length", None)
    body = re.sub(rb'"timestamp":"[^"]*"', b"", answer.body)
    return answer.status, headers, body.replace(table.encode(), b"TABLE")


def sequence(number: int) -> dict[str, str]:
    return {**PRODUCER, "Shoal-Producer-Sequence": str(number)}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "by a task"])
@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ([("PUT", "/k", b"v", {}), ("GET", "/k", b"", {}), ("GET", "/none", b"", {})], 3),
        ([("PUT", "/a/../b%2F%00", b"", {}), ("GET", "/a/../b%2f%00", b"", {}), ("GET", "/b", b"", {})], 3),
        ([("PUT", "?key_base64=/w==", b"\xff", {}), ("GET", "/%FF", b"", {"Accept": "*/*"})], 2),
        ([("PUT", "/k?timeout=2s", b"v", {}), ("GET", "/k?consistency=local&forward=false", b"", {})], 2),
        ([("PUT", "/k", b"1", {"If-None-Match": "*"})] * 2, 2),
        ([("PUT", "/k", b"1", {}), *[("PUT", "/k", b"2", {"If-Match": '"0"'})] * 2], 3),
        ([("PUT", "/k", b"1", sequence(0)), ("PUT", "/k", b"2", sequence(1))] * 2, 4),
        ([("PUT", "/k", b"1", sequence(0)), ("PUT", "/k", b"2", sequence(0))], 2),
        ([("PUT", "/k", b"v", {"Content-Type": "application/json"}), ("GET", "", b"", {})], 1),
        ([("PUT", "/k", b"v" * FAST_VALUE_BYTES_MAX, {}), ("GET", "/k", b"", {})], 2),
        ([("PUT", "/k", b"v" * (FAST_VALUE_BYTES_MAX + 1), {}), ("GET", "/k", b"", {})], 1),
        ([("PUT", "/k", b"v", {}), ("GET", "/k", b"", {"If-None-Match": '"0"'})], 1),
        ([("PUT", "/k", b"v", {}), ("GET", "/k", b"", {"Accept": "application/json"})], 1),
        ([("PUT", "/", b"v", {}), ("PUT", "/%", b"v", {}), ("GET", "/k?no=1", b"", {})], 0),
        ([("PUT", "/k", b"v", {"If-Match": '"1", "2"'}), ("PUT", "/k", b"v", PRODUCER)], 0),
        ([("PUT", "/k", b"v", {"Origin": "http://evil.example"})], 0),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, list) else str(value),
)
async def test_both_ways_answer_alike(
    agent: Agent,
    ends: list[Ended],
    asked: list[Asked],
    taken: int,
    at_once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads and bodies, stored and read, refusals too; each is taken or left as it should be."""
    if not at_once:
        monkeypatch.setattr(agent.broker, "row_at_once", lambda *_: None)
    answers = {}
    for table, more in (("short", {}), ("ordinary", {"X-Unusual": "1"})):
        found = []
        for method, path, body, headers in asked:
            sent = {"Content-Type": "application/octet-stream"} if method == "PUT" else {}
            target = f"/v1/tables/{table}{path}"
            answer = await agent.request(method, target, body or None, headers=sent | headers | more)
            found.append(shown(answer, table))
        answers[table] = found
    assert answers["short"] == answers["ordinary"]
    assert ends == [Ended.ANSWERED] * taken
    stored = [agent.broker.cluster.values(name, part) for name in ("short", "ordinary") for part in (0, 1)]
    assert stored[:2] == stored[2:]


async def test_large_rows_come_whole(agent: Agent, ends: list[Ended]) -> None:
    """And the connection serves the next request."""
    value = bytes(range(256)) * 2**12
    assert (await agent.request("PUT", "/v1/tables/short/k", value)).status == 200
    for _ in range(2):
        assert (await agent.get("/v1/tables/short/k")).body == value
    assert ends == [Ended.ANSWERED] * 2


async def test_what_is_no_table_or_not_led_here_goes_the_ordinary_way(ends: list[Ended]) -> None:
    """A log, an unknown topic, a partition that another agent leads."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id, kind="table")
        first.broker.cluster.create("log")
        for method in ("PUT", "GET"):
            (await first.request(method, "/v1/tables/log/k")).problem("wrong-kind")
            (await first.request(method, "/v1/tables/none/k")).problem("unknown-topic")
        assert ends == [Ended.MOVED] * 4
        assert (await first.request("PUT", "/v1/tables/t/k", b"v")).status == 200
        assert (await first.get("/v1/tables/t/k")).body == b"v"
        assert ends.count(Ended.MOVED) == 6
        assert first.broker.cluster.values("t") == [b"v"]


async def test_faults_are_told_and_counted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the leader's and a bug; the agent goes on."""
    agent.broker.fail_next = [ShoalError("overloaded", "much to do")]
    (await agent.get("/v1/tables/short/k")).problem("overloaded")
    agent.broker.fail_next = [ShoalError("timeout", "slow")]
    assert not (await agent.request("PUT", "/v1/tables/short/k", b"v")).problem("timeout")["definite"]

    def fails(*_: object, **__: object) -> Offset:
        raise ValueError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(agent.broker, "row_at_once", fails)
        (await agent.get("/v1/tables/short/k")).problem("unknown-key")
        patched.setattr(agent.broker, "get_row", fails)
        (await agent.get("/v1/tables/short/k")).problem("internal")
    assert (await agent.request("PUT", "/v1/tables/short/k", b"v")).status == 200
    measures = agent.runner.context.measures.requests
    for operation, status, count in (
        ("readRow", 429, 1), ("putRow", 504, 1), ("readRow", 404, 1), ("readRow", 500, 1), ("putRow", 200, 1)
    ):  # fmt: skip
        assert measures[operation, status].count == count


async def test_rows_in_one_piece_are_answered_in_order(agent: Agent) -> None:
    """A pipeline of both ways."""
    line = "Host: localhost\r\n"
    put = "PUT /v1/tables/short/k%d HTTP/1.1\r\n" + line + "Content-Length: 1\r\n\r\n%d"
    get = "GET /v1/tables/short/k%d HTTP/1.1\r\n" + line + "%s\r\n"
    requests = [put % (number, number) for number in range(5)]
    requests += [get % (number, "X-Odd: 1\r\n" if number % 2 else "") for number in range(5)]
    async with asyncio.timeout(40):
        received = await agent.raw("".join(requests).encode())
    assert [part[-1:] for part in received.split(b"HTTP/1.1 200 OK")[6:]] == [b"0", b"1", b"2", b"3", b"4"]
