"""Requests of every kind that the description allows, and of some that it does not: each is answered as
described. A deterministic stand-in for a fuzzer of OpenAPI descriptions, over the very same description.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from http_fixtures import one_agent
from json_schema import faults, resolve

ROUNDS = 12
# What ends the agent, has no end, or is no request for clients.
LEFT_OUT = {"leave", "followEvents", "peer"}
ODD = [
    "",
    " ",
    "0",
    "-1",
    "ü",
    "\0",
    "a/b",
    "..",
    "%",
    "null",
    "true",
    "9" * 30,
    "{}",
    "'\"<>&",
    "\ud7ff",
    "x" * 300,
]

# What a server may answer that is asked too much or too shortly.
SERVER_CODES = {"timeout", "no-leader", "not-ready", "overloaded"}


class Maker:
    """Values for schemas, right and wrong ones."""

    def __init__(self, seed: int, document: Mapping[str, Any]) -> None:
        self.rng = random.Random(seed)
        self.document = document

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """One that fits."""
        rng = self.rng
        if "$ref" in schema:
            return self.value(resolve(schema["$ref"], self.document), depth)
        for choices in ("anyOf", "enum", "examples"):
            if choices in schema:
                chosen = rng.choice(schema[choices])
                return self.value(chosen, depth) if choices == "anyOf" else chosen
        kind = schema.get("type", rng.choice(["string", "integer", "boolean", "null", "object"]))
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self.members(schema, depth)
        if kind == "array":
            count = rng.randint(schema.get("minItems", 0), min(3, schema.get("maxItems", 3)))
            return [self.value(schema["items"], depth + 1) for _ in range(count)]
        if kind == "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 2**40)
            return rng.choice([low, high, rng.randint(low, high)])
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        return rng.choice(["t", "abc", "YWJj", "Köln"]) if "pattern" not in schema else "t"

    def members(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        chosen = [name for name in properties if name in required or (depth < 4 and self.rng.random() < 0.5)]
        if len(chosen) < schema.get("minProperties", 0):
            chosen = list(properties)
        made = {name: self.value(properties[name], depth + 1) for name in chosen}
        if not properties and schema.get("additionalProperties"):
            made["name"] = "value"
        return made

    def odd(self) -> Any:
        return self.rng.choice([*ODD, 0, -1, 1.5, None, True, [], {}, [[]], {"a": {}}])


def requests_of(document: Mapping[str, Any], seed: int) -> list[tuple[str, str, str, dict[str, str], bytes]]:
    """Operation's name, method, target, headers, body."""
    maker = Maker(seed, document)
    made = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters" and operation["operationId"] not in LEFT_OUT:
                for turn in range(ROUNDS):
                    made.append(request_of(maker, path, item, method, operation, is_odd=turn % 3 == 2))
    return made


def request_of(
    maker: Maker, path: str, item: Any, method: str, operation: Any, *, is_odd: bool
) -> tuple[str, str, str, dict[str, str], bytes]:
    rng = maker.rng
    target = path
    for variable in item.get("parameters", []):
        value = maker.odd() if is_odd and rng.random() < 0.3 else maker.value(variable["schema"])
        target = target.replace(f"{{{variable['name']}}}", quote(str(value), safe=""))
    query, headers = {}, {}
    for parameter in operation.get("parameters", []):
        if parameter["name"] in ("wait", "timeout"):
            value: Any = rng.choice(["1ms", "20ms"])  # of whatever is possible, what does not take long
        else:
            value = maker.odd() if is_odd and rng.random() < 0.3 else maker.value(parameter["schema"])
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if parameter["required"] or rng.random() < 0.5:
            if parameter["in"] == "query":
                query[parameter["name"]] = text
            elif text.isascii() and text.isprintable():
                headers[parameter["name"]] = text
    body = b""
    if "requestBody" in operation:
        media = rng.choice(list(operation["requestBody"]["content"]))
        schema = operation["requestBody"]["content"][media]["schema"]
        value = maker.odd() if is_odd and rng.random() < 0.5 else maker.value(schema)
        headers["Content-Type"] = "text/plain" if media == "*/*" else media
        body = json.dumps(value).encode()
    if query:
        target += "?" + urlencode(query)
    return operation["operationId"], method.upper(), target, headers, body


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_as_described(seed: int) -> None:
    """No request makes the agent fail; answers have the described form; problems say what is wrong."""
    async with one_agent() as agent:
        document = (await agent.get("/openapi.json")).json
        taken = refused = 0
        for name, method, target, headers, body in requests_of(document, seed):
            agent.broker.left = []
            if "t" not in agent.broker.cluster.topics:
                agent.broker.cluster.create("t", 2)
            if "text/event-stream" in headers.get("Accept", ""):
                continue
            answer = await agent.request(method, target, body, headers=headers)
            where = (
                f"{name}: {method} {target} {headers} {body[:200]!r}: {answer.status} {answer.body[:300]!r}"
            )
            if answer.status >= 400:
                refused += 1
                problem = answer.json
                assert faults(document["components"]["schemas"]["Problem"], problem, document) == [], where
                assert answer.status < 500 or problem["code"] in SERVER_CODES, where
            else:
                taken += 1
                assert described_faults(document, name, answer) == [], where
        assert taken > 100
        assert refused > 50
        gate = agent.runner.context.gate
        assert (gate.requests, gate.bytes_in_flight) == (0, 0)


def described_faults(document: Mapping[str, Any], name: str, answer: Any) -> list[str]:
    """Of an answer of 2xx: whether its status is described. The fake agent's documents are its own."""
    for item in document["paths"].values():
        for method, operation in item.items():
            if method != "parameters" and operation["operationId"] == name:
                return (
                    [] if str(answer.status) in operation["responses"] else [f"{answer.status} is not there"]
                )
    raise AssertionError(name)
