"""Groups for operators: made, listed, described, changed, sought and deleted, at any agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from http_fixtures import Agent, two_agents

from tests.agent.http.groups.group_requests import GROUP, act, codes, produce, receive, state, values

EXCLUSIVE = "/v1/topics/t/groups/x"
Pair = tuple[Agent, Agent]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Topic t has four partitions with five records each, led by either agent in turn."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 4)
        for partition in range(4):
            await produce(first, partition, *(f"{partition}-{number}" for number in range(5)))
        yield first, second


async def test_a_group_is_made_once(pair: Pair) -> None:
    """By either agent; again with the same settings, or without, it is the same."""
    asked = {"mode": "exclusive", "visibility": "1m", "retry": {"first": "5s"}}
    made = await pair[1].request("PUT", GROUP, asked)
    assert made.status == 201
    assert (made.json["mode"], made.json["visibility"], made.json["dead"]) == ("exclusive", "1m", "letter")
    assert [entry["position"] for entry in made.json["partitions"]] == [0] * 4
    for agent in pair:
        for again in (asked, None, {"mode": "exclusive"}, {"retry": {"first": "5s"}}):
            answer = await agent.request("PUT", GROUP, again)
            assert (answer.status, answer.json["id"]) == (200, made.json["id"])
    assert len(pair[0].broker.cluster.groups) == 1


async def test_a_secret_stands_in_no_document(pair: Pair) -> None:
    """Receipts would be worth nothing."""
    made = await pair[0].request("PUT", GROUP)
    entry = pair[0].broker.cluster.groups["t", "g"]
    answers = [made, await pair[0].get(GROUP), await pair[1].request("PATCH", GROUP, {"paused": True})]
    assert all(entry.mac.hex() not in answer.body.decode() for answer in answers)
    assert all(answer.json["id"] == entry.key.hex() for answer in answers)


async def test_a_group_is_described_at_any_agent(pair: Pair) -> None:
    """Each partition by its leader, and the sums of all."""
    await pair[0].request("PUT", GROUP)
    got = await receive(pair[0], "/v1/topics/t/partitions/2/groups/g", limit=3, consumer="worker")
    await act(pair[0], "ack", got["messages"][0]["receipt"])
    await act(pair[0], "nack", got["messages"][1]["receipt"], delay="1h")
    documents = [(await agent.get(GROUP)).json for agent in pair]
    for document in documents:
        for consumer in document["partitions"][2]["consumers"]:
            assert consumer.pop("seen_ms") >= 0
    assert documents[0] == documents[1]
    totals = documents[0]["totals"]
    assert (totals["lag"], totals["in_flight"], totals["delayed"]) == (19, 1, 1)
    assert [entry["partition"] for entry in documents[0]["partitions"]] == [0, 1, 2, 3]
    third = documents[0]["partitions"][2]
    assert (third["position"], third["next"], third["high_watermark"], third["acked"]) == (1, 3, 5, 1)
    assert [(item["consumer"], item["holds"]) for item in third["consumers"]] == [("worker", 1)]
    assert documents[0]["unavailable"] == []
    listed = [(await agent.get("/v1/topics/t/groups")).json["groups"] for agent in pair]
    group = {"name": "g", "mode": "shared", "paused": False, "lag": 19, "in_flight": 1, "dead": 0}
    assert listed == [[group], [group]]


async def test_a_partition_without_a_leader_is_named(pair: Pair) -> None:
    """The others are described."""
    await pair[0].request("PUT", GROUP)
    pair[0].broker.move("t", 1, None)
    document = (await pair[0].get(f"{GROUP}?timeout=1s")).json
    assert document["unavailable"] == [1]
    assert [entry["partition"] for entry in document["partitions"]] == [0, 2, 3]
    answer = await pair[0].request("PUT", "/v1/topics/t/groups/new?timeout=300ms")
    problem = answer.problem("timeout")
    assert "repeat this" in problem["detail"]
    assert not problem["definite"]
    pair[0].broker.move("t", 1, pair[0].broker.agent_id)
    assert (await pair[1].request("PUT", "/v1/topics/t/groups/new")).status == 200


async def test_settings_change_as_they_are_expected(pair: Pair) -> None:
    """By the catalog's leader, whoever is asked."""
    made = (await pair[0].request("PUT", GROUP)).json
    version = made["settings_version"]
    changed = await pair[1].request("PATCH", f"{GROUP}?if_version={version}", {"visibility": "2m"})
    assert (changed.status, changed.json["visibility"], changed.json["dead"]) == (200, "2m", "letter")
    answer = await pair[1].request("PATCH", f"{GROUP}?if_version={version}", {"visibility": "3m"})
    answer.problem("settings-changed")
    assert (await pair[0].get(GROUP)).json["visibility"] == "2m"


