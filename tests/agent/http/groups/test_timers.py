"""Topics of kind timer at a real agent: groups get messages when they are due, in that order, in JSON and in
Arrow; seeks, starts and numbers by due time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from agents import Agents, Running, agents_in

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.groups.leader.group_leader import MAX_DUE_RANGES
from shoal.client.http.requests import Answer
from shoal.client.subscribe.exchange import arrival_of
from shoal.format.batch import TIMER_SCHEMA
from shoal.format.receipt import parse
from shoal.format.timestamps import format_time, parse_time

TOPIC = "/v1/topics/due"
ARROW = "application/vnd.apache.arrow.stream"
PATIENCE = {"timeout": "60s"}
"""Of what may happen only once: a slow disk takes longer than the agent's usual 5 s."""
FIELD_BYTES_MAX = 8_190
"""Of a header's value, in clients made with aiohttp."""


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


@pytest.fixture
async def agent(agents: Agents) -> Running:
    """With a timer topic of one partition."""
    running = await agents.alone("one")
    status, made = await running.served("PUT", TOPIC, {"kind": "timer"})
    assert status in (200, 201), made
    assert (made["kind"], made["settings"]["kind"]) == ("timer", "timer")
    return running


def now_us() -> int:
    return time.time_ns() // 1_000


async def put(agent: Running, *records: dict[str, Any]) -> None:
    status, said = await agent.served("POST", f"{TOPIC}/records", {"records": list(records)}, **PATIENCE)
    assert status == 200, said


async def receive(agent: Running, group: str = "g", **body: Any) -> dict[str, Any]:
    status, said = await agent.served("POST", f"{TOPIC}/groups/{group}/receive", body, **PATIENCE)
    assert status == 200, said
    return said


async def arrow_of(agent: Running, group: str = "g", **body: Any) -> Answer:
    """The same in Arrow."""
    url = f"{agent.agent.url}{TOPIC}/groups/{group}/receive"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers={"Accept": ARROW}) as response,
    ):
        assert response.status == 200, await response.text()
        return Answer(response.status, dict(response.headers), await response.read())


async def ack(agent: Running, *receipts: str, group: str = "g") -> None:
    status, said = await agent.served(
        "POST", f"{TOPIC}/groups/{group}/ack", {"receipts": list(receipts)}, **PATIENCE
    )
    assert (status, said["failed"]) == (200, [])


def assert_in_due_order(found: list[dict[str, Any]]) -> None:
    """Each once. A message whose append took longer than its delay is due when it is there; of those that are
    due at once the first one comes first."""
    places = [(parse(message["receipt"]).due_us, message["offset"]) for message in found]
    assert places == sorted(set(places))
    for message, (due_us, _) in zip(found, places, strict=True):
        assert message["deliver_at"] is None or due_us >= parse_time(message["deliver_at"])


async def test_messages_come_when_they_are_due(agent: Running) -> None:
    """In the order of due times, none early; what is done does not come again."""
    begun_us = now_us()
    await put(
        agent,
        {"value": "third", "deliver_at": format_time(begun_us + 1_200_000)},
        {"value": "second", "delay": "600ms"},
        {"value": "past", "deliver_at": "2001-01-01T00:00:00Z"},
        {"value": "first"},
        {"value": "never here", "delay": "365d"},
    )
    found: list[dict[str, Any]] = []
    while len(found) < 4:
        answer = await receive(agent, wait="5s", limit=3)
        for message in answer["messages"]:
            assert message["deliver_at"] is None or parse_time(message["deliver_at"]) <= now_us()
            await ack(agent, message["receipt"])
        found += answer["messages"]
    assert_in_due_order(found)
    assert found[0]["value"] == "past"
    by_value = {message["value"]: message for message in found}
    assert by_value["third"]["deliver_at"] == format_time(begun_us + 1_200_000)
    offsets = {value: message["offset"] for value, message in by_value.items()}
    assert offsets == {"past": 2, "first": 3, "second": 1, "third": 0}
    assert (await receive(agent))["reason"] == "empty"
    status, read = await agent.served("GET", f"{TOPIC}/partitions/0/records", limit=100)
    assert status == 200
    assert [record["offset"] for record in read["records"]] == list(range(5))
    assert read["records"][3]["deliver_at"] is None


