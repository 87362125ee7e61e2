"""All routes of the HTTP API, once: the router takes them from here, and so does /openapi.json.

Pure values. Only requests and answers stand here. Handlers name the operations that they answer, and
dispatch.py finds them.
"""

from __future__ import annotations

import dataclasses

from shoal.agent.http.api import patterns, schemas
from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter, Schema
from shoal.agent.http.api.schemas import (
    BYTES,
    OFFSET,
    PARTITION_NUMBER,
    PAUSE,
    SWITCH,
    TEXT,
    described,
    one_of,
    reference,
)
from shoal.membership.interface import KeyChange

ANY = "application/octet-stream"
PLAIN = "text/plain"
PAGE = "text/html"

READ_HEADERS = ("Shoal-Base-Offset", "Shoal-Next-Offset", "Shoal-High-Watermark", "Shoal-Log-Start-Offset")
_PLACE_FORM = "Offsets by partition, as 0:17,1:30, or a cursor that an answer gave."
_MOMENTS = ["2026-01-01T00:00:00Z", "1767225600000"]
_TIME: Schema = {"type": "string", "pattern": patterns.TIME, "examples": _MOMENTS}
_ENDS = ["earliest", "latest", "-10", "@2026-01-01T00:00:00Z"]
_FROM: Schema = {"type": "string", "pattern": patterns.FROM, "examples": _ENDS}
_FROM_MERGED: Schema = {"type": "string", "pattern": patterns.FROM_MERGED, "examples": _ENDS}
_PLACES: Schema = {"type": "string", "pattern": patterns.PLACES, "examples": ["0:17,1:30"]}

VERSION_CHARACTERS_MAX = 128
EPOCH_MAX = 2**31 - 1
SEQUENCE_MAX = 2**63 - 1

TIMEOUT = Parameter(
    "timeout", "How long to wait for a leader and for the answer; from 100ms to 60s.", schemas.TIMEOUT
)
FORWARD = Parameter("forward", "false: answer 421 with `leader_url` instead of asking the leader.", SWITCH)
WAIT = Parameter("wait", "How long to wait for news when there are none; at most 60s.", PAUSE)
AFTER_VERSION = Parameter(
    "after_version",
    "Answer once the version is another (with `wait`).",
    {**TEXT, "maxLength": VERSION_CHARACTERS_MAX},
)
LIMIT = Parameter(
    "limit",
    "Records; 100 unless told, without limit for Arrow and event streams.",
    {"type": "integer", "minimum": 1, "maximum": 10_000_000},
)
MAX_BYTES = Parameter(
    "max_bytes",
    "1 MiB unless told: of Arrow stored bytes, else what records take; one batch, one record always fits.",
    {"type": "integer", "minimum": 1, "maximum": 64 * 2**20},
)
VIEW = Parameter("view", "NDJSON: `value` gives the values alone.", one_of("record", "value"))
VALUE = Parameter("value", "`json` embeds values that parse as JSON.", one_of("text", "json"))
LAST_EVENT_ID = Parameter("Last-Event-ID", "The id of the last event that was seen: go on behind it.", TEXT)

_CHANGES = (TIMEOUT, FORWARD)
_PRODUCE = (
    Parameter(
        "acks",
        "Answer when a majority has synced, when the leader has, or at once.",
        one_of("all", "leader", "none"),
    ),
    Parameter("key", "The key of a body that is one value.", TEXT),
    Parameter("key_field", "NDJSON: the field of a line whose value is the line's key.", TEXT),
    Parameter("delay", "Topics of kind timer, text and lines: groups see them so much later.", schemas.DELAY),
    Parameter("deliver_at", "The same as a time, ten years ahead at most.", _TIME),
    *_CHANGES,
)
PRODUCER = (
    Parameter(
        "Shoal-Producer-Id",
        "1 to 128 printable characters; with epoch and sequence, or none of the three.",
        {"type": "string", "pattern": patterns.PRODUCER_ID},
    ),
    Parameter(
        "Shoal-Producer-Epoch",
        "A newer one fences the older out.",
        {"type": "integer", "minimum": 0, "maximum": EPOCH_MAX},
    ),
    Parameter(
        "Shoal-Producer-Sequence",
        "A repeated one is answered as the first was.",
        {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX},
    ),
    Parameter("Shoal-Producer-Order", "lanes: a sequence is lane * 2^32 + number.", one_of("lanes")),
)
_VALUE: Schema = described({**BYTES, "minLength": 1}, "One value; so is a body of any type not named here.")
_RECORDS_BODY = Body(
    {
        JSON_TYPE: reference("NewRecords"),
        NDJSON_TYPE: BYTES,
        ARROW_TYPE: BYTES,
        ANY: _VALUE,
        PLAIN: {**TEXT, "minLength": 1},
    },
    example='{"records": [{"key": "ann", "value": "hello"}]}',
)
_PRODUCED = {
    200: Answer("Stored.", {JSON_TYPE: reference("Appended")}, ("Shoal-Created",)),
    202: Answer("Taken, with acks=none.", {JSON_TYPE: reference("Taken")}, ("Shoal-Created",)),
}


