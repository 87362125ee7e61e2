"""Topics, members, routes and the operator's routes over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from command_line import assert_one_line, run
from http_fixtures import Agent, one_agent, two_agents

from shoal.agent.http.api.operations import VERSION_CHARACTERS_MAX
from shoal.errors import ShoalError


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        yield running_agent


async def test_create_describe_list_delete(agent: Agent) -> None:
    """A topic's life: 201, 200 when equal, 409 when not, described, listed, 204, 404."""
    assert (await agent.request("PUT", "/v1/topics/flights", {"partitions": 6})).status == 201
    assert (await agent.request("PUT", "/v1/topics/flights", {"partitions": 6})).status == 200
    assert (await agent.request("PUT", "/v1/topics/flights")).status == 200
    (await agent.request("PUT", "/v1/topics/flights", {"partitions": 7})).problem("topic-differs")
    assert (await agent.get("/v1/topics/flights")).json["partitions"] == 6
    assert [topic["name"] for topic in (await agent.get("/v1/topics")).json["topics"]] == ["flights"]
    answer = await agent.request("DELETE", "/v1/topics/flights")
    assert (answer.status, answer.body) == (204, b"")
    (await agent.request("DELETE", "/v1/topics/flights")).problem("unknown-topic")
    (await agent.get("/v1/topics/flights")).problem("unknown-topic")


async def test_change_a_topic(agent: Agent) -> None:
    """PATCH: 200 with the topic as it is now; 400 for what cannot change, 404 for what is not there."""
    await agent.request("PUT", "/v1/topics/flights")
    answer = await agent.request("PATCH", "/v1/topics/flights", {"retention": {"age": "7d"}})
    assert (answer.status, answer.json["retention"]) == (200, {"age": "7d"})
    (await agent.request("PATCH", "/v1/topics/flights", {"partitions": 9})).problem("bad-request")
    (await agent.request("PATCH", "/v1/topics/flights", b"[]")).problem("bad-request")
    (await agent.request("PATCH", "/v1/topics/absent", {"retention": {}})).problem("unknown-topic")
    expected = "/v1/topics/flights?if_version=00ff"
    assert (await agent.request("PATCH", expected, {"retention": {"age": "8d"}})).status == 200
    assert agent.broker.if_versions == [None, "00ff"]
    for text in ("", "x" * (VERSION_CHARACTERS_MAX + 1)):
        (await agent.request("PATCH", f"/v1/topics/flights?if_version={text}", {})).problem("bad-request")
    agent.broker.fail_next = [ShoalError("settings-changed", "by somebody else", settings_version="01")]
    changed = await agent.request("PATCH", expected, {"retention": {"age": "9d"}})
    assert (changed.status, changed.problem("settings-changed")["settings_version"]) == (409, "01")


async def test_the_key_of_a_creation_reaches_the_catalogs_leader() -> None:
    """A repeated request is answered as the first was, whichever agent it is sent to."""
    key = {"Idempotency-Key": "0123"}
    async with two_agents() as (first, second):
        first.broker.cluster.catalog_leader_id = second.broker.agent_id
        for agent in (first, second, first):
            answer = await agent.request("PUT", "/v1/topics/new", {"partitions": 2}, headers=key)
            assert answer.status == 201
        for others in ({}, {"Idempotency-Key": "4567"}):
            assert (
                await first.request("PUT", "/v1/topics/new", {"partitions": 2}, headers=others)
            ).status == 200
        for wrong in ("", "x" * 129, "\u00e4"):
            answer = await first.request("PUT", "/v1/topics/other", {}, headers={"Idempotency-Key": wrong})
            assert "Idempotency-Key" in answer.problem("bad-request")["detail"], wrong
        assert "other" not in first.broker.cluster.topics


async def test_a_condition_reaches_the_catalogs_leader() -> None:
    """However the request comes there."""
    async with two_agents() as (first, second):
        first.broker.cluster.catalog_leader_id = second.broker.agent_id
        first.broker.cluster.create("t")
        body = {"retention": {"age": "7d"}}
        assert (await first.request("PATCH", "/v1/topics/t?if_version=a%20b", body)).status == 200
        assert (first.broker.if_versions, second.broker.if_versions) == ([], ["a b"])