async def test_what_was_not_acknowledged_comes_again(agent: Running) -> None:
    """With its attempt; a whole answer is acknowledged by one receipt."""
    await put(agent, *({"value": str(number), "deliver_at": 1_000 + number} for number in range(3)))
    first = await receive(agent, limit=2)
    [one, two] = first["messages"]
    status, said = await agent.served(
        "POST", f"{TOPIC}/groups/g/nack", {"receipts": [one["receipt"]], "delay": "0s"}
    )
    assert (status, said["done"]) == (200, 1)
    await ack(agent, two["receipt"])
    again = await receive(agent, limit=9, wait="2s")
    assert [(message["value"], message["attempt"]) for message in again["messages"]] == [("0", 2), ("2", 1)]
    await ack(agent, again["receipt"])
    assert (await receive(agent))["messages"] == []


async def test_an_arrow_answer_says_what_its_rows_are_in_a_header_that_clients_take(agent: Running) -> None:
    """However many due times there are; the rest comes in further answers."""
    count = 3 * MAX_DUE_RANGES
    base_us = now_us() + 1_000_000
    times = [base_us + 7 * number for number in range(count)]
    await put(agent, *({"value": str(at), "deliver_at": format_time(at)} for at in reversed(times)))
    found: list[str] = []
    due_times: list[int] = []
    while len(found) < count:
        answer = await arrow_of(agent, limit=1_000, wait="1s")
        assert len(answer.headers["Shoal-Ranges"]) <= FIELD_BYTES_MAX
        arrival = arrival_of(answer)
        assert arrival.rows is not None
        assert arrival.rows.schema == TIMER_SCHEMA
        assert len(arrival.pieces) <= MAX_DUE_RANGES
        found += [value.decode() for value in arrival.rows.column("value").to_pylist()]
        due_times += [piece.due_us for piece in arrival.pieces for _ in range(piece.rows)]
        await ack(agent, arrival.receipt)
    assert due_times == sorted(due_times)
    assert sorted(map(int, found)) == times
    assert (await arrow_of(agent)).headers["Shoal-Reason"] == "empty"
    worst = len(f"{2**62}@{2**62}+{2**32}*100,") * MAX_DUE_RANGES
    assert worst <= FIELD_BYTES_MAX


async def test_seeks_go_by_due_time(agent: Running) -> None:
    """Earliest, latest and a time; not by offset, and never past what may fall due yet."""
    await put(
        agent, *({"value": str(year), "deliver_at": f"{year}-01-01T00:00:00Z"} for year in (2003, 2001))
    )
    await asyncio.sleep(0.002)
    later = format_time(now_us())
    await asyncio.sleep(0.002)
    await put(agent, {"value": "new"}, {"value": "far", "delay": "1d"})

    async def values_after(target: object) -> list[str]:
        status, said = await agent.served("POST", f"{TOPIC}/groups/g/seek", {"to": target}, **PATIENCE)
        assert status == 200, said
        assert parse_time(said["partitions"][0]["due"]) >= 0
        answer = await receive(agent, limit=10)
        return [message["value"] for message in answer["messages"]]

    assert [message["value"] for message in (await receive(agent))["messages"]] == ["2003", "2001", "new"]
    assert await values_after("earliest") == ["2003", "2001", "new"]
    assert await values_after(f"@{later}") == ["new"]
    assert await values_after("latest") == []
    assert await values_after("@2500-01-01T00:00:00Z") == []
    await put(agent, {"value": "behind"})
    assert [message["value"] for message in (await receive(agent, wait="1s"))["messages"]] == ["behind"]
    for wrong in ({"0": 0}, {"0": 99}):
        status, said = await agent.served("POST", f"{TOPIC}/groups/g/seek", {"to": wrong})
        assert (status, said["code"]) == (400, "bad-request")
        assert "due time" in said["detail"]
    assert (await receive(agent))["messages"] == []