def _ok(name: str, description: str = "Done.", headers: tuple[str, ...] = ()) -> dict[int, Answer]:
    return {200: Answer(description, {JSON_TYPE: reference(name)}, headers)}


# ---- topics

LIST_TOPICS = Operation(
    "listTopics",
    "GET /v1/topics",
    "All topics by name.",
    _ok("TopicList", "A page."),
    (
        Parameter("cursor", "`next_cursor` of the page before.", TEXT),
        Parameter("limit", "Topics of a page.", {"type": "integer", "minimum": 1, "maximum": 10_000}),
    ),
)
CREATE_TOPIC = Operation(
    "createTopic",
    "PUT /v1/topics/{topic}",
    "Create a topic; again with equal settings changes nothing.",
    {
        200: Answer("It was there, with equal settings.", {JSON_TYPE: reference("Topic")}),
        201: Answer("Created.", {JSON_TYPE: reference("Topic")}),
    },
    _CHANGES,
    body=Body(
        {JSON_TYPE: reference("TopicSettings")},
        required=False,
        example='{"partitions": 6, "replication_factor": 3, "retention": {"age": "7d"}}',
    ),
    headers=(
        Parameter(
            "Idempotency-Key",
            "Another for each topic to make: a repeated request is answered with 201 as the first was.",
            {"type": "string", "pattern": patterns.IDEMPOTENCY_KEY},
        ),
    ),
)
DESCRIBE_TOPIC = Operation(
    "describeTopic",
    "GET /v1/topics/{topic}",
    "Settings, partitions, replicas, offsets.",
    _ok("Topic", "The topic."),
)
TOPIC_SETTINGS = Operation(
    "readSettings",
    "GET /v1/topics/{topic}/settings",
    "Each setting with its default, and whether it can be changed.",
    _ok("SettingTable", "The settings."),
)
CHANGE_TOPIC = Operation(
    "changeTopic",
    "PATCH /v1/topics/{topic}",
    "Change replication factor, retention and segments; the rest stays.",
    _ok("Topic", "The topic as it is now."),
    (
        Parameter(
            "if_version",
            "The `settings_version` that was read: 409 if the settings have become others since.",
            {"type": "string", "minLength": 1, "maxLength": VERSION_CHARACTERS_MAX},
        ),
        *_CHANGES,
    ),
    body=Body(
        {JSON_TYPE: reference("TopicChanges")}, example='{"retention": {"age": "7d", "bytes": 1073741824}}'
    ),
)
DELETE_TOPIC = Operation(
    "deleteTopic",
    "DELETE /v1/topics/{topic}",
    "Delete a topic and its records.",
    {204: Answer("Gone, durably.")},
    _CHANGES,
)
KEPT_TOPICS = Operation(
    "listKeptTopics",
    "GET /v1/kept-topics",
    "Topics that the catalog does not know, and whose replicas live agents keep.",
    _ok("KeptTopics", "By name."),
)
ADOPT_TOPIC = Operation(
    "adoptTopic",
    "POST /v1/kept-topics/{kept}/adopt",
    "Take a kept topic, by name or id, back into the catalog.",
    {201: Answer("It is known again.", {JSON_TYPE: reference("Topic")})},
    _CHANGES,
    body=Body({JSON_TYPE: reference("Adopt")}, required=False, example='{"name": "orders"}'),
)
OFFSETS = Operation(
    "readOffsets",
    "GET /v1/topics/{topic}/offsets",
    "The ends of all partitions' logs, perhaps once one has grown.",
    _ok("Offsets", "By partition."),
    (
        Parameter("at", "Also the offset of the first record of that time or later.", _TIME),
        Parameter("after", f"With `wait`: answer once a high watermark is greater. {_PLACE_FORM}", _PLACES),
        WAIT,
        *_CHANGES,
    ),
)
TRIM = Operation(
    "trimPartition",
    "POST /v1/topics/{topic}/partitions/{partition}/trim",
    "Remove the log's head before an offset, in whole segments.",
    _ok("Trimmed", "Where the log begins now."),
    _CHANGES,
    body=Body({JSON_TYPE: reference("Trim")}, example='{"before": 5000}'),
)

