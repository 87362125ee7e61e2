"""The routes of members, of the agent itself and of its operation, as operations.py has the others."""

from __future__ import annotations

from shoal.agent.http.api import needs, schemas
from shoal.agent.http.api.media import EVENT_STREAM, JSON_TYPE
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter
from shoal.agent.http.api.operations import (
    AFTER_VERSION,
    FORWARD,
    LAST_EVENT_ID,
    PAGE,
    PLAIN,
    TIMEOUT,
    WAIT,
    ok,
)
from shoal.agent.http.api.schemas import BYTES, PARTITION_NUMBER, SWITCH, TEXT, reference
from shoal.membership.interface import KeyChange

_CHANGES = (TIMEOUT, FORWARD)

# ---- members and routes

MEMBERS = Operation(
    "listMembers",
    "GET /v1/members",
    "Who is in the cluster, and what each holds.",
    ok("Members", "The members.", ("Shoal-Version",)),
    (
        AFTER_VERSION,
        WAIT,
        Parameter("status", "Only these.", schemas.SCHEMAS["Member"]["properties"]["status"]),
        Parameter("tag", "Only those with the tag KEY=VALUE.", {"type": "string", "pattern": "^[^=]+=.*$"}),
    ),
    needs=needs.OtherNeed.CREDENTIALS,
)
MEMBER = Operation(
    "readMember",
    "GET /v1/members/{member}",
    "One member, by name or id.",
    ok("Member", "The member.", ("Shoal-Version",)),
    needs=needs.CLUSTER_DESCRIBE,
)
FORCE_LEAVE = Operation(
    "forceLeave",
    "POST /v1/members/{member}/force-leave",
    "Take a failed member for one that left.",
    ok("MemberName"),
    needs=needs.CLUSTER_OPERATE,
)
ROUTES = Operation(
    "readRoutes",
    "GET /v1/routes",
    "Who leads and who holds each partition.",
    ok("Routes", "By topic.", ("Shoal-Version",)),
    (AFTER_VERSION, WAIT, Parameter("topic", "Only this one.", schemas.NAME)),
    needs=needs.OtherNeed.CREDENTIALS,
)
EVENT_FEED = Operation(
    "followEvents",
    "GET /v1/events",
    "What happens to members, leaders, replicas and consumer groups, as it happens.",
    {200: Answer("Server-sent events, without end.", {EVENT_STREAM: BYTES})},
    headers=(LAST_EVENT_ID,),
    needs=needs.OtherNeed.CREDENTIALS,
)
AGENT = Operation(
    "readAgent",
    "GET /v1/agent",
    "What this agent is.",
    ok("Agent", "This agent."),
    needs=needs.OtherNeed.INTRODUCTION,
)
JOIN = Operation(
    "join",
    "POST /v1/agent/join",
    "Contact other agents by gossip address.",
    ok("Joined"),
    body=Body({JSON_TYPE: reference("Join")}, example='{"addresses": ["10.0.0.5:7946"]}'),
    needs=needs.CLUSTER_OPERATE,
)
LEAVE = Operation(
    "leave",
    "POST /v1/agent/leave",
    "Leave the cluster as SIGTERM does.",
    ok("Leaving", "It has begun."),
    needs=needs.CLUSTER_OPERATE,
)
DRAIN_STATUS = Operation(
    "readDrain",
    "GET /v1/agent/drain",
    "How far this agent's draining is.",
    ok("Drain"),
    needs=needs.CLUSTER_DESCRIBE,
)
DRAIN = Operation(
    "drain",
    "POST /v1/agent/drain",
    "Give replicas and leaderships away.",
    ok("Drain", "It has begun."),
    needs=needs.CLUSTER_OPERATE,
)
UNDO_DRAIN = Operation(
    "undoDrain",
    "DELETE /v1/agent/drain",
    "Take replicas again.",
    ok("Drain"),
    needs=needs.CLUSTER_OPERATE,
)
RECOVER_PREVIEW = Operation(
    "previewRecovery",
    "GET /v1/agent/recover",
    "What recovering a lost majority here would do.",
    ok("Recovery"),
    (
        Parameter("topic", "The topic.", schemas.NAME, required=True),
        Parameter("partition", "Its partition.", PARTITION_NUMBER, required=True),
    ),
    needs=needs.CLUSTER_OPERATE,
)
RECOVER = Operation(
    "recover",
    "POST /v1/agent/recover",
    "This agent's replica goes on alone; what only others had is lost.",
    ok("Recovery"),
    body=Body(
        {JSON_TYPE: reference("Recover")},
        example='{"topic": "orders", "partition": 0, "accept_data_loss": true}',
    ),
    needs=needs.CLUSTER_OPERATE,
)
LEVEL = Operation(
    "readLevel",
    "GET /v1/cluster/level",
    "The cluster's feature level, and who understands which.",
    ok("Level"),
    needs=needs.CLUSTER_DESCRIBE,
)
RAISE_LEVEL = Operation(
    "raiseLevel",
    "POST /v1/cluster/level",
    "Raise it: to the highest level that every member understands, or to the one given.",
    ok("Level", "The level afterwards."),
    _CHANGES,
    body=Body({JSON_TYPE: reference("RaiseLevel")}, required=False, example='{"level": 2}'),
    needs=needs.CLUSTER_OPERATE,
)
PEER = Operation(
    "peer",
    "GET /v1/peer",
    "The link between agents (Upgrade: shoal-peer/1); not for clients.",
    {101: Answer("The connection is the link's.")},
    needs=needs.OtherNeed.AGENT,
)