async def test_groups_start_by_due_time(agent: Running) -> None:
    """At a time, with the newest, or with all; a later start is now."""
    await put(agent, {"value": "old"})
    await asyncio.sleep(0.002)
    between = format_time(now_us())
    await asyncio.sleep(0.002)
    await put(agent, {"value": "young"})
    starts = {"a": "earliest", "b": f"@{between}", "c": "latest", "d": "@2500-01-01T00:00:00Z"}
    for name, start in starts.items():
        status, said = await agent.served("PUT", f"{TOPIC}/groups/{name}", {"start": start})
        assert status in (200, 201), said
    await put(agent, {"value": "new"})
    found = {
        name: [message["value"] for message in (await receive(agent, name, wait="1s"))["messages"]]
        for name in starts
    }
    assert found == {"a": ["old", "young", "new"], "b": ["young", "new"], "c": ["new"], "d": ["new"]}


async def test_a_group_tells_what_is_due_and_not_done(agent: Running) -> None:
    """Not what falls due later; the age counts from the due time."""
    await put(
        agent, {"value": "past", "deliver_at": 1_000}, {"value": "now"}, {"value": "far", "delay": "1d"}
    )
    assert len((await receive(agent, limit=1))["messages"]) == 1
    status, group = await agent.served("GET", f"{TOPIC}/groups/g")
    assert status == 200
    [numbers] = group["partitions"]
    assert (numbers["lag"], numbers["in_flight"], numbers["high_watermark"]) == (2, 1, 3)
    assert numbers["pending"] == 1
    assert 0 < numbers["lag_seconds"] < 600
    assert parse_time(numbers["due"]) <= now_us()


async def test_exclusive_groups_keep_the_order_of_due_times(agent: Running) -> None:
    """Cumulative acknowledgements go by offset, and are refused."""
    await agent.served("PUT", f"{TOPIC}/groups/g", {"mode": "exclusive"})
    soon_us = now_us() + 1_000_000
    await put(agent, *({"value": "v", "deliver_at": format_time(soon_us - ahead)} for ahead in (0, 100_000)))
    await put(agent, {"value": "last", "deliver_at": format_time(soon_us + 100_000)})
    found: list[dict[str, Any]] = []
    while len(found) < 3:
        found += (await receive(agent, consumer="c", wait="2s"))["messages"]
    assert_in_due_order(found)
    assert found[2]["offset"] == 2
    body = {"up_to": {"0": 2}, "consumer": "c"}
    status, said = await agent.served("POST", f"{TOPIC}/groups/g/ack", body, **PATIENCE)
    assert (status, said["code"]) == (409, "wrong-mode")


async def test_a_stopped_message_is_decided_by_its_offset(agent: Running) -> None:
    """Its due time need not be known."""
    await agent.served("PUT", f"{TOPIC}/groups/g", {"dead": "stop", "max_attempts": 1})
    await put(agent, {"value": "bad", "deliver_at": 1_000})
    [message] = (await receive(agent))["messages"]
    await agent.served("POST", f"{TOPIC}/groups/g/reject", {"receipts": [message["receipt"]]}, **PATIENCE)
    assert (await receive(agent))["messages"] == []
    _, group = await agent.served("GET", f"{TOPIC}/groups/g")
    assert [numbers["stopped_offsets"] for numbers in group["partitions"]] == [[0]]
    for done in (True, False):
        body = {"partition": 0, "offset": 0, "action": "retry"}
        assert await agent.served("POST", f"{TOPIC}/groups/g/decide", body, **PATIENCE) == (
            200,
            {"done": done},
        )
        found = await receive(agent)
        assert [message["value"] for message in found["messages"]] == (["bad"] if done else [])