async def test_a_deleted_group_is_gone(pair: Pair) -> None:
    """Its receipts too; a namesake is another group."""
    await pair[0].request("PUT", GROUP)
    got = await receive(pair[0], limit=2)
    assert (await pair[1].request("DELETE", GROUP)).status == 204
    for agent in pair:
        (await agent.get(GROUP)).problem("unknown-group")
        (await agent.request("DELETE", GROUP)).problem("unknown-group")
    await pair[0].request("PUT", GROUP)
    assert codes(await act(pair[0], "ack", got["receipt"])) == ["receipt-of-another-group"]


@pytest.mark.parametrize(
    ("target", "first"),
    [("earliest", [0] * 4), ("latest", [5] * 4), ({"1": 3}, [2, 3, 2, 2]),
     ("@2000-01-01T00:00:00Z", [0] * 4), ("@2999-01-01T00:00:00Z", [5] * 4)],
)  # fmt: skip
async def test_a_group_goes_on_where_it_is_told(pair: Pair, target: object, first: list[int]) -> None:
    """In every partition that the seek names, at any agent; others go on where they were."""
    await pair[0].request("PUT", GROUP)
    for partition in range(4):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        got = await receive(pair[0], path, limit=2)
        await act(pair[0], "ack", got["receipt"])
    answer = await pair[1].post(f"{GROUP}/seek", {"to": target})
    assert answer.status == 200, answer.body
    found = {entry["partition"]: entry["offset"] for entry in answer.json["partitions"]}
    assert all(found[partition] == first[partition] for partition in found)
    for partition in range(4):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        got = await receive(pair[0], path, limit=100)
        assert values(got) == [f"{partition}-{number}" for number in range(first[partition], 5)]


async def test_a_seek_before_the_logs_start_seeks_nowhere(pair: Pair) -> None:
    """All partitions are checked first."""
    await pair[0].request("PUT", GROUP)
    pair[0].broker.cluster.logs["t", 1].start = 2
    before = state(pair[0])
    answer = await pair[0].post(f"{GROUP}/seek", {"to": {"0": 4, "1": 1}})
    problem = answer.problem("trimmed")
    assert (problem["log_start_offset"], problem["high_watermark"]) == (2, 5)
    assert state(pair[0]) == before
    answer = await pair[1].post("/v1/topics/t/partitions/1/groups/g/seek", {"to": 1})
    answer.problem("trimmed")
    answer = await pair[1].post("/v1/topics/t/partitions/1/groups/g/seek", {"to": 4})
    assert answer.json == {"partition": 1, "offset": 4, "generation": 2}


async def test_a_stopped_message_waits_for_an_operator(pair: Pair) -> None:
    """Then it comes again, or is dropped; what was not stopped is told."""
    await pair[0].request("PUT", GROUP, {"dead": "stop", "max_attempts": 1})
    for partition, action in ((0, "retry"), (1, "drop")):
        path = f"/v1/topics/t/partitions/{partition}/groups/g"
        got = await receive(pair[0], path, limit=1)
        await act(pair[0], "nack", got["receipt"])
        document = (await pair[0].get(GROUP)).json["partitions"][partition]
        assert (document["stopped"], document["position"]) == (1, 0)
        body = {"partition": partition, "offset": 0, "action": action}
        assert (await pair[1].post(f"{GROUP}/decide", body)).json == {"done": True}
        again = values(await receive(pair[0], path, limit=1))
        assert again == [f"{partition}-{0 if action == 'retry' else 1}"]
        assert (await pair[1].post(f"{GROUP}/decide", body)).json == {"done": False}


# ---- exclusive groups ----------------------------------------------------------------------------