# ---- keys and operation

KEYS = Operation(
    "listKeys",
    "GET /v1/keys",
    "Which gossip key is held and used by how many.",
    ok("Keys"),
    needs=needs.CLUSTER_OPERATE,
)
CHANGE_KEYS = {
    change: Operation(
        f"{change.value}Key",
        f"POST /v1/keys/{change.value}",
        f"Have every member {change.value} a gossip key.",
        ok("Keys", "The keys afterwards."),
        body=Body({JSON_TYPE: reference("NewKey" if change is KeyChange.INSTALL else "KeyChange")}),
        needs=needs.CLUSTER_OPERATE,
    )
    for change in KeyChange
}
LIVEZ = Operation(
    "livez",
    "GET /livez",
    "Whether the process answers.",
    ok("Alive"),
    needs=needs.OtherNeed.NOTHING,
)
READYZ = Operation(
    "readyz",
    "GET /readyz",
    "Whether this agent can serve.",
    ok("Ready"),
    (Parameter("verbose", "List the checks.", SWITCH),),
    needs=needs.OtherNeed.NOTHING,
)
METRICS_TEXT = Operation(
    "metrics",
    "GET /metrics",
    "Metrics for Prometheus.",
    {200: Answer("Its text format.", {PLAIN: TEXT})},
    (Parameter("partitions", "Also the series of each replica here.", SWITCH),),
    needs=needs.CLUSTER_DESCRIBE,
)
INDEX = Operation(
    "index",
    "GET /",
    "Where to find what; browsers are shown /docs.",
    {**ok("Index", "Who answers, and where what is."), 303: Answer("To a browser: /docs.")},
    needs=needs.OtherNeed.NOTHING,
)
INDEX_OF_API = Operation(
    "indexOfApi",
    "GET /v1",
    "The same.",
    INDEX.answers,
    needs=needs.OtherNeed.NOTHING,
)
OPENAPI = Operation(
    "openapi",
    "GET /openapi.json",
    "This description (OpenAPI 3.1).",
    {200: Answer("The description.", {JSON_TYPE: {"type": "object"}})},
    needs=needs.OtherNeed.NOTHING,
)
DOCS = Operation(
    "docs",
    "GET /docs",
    "This description as a page for people.",
    {200: Answer("The page.", {PAGE: TEXT})},
    needs=needs.OtherNeed.NOTHING,
)