async def test_dead_letters_of_timers_are_a_log(agent: Running) -> None:
    """With the due time in the history; a redrive brings the message back."""
    await agent.served("PUT", f"{TOPIC}/groups/g", {})
    await put(agent, {"value": "bad", "delay": "10ms"})
    [message] = (await receive(agent, wait="2s"))["messages"]
    await agent.served("POST", f"{TOPIC}/groups/g/reject", {"receipts": [message["receipt"]]}, **PATIENCE)
    records: list[dict[str, Any]] = []
    while not records:
        _, read = await agent.served("GET", "/v1/topics/due.dead.g/partitions/0/records", wait="5s")
        records = read["records"]
    headers = {header["key"]: header["value"] for header in records[0]["headers"]}
    due_us = parse(message["receipt"]).due_us
    assert due_us >= parse_time(message["deliver_at"]), "later where its append took longer than its delay"
    assert (records[0]["value"], headers["shoal-due"]) == ("bad", format_time(due_us))
    assert "deliver_at" not in records[0]
    status, topic = await agent.served("GET", "/v1/topics/due.dead.g")
    assert (status, topic["kind"]) == (200, "log")
    status, said = await agent.served("POST", f"{TOPIC}/groups/g/redrive", {}, **PATIENCE)
    assert (status, said["redriven"]) == (200, 1)
    [again] = (await receive(agent, wait="2s"))["messages"]
    assert (again["value"], again["offset"], again["attempt"]) == ("bad", 0, 1)


async def test_a_letter_whose_message_is_past_its_retention_comes_again_as_a_record(
    agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one, due at once."""
    await put(agent, {"value": "bad", "delay": "10ms"})
    [message] = (await receive(agent, wait="2s"))["messages"]
    await agent.served("POST", f"{TOPIC}/groups/g/reject", {"receipts": [message["receipt"]]}, **PATIENCE)
    records: list[dict[str, Any]] = []
    while not records:
        _, read = await agent.served("GET", "/v1/topics/due.dead.g/partitions/0/records", wait="5s")
        records = read["records"]

    async def nothing(_self: GroupKeeper, _ranges: object) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist([], schema=TIMER_SCHEMA)]

    with monkeypatch.context() as patched:
        patched.setattr(GroupKeeper, "due_records", nothing)
        status, said = await agent.served("POST", f"{TOPIC}/groups/g/redrive", {}, **PATIENCE)
        assert (status, said["redriven"], said["copied"]) == (200, 1, 1)
    [again] = (await receive(agent, wait="2s"))["messages"]
    assert (again["value"], again["offset"], again["deliver_at"]) == ("bad", 1, None)


async def test_three_agents_serve_a_timer_topic_at_any_of_them(agents: Agents) -> None:
    """Appends, receives and seeks go to the leader of each partition; a delay counts once."""
    cluster = await agents.cluster(3)
    status, said = await cluster[0].served("PUT", TOPIC, {"kind": "timer", "partitions": 3})
    assert status in (200, 201), said
    begun_us = now_us()
    for number, agent in enumerate(cluster):
        await put(agent, *({"key": f"k{number}-{key}", "value": "v", "delay": "300ms"} for key in range(4)))
    found = 0
    while found < 12:
        for agent in cluster:
            answer = await receive(agent, wait="1s")
            for message in answer["messages"]:
                assert parse_time(message["deliver_at"]) - 300_000 >= begun_us
                assert parse_time(message["deliver_at"]) <= parse_time(answer["delivered_at"])
            found += len(answer["messages"])
    assert found == 12
    status, said = await cluster[1].served("POST", f"{TOPIC}/groups/g/seek", {"to": "earliest"}, **PATIENCE)
    assert (status, len(said["partitions"])) == (200, 3)
    again = 0
    while again < 12:
        again += len((await receive(cluster[2], limit=100, wait="1s"))["messages"])
    assert again == 12
