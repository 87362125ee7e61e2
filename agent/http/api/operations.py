"""All routes of the HTTP API, once: the router takes them from here, and so does /openapi.json.

Pure values. Only requests and answers stand here. Handlers name the operations that they answer, and
dispatch.py finds them.
"""

from __future__ import annotations

import dataclasses

from shoal.agent.http.api import patterns, schemas
from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.api.needs import (
    CLUSTER_DESCRIBE,
    CLUSTER_OPERATE,
    TOPIC_ALTER,
    TOPIC_CREATE,
    TOPIC_DELETE,
    TOPIC_DESCRIBE,
    TOPIC_OFFSETS,
    TOPIC_READ,
    TOPIC_WRITE,
    OtherNeed,
)
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter, Schema
from shoal.agent.http.api.schemas import (
    BYTES,
    OFFSET,
    PAUSE,
    SWITCH,
    TEXT,
    described,
    one_of,
    reference,
)

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


def ok(name: str, description: str = "Done.", headers: tuple[str, ...] = ()) -> dict[int, Answer]:
    """The answers of an operation that has but one."""
    return {200: Answer(description, {JSON_TYPE: reference(name)}, headers)}


# ---- topics

LIST_TOPICS = Operation(
    "listTopics",
    "GET /v1/topics",
    "All topics by name.",
    ok("TopicList", "A page."),
    (
        Parameter("cursor", "`next_cursor` of the page before.", TEXT),
        Parameter("limit", "Topics of a page.", {"type": "integer", "minimum": 1, "maximum": 10_000}),
    ),
    needs=OtherNeed.CREDENTIALS,
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
    needs=TOPIC_CREATE,
)
DESCRIBE_TOPIC = Operation(
    "describeTopic",
    "GET /v1/topics/{topic}",
    "Settings, partitions, replicas, offsets.",
    ok("Topic", "The topic."),
    needs=TOPIC_DESCRIBE,
)
TOPIC_SETTINGS = Operation(
    "readSettings",
    "GET /v1/topics/{topic}/settings",
    "Each setting with its default, and whether it can be changed.",
    ok("SettingTable", "The settings."),
    needs=TOPIC_DESCRIBE,
)
CHANGE_TOPIC = Operation(
    "changeTopic",
    "PATCH /v1/topics/{topic}",
    "Change replication factor, retention and segments; the rest stays.",
    ok("Topic", "The topic as it is now."),
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
    needs=TOPIC_ALTER,
)
DELETE_TOPIC = Operation(
    "deleteTopic",
    "DELETE /v1/topics/{topic}",
    "Delete a topic and its records.",
    {204: Answer("Gone, durably.")},
    _CHANGES,
    needs=TOPIC_DELETE,
)
KEPT_TOPICS = Operation(
    "listKeptTopics",
    "GET /v1/kept-topics",
    "Topics that the catalog does not know, and whose replicas live agents keep; of these, those that the"
    " asker may describe.",
    ok("KeptTopics", "By name."),
    needs=CLUSTER_DESCRIBE,
)
ADOPT_TOPIC = Operation(
    "adoptTopic",
    "POST /v1/kept-topics/{kept}/adopt",
    "Take a kept topic, by name or id, back into the catalog.",
    {201: Answer("It is known again.", {JSON_TYPE: reference("Topic")})},
    _CHANGES,
    body=Body({JSON_TYPE: reference("Adopt")}, required=False, example='{"name": "orders"}'),
    needs=CLUSTER_OPERATE,
)
OFFSETS = Operation(
    "readOffsets",
    "GET /v1/topics/{topic}/offsets",
    "The ends of all partitions' logs, perhaps once one has grown.",
    ok("Offsets", "By partition."),
    (
        Parameter("at", "Also the offset of the first record of that time or later.", _TIME),
        Parameter("after", f"With `wait`: answer once a high watermark is greater. {_PLACE_FORM}", _PLACES),
        WAIT,
        *_CHANGES,
    ),
    needs=TOPIC_OFFSETS,
)
TRIM = Operation(
    "trimPartition",
    "POST /v1/topics/{topic}/partitions/{partition}/trim",
    "Remove the log's head before an offset, in whole segments.",
    ok("Trimmed", "Where the log begins now."),
    _CHANGES,
    body=Body({JSON_TYPE: reference("Trim")}, example='{"before": 5000}'),
    needs=TOPIC_DELETE,
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
    needs=TOPIC_WRITE,
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
    needs=TOPIC_READ,
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
    needs=TOPIC_READ,
)
