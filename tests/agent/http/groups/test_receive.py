"""POST .../receive: at a partition and in a whole topic, in JSON and in Arrow, at any agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_fixtures import Agent, one_agent, two_agents
from waiting import until

from shoal.agent.interface import Fetch, FetchRequest, Topic
from shoal.errors import ShoalError
from tests.agent.http.groups.group_requests import (
    GROUP,
    act,
    codes,
    produce,
    receive,
    receive_arrow,
    state,
    values,
)

PARTITION = "/v1/topics/t/partitions/0/groups/g"
FAULTS_MANY = 100_000
"""More than anybody is asked while a receive waits, on any machine."""
Pair = tuple[Agent, Agent]


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Topic t with one partition; three batches of records 0 to 9."""
    async with one_agent() as running:
        running.broker.cluster.create("t", 1)
        await produce(running, 0, *"0123")
        await produce(running, 0, *"456")
        await produce(running, 0, *"789")
        yield running


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Topic t has four partitions, led by either agent in turn; partition p has records p-0 to p-4."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 4)
        for partition in range(4):
            await produce(first, partition, *(f"{partition}-{number}" for number in range(5)))
        assert (await second.request("PUT", GROUP)).status == 201
        yield first, second


def delivered_places(document: Any) -> list[tuple[int, int]]:
    return [(message["partition"], message["offset"]) for message in document["messages"]]


# ---- one partition -------------------------------------------------------------------------------


async def test_a_receive_says_everything_of_its_messages(agent: Agent) -> None:
    """Each has its place, attempt and receipt; the answer has a receipt for all of them."""
    got = await receive(agent, limit=2)
    assert set(got) == {"partition", "delivery", "receipt", "delivered_at", "messages", "reason", "acked"}
    assert (got["partition"], got["reason"], got["acked"]) == (0, None, {"done": 0, "failed": []})
    first = got["messages"][0]
    assert first | {"timestamp": "", "receipt": ""} == {
        "partition": 0, "offset": 0, "timestamp": "", "key": "k-0", "value": "0", "headers": [],
        "attempt": 1, "receipt": "",
    }  # fmt: skip
    assert [message["receipt"] for message in got["messages"]] == [f"{got['receipt']}.{at}" for at in (0, 1)]
    assert values(await receive(agent)) == list("23456789")


