"""Bad input about consumer groups: a clear error each, and what is kept stays as it was."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_fixtures import Agent, one_agent

from shoal.format.receipt import Receipt, head_of, parse, receipt_of
from tests.agent.http.groups.group_requests import (
    GROUP,
    act,
    codes,
    produce,
    receive,
    state,
    values,
)

PARTITION = "/v1/topics/t/partitions/0/groups/g"
X = "/v1/topics/t/groups/x"
"""An exclusive one."""


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Topic t with ten records in each of two partitions, and groups that have begun."""
    async with one_agent() as running:
        running.broker.cluster.create("t", 2)
        running.broker.cluster.create("other", 1)
        running.broker.cluster.create("t.dead.g", 1)
        running.broker.cluster.letters.add("t.dead.g")
        for partition in range(2):
            await produce(running, partition, *(f"{partition}-{number}" for number in range(10)))
        assert (await running.request("PUT", GROUP)).status == 201
        assert (await running.request("PUT", X, {"mode": "exclusive"})).status == 201
        assert (await running.request("PUT", "/v1/topics/other/groups/g")).status == 201
        yield running


BAD = "bad-request"
REQUESTS: list[tuple[str, str, Any, str, str]] = [
    # receives
    ("POST", f"{GROUP}/receive", {"limit": 0}, BAD, "limit must be a whole number from 1 to 100000"),
    ("POST", f"{GROUP}/receive", {"limit": 100_001}, BAD, "limit must be a whole number from 1 to 100000"),
    ("POST", f"{GROUP}/receive", {"limit": True}, BAD, "limit"),
    ("POST", f"{GROUP}/receive", {"limit": "10"}, BAD, "limit"),
    (
        "POST",
        f"{GROUP}/receive",
        {"max_bytes": 0},
        BAD,
        "max_bytes must be a whole number from 1 to 67108864",
    ),
    ("POST", f"{GROUP}/receive", {"max_bytes": 2**26 + 1}, BAD, "max_bytes"),
    ("POST", f"{GROUP}/receive", {"visibility": "0s"}, BAD, "visibility must be a duration from 1s to 12h"),
    ("POST", f"{GROUP}/receive", {"visibility": "7d"}, BAD, "visibility must be a duration from 1s to 12h"),
    ("POST", f"{GROUP}/receive", {"visibility": -5}, BAD, "visibility"),
    ("POST", f"{GROUP}/receive", {"wait": "61s"}, BAD, "wait must be a duration from 0ms to 1m"),
    ("POST", f"{GROUP}/receive", {"wait": "soon"}, BAD, "wait"),
    ("POST", f"{GROUP}/receive", {"consumer": ""}, BAD, "consumer must be 1 to 128 printable"),
    ("POST", f"{GROUP}/receive", {"consumer": "n" * 129}, BAD, "consumer must be 1 to 128 printable"),
    ("POST", f"{GROUP}/receive", {"consumer": "a\nb"}, BAD, "consumer"),
    ("POST", f"{GROUP}/receive", {"request": 7}, BAD, "request"),
    ("POST", f"{GROUP}/receive", {"retry": "yes"}, BAD, "retry must be true or false"),
    ("POST", f"{GROUP}/receive", {"limits": 5}, BAD, "did you mean 'limit'"),
    ("POST", f"{GROUP}/receive", {"ack": "g1"}, BAD, "ack must be a list of receipts"),
    ("POST", f"{GROUP}/receive", {"ack": ["nonsense", "more"]}, BAD, "'nonsense': this is no receipt"),
    ("POST", f"{GROUP}/receive", b"[1]", BAD, "JSON object"),
    ("POST", f"{GROUP}/receive", b"{", BAD, "not JSON"),
    ("POST", f"{X}/receive", {}, "wrong-mode", "name the consumer"),
    ("POST", "/v1/topics/t/partitions/2/groups/g/receive", {}, "unknown-partition", "partitions 0 to 1"),
    ("POST", "/v1/topics/t/partitions/x/groups/g/receive", {}, "unknown-partition", "not a partition number"),
    ("POST", "/v1/topics/none/groups/g/receive", {}, "unknown-topic", "none"),
    ("POST", "/v1/topics/t/groups/g%2Fh/receive", {}, "illegal-name", "'g/h' is no group name"),
    ("POST", f"/v1/topics/t/groups/{'n' * 65}/receive", {}, "illegal-name", "use 1 to 64"),
    ("POST", "/v1/topics/t.dead.g/groups/g/receive", {}, "no-groups-here", "no consumer groups"),
    # words about messages
    ("POST", f"{GROUP}/ack", {}, BAD, "no receipt"),
    ("POST", f"{GROUP}/ack", {"receipts": []}, BAD, "no receipt"),
    ("POST", f"{GROUP}/ack", {"receipts": ["x", "g1", "y"]}, BAD, "'x': this is no receipt"),
    ("POST", f"{GROUP}/ack", {"receipts": [7]}, BAD, "which are texts"),
    ("POST", f"{GROUP}/ack", {"receipts": ["x"] * 100_001}, BAD, "at most 100000"),
    ("POST", f"{GROUP}/ack", {"receipts": ["x"], "delay": "1s"}, BAD, "unknown field 'delay'"),
    (
        "POST",
        f"{GROUP}/nack",
        {"receipts": ["x"], "delay": "-1s"},
        BAD,
        "delay must be a duration from 0ms to 7d",
    ),
    (
        "POST",
        f"{GROUP}/nack",
        {"receipts": ["x"], "delay": -1},
        BAD,
        "delay must be a duration from 0ms to 7d",
    ),
    (
        "POST",
        f"{GROUP}/nack",
        {"receipts": ["x"], "delay": "8d"},
        BAD,
        "delay must be a duration from 0ms to 7d",
    ),
    ("POST", f"{GROUP}/nack", {"receipts": ["x"], "reason": "é" * 129}, BAD, "at most 256 bytes"),
    (
        "POST",
        f"{GROUP}/extend",
        {"receipts": ["x"], "visibility": "0s"},
        BAD,
        "visibility must be a duration",
    ),
    (
        "POST",
        f"{GROUP}/extend",
        {"receipts": ["x"], "visibility": "7d"},
        BAD,
        "visibility must be a duration",
    ),
    ("POST", f"{GROUP}/ack", {"up_to": {"0": 5}}, BAD, "name it in `consumer`"),
    ("POST", f"{GROUP}/ack", {"up_to": {"0": 5}, "consumer": "c"}, "wrong-mode", "exclusive"),
    ("POST", f"{X}/ack", {"up_to": {"0": -1}, "consumer": "c"}, BAD, "offsets by partition"),
    ("POST", f"{X}/ack", {"up_to": [1], "consumer": "c"}, BAD, "offsets by partition"),
    ("POST", f"{X}/ack", {"up_to": {"7": 1}, "consumer": "c"}, "unknown-partition", "no partition 7"),
    (
        "POST",
        "/v1/topics/t/groups/none/ack",
        {"receipts": ["x"]},
        "unknown-group",
        "PUT /v1/topics/t/groups/none",
    ),
    # making and changing
    ("PUT", "/v1/topics/t/groups/a%2Fb", {}, "illegal-name", "'a/b' is no group name"),
    ("PUT", f"/v1/topics/t/groups/{'n' * 65}", {}, "illegal-name", "use 1 to 64"),
    ("PUT", f"/v1/topics/{'t' * 200}/groups/{'n' * 44}", {}, "illegal-name", "a name of 250"),
    ("PUT", "/v1/topics/t.dead.g/groups/g", {}, "no-groups-here", "no consumer groups"),
    ("PUT", "/v1/topics/_catalog/groups/g", {}, "no-groups-here", "no consumer groups"),
    ("PUT", GROUP, {"mode": "exclusive"}, "group-differs", "mode is 'shared', asked was 'exclusive'"),
    ("PUT", GROUP, {"start": "latest"}, "group-differs", "start is 'earliest', asked was 'latest'"),
    ("PUT", "/v1/topics/t/groups/new", {"mode": "wild"}, BAD, "shared, exclusive, key-ordered"),
    ("PUT", "/v1/topics/t/groups/new", {"start": "@never"}, BAD, "never"),
    ("PUT", "/v1/topics/t/groups/new", {"visibility": "0s"}, BAD, "from 1s to 12h"),
    ("PUT", "/v1/topics/t/groups/new", {"visibility": "7d"}, BAD, "from 1s to 12h"),
    ("PUT", "/v1/topics/t/groups/new", {"max_attempts": 0}, BAD, "from 1 to 100, or null"),
    ("PUT", "/v1/topics/t/groups/new", {"max_attempts": 101}, BAD, "from 1 to 100, or null"),
    ("PUT", "/v1/topics/t/groups/new", {"retry": {"first": "8d"}}, BAD, "retry.first"),
    ("PUT", "/v1/topics/t/groups/new", {"retry": {"factor": 11}}, BAD, "retry.factor"),
    ("PUT", "/v1/topics/t/groups/new", {"session": "6m"}, BAD, "session must be a duration from 1s to 5m"),
    ("PUT", "/v1/topics/t/groups/new", {"dead": "forget"}, BAD, "letter, stop, drop"),
    ("PUT", "/v1/topics/t/groups/new", {"sesion": "5s"}, BAD, "did you mean 'session'"),
    ("PATCH", GROUP, {"mode": "exclusive"}, BAD, "'mode' of a group cannot be changed"),
    ("PATCH", GROUP, {"start": "latest"}, BAD, "'start' of a group cannot be changed"),
    ("PATCH", GROUP, {}, BAD, "nothing to change"),
    ("PATCH", f"{GROUP}?if_version=none", {"paused": True}, "settings-changed", "read them again"),
    ("PATCH", f"{GROUP}?if_version=", {"paused": True}, BAD, "if_version"),
    ("PATCH", "/v1/topics/t/groups/none", {"paused": True}, "unknown-group", "none"),
    ("DELETE", "/v1/topics/t/groups/none", None, "unknown-group", "none"),
    ("GET", "/v1/topics/t/groups/none", None, "unknown-group", "PUT /v1/topics/t/groups/none"),
    ("GET", "/v1/topics/none/groups", None, "unknown-topic", "none"),
    # places
    ("POST", f"{GROUP}/seek", {}, BAD, "earliest"),
    ("POST", f"{GROUP}/seek", {"to": "middle"}, BAD, "earliest"),
    ("POST", f"{GROUP}/seek", {"to": "@never"}, BAD, "never"),
    ("POST", f"{GROUP}/seek", {"to": {"0": 11}}, "beyond-end", "partition 0 has offsets 0 to 10"),
    ("POST", f"{GROUP}/seek", {"to": {"1": 3, "0": 11}}, "beyond-end", "nothing was sought"),
    ("POST", f"{GROUP}/seek", {"to": {"2": 0}}, "unknown-partition", "no partitions [2]"),
    ("POST", f"{GROUP}/seek", {"to": {"0": -1}}, BAD, "offsets by partition"),
    ("POST", f"{GROUP}/seek", {"to": {}}, BAD, "offsets by partition"),
    ("POST", f"{GROUP}/seek", {"to": 5}, BAD, "by partition"),
    ("POST", f"{PARTITION}/seek", {"to": 11}, "beyond-end", "offsets 0 to 10"),
    ("POST", f"{PARTITION}/seek", {"to": {"1": 3}}, BAD, "one partition"),
    ("POST", f"{GROUP}/decide", {"partition": 0, "offset": 0}, BAD, "retry, letter or drop"),
    ("POST", f"{GROUP}/decide", {"offset": 0, "action": "drop"}, BAD, "needs partition, offset and action"),
    ("POST", f"{GROUP}/decide", {"partition": 9, "offset": 0, "action": "drop"}, "unknown-partition", "2 "),
    ("POST", f"{GROUP}/consumers/c", {}, "wrong-mode", "no owners"),
    ("DELETE", f"{GROUP}/consumers/c", {}, "wrong-mode", "no owners"),
    ("POST", f"{X}/consumers/{'n' * 129}", {}, BAD, "consumer must be"),
    # between agents
    ("POST", f"{GROUP}/wait", {"partitions": []}, BAD, "list of the topic's partitions"),
    ("POST", f"{GROUP}/wait", {"partitions": [2]}, "unknown-partition", "0 to 1"),
    ("POST", f"{GROUP}/wait", {"partitions": [True]}, "unknown-partition", "0 to 1"),
    ("POST", f"{GROUP}/wait?wait=61s", {"partitions": [0]}, BAD, "wait"),
]