async def test_partitions_are_shared_out_among_those_that_are_there(pair: Pair) -> None:
    """Every partition belongs to one of them; who goes leaves its part to the others."""
    await pair[0].request("PUT", EXCLUSIVE, {"mode": "exclusive"})
    alone = await pair[0].post(f"{EXCLUSIVE}/consumers/a", {"instance": "1"})
    assert alone.json == {"partitions": [0, 1, 2, 3], "led": [0, 1, 2, 3]}
    second = (await pair[1].post(f"{EXCLUSIVE}/consumers/b", {"instance": "2"})).json["partitions"]
    first = (await pair[1].post(f"{EXCLUSIVE}/consumers/a", {"instance": "1"})).json["partitions"]
    assert sorted(first + second) == [0, 1, 2, 3]
    assert len(first) == len(second) == 2
    answer = await pair[1].post(f"{EXCLUSIVE}/consumers/a", {"instance": "other"})
    answer.problem("consumer-in-use")
    for partition in first:
        path = f"/v1/topics/t/partitions/{partition}/groups/x"
        assert (await receive(pair[0], path, consumer="b", instance="2"))["reason"] == "not-owner"
        got = await receive(pair[0], path, consumer="a", instance="1", limit=2)
        assert values(got) == [f"{partition}-0", f"{partition}-1"]
    left = await pair[1].request("DELETE", f"{EXCLUSIVE}/consumers/a", {"instance": "1"})
    assert left.status == 200
    for partition in first:
        path = f"/v1/topics/t/partitions/{partition}/groups/x"
        got = await receive(pair[0], path, consumer="b", instance="2", limit=2)
        assert [item["attempt"] for item in got["messages"]] == [2, 2]


async def test_an_owner_acks_all_up_to_a_place(pair: Pair) -> None:
    """By offsets; others may not."""
    await pair[0].request("PUT", EXCLUSIVE, {"mode": "exclusive"})
    for partition in (0, 1):
        path = f"/v1/topics/t/partitions/{partition}/groups/x"
        await receive(pair[0], path, consumer="a", limit=4)
    body = {"up_to": {"0": 2, "1": 1}, "consumer": "b"}
    refused = (await pair[1].post(f"{EXCLUSIVE}/ack", body)).json
    assert (refused["done"], codes(refused)) == (0, ["receipt-expired"] * 2)
    assert {"the partition is not this consumer's, or not any more: its owner counts"} == {
        item["detail"] for item in refused["failed"]
    }
    done = (await pair[1].post(f"{EXCLUSIVE}/ack", body | {"consumer": "a"})).json
    assert done == {"done": 2, "failed": []}
    (again,) = (await pair[0].post(f"{EXCLUSIVE}/ack", {"up_to": {"0": 2}, "consumer": "a"})).json["failed"]
    assert again["detail"] == "the consumer holds no message up to there"
    entries = (await pair[0].get(EXCLUSIVE)).json["partitions"]
    assert [entry["position"] for entry in entries] == [3, 2, 0, 0]
    assert [entry["owner"] for entry in entries[:2]] == ["a", "a"]


async def test_letters_come_again_from_every_partition(pair: Pair) -> None:
    """Up to a limit of all together; each leader is asked, or one partition alone."""
    await pair[0].request("PUT", GROUP)
    deliveries = [pair[0].broker.cluster.deliveries["t", partition] for partition in range(4)]
    none = {"kept": 0, "kept_letters": []}  # as agents of a former version tell of none
    answer = await pair[0].post(f"{GROUP}/redrive")
    assert (answer.status, answer.json) == (200, {"redriven": 8, "copied": 4, **none})
    assert [delivery.redriven for delivery in deliveries] == [[None]] * 4
    answer = await pair[1].post(f"{GROUP}/redrive", {"limit": 3})
    assert answer.json == {"redriven": 3, "copied": 1, **none}
    assert [delivery.redriven[1:] for delivery in deliveries] == [[3], [1], [], []]
    answer = await pair[0].post("/v1/topics/t/partitions/1/groups/g/redrive", {"limit": 1})
    assert answer.json == {"redriven": 1, "copied": 0, **none}
    for limit in (0, -1, "1", True, 10**9 + 1):
        (await pair[0].post(f"{GROUP}/redrive", {"limit": limit})).problem("bad-request")
    (await pair[0].post(f"{GROUP}/redrive", {"limits": 1})).problem("bad-request")