# ---- records

PRODUCE = Operation(
    "produce",
    "POST /v1/topics/{topic}/records",
    "Append records, each to the partition of its key; those without key together to one.",
    _PRODUCED,
    _PRODUCE,
    PRODUCER,
    _RECORDS_BODY,
)
PRODUCE_TO_PARTITION = dataclasses.replace(
    PRODUCE,
    name="produceToPartition",
    method_and_path="POST /v1/topics/{topic}/partitions/{partition}/records",
    summary="Append records to one partition.",
)
READ_MERGED = Operation(
    "readMerged",
    "GET /v1/topics/{topic}/records",
    "All partitions as one sequence, by timestamp.",
    {
        200: Answer(
            "The records; with text/event-stream without end.",
            {
                JSON_TYPE: reference("MergedRecords"),
                NDJSON_TYPE: reference("MergedRecord"),
                EVENT_STREAM: BYTES,
            },
            ("Shoal-Cursor",),
        )
    },
    (
        Parameter("offset", "Where to begin: earliest, latest, -N or @TIME.", _FROM_MERGED),
        Parameter("cursor", f"Go on here instead. {_PLACE_FORM}", _PLACES),
        LIMIT,
        MAX_BYTES,
        WAIT,
        VIEW,
        VALUE,
        *_CHANGES,
    ),
    (LAST_EVENT_ID,),
)
READ_PARTITION = Operation(
    "readPartition",
    "GET /v1/topics/{topic}/partitions/{partition}/records",
    "The records of one partition.",
    {
        200: Answer(
            "The records; with text/event-stream without end.",
            {
                JSON_TYPE: reference("Records"),
                NDJSON_TYPE: reference("Record"),
                ARROW_TYPE: BYTES,
                EVENT_STREAM: BYTES,
            },
            READ_HEADERS,
        )
    },
    (
        Parameter("offset", "Where to begin: N, -N, earliest, latest or @TIME.", _FROM),
        Parameter(
            "consistency",
            "`local`: this agent's own replica may answer, with committed records.",
            one_of("leader", "local"),
        ),
        LIMIT,
        MAX_BYTES,
        WAIT,
        VIEW,
        VALUE,
        *_CHANGES,
    ),
    (
        LAST_EVENT_ID,
        Parameter(
            "Shoal-High-Watermark", "With consistency=local: wait for a replica that knows so much.", OFFSET
        ),
    ),
)

# ---- members and routes