@pytest.mark.parametrize(("method", "path", "body", "code", "said"), REQUESTS)
async def test_a_bad_request_is_refused_and_changes_nothing(
    agent: Agent, method: str, path: str, body: Any, code: str, said: str
) -> None:
    """With a code, and words that say what would be right."""
    before = state(agent)
    answer = await agent.request(method, path, body)
    assert said in answer.problem(code)["detail"], answer.json
    assert answer.json["definite"]
    assert state(agent) == before


async def test_the_65th_group_is_refused(agent: Agent) -> None:
    """And the others are there."""
    for number in range(62):
        assert (await agent.request("PUT", f"/v1/topics/t/groups/g{number}")).status == 201
    before = state(agent)
    (await agent.request("PUT", "/v1/topics/t/groups/more")).problem("too-many-groups")
    (await agent.post("/v1/topics/t/groups/more/receive")).problem("too-many-groups")
    assert state(agent) == before
    assert len((await agent.get("/v1/topics/t/groups")).json["groups"]) == 64


# ---- receipts ------------------------------------------------------------------------------------


def forged(receipt: str) -> str:
    """Of the next answer, which the group has not given."""
    head = parse(receipt)
    return head_of(head.group, b"guessed", head.partition, head.generation, head.delivery + 1)


def swapped(receipt: str, **fields: Any) -> str:
    """With its checksum, and other contents."""
    head = parse(receipt)._replace(**fields)
    again = head_of(head.group, b"", head.partition, head.generation, head.delivery)
    mac = base64.urlsafe_b64decode(receipt[2:56] + "==")[32:]
    raw = base64.urlsafe_b64decode(again[2:56] + "==")[:32] + mac
    return "g1" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