async def test_settings_of_a_topic(agent: Agent) -> None:
    """Each with its default, in a table; of any topic that there is."""
    agent.broker.cluster.create("t", 2)
    document = (await agent.get("/v1/topics/t/settings")).json
    assert document["topic"] == "t"
    rows = {row["name"]: row for row in document["settings"]}
    assert (rows["partitions"]["value"], rows["partitions"]["default"]) == (2, 1)
    assert (rows["partitions"]["set"], rows["partitions"]["changeable"]) == (True, False)
    (await agent.get("/v1/topics/nope/settings")).problem("unknown-topic")
    (await agent.request("PUT", "/v1/topics/t/settings", {})).problem("method-not-allowed")


async def test_a_body_sent_by_curl_d(agent: Agent) -> None:
    """curl -d sends a form's content type; a topic's settings have only one meaning, so they are taken."""
    answer = await agent.request(
        "PUT",
        "/v1/topics/t",
        b'{"partitions":2}',
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert (answer.status, answer.json["partitions"]) == (201, 2)


@pytest.mark.parametrize(
    ("body", "media", "code"),
    [
        (b"{", "application/json", "bad-request"),
        (b"[1]", "application/json", "bad-request"),
        (b"\xff", "application/json", "bad-request"),
        (b"[" * 100_000, "application/json", "bad-request"),
        (b'{"partitions":0}', "application/json", "bad-request"),
        (b'{"partitions":2}', "text/xml", "unsupported-media-type"),
        (b'{"partitions":2}', "application/json; charset=utf-16", "unsupported-media-type"),
        (b" " * 300_000, "application/json", "too-large"),
    ],
)
async def test_wrong_settings(agent: Agent, body: bytes, media: str, code: str) -> None:
    """A body that is no object of settings creates nothing."""
    answer = await agent.request("PUT", "/v1/topics/t", body, headers={"Content-Type": media})
    answer.problem(code)
    assert agent.broker.cluster.topics == {}


ILLEGAL = [
    "a%2Fb",
    "a%20b",
    "%2E%2E",
    ".",
    "..",
    "a*b",
    "x" * 250,
    "%C3%A9",
    "_catalog",
    "a%00b",
    "a%3Fb",
    "a'b",
]


@pytest.mark.parametrize("name", ILLEGAL)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_illegal_names(agent: Agent, name: str, method: str) -> None:
    """Illegal names are 400 with the rule, for every route that changes something."""
    path = f"/v1/topics/{name}" + ("/records" if method == "POST" else "")
    problem = (await agent.request(method, path, b"" if method != "POST" else b"v")).problem("illegal-name")
    assert problem["definite"] is True
    assert "_" in problem["detail"]
    assert agent.broker.cluster.topics == {}


async def test_longest_and_strangest_legal_names(agent: Agent) -> None:
    """What the alphabet allows works on every route."""
    for name in ("x" * 249, "...", "-", "records", "A.b_c-9"):
        assert (await agent.request("PUT", f"/v1/topics/{name}")).status == 201
        assert (await agent.post(f"/v1/topics/{name}/records", b"v")).status == 200
        assert (await agent.get(f"/v1/topics/{name}/partitions/0/records")).json["topic"] == name


async def test_pages_of_topics(agent: Agent) -> None:
    """limit and cursor walk over all topics once, by name."""
    for number in range(7):
        agent.broker.cluster.create(f"topic-{number}")
    seen: list[str] = []
    path = "/v1/topics?limit=3"
    while True:
        document = (await agent.get(path)).json
        seen += [topic["name"] for topic in document["topics"]]
        if "next_cursor" not in document:
            break
        path = f"/v1/topics?limit=3&cursor={document['next_cursor']}"
    assert seen == [f"topic-{number}" for number in range(7)]


async def test_offsets_of_a_topic(agent: Agent) -> None:
    """All partitions' ends; with ?at= the first offset of that time."""
    agent.broker.cluster.create("t", 2)
    await agent.post("/v1/topics/t/partitions/1/records", b"v")
    entries = (await agent.get("/v1/topics/t/offsets")).json["partitions"]
    assert entries == [
        {"partition": 0, "log_start_offset": 0, "high_watermark": 0, "log_end_offset": 0},
        {"partition": 1, "log_start_offset": 0, "high_watermark": 1, "log_end_offset": 1},
    ]
    entries = (await agent.get("/v1/topics/t/offsets?at=0")).json["partitions"]
    assert [entry["offset"] for entry in entries] == [0, 0]
    entries = (await agent.get("/v1/topics/t/offsets?at=3000-01-01T00:00:00Z")).json["partitions"]
    assert [entry["offset"] for entry in entries] == [0, 1]
    problem = (await agent.get("/v1/topics/t/offsets?at=noon")).problem("bad-request")
    assert problem["invalid_params"] == ["at"]
    (await agent.get("/v1/topics/none/offsets")).problem("unknown-topic")


async def test_members_and_filters(agent: Agent) -> None:
    """The list, one member by id or name, and the filters."""
    answer = await agent.get("/v1/members")
    member = answer.json["members"][0]
    assert answer.headers["Shoal-Version"] == answer.json["version"]
    assert (await agent.get(f"/v1/members/{member['id']}")).json == member
    assert (await agent.get("/v1/members/one")).json == member
    (await agent.get("/v1/members/two")).problem("unknown-member")
    for query, found in (
        ("status=alive", 1), ("status=failed", 0), ("tag=zone=one", 1), ("tag=zone=two", 0), ("tag=none=", 0),
    ):  # fmt: skip
        assert len((await agent.get(f"/v1/members?{query}")).json["members"]) == found
    for query in ("status=well", "tag=zone", "tag==x", "after_version=" + "x" * 200):
        (await agent.get(f"/v1/members?{query}")).problem("bad-request")


async def test_waiting_for_a_version(agent: Agent) -> None:
    """after_version blocks until something changes; a foreign version returns at once with everything."""
    version = (await agent.get("/v1/routes")).json["version"]
    assert (await agent.get("/v1/routes?after_version=elsewhere.9&wait=60s")).json["version"] == version
    same = await agent.get(f"/v1/routes?after_version={version}&wait=30ms")
    assert same.json["version"] == version
    waiting = asyncio.create_task(agent.get(f"/v1/routes?after_version={version}&wait=60s"))
    while agent.runner.context.gate.waits == 0:
        await asyncio.sleep(0.001)
    agent.broker.cluster.create("t", 2)
    async with asyncio.timeout(40):
        answer = await waiting
    assert answer.json["version"] != version
    assert answer.headers["Shoal-Version"] == answer.json["version"]
    assert len(answer.json["topics"]["t"]["partitions"]) == 2


async def test_routes_of_one_topic(agent: Agent) -> None:
    """?topic= narrows the answer; an unknown one is 404."""
    agent.broker.cluster.create("a")
    agent.broker.cluster.create("b")
    assert list((await agent.get("/v1/routes?topic=b")).json["topics"]) == ["b"]
    (await agent.get("/v1/routes?topic=c")).problem("unknown-topic")


async def test_agent_join_leave_force_leave(agent: Agent) -> None:
    """The agent's own routes hand over to the broker."""
    assert (await agent.get("/v1/agent")).json["name"] == "one"
    answer = await agent.post("/v1/agent/join", {"addresses": ["127.0.0.1:7946"]})
    assert (answer.json, agent.broker.joined) == ({"joined": 1}, ["127.0.0.1:7946"])
    for body in ({}, {"addresses": []}, {"addresses": [1]}, {"addresses": "x"}, {"addresses": ["x"] * 65}):
        (await agent.post("/v1/agent/join", body)).problem("bad-request")
    assert (await agent.post("/v1/members/one/force-leave")).status == 200
    (await agent.post("/v1/members/none/force-leave")).problem("unknown-member")
    assert (await agent.post("/v1/agent/leave")).status == 200
    assert agent.broker.left == [agent.broker.agent_id] * 2
    for path in ("/v1/agent/join", "/v1/agent/leave", "/v1/members/one/force-leave"):
        (await agent.get(path)).problem("method-not-allowed")


async def test_health_and_metrics(agent: Agent) -> None:
    """livez always; readyz by the broker, with its checks; metrics in Prometheus' text."""
    assert (await agent.get("/livez")).status == 200
    assert (await agent.get("/readyz")).json == {"status": "ready"}
    assert (await agent.get("/readyz?verbose")).json["checks"] == {"joined": "ok", "catalog": "ok"}
    agent.broker.ready = False
    answer = await agent.get("/readyz")
    problem = answer.problem("not-ready")
    assert (answer.status, problem["checks"]["catalog"]) == (503, "not caught up")
    assert "catalog" in problem["detail"]
    assert (await agent.get("/livez")).status == 200
    metrics = await agent.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'shoal_build_info{version="1",disk="none"} 1\n' in metrics.body
    assert b"\nshoal_http_requests_in_flight 0\n" in metrics.body


async def test_catalog_errors_pass_through(agent: Agent) -> None:
    """What the catalog refuses reaches the client unchanged."""
    agent.broker.fail_next = [ShoalError("not-enough-members", "1 of 3 live")]
    answer = await agent.request("PUT", "/v1/topics/t", {"replication_factor": 3})
    assert answer.problem("not-enough-members")["detail"] == "1 of 3 live"
    assert answer.status == 409


async def test_trim_a_partition(agent: Agent) -> None:
    """The head goes up to the offset; reads below are 410; wrong bodies and offsets are refused."""
    agent.broker.cluster.create("t", 2)
    path = "/v1/topics/t/partitions/1"
    for value in (b"a", b"b", b"c"):
        await agent.post(f"{path}/records", value)
    answer = await agent.request("POST", f"{path}/trim", {"before": 2})
    assert (answer.status, answer.json) == (200, {"log_start_offset": 2})
    assert (await agent.request("POST", f"{path}/trim", {"before": 1})).json == {"log_start_offset": 2}
    (await agent.get(f"{path}/records?offset=1")).problem("trimmed")
    (await agent.request("POST", f"{path}/trim", {"before": 4})).problem("beyond-end")
    for body in ({}, {"before": -1}, {"before": "2"}, {"before": True}, {"before": 1, "after": 2}, b""):
        (await agent.request("POST", f"{path}/trim", body)).problem("bad-request")
    (await agent.request("POST", "/v1/topics/none/partitions/0/trim", {"before": 0})).problem("unknown-topic")


async def test_trim_goes_to_the_leader() -> None:
    """Asked elsewhere it is handed on, or refused with where to go."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 2)
        await first.post("/v1/topics/t/partitions/1/records", b"v")
        for agent in (first, second):
            answer = await agent.request("POST", "/v1/topics/t/partitions/1/trim", {"before": 1})
            assert answer.json == {"log_start_offset": 1}


async def test_kept_topics_are_listed_and_adopted() -> None:
    """At any agent, by name or id; what is asked for wrongly says what is right."""
    async with two_agents() as (first, second):
        held = [{"partition": 0, "agents": [{"id": "b" * 32, "name": "sardine"}]}]
        item = {"id": "1" * 32, "name": "orders", "partitions": 2, "adoptable": True, "held": held}
        first.broker.kept = [dict(item), {**item, "id": "2" * 32, "name": None, "adoptable": False}]
        assert [found["id"] for found in (await first.get("/v1/kept-topics")).json["topics"]] == [
            "1" * 32,
            "2" * 32,
        ]
        for body in (b"[]", b'{"name": 5}', b'{"more": "x"}'):
            answer = await first.post("/v1/kept-topics/orders/adopt", body, media="application/json")
            answer.problem("bad-request")
        (await first.post("/v1/kept-topics/none/adopt", b"")).problem("unknown-topic")
        made = await second.post(
            "/v1/kept-topics/orders/adopt", b'{"name": "orders.old"}', media="application/json"
        )
        assert (made.status, made.json["name"]) == (201, "orders.old")
        assert [found["id"] for found in first.broker.kept] == ["2" * 32]
        url = f"http://127.0.0.1:{first.port}"
        assert (await first.get("/v1/kept-topics")).json["silent"] == []
        first.broker.silent = [{"id": "c" * 32, "name": "herring"}]
        listed = await run("topic", "adopt", agent=url)
        assert "herring did not say which topics they keep" in listed.stderr
        assert (listed.code, "unknown: cannot be adopted" in listed.stdout) == (0, True)
        done = await run("topic", "adopt", "2" * 32, "--as", "again", agent=url)
        assert (done.code, "again is adopted" in done.stderr) == (0, True)
        assert "no other agent keeps a topic" in (await run("topic", "adopt", agent=url)).stderr
        first.broker.silent = []
        assert "knows every topic" in (await run("topic", "adopt", agent=url)).stderr
        assert_one_line(await run("topic", "adopt", "none", agent=url), "no live agent keeps none")
