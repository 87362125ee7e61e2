"""/openapi.json: a whole OpenAPI description, of the very routes that are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_fixtures import one_agent
from json_schema import answer_faults, faults, resolve

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.app import Dispatcher
from shoal.agent.http.core.context import Context
from shoal.agent.http.core.dispatch import Node
from shoal.agent.http.core.forward import Forwarder
from shoal.agent.http.docs.openapi import openapi_document
from tests.agent.agents import agents_in
from tests.agent.fake_broker import FakeCluster

METHODS = ("get", "put", "post", "patch", "delete")


def routed() -> list[Operation]:
    """What the router of an agent finds, in any order."""
    limits = HttpLimits()
    broker = FakeCluster().add("one")
    dispatcher = Dispatcher(Context(broker, limits, Forwarder(broker.agent_id, limits)))
    found: list[Operation] = []

    def walk(node: Node) -> None:
        found.extend(route.operation for route in node.routes.values())
        for child in (*node.segments.values(), *filter(None, [node.any_segment, node.rest])):
            walk(child)

    walk(dispatcher._table._root)
    return found


async def described() -> dict[str, Any]:
    async with one_agent() as agent:
        answer = await agent.get("/openapi.json")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        again = await agent.get("/openapi.json")
        assert again.body == answer.body
        document: dict[str, Any] = answer.json
        return document


async def test_the_description_has_exactly_the_routes_that_are_served() -> None:
    """Every route of the router, with each of its query parameters; nothing else."""
    document = await described()
    told = {
        (method.upper(), path): {
            parameter["name"]
            for parameter in item[method].get("parameters", [])
            if parameter["in"] == "query"
        }
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    }
    served = {(operation.method, operation.path): set(operation.parameter_names) for operation in routed()}
    assert told == served
    assert len(served) > 25


async def test_the_description_is_whole() -> None:
    """Version, unique names, a summary and an answer for each operation, path variables that are declared,
    references that lead somewhere, no schema that nobody uses."""
    document = await described()
    assert document["openapi"].startswith("3.1.")
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f'#/components/schemas/{name}"' in text, f"nobody uses {name}"
    names = []
    for path, item in document["paths"].items():
        variables = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
        for method in METHODS:
            if method in item:
                operation = item[method]
                declared = operation.get("parameters", [])
                assert [one["name"] for one in declared if one["in"] == "path"] == variables
                names.append(operation["operationId"])
                assert operation["summary"].endswith(".")
                assert len(operation["tags"]) == 1
                assert set(operation["responses"]) - {"default"}, names[-1]
    assert len(set(names)) == len(names)
    check_references(document, document)


def check_references(part: Any, document: dict[str, Any]) -> None:
    if isinstance(part, dict):
        if "$ref" in part:
            assert resolve(part["$ref"], document)
        for member in part.values():
            check_references(member, document)
    elif isinstance(part, list):
        for item in part:
            check_references(item, document)


async def test_problems_are_described_too() -> None:
    """A refusal is the problem document of the description, whatever refused it."""
    async with one_agent() as agent:
        document = (await agent.get("/openapi.json")).json
        for path in ("/v1/topics/none", "/v1/topics/x/records?misspelt=1", "/v1/members/nobody"):
            answer = await agent.get(path)
            assert answer.status >= 400
            wrong = answer_faults(
                document,
                "GET",
                path.partition("?")[0],
                answer.status,
                "application/problem+json",
                answer.json,
            )
            assert wrong == []


@pytest.mark.slow
async def test_a_whole_agent_answers_as_described(tmp_path: Path) -> None:
    """Every JSON document of a running agent, members and routes and recovery among them, has the members
    that are described, and no others."""
    document = openapi_document(routed())
    record = {"key": "k", "value": {"n": 1}, "timestamp": 1, "headers": {"h": "x"}}
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a", gossip_key="AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
        name = (await agent.call("GET", "/v1/agent"))[1]["name"]
        asked: list[tuple[str, str, object, dict[str, str]]] = [
            ("PUT", "/v1/topics/t", {"partitions": 2, "replication_factor": "all"}, {}),
            ("POST", "/v1/topics/t/partitions/0/records", {"records": [record, {"value": None}]}, {}),
            ("POST", "/v1/topics/t/records", b"\xff\xfe", {}),
            ("PATCH", "/v1/topics/t", {"retention": {"age": "7d"}}, {}),
            ("PATCH", "/v1/topics/t", {"replication_factor": 2}, {}),
            ("GET", "/v1/topics/t/settings", None, {}),
            ("GET", "/v1/topics", None, {}),
            ("GET", "/v1/topics/t", None, {}),
            ("GET", "/v1/kept-topics", None, {}),
            ("GET", "/v1/topics/t/offsets", None, {"at": "5"}),
            ("GET", "/v1/topics/t/records", None, {}),
            ("GET", "/v1/topics/t/partitions/0/records", None, {"value": "json"}),
            ("POST", "/v1/topics/t/partitions/0/trim", {"before": 0}, {}),
            ("GET", "/v1/members", None, {}),
            ("GET", f"/v1/members/{name}", None, {}),
            ("POST", f"/v1/members/{name}/force-leave", None, {}),
            ("PUT", "/v1/topics/whole", {"partitions": 2.0, "replication_factor": 1.0}, {}),
            ("GET", "/v1/routes", None, {}),
            ("GET", "/v1/agent", None, {}),
            ("GET", "/v1/agent/drain", None, {}),
            ("GET", "/v1/agent/recover", None, {"topic": "t", "partition": "0"}),
            ("GET", "/v1/keys", None, {}),
            ("GET", "/v1/cluster/level", None, {}),
            ("POST", "/v1/cluster/level", {}, {}),
            ("PUT", "/v1/roles/clerk", {"rules": ["topic:orders*=read"]}, {}),
            ("PUT", "/v1/principals/bob", {"roles": ["clerk", "consumer:a*"]}, {}),
            ("POST", "/v1/principals/bob/tokens", {"expires_in": "1h"}, {}),
            ("GET", "/v1/principals", None, {}),
            ("GET", "/v1/principals/bob", None, {}),
            ("GET", "/v1/roles", None, {}),
            ("GET", "/v1/roles/viewer", None, {}),
            ("GET", "/readyz", None, {"verbose": ""}),
            ("GET", "/livez", None, {}),
        ]
        for method, path, body, query in asked:
            status, value = await agent.call(method, path, body, **query)
            problem = status >= 400
            assert status < 400 or value["code"] == "not-failed", (path, value)
            media = "application/problem+json" if problem else "application/json"
            assert problem == path.endswith("/force-leave"), (path, value)
            assert answer_faults(document, method, path, status, media, value) == []


def test_the_checker_finds_what_is_wrong() -> None:
    """Missing, unknown and wrong members are told with their places; true is no number."""
    document = openapi_document(routed())
    good = {"type": "t", "title": "t", "status": 404, "detail": "d", "code": "unknown-topic",
            "retriable": False, "definite": True}  # fmt: skip
    problem = {"$ref": "#/components/schemas/Problem"}
    assert faults(problem, good, document) == []
    for change, told in (
        ({"status": True}, "$.status: True is no integer"),
        ({"code": "odd"}, "$.code: 'odd' is none of"),
    ):
        assert faults(problem, good | change, document)[0].startswith(told)
    alive = {"$ref": "#/components/schemas/Alive"}
    assert faults(alive, {}, document) == ["$: status is missing"]
    assert faults(alive, {"status": "alive", "more": 1}, document) == ["$: more is not described"]


async def test_generators_find_a_name_for_every_schema_and_no_word_that_they_trip_over() -> None:
    """openapi-python-client calls an object inside another after both, and drops two of one name; `const` in
    a choice of types it reads wrongly. tests/clients runs the generators."""
    document = await described()
    names = {name.lower() for name in document["components"]["schemas"]}

    def walk(schema: Any, name: str) -> None:
        if isinstance(schema, list):
            for choice in schema:
                walk(choice, name)
            return
        assert "const" not in schema, name
        for member, inner in schema.get("properties", {}).items():
            called = (name + member.replace("_", "")).lower()
            items = inner.get("items", {})
            if inner.get("type") == "object" or items.get("type") == "object":
                called += "item" if items else ""
                assert called not in names, f"{called} is called like another schema"
                names.add(called)
            walk(items or inner, called)
        walk(schema.get("anyOf", []), name)

    for name, schema in document["components"]["schemas"].items():
        walk(schema, name)


@pytest.mark.parametrize(
    ("path", "name", "refused"),
    [
        ("/v1/topics/{topic}/partitions/{partition}/records", "wait", ["5m", "61s", "60001", "1h", "soon"]),
        ("/v1/topics/{topic}/partitions/{partition}/records", "limit", [0, 10_000_001]),
        ("/v1/topics/{topic}/partitions/{partition}/records", "max_bytes", [0, 64 * 2**20 + 1]),
        ("/v1/topics/{topic}/partitions/{partition}/records", "offset", ["", "@", "--1", "1.5", "now"]),
        ("/v1/topics/{topic}/records", "offset", ["17", "-10000"]),
        (
            "/v1/topics/{topic}/offsets",
            "at",
            ["", "yesterday", "2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z"],
        ),
        ("/v1/topics/{topic}/offsets", "wait", ["61s"]),
        ("/v1/topics/{topic}/offsets", "timeout", ["0", "0s", "61s"]),
        ("/v1/topics/{topic}/offsets", "after", ["", "0", "0:1,0:2", "00:1,0:2", "0:1,1:2,0:3"]),
        ("/v1/topics", "limit", [0, 10_001]),
    ],
)
async def test_what_fits_the_description_is_not_refused(path: str, name: str, refused: list[Any]) -> None:
    """A parameter's schema has the server's own bounds, and its examples are taken; the rest is 400."""
    document = await described()
    parameters = document["paths"][path]["get"]["parameters"]
    schema = next(parameter["schema"] for parameter in parameters if parameter["name"] == name)
    taken = schema.get("examples", [schema.get("minimum"), schema.get("maximum")])
    if name == "wait":
        taken += ["0", "60s", "1m", "60000ms", "59999"]
    async with one_agent() as agent:
        agent.broker.cluster.create("t", 2)
        target = path.format(topic="t", partition=0)
        await agent.post("/v1/topics/t/partitions/0/records", b"x" * 20)
        begin = "offset=earliest&" if name == "wait" and path.endswith("/records") else ""
        for value in taken:
            assert faults(schema, value, document) == [], value
            answer = await agent.get(f"{target}?{begin}{name}={value}")
            assert answer.status == 200, (value, answer.body)
        for value in refused:
            assert faults(schema, value, document), value
            if value != "-10000":  # far more than anybody wants, and possible
                (await agent.get(f"{target}?{name}={value}")).problem("bad-request")


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        ({"value": "v"}, True), ({"value": None}, True), ({"value": {"a": [1.5]}, "key": 7}, True),
        ({"value_base64": "YQ=="}, True), ({"value": "v", "key_base64": "YWI="}, True), ({}, False),
        ({"key": "k"}, False), ({"value": "v", "value_base64": "YQ=="}, False),
        ({"value": "v", "more": 1}, False),
        ({"value": "v", "key": "k", "key_base64": "YQ=="}, False), ({"value_base64": None}, False),
        ({"value_base64": "YQ"}, False), ({"value": "v", "timestamp": 1e3}, True),
        ({"value": "v", "timestamp": 1.5}, False), ({"value": "v", "timestamp": None, "headers": None}, True),
        ({"value": "v", "timestamp": "2028-02-29T00:00:00.5+01:00"}, True),
        ({"value": "v", "timestamp": "2026-02-29T00:00:00Z"}, False),
        ({"value": "v", "timestamp": "soon"}, False),
        ({"value": "v", "timestamp": 2**63 // 1000}, False),
        ({"value": "v", "headers": {"h": 1, "i": None}}, True),
        ({"value": "v", "headers": [{"key": "h"}, {"key": "h", "value_base64": "YQ=="}]}, True),
        ({"value": "v", "headers": [{"key": "h", "value": "x", "value_base64": "YQ=="}]}, False),
        ({"value": "v", "headers": [{"value": "x"}]}, False), ({"value": "v", "headers": "h"}, False),
        ({"value": "v", "headers": {str(number): "x" for number in range(257)}}, False),
    ],
)  # fmt: skip
async def test_records_that_fit_the_description_are_those_that_are_taken(
    record: dict[str, Any], fits: bool
) -> None:
    """A value there has to be, and of each text one form; whoever checks by the schema meets no 400."""
    document = await described()
    body = {"records": [record]}
    assert (faults({"$ref": "#/components/schemas/NewRecords"}, body, document) == []) == fits
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        answer = await agent.post("/v1/topics/t/records", json.dumps(body).encode(), media="application/json")
        assert answer.status == (200 if fits else 400), answer.body


async def test_what_nobody_waited_for_is_described() -> None:
    """acks=none answers how many records, and not where they are."""
    async with one_agent() as agent:
        document = (await agent.get("/openapi.json")).json
        path = "/v1/topics/t/records"
        answer = await agent.post(f"{path}?acks=none", b"v")
        assert answer.status == 202
        assert answer_faults(document, "POST", path, 202, "application/json", answer.json) == []


@pytest.mark.parametrize("name", ["a", ".x", "..x", "a.b-c_D9", "x" * 249, "_catalog"])
async def test_names_that_fit_the_description(name: str) -> None:
    """Every legal name of a topic, and no other."""
    document = await described()
    for method in ("get", "put", "patch", "delete"):
        parameters = document["paths"]["/v1/topics/{topic}"][method]["parameters"]
        (schema,) = [item["schema"] for item in parameters if item["in"] == "path"]
        is_system = name.startswith("_")
        assert bool(faults(schema, name, document)) == (is_system and method != "get")
        for wrong in (".", "..", "", "x" * 250, "a/b", "a b", "ü"):
            assert faults(schema, wrong, document)