async def test_receipts_that_are_no_good_are_told_one_by_one(agent: Agent) -> None:
    """Malformed, forged, of another group or topic, already used: the good one among them counts."""
    got = await receive(agent, PARTITION, limit=4)
    other = await receive(agent, "/v1/topics/other/groups/g")
    assert other["reason"] == "empty"
    await produce(agent, 0, "z", topic="other")
    other = await receive(agent, "/v1/topics/other/groups/g")
    first, second, third, _ = (message["receipt"] for message in got["messages"])
    assert await act(agent, "ack", first) == {"done": 1, "failed": []}
    before = state(agent)
    bad = {
        "g1" + "*" * 54: "receipt-malformed",
        second + ".1": "receipt-malformed",
        second.replace("g1", "g2"): "receipt-malformed",
        forged(got["receipt"]): "receipt-forged",
        swapped(second, partition=1): "receipt-forged",
        swapped(second, generation=0): "receipt-forged",
        other["receipt"]: "receipt-of-another-group",
        first: "receipt-used",
        receipt_of(got["receipt"], 9): "receipt-used",
    }
    answer = await act(agent, "ack", *bad)
    assert answer["done"] == 0
    assert {item["receipt"]: item["code"] for item in answer["failed"]} == bad
    assert all(item["detail"] for item in answer["failed"])
    assert state(agent) == before
    answer = await act(agent, "ack", *bad, third, second)
    assert (answer["done"], len(answer["failed"])) == (2, len(bad))


