"""Requests of every kind that the description allows, and of some that it does not: each is answered as
described. A deterministic stand-in for a fuzzer of OpenAPI descriptions, over the very same description;
`scripts/campaign openapi` runs a real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from description_maker import requests_of
from description_rules import NEEDS_TIMER, broken_rule
from http_fixtures import one_agent
from json_schema import faults

from shoal.agent.http.admission.limits import HttpLimits

ROUNDS = 15
# What ends the agent, has no end, or is no request for clients.
LEFT_OUT = frozenset({"leave", "followEvents", "peer"})

# What a server may answer that is asked too much or too shortly.
SERVER_CODES = {"timeout", "no-leader", "not-ready", "overloaded"}
# What a request that fits may meet: what is not there, what is there already or is another, an offset
# outside the log.
MET = {404, 409, 410, 412, 416, 421}


@pytest.mark.parametrize("seed", range(4))
async def test_every_answer_is_as_described(seed: int) -> None:
    """What fits the description is not called wrong, what does not is; no request makes the agent fail;
    answers have a described form; problems say what is wrong."""
    async with one_agent(HttpLimits(wait_ms=50)) as agent:
        document = (await agent.get("/openapi.json")).json
        taken = refused = 0
        for made in requests_of(document, seed, ROUNDS, LEFT_OUT):
            agent.broker.left = []
            if "t" not in agent.broker.cluster.topics:
                agent.broker.cluster.create("t", 2)
            answer = await agent.request(made.method, made.target, made.body, headers=made.headers)
            where = f"{made}: {answer.status} {answer.body[:300]!r}"
            if answer.status >= 400:
                refused += 1
                problem = answer.json
                assert faults(document["components"]["schemas"]["Problem"], problem, document) == [], where
                assert answer.status < 500 or problem["code"] in SERVER_CODES, where
            else:
                taken += 1
                assert described_faults(document, made.name, answer) == [], where
            rule = broken_rule(made.name, made.query, made.headers)
            if made.misses is not None or rule is not None:
                assert answer.status >= 400, where
            elif answer.status != 400 or NEEDS_TIMER not in answer.json["detail"]:
                assert answer.status < 400 or answer.status in MET or answer.status >= 500, where
        assert taken > 150
        assert refused > 100
        gate = agent.runner.context.gate
        assert (gate.requests, gate.bytes_in_flight) == (0, 0)


def described_faults(document: Mapping[str, Any], name: str, answer: Any) -> list[str]:
    """Of an answer of 2xx: whether its status is described. The fake agent's documents are its own."""
    for item in document["paths"].values():
        for operation in item.values():
            if operation["operationId"] == name:
                return (
                    [] if str(answer.status) in operation["responses"] else [f"{answer.status} is not there"]
                )
    raise AssertionError(name)