async def test_messages_taken_one_by_one_are_those_of_one_answer(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read ahead for them, a long one among them, and again for what is given back."""
    asked: list[FetchRequest] = []
    read = agent.broker.read

    async def counted(topic: Topic, partition: int, request: FetchRequest) -> Fetch:
        asked.append(request)
        return await read(topic, partition, request)

    monkeypatch.setattr(agent.broker, "read", counted)
    await produce(agent, 0, "a", "b" * 100_000, "c", *map(str, range(100, 150)))
    other = "/v1/topics/t/groups/other"
    whole = (await receive(agent, other, limit=100))["messages"]
    assert len(whole) == 63
    asked.clear()
    singly = [await receive(agent, limit=1) for _ in whole]
    unlike = {"receipt": ""}
    assert [got["messages"][0] | unlike for got in singly] == [message | unlike for message in whole]
    assert all(got["messages"][0]["receipt"].startswith(got["receipt"] + ".") for got in singly)
    assert len(asked) < 30
    await act(agent, "release", singly[5]["receipt"], singly[11]["receipt"])
    again = await receive(agent, limit=5)
    assert [message | unlike for message in again["messages"]] == [whole[at] | unlike for at in (5, 11)]


async def test_the_limit_is_never_passed(agent: Agent) -> None:
    """Rows of stored batches are cut, in both forms."""
    for limit, expected in ((1, "0"), (5, "12345"), (1, "6")):
        answer, got = await receive_arrow(agent, limit=limit)
        assert got == list(expected)
        assert answer.headers["Shoal-Ranges"] == f"{expected[0]}+{len(expected)}*1"
    assert values(await receive(agent, limit=2)) == ["7", "8"]


async def test_arrow_has_in_headers_what_json_has_in_its_members(agent: Agent) -> None:
    """Receipts made from them are good."""
    answer, got = await receive_arrow(agent, limit=5, consumer="c")
    headers = answer.headers
    assert (headers["Shoal-Partition"], headers["Shoal-Ranges"]) == ("0", "0+5*1")
    assert (headers["Shoal-Acked"], headers["Shoal-Ack-Failed"]) == ("0", "0")
    assert headers["Shoal-Delivered-At"].endswith("Z")
    assert "Shoal-Reason" not in headers
    receipt = headers["Shoal-Receipt"]
    assert await act(agent, "ack", f"{receipt}.0", f"{receipt}.3") == {"done": 2, "failed": []}
    await act(agent, "nack", receipt, delay="0s")
    again, got = await receive_arrow(agent)
    assert got == ["1", "2", "4", "5", "6", "7", "8", "9"]
    assert again.headers["Shoal-Ranges"] == "1+2*2,4+1*2,5+5*1"
    assert again.headers["Shoal-Delivery"] > headers["Shoal-Delivery"]


async def test_json_tells_the_attempts_of_messages_that_come_together(agent: Agent) -> None:
    """They are read together, though some come again."""
    got = await receive(agent, limit=3)
    await act(agent, "nack", got["messages"][1]["receipt"], delay="0s")
    again = await receive(agent)
    assert [(item["offset"], item["attempt"]) for item in again["messages"]] == [
        (1, 2), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1)
    ]  # fmt: skip


async def test_large_records_have_their_receipts_too(agent: Agent) -> None:
    """They are written in several parts."""
    large = "x" * 300_000
    await receive(agent, limit=100)
    await produce(agent, 0, "small", large, "last")
    got = await receive(agent, max_bytes=2**24)
    assert values(got) == ["small", large, "last"]
    receipts = [message["receipt"] for message in got["messages"]]
    assert receipts == [f"{got['receipt']}.{offset}" for offset in (10, 11, 12)]
    assert await act(agent, "ack", *receipts) == {"done": 3, "failed": []}


async def test_an_empty_answer_says_why(agent: Agent) -> None:
    """In both forms."""
    await receive(agent, limit=100)
    got = await receive(agent)
    assert (got["messages"], got["partition"], got["receipt"], got["reason"]) == ([], None, None, "empty")
    answer, rows = await receive_arrow(agent)
    assert (rows, answer.headers["Shoal-Reason"]) == ([], "empty")
    await agent.request("PATCH", GROUP, {"paused": True})
    assert (await receive(agent))["reason"] == "paused"


async def test_the_first_receive_makes_the_group(agent: Agent) -> None:
    """Once; unless the agent, or the request, makes nothing."""
    (await agent.post(f"{GROUP}/receive?forward=false")).problem("unknown-group")
    agent.broker.config.auto_create_topics = False
    (await agent.post(f"{GROUP}/receive")).problem("unknown-group")
    agent.broker.config.auto_create_topics = True
    first = await agent.post(f"{PARTITION}/receive", {"limit": 1})
    assert (first.status, first.headers["Shoal-Created"]) == (200, "true")
    second = await agent.post(f"{GROUP}/receive")
    assert "Shoal-Created" not in second.headers
    assert values(second.json) == list("123456789")


async def test_acks_and_messages_are_one_request(agent: Agent) -> None:
    """What became of each ack is in the answer."""
    first = await receive(agent, limit=3)
    second = await receive(agent, limit=3, ack=[first["receipt"], f"{first['receipt']}.0", "nonsense"])
    assert values(second) == ["3", "4", "5"]
    assert second["acked"]["done"] == 1
    assert codes(second["acked"]) == ["receipt-malformed", "receipt-used"]
    answer, _ = await receive_arrow(agent, limit=1, ack=[second["receipt"], "nonsense"])
    assert (answer.headers["Shoal-Acked"], answer.headers["Shoal-Ack-Failed"]) == ("1", "1")
    numbers = (await agent.get(GROUP)).json["totals"]
    assert (numbers["in_flight"], numbers["lag"]) == (1, 4)


async def test_a_repeated_request_gets_the_same(agent: Agent) -> None:
    """Messages and receipts; another one gets others."""
    first = await receive(agent, limit=2, consumer="c", request="r1")
    assert await receive(agent, limit=5, consumer="c", request="r1") == first
    assert await receive(agent, PARTITION, consumer="c", request="r1", retry=True) == first
    assert values(await receive(agent, limit=1, consumer="c", request="r2")) == ["2"]
    assert values(await receive(agent, limit=1, consumer="d", request="r1")) == ["3"]


async def test_a_receive_that_waits_is_given_what_comes(agent: Agent) -> None:
    """And one that has waited long enough, nothing."""
    await receive(agent, limit=100)
    waiting = asyncio.create_task(receive(agent, wait="30s"))
    await until(lambda: agent.runner.context.gate.waits == 1)
    await produce(agent, 0, "late")
    assert values(await waiting) == ["late"]
    assert (await receive(agent, wait="20ms"))["reason"] == "empty"


async def test_a_client_that_has_gone_is_given_nothing(agent: Agent) -> None:
    """What comes later is another's."""
    await receive(agent, limit=100)
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    body = b'{"wait":"60s"}'
    writer.write(
        b"POST %b/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        % (GROUP.encode(), len(body), body)
    )
    await until(lambda: agent.runner.context.gate.waits == 1)
    writer.close()
    await until(lambda: agent.runner.context.gate.waits == 0)
    await produce(agent, 0, "late")
    assert values(await receive(agent)) == ["late"]
    del reader


async def test_a_fault_behind_the_commit_is_never_definite(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are in flight: the same request brings them."""
    await agent.request("PUT", GROUP)
    read = agent.broker.read

    async def fails(*arguments: Any) -> Any:
        raise ShoalError("not-leader", "led elsewhere since")

    monkeypatch.setattr(agent.broker, "read", fails)
    answer = await agent.post(f"{GROUP}/receive", {"limit": 2, "consumer": "c", "request": "r"})
    assert not answer.problem("leadership-lost")["definite"]
    monkeypatch.setattr(agent.broker, "read", read)
    assert values(await receive(agent, limit=2, consumer="c", request="r", retry=True)) == ["0", "1"]


async def test_a_refusal_that_is_not_definite_is_not_tried_again(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acks that came along may be done, though the leader has gone since."""
    asked = 0

    async def refuse(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise ShoalError("not-leader", "deposed meanwhile", definite=False)

    await receive(agent, limit=1)
    monkeypatch.setattr(agent.broker, "receive", refuse)
    answer = await agent.post(f"{PARTITION}/receive?timeout=300ms", {"limit": 1})
    assert answer.problem("not-leader")["definite"] is False
    assert asked == 1


async def test_rows_that_retention_took_meanwhile_are_left_out(agent: Agent) -> None:
    """Of the answer, in both forms; the others are there."""
    await receive(agent, limit=2, consumer="c", request="r", visibility="1h")
    agent.broker.cluster.logs["t", 0].start = 1
    assert values(await receive(agent, consumer="c", request="r")) == ["1"]
    answer, rows = await receive_arrow(agent, consumer="c", request="r")
    assert (rows, answer.headers["Shoal-Ranges"]) == (["1"], "1+1*1")


# ---- a topic, anywhere ---------------------------------------------------------------------------


async def test_all_messages_of_a_topic_come_from_any_agent(pair: Pair) -> None:
    """Each once, partition by partition, whoever leads."""
    seen: list[str] = []
    turn = 0
    while (got := await receive(pair[turn % 2], limit=3, consumer=f"c{turn % 2}"))["messages"]:
        assert {place[0] for place in delivered_places(got)} == {got["partition"]}
        seen += values(got)
        turn += 1
    assert sorted(seen) == [f"{partition}-{number}" for partition in range(4) for number in range(5)]
    totals = (await pair[1].get(GROUP)).json["totals"]
    assert (totals["in_flight"], totals["lag"]) == (20, 20)
    assert (await receive(pair[1 - turn % 2]))["reason"] == "empty"


async def test_one_partition_comes_from_any_agent(pair: Pair) -> None:
    """In both forms; acks go along."""
    for partition in range(4):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        receipts: list[str] = []
        for number, agent in enumerate(pair):
            got = await receive(agent, path, limit=1, ack=receipts)
            assert delivered_places(got) == [(partition, 2 * number)]
            assert got["acked"]["done"] == len(receipts)
            receipts = [got["receipt"]]
            _, rows = await receive_arrow(agent, path, limit=1, visibility="1h")
            assert len(rows) == 1


async def test_acks_go_to_the_partitions_that_they_belong_to(pair: Pair) -> None:
    """From one request, with each one's outcome."""
    receipts = []
    for partition in range(4):
        got = await receive(pair[0], f"/v1/topics/t/partitions/{partition}/groups/g", limit=5)
        receipts.append(got["receipt"])
    got = await receive(pair[1], ack=[*receipts, "nonsense"], consumer="c")
    assert (got["acked"]["done"], codes(got["acked"])) == (4, ["receipt-malformed"])
    assert (got["messages"], got["reason"]) == ([], "empty")
    assert (await pair[0].get(GROUP)).json["totals"]["lag"] == 0


async def test_acks_for_elsewhere_are_told_with_messages_that_come_from_another_agent(pair: Pair) -> None:
    """In both forms, wherever the messages are, and those that no agent gave."""
    for number in range(8):
        receipts = ["nonsense"]
        for partition in range(4):
            path = f"/v1/topics/t/partitions/{partition}/groups/g"
            receipts.append((await receive(pair[0], path, limit=1))["receipt"])
            await produce(pair[0], partition, "more", "more")
        got = await receive(pair[number % 2], ack=receipts, limit=1, consumer=f"c{number}")
        assert (got["acked"]["done"], codes(got["acked"])) == (4, ["receipt-malformed"])
        path = f"/v1/topics/t/partitions/{number % 4}/groups/g"
        answer, rows = await receive_arrow(pair[number % 2], path, limit=1, ack=[got["receipt"], "nonsense"])
        assert len(rows) == 1
        assert answer.headers["Shoal-Ack-Failed"] == ("1" if got["partition"] == number % 4 else "2")


async def test_acks_of_a_partition_without_a_leader_are_told_as_such(pair: Pair) -> None:
    """Also where it would have been asked first: another partition's messages do not hide that."""
    first, _ = pair
    for partition in range(4):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        receipt = (await receive(first, path, limit=1))["receipt"]
        leader = first.broker.cluster.leaders["t", partition]
        first.broker.move("t", partition, None)
        for number in range(6):
            body = {"limit": 1, "consumer": f"c{number}", "ack": [receipt]}
            answer = await first.post(f"{GROUP}/receive?timeout=100ms", body)
            assert answer.problem("no-leader")["definite"]
        first.broker.move("t", partition, leader)


async def test_a_fault_after_acks_are_done_is_not_definite(pair: Pair) -> None:
    """The acks of a receive may be told to other partitions before it is known who has messages."""
    first, _ = pair
    receipts = []
    for partition in range(3):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        receipts.append((await receive(first, path, limit=1))["receipt"])
    first.broker.move("t", 3, None)
    body = {"consumer": "c", "request": "r", "retry": True, "ack": receipts}
    answer = await first.post(f"{GROUP}/receive?timeout=1s", body)
    assert answer.problem("no-leader")["definite"] is False
    assert "receipt-used" in codes(await act(first, "ack", *receipts))


async def test_a_repeated_request_is_found_wherever_it_was_served(pair: Pair) -> None:
    """At any agent, though other partitions have messages too."""
    for number in range(8):
        body = {"limit": 1, "consumer": f"c{number}", "request": "r"}
        first = await receive(pair[number % 2], **body)
        for agent in pair:
            assert await receive(agent, **body, retry=True) == first


async def test_a_repeated_request_waits_for_partitions_that_cannot_say(pair: Pair) -> None:
    """Else it might be served twice. One that is not repeated passes over them."""
    first, _ = pair
    cluster = first.broker.cluster
    leader = cluster.leaders["t", 3]
    first.broker.move("t", 3, None)
    before = state(first)
    body = {"limit": 1, "consumer": "c", "request": "r", "retry": True}
    answer = await first.post(f"{GROUP}/receive?timeout=300ms", body)
    assert answer.problem("no-leader")["definite"]
    assert "[3]" in answer.json["detail"]
    assert state(first) == before
    del body["retry"]
    assert values(await receive(first, **body))
    waiting = asyncio.create_task(receive(first, consumer="d", request="r", retry=True))
    await asyncio.sleep(0)
    first.broker.move("t", 3, leader)
    assert values(await waiting)


async def test_a_wait_ends_with_the_first_message_of_any_partition(pair: Pair) -> None:
    """Wherever it is led, and one consumer is given it: the other waits for the next."""
    for partition in range(4):
        await receive(pair[0], f"/v1/topics/t/partitions/{partition}/groups/g", limit=100, visibility="1h")
    for partition in range(4):
        tasks = [
            asyncio.create_task(receive(agent, wait="60s", consumer=str(i))) for i, agent in enumerate(pair)
        ]
        await until(lambda: all(agent.runner.context.gate.waits for agent in pair))
        await produce(pair[0], partition, "first")
        served, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [values(task.result()) for task in served] == [["first"]]
        await produce(pair[0], partition, "second")
        assert [values(await task) for task in waiting] == [["second"]]


async def test_a_group_is_made_by_an_agent_that_does_not_lead_the_catalog(pair: Pair) -> None:
    """The answer says so, also where it comes from another agent."""
    for number, agent in enumerate(pair):
        path = f"/v1/topics/t/partitions/{1 - number}/groups/new-{number}"
        answer = await agent.post(f"{path}/receive", {"limit": 1})
        assert (answer.status, answer.headers["Shoal-Created"]) == (200, "true")
        assert len(answer.json["messages"]) == 1


async def test_a_partition_that_cannot_serve_is_no_reason_to_get_nothing(pair: Pair) -> None:
    """Its fault is told where all of them have one."""
    first, second = pair
    first.broker.fail_next = [ShoalError("damaged", "waits for an intact copy")]
    assert values(await receive(first, limit=1))
    first.broker.fail_next = []
    for partition in range(4):
        await receive(first, f"/v1/topics/t/partitions/{partition}/groups/g", limit=100, visibility="1h")
    first.broker.fail_next = [ShoalError("overloaded", "too much here")] * 8
    waiting = asyncio.create_task(receive(first, wait="30s"))
    await until(lambda: second.runner.context.gate.waits == 1)
    partition = next(at for at in range(4) if first.broker.cluster.leaders["t", at] == second.broker.agent_id)
    await produce(second, partition, "late")
    first.broker.fail_next = []
    assert values(await waiting) == ["late"]
    for partition in range(4):
        first.broker.move("t", partition, first.broker.agent_id)
    first.broker.fail_next = [ShoalError("damaged", "waits for an intact copy")] * 4
    (await first.post(f"{GROUP}/receive")).problem("damaged")


async def test_without_any_leader_a_receive_says_so(pair: Pair) -> None:
    """It was certainly given nothing."""
    for partition in range(4):
        pair[0].broker.move("t", partition, None)
    answer = await pair[0].post(f"{GROUP}/receive?timeout=200ms")
    assert answer.problem("no-leader")["definite"]


@pytest.mark.parametrize("wait", ["0ms", "300ms"])
async def test_a_group_is_not_called_empty_while_a_partition_cannot_be_asked(pair: Pair, wait: str) -> None:
    """Nobody leads it, its agent here cannot tell, or its agent elsewhere: it may have messages."""
    first, second = pair
    for partition in range(4):
        await receive(first, f"/v1/topics/t/partitions/{partition}/groups/g", limit=100, visibility="1h")
    assert (await receive(first, wait=wait))["reason"] == "empty"
    for agent in pair:
        agent.broker.fail_next = [ShoalError("not-ready", "the group has not begun")] * FAULTS_MANY
        assert (await receive(first, wait=wait))["reason"] == "unavailable"
        agent.broker.fail_next = []
    leader = first.broker.cluster.leaders["t", 3]
    first.broker.move("t", 3, None)
    assert (await receive(first, wait=wait))["reason"] == "unavailable"
    first.broker.move("t", 3, leader)
    assert (await receive(first, wait=wait))["reason"] == "empty"
    assert (await receive(second, wait=wait))["reason"] == "empty"


async def test_a_consumer_does_not_stay_at_one_partition(pair: Pair) -> None:
    """Others have messages too: none waits for ever."""
    for partition in range(4):
        await produce(pair[0], partition, *map(str, range(100)))
    seen = [(await receive(pair[0], limit=1, consumer="c"))["partition"] for _ in range(80)]
    assert set(seen) == {0, 1, 2, 3}
    assert seen[:16] == [seen[0]] * 16