async def test_a_partitions_route_takes_receipts_of_that_partition_alone(agent: Agent) -> None:
    """Others are of another one."""
    got = await receive(agent, "/v1/topics/t/partitions/1/groups/g", limit=1)
    before = state(agent)
    assert codes(await act(agent, "ack", got["receipt"], path=PARTITION)) == ["receipt-of-another-group"]
    assert state(agent) == before
    assert (await act(agent, "ack", got["receipt"]))["done"] == 1


async def test_a_receipt_of_a_message_that_was_delivered_again_is_expired(agent: Agent) -> None:
    """The newest one counts."""
    first = await receive(agent, PARTITION, limit=2, visibility="1s")
    agent.broker.cluster.deliveries["t", 0].shift_ms += 2_000
    second = await receive(agent, PARTITION, limit=2)
    assert values(second) == values(first)
    before = state(agent)
    receipts = [message["receipt"] for message in first["messages"]]
    for verb in ("ack", "nack", "release", "reject", "extend"):
        assert codes(await act(agent, verb, *receipts)) == ["receipt-expired"] * 2, verb
    (failed,) = (await act(agent, "ack", first["receipt"]))["failed"]
    assert failed["detail"].endswith("done, was given back or delivered again"), (
        "of none it is remembered which"
    )
    assert state(agent) == before
    assert (await act(agent, "ack", second["receipt"])) == {"done": 1, "failed": []}


async def test_a_receipt_older_than_a_seek_is_refused(agent: Agent) -> None:
    """Its message may come again, with another one."""
    got = await receive(agent, PARTITION, limit=2)
    assert (await agent.post(f"{GROUP}/seek", {"to": "earliest"})).status == 200
    before = state(agent)
    receipts = [message["receipt"] for message in got["messages"]]
    answer = await act(agent, "ack", *receipts, got["receipt"])
    assert codes(answer) == ["receipt-before-seek"] * 3
    assert state(agent) == before
    assert values(await receive(agent, PARTITION, limit=2)) == values(got)