MEMBERS = Operation(
    "listMembers",
    "GET /v1/members",
    "Who is in the cluster, and what each holds.",
    _ok("Members", "The members.", ("Shoal-Version",)),
    (
        AFTER_VERSION,
        WAIT,
        Parameter("status", "Only these.", schemas.SCHEMAS["Member"]["properties"]["status"]),
        Parameter("tag", "Only those with the tag KEY=VALUE.", {"type": "string", "pattern": "^[^=]+=.*$"}),
    ),
)
MEMBER = Operation(
    "readMember",
    "GET /v1/members/{member}",
    "One member, by name or id.",
    _ok("Member", "The member.", ("Shoal-Version",)),
)
FORCE_LEAVE = Operation(
    "forceLeave",
    "POST /v1/members/{member}/force-leave",
    "Take a failed member for one that left.",
    _ok("MemberName"),
)
ROUTES = Operation(
    "readRoutes",
    "GET /v1/routes",
    "Who leads and who holds each partition.",
    _ok("Routes", "By topic.", ("Shoal-Version",)),
    (AFTER_VERSION, WAIT, Parameter("topic", "Only this one.", schemas.NAME)),
)
EVENT_FEED = Operation(
    "followEvents",
    "GET /v1/events",
    "What happens to members, leaders, replicas and consumer groups, as it happens.",
    {200: Answer("Server-sent events, without end.", {EVENT_STREAM: BYTES})},
    headers=(LAST_EVENT_ID,),
)
AGENT = Operation("readAgent", "GET /v1/agent", "What this agent is.", _ok("Agent", "This agent."))
JOIN = Operation(
    "join",
    "POST /v1/agent/join",
    "Contact other agents by gossip address.",
    _ok("Joined"),
    body=Body({JSON_TYPE: reference("Join")}, example='{"addresses": ["10.0.0.5:7946"]}'),
)
LEAVE = Operation(
    "leave", "POST /v1/agent/leave", "Leave the cluster as SIGTERM does.", _ok("Leaving", "It has begun.")
)
DRAIN_STATUS = Operation(
    "readDrain", "GET /v1/agent/drain", "How far this agent's draining is.", _ok("Drain")
)
DRAIN = Operation(
    "drain", "POST /v1/agent/drain", "Give replicas and leaderships away.", _ok("Drain", "It has begun.")
)
UNDO_DRAIN = Operation("undoDrain", "DELETE /v1/agent/drain", "Take replicas again.", _ok("Drain"))
RECOVER_PREVIEW = Operation(
    "previewRecovery",
    "GET /v1/agent/recover",
    "What recovering a lost majority here would do.",
    _ok("Recovery"),
    (
        Parameter("topic", "The topic.", schemas.NAME, required=True),
        Parameter("partition", "Its partition.", PARTITION_NUMBER, required=True),
    ),
)
RECOVER = Operation(
    "recover",
    "POST /v1/agent/recover",
    "This agent's replica goes on alone; what only others had is lost.",
    _ok("Recovery"),
    body=Body(
        {JSON_TYPE: reference("Recover")},
        example='{"topic": "orders", "partition": 0, "accept_data_loss": true}',
    ),
)
LEVEL = Operation(
    "readLevel",
    "GET /v1/cluster/level",
    "The cluster's feature level, and who understands which.",
    _ok("Level"),
)
RAISE_LEVEL = Operation(
    "raiseLevel",
    "POST /v1/cluster/level",
    "Raise it: to the highest level that every member understands, or to the one given.",
    _ok("Level", "The level afterwards."),
    _CHANGES,
    body=Body({JSON_TYPE: reference("RaiseLevel")}, required=False, example='{"level": 2}'),
)
PEER = Operation(
    "peer",
    "GET /v1/peer",
    "The link between agents (Upgrade: shoal-peer/1); not for clients.",
    {101: Answer("The connection is the link's.")},
)

# ---- keys and operation

KEYS = Operation("listKeys", "GET /v1/keys", "Which gossip key is held and used by how many.", _ok("Keys"))
CHANGE_KEYS = {
    change: Operation(
        f"{change.value}Key",
        f"POST /v1/keys/{change.value}",
        f"Have every member {change.value} a gossip key.",
        _ok("Keys", "The keys afterwards."),
        body=Body({JSON_TYPE: reference("NewKey" if change is KeyChange.INSTALL else "KeyChange")}),
    )
    for change in KeyChange
}
LIVEZ = Operation("livez", "GET /livez", "Whether the process answers.", _ok("Alive"))
READYZ = Operation(
    "readyz",
    "GET /readyz",
    "Whether this agent can serve.",
    _ok("Ready"),
    (Parameter("verbose", "List the checks.", SWITCH),),
)
METRICS_TEXT = Operation(
    "metrics",
    "GET /metrics",
    "Metrics for Prometheus.",
    {200: Answer("Its text format.", {PLAIN: TEXT})},
    (Parameter("partitions", "Also the series of each replica here.", SWITCH),),
)
INDEX = Operation(
    "index",
    "GET /",
    "Where to find what; browsers are shown /docs.",
    {**_ok("Index", "Who answers, and where what is."), 303: Answer("To a browser: /docs.")},
)
INDEX_OF_API = Operation("indexOfApi", "GET /v1", "The same.", INDEX.answers)
OPENAPI = Operation(
    "openapi",
    "GET /openapi.json",
    "This description (OpenAPI 3.1).",
    {200: Answer("The description.", {JSON_TYPE: {"type": "object"}})},
)
DOCS = Operation(
    "docs",
    "GET /docs",
    "This description as a page for people.",
    {200: Answer("The page.", {PAGE: TEXT})},
)