async def test_of_ten_thousand_receipts_one_is_bad_and_the_others_count(agent: Agent) -> None:
    """In one request, across partitions."""
    agent.broker.cluster.create("many", 2)
    await agent.request("PUT", "/v1/topics/many/groups/g")
    receipts: list[str] = []
    for partition in range(2):
        await produce(agent, partition, *(str(number) for number in range(5_000)), topic="many")
        path = f"/v1/topics/many/partitions/{partition}/groups/g"
        got = await receive(agent, path, limit=5_000)
        receipts += [message["receipt"] for message in got["messages"]]
    assert len(receipts) == 10_000
    receipts[4_321] = receipts[4_321][:-6] + "?"
    answer = await act(agent, "ack", *receipts, path="/v1/topics/many/groups/g")
    assert answer["done"] == 9_999
    assert [(item["receipt"], item["code"]) for item in answer["failed"]] == [
        (receipts[4_321], "receipt-malformed")
    ]
    document = (await agent.get("/v1/topics/many/groups/g")).json
    assert (document["totals"]["in_flight"], document["totals"]["lag"]) == (1, 1)


async def test_extending_what_is_not_in_flight_is_told(agent: Agent) -> None:
    """The message is done, or waits."""
    got = await receive(agent, PARTITION, limit=2)
    first, second = (message["receipt"] for message in got["messages"])
    await act(agent, "ack", first)
    await act(agent, "nack", second, delay="1h")
    before = state(agent)
    assert codes(await act(agent, "extend", first, second)) == ["not-held", "not-held"]
    assert codes(await act(agent, "nack", second)) == ["receipt-used"]
    assert state(agent) == before


# ---- consumers -----------------------------------------------------------------------------------


async def test_ten_consumers_under_one_name(agent: Agent) -> None:
    """In a shared group they are ten; in an exclusive one the second is refused while the first is there."""
    got = [await receive(agent, PARTITION, limit=1, consumer="same", instance=f"i{n}") for n in range(10)]
    assert [values(item) for item in got] == [[f"0-{number}"] for number in range(10)]
    partition = PARTITION.replace("groups/g", "groups/x")
    assert values(await receive(agent, partition, limit=1, consumer="same", instance="i0")) == ["0-0"]
    before = state(agent)
    for number in range(1, 10):
        body = {"limit": 1, "consumer": "same", "instance": f"i{number}"}
        (await agent.post(f"{partition}/receive", body)).problem("consumer-in-use")
    assert state(agent) == before
    assert values(await receive(agent, partition, limit=1, consumer="same", instance="i0")) == ["0-1"]


async def test_a_consumer_that_takes_and_never_acks_is_named(agent: Agent) -> None:
    """Messages come again after their visibility, attempt by attempt, and are given up in the end."""
    await agent.request("PATCH", GROUP, {"retry": {"first": "0s", "most": "0s"}, "max_attempts": 3})
    for attempt in (1, 2, 3):
        got = await receive(agent, PARTITION, limit=100, consumer="taker", visibility="1s")
        assert {message["attempt"] for message in got["messages"]} == {attempt}
        numbers = (await agent.get(GROUP)).json["partitions"][0]
        assert (numbers["in_flight"], numbers["lag"]) == (10, 10)
        named = {item["consumer"]: item["holds"] for item in numbers["consumers"]}
        assert named == {"taker": 10}
        agent.broker.cluster.deliveries["t", 0].shift_ms += 2_000
    assert (await receive(agent, PARTITION))["reason"] == "empty"
    document = (await agent.get(GROUP)).json
    assert (document["totals"]["dead"], document["partitions"][0]["dying"]) == (10, 10)
    heard = {item["consumer"] for item in document["partitions"][0]["consumers"]}
    assert heard == {"taker", None}, "the last one gave no name"


def test_the_greatest_receipt_has_its_form() -> None:
    """The table above rests on the format."""
    text = receipt_of(head_of(b"g" * 16, b"k", 2**32 - 1, 2**32 - 1, 2**64 - 1), 2**63 - 1, 2**63 - 1)
    assert parse(text) == Receipt(b"g" * 16, 2**32 - 1, 2**32 - 1, 2**64 - 1, 2**63 - 1, 2**63 - 1)
