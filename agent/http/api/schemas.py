"""The JSON documents of the HTTP API as schemas, each under the name that the description gives it.

Pure values (JSON Schema, draft 2020-12). An object is described whole: a member that stands here is always
there unless `optional` has it; readers must expect further members in later versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.agent.http.api import patterns
from shoal.agent.http.api.operation import Schema
from shoal.agent.interface import (
    MAX_PARTITIONS,
    MAX_REPLICATION_FACTOR,
    MAX_RETENTION_BYTES,
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
)
from shoal.agent.levels import MAX_LEVEL
from shoal.agent.security.posture import Posture
from shoal.errors import ERRORS
from shoal.format.records import MAX_HEADERS
from shoal.format.timestamps import LAST_TIME_MS


def described(schema: Schema, description: str) -> Schema:
    """The same schema with a sentence for its reader."""
    return {**schema, "description": description}


def one_of(*values: str) -> Schema:
    """One of a few words."""
    return {"type": "string", "enum": list(values)}


def or_null(schema: Schema) -> Schema:
    """That, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(schema: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": schema}


def by_name(schema: Schema) -> Schema:
    """An object whose members are called by what they are about."""
    return {"type": "object", "additionalProperties": schema}


def members_of(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """An object with these members."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def closed(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """The same, of a request: it has no other members."""
    return {**members_of(optional, **required), "additionalProperties": False}


def not_both(*pairs: tuple[str, str]) -> Schema:
    """What an object's schema says besides, if the second of a pair stands in the place of the first."""
    return {"dependentSchemas": {second: {"properties": {first: False}} for first, second in pairs}}


def each(schema: Schema, *names: str) -> dict[str, Schema]:
    """The same for all of these members."""
    return dict.fromkeys(names, schema)


def reference(name: str) -> Schema:
    """A schema of SCHEMAS by its name."""
    assert name in SCHEMAS, f"there is no schema {name!r}"
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Schema = {"type": "string"}
BYTES: Schema = {"type": "string", "format": "binary"}
BOOLEAN: Schema = {"type": "boolean"}
SWITCH: Schema = {"anyOf": [BOOLEAN, one_of("", "0", "1")]}  # of a query
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "integer"}
_NUMBER_63: Schema = {**COUNT, "maximum": 2**63 - 1}
OFFSET = described(_NUMBER_63, "An offset: records of a partition are numbered from 0 without gaps.")
TIME: Schema = {"type": "string", "format": "date-time"}
URL = or_null({"type": "string", "format": "uri"})
ANYTHING: Schema = {}
BASE64: Schema = {"type": "string", "pattern": patterns.BASE64, "contentEncoding": "base64"}
AGE: Schema = {"type": "string", "pattern": patterns.AGE, "examples": ["30s", "5m", "7d"]}
"""A duration from a second to some hundred years."""
TIMEOUT: Schema = {"type": "string", "pattern": patterns.TIMEOUT, "examples": ["500ms", "5s", "1m"]}
PAUSE: Schema = {"type": "string", "pattern": patterns.PAUSE, "examples": ["500ms", "5s", "1m"]}
"""A duration that a request may wait."""
DELAY_MAX_MS = 3_653 * 86_400_000
DELAY: Schema = {
    "type": "string",
    "pattern": patterns.durations(0, DELAY_MAX_MS),
    "examples": ["10m", "90s", "30d"],
}
"""A duration of ten years at most."""
NAME: Schema = {"type": "string", "pattern": patterns.NAME}
"""Of a topic, the system's log among them."""
USER_NAME: Schema = {"type": "string", "pattern": patterns.USER_NAME}
PARTITION_NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 1023}
YES: Schema = {"type": "boolean", "enum": [True]}
VERSION = described(TEXT, "Opaque; of this agent's present run.")
ROLE = one_of("leader", "follower", "learner")
FACTOR: Schema = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_REPLICATION_FACTOR}, one_of("all")]
}

_RETENTION_BYTES: Schema = {"type": "integer", "minimum": MIN_SEGMENT_BYTES, "maximum": MAX_RETENTION_BYTES}
_SEGMENT_BYTES: Schema = {**_RETENTION_BYTES, "maximum": MAX_SEGMENT_BYTES}
RETENTION: Schema = {"$ref": "#/components/schemas/Retention"}
SEGMENT: Schema = {"$ref": "#/components/schemas/Segment"}
SETTINGS: dict[str, Schema] = {
    "kind": described(
        one_of("log", "timer", "table"), "timer: groups see each record when it is due; table: rows by key."
    ),
    "partitions": {"type": "integer", "minimum": 1, "maximum": MAX_PARTITIONS},
    "replication_factor": described(FACTOR, "How many, or `all`: on every agent."),
    "retention": RETENTION,
    "segment": SEGMENT,
    "fsync": BOOLEAN,
}
_TIMER_RETENTION: Schema = {
    "type": "object",
    "properties": {
        "bytes": {"type": "null"},
        "hold_for_groups": {"type": "boolean", "enum": [False]},
        "acknowledged": {"type": "boolean", "enum": [False]},
    },
    "additionalProperties": True,
}
"""Records of a timer topic go by age alone, which counts from when they are due."""
_SUMMARY: dict[str, Schema] = {
    **each(TEXT, "name", "id", "kind"),
    "partitions": COUNT,
    "replication_factor": FACTOR,
    **each(COUNT, "under_replicated", "records", "bytes"),
}
_REPLICA = members_of(id=TEXT, url=URL, role=ROLE)
_PARTITION: dict[str, Schema] = {
    "partition": COUNT,
    "hash_range": list_of(COUNT),
    "state": TEXT,
    "successors": list_of(COUNT),
    "leader": or_null(TEXT),
    "leader_url": URL,
    "term": COUNT,
    "replicas": list_of(_REPLICA),
}
_TOPIC_PARTITION: dict[str, Schema] = _PARTITION | {
    "replicas": list_of(
        members_of(id=TEXT, url=URL, role=ROLE, log_end_offset=or_null(OFFSET), lag=or_null(COUNT))
    ),
    "live_replicas": COUNT,
    "under_replicated": BOOLEAN,
    **each(OFFSET, "log_start_offset", "high_watermark", "log_end_offset"),
    "bytes": COUNT,
}
_MEMBER: dict[str, Schema] = {
    "id": TEXT,
    "name": TEXT,
    "kind": one_of("shoal", "serf"),
    "status": one_of("alive", "suspect", "failed", "leaving", "left"),
    "address": TEXT,
    "gossip_port": COUNT,
    "url": URL,
    "failure_domain": or_null(TEXT),
    "drained": BOOLEAN,
    "incarnation": COUNT,
    "since": TIME,
    "tags": by_name(TEXT),
    "partitions": list_of(
        members_of(topic=TEXT, partition=COUNT, role=TEXT, term=COUNT, log_end_offset=OFFSET)
    ),
}
_HEADERS: Schema = {
    "anyOf": [
        list_of(members_of({"value": or_null(TEXT), "value_base64": BASE64}, key=TEXT)),
        by_name(or_null(TEXT)),
    ]
}
_RECORD: dict[str, Schema] = {
    "timestamp": {"anyOf": [TIME, {"type": "string", "pattern": "^-?[0-9]+$"}]},
    "key": or_null(TEXT),
    "key_base64": BASE64,
    "value": described(ANYTHING, "Text; with value=json whatever JSON it is; null is a tombstone."),
    "value_base64": described(BASE64, "Instead of `value`, where that is not UTF-8."),
    "headers": _HEADERS,
}
_DUE: dict[str, Schema] = {
    "deliver_at": described(or_null(TIME), "Of a topic of kind timer: when it is due; null: at once.")
}
_WRITTEN = described(ANYTHING, "Text; null for none; other JSON is written compactly.")
_NEW_TIME: Schema = {
    "anyOf": [
        {"type": "string", "pattern": patterns.TIME, "examples": ["2026-01-01T00:00:00Z"]},
        {"type": "integer", "minimum": -LAST_TIME_MS, "maximum": LAST_TIME_MS},
        {"type": "null"},
    ]
}
_NEW_HEADER: Schema = {
    **closed({"value": _WRITTEN, "value_base64": BASE64}, key=TEXT),
    **not_both(("value", "value_base64")),
}
_NEW_HEADERS: Schema = {
    "anyOf": [
        {**list_of(_NEW_HEADER), "maxItems": MAX_HEADERS},
        {**by_name(_WRITTEN), "maxProperties": MAX_HEADERS},
        {"type": "null"},
    ]
}
_NEW_DELAY: Schema = {
    "anyOf": [DELAY, {"type": "integer", "minimum": 0, "maximum": DELAY_MAX_MS}, {"type": "null"}]
}
_NEW_RECORD: Schema = {
    **closed(
        {
            "timestamp": _NEW_TIME,
            "key": _WRITTEN,
            "key_base64": BASE64,
            "value": described(_WRITTEN, "As `key`; null makes a tombstone."),
            "value_base64": described(BASE64, "Instead of `value`."),
            "headers": _NEW_HEADERS,
            "deliver_at": described(
                _NEW_TIME, "Topics of kind timer: when groups see it; in ten years at most."
            ),
            "delay": described(
                {
                    "anyOf": [
                        DELAY,
                        {"type": "integer", "minimum": 0, "maximum": DELAY_MAX_MS},
                        {"type": "null"},
                    ]
                },
                "Instead of `deliver_at`: so long from now.",
            ),
        }
    ),
    **not_both(("key", "key_base64"), ("value", "value_base64"), ("deliver_at", "delay")),
    "if": {"not": {"required": ["value_base64"]}},
    "then": {"required": ["value"]},
}
_RUN = members_of({"duplicate": BOOLEAN}, partition=COUNT, base_offset=NUMBER, count=COUNT)

SCHEMAS: dict[str, Schema] = {
    "Problem": {
        **members_of(
            {"invalid_params": list_of(TEXT)},
            type=TEXT,
            title=TEXT,
            status={"type": "integer"},
            detail=TEXT,
            code=one_of(*ERRORS),
            retriable=described(BOOLEAN, "The same request may succeed later, or at another agent."),
            definite=described(BOOLEAN, "What was asked certainly did not happen."),
        ),
        "additionalProperties": True,
    },
    "Retention": closed(
        {
            "age": or_null(AGE),
            "bytes": or_null(_RETENTION_BYTES),
            "hold_for_groups": described(
                BOOLEAN, "Records that a consumer group is not done with stay longer."
            ),
            "acknowledged": described(BOOLEAN, "Records that all consumer groups are done with go at once."),
        }
    ),
    "Segment": closed({"bytes": or_null(_SEGMENT_BYTES), "age": or_null(AGE)}),
    "Settings": members_of(**SETTINGS),
    "TopicSettings": {
        **closed({name: schema if name == "fsync" else or_null(schema) for name, schema in SETTINGS.items()}),
        "if": {
            "required": ["kind"],
            "properties": {"kind": {"const": "timer"}},
            "additionalProperties": True,
        },
        "then": {
            "properties": {"retention": {"anyOf": [{"type": "null"}, _TIMER_RETENTION]}},
            "additionalProperties": True,
        },
    },
    "TopicChanges": {
        **closed(
            {
                "replication_factor": SETTINGS["replication_factor"],
                "retention": or_null(RETENTION),
                "segment": or_null(SEGMENT),
            }
        ),
        "minProperties": 1,
    },
    "TopicList": members_of({"next_cursor": TEXT}, topics=list_of(members_of(**_SUMMARY))),
    "Topic": members_of(
        {"warning": TEXT, "note": described(TEXT, "Why there are fewer replicas than wanted.")},
        **(_SUMMARY | SETTINGS | {"partitions": list_of(members_of(**_TOPIC_PARTITION))}),
        settings={"$ref": "#/components/schemas/Settings"},
        settings_version=described(TEXT, "Opaque; for `if_version`."),
        effective_replication_factor=COUNT,
        missing_replicas=described(COUNT, "Replicas that are still to come, of all partitions."),
        surplus_replicas=described(COUNT, "Replicas that are to go."),
        created_at=TIME,
    ),
    "SettingTable": members_of(
        topic=TEXT,
        version=described(TEXT, "Opaque; for `if_version`."),
        settings=list_of(
            members_of(
                name=described(TEXT, "As it stands in JSON: `retention.age` is `age` in `retention`."),
                value=ANYTHING,
                default=ANYTHING,
                set=described(BOOLEAN, "Whether the value is another than the default."),
                changeable=BOOLEAN,
            )
        ),
    ),
    "KeptTopics": members_of(
        {
            "silent": described(
                list_of(members_of(id=TEXT, name=TEXT)),
                "Live agents that did not say which topics they keep.",
            )
        },
        topics=list_of(
            members_of(
                id=TEXT,
                name=described(or_null(TEXT), "The name it had, where an agent remembers it."),
                partitions=described(or_null(COUNT), "How many it had."),
                adoptable=described(BOOLEAN, "Whether an agent remembers its settings."),
                held=list_of(members_of(partition=COUNT, agents=list_of(members_of(id=TEXT, name=TEXT)))),
            )
        ),
    ),
    "Adopt": closed({"name": described(or_null(USER_NAME), "Another name than it had.")}),
    "Offsets": members_of(
        partitions=list_of(
            members_of(
                {"offset": described(OFFSET, "Of the first record at or after `at`.")},
                partition=COUNT,
                **each(OFFSET, "log_start_offset", "high_watermark", "log_end_offset"),
            )
        ),
        cursor=described(TEXT, "The high watermarks: `after` for a wait that ends when one has passed."),
    ),
    "Trim": closed(before=OFFSET),
    "Trimmed": members_of(log_start_offset=OFFSET),
    "NewRecord": _NEW_RECORD,
    "NewRecords": closed(records=list_of({"$ref": "#/components/schemas/NewRecord"})),
    "Taken": members_of(count=described(COUNT, "How many records; where they go nobody waited for.")),
    "Appended": members_of(
        {"appended_truncated": BOOLEAN, "duplicate": BOOLEAN}, count=COUNT, appended=list_of(_RUN)
    ),
    "Record": members_of(_RECORD | _DUE, offset=OFFSET),
    "MergedRecord": members_of(_RECORD | _DUE, partition=COUNT, offset=OFFSET),
    "Records": members_of(
        topic=TEXT,
        partition=COUNT,
        records=list_of({"$ref": "#/components/schemas/Record"}),
        **each(OFFSET, "next_offset", "log_start_offset", "high_watermark"),
    ),
    "MergedRecords": members_of(
        topic=TEXT,
        records=list_of({"$ref": "#/components/schemas/MergedRecord"}),
        cursor=described(TEXT, "Where to go on: `cursor` of the next request."),
    ),
    "Member": members_of(**_MEMBER),
    "Members": members_of(
        cluster=TEXT,
        cluster_id=or_null(TEXT),
        version=VERSION,
        members=list_of({"$ref": "#/components/schemas/Member"}),
    ),
    "Routes": members_of(
        version=VERSION,
        topics=by_name(members_of(id=TEXT, partitions=list_of(members_of(**_PARTITION)))),
    ),
    "Agent": members_of(
        **each(TEXT, "id", "name", "version", "cluster"),
        cluster_id=or_null(TEXT),
        url=URL,
        disk=TEXT,
        pid=COUNT,
        run=TEXT,
        started_at=TIME,
        uptime_seconds=COUNT,
        catalog=or_null(
            members_of(
                birth=list_of(ANYTHING),
                version=COUNT,
                epoch=described(TEXT, 'In hexadecimal digits; "0" until the catalog is recovered by force.'),
                level=COUNT,
            )
        ),
        damage=list_of(
            members_of(
                topic=TEXT,
                partition=COUNT,
                file=TEXT,
                position=COUNT,
                length=COUNT,
                entries=or_null(list_of(COUNT)),
                offsets=or_null(list_of(OFFSET)),
                detail=TEXT,
            )
        ),
        not_serving=list_of(members_of(topic=TEXT, partition=COUNT, state=TEXT, reason=TEXT)),
        posture=one_of(*Posture),
        missing_protections=list_of(TEXT),
        cleared_writes=list_of(members_of(topic=TEXT, partition=COUNT, behind_entry=COUNT)),
        kept=list_of(members_of(id=TEXT, name=or_null(TEXT), partitions=list_of(COUNT))),
        configuration=by_name(ANYTHING),
    ),
    "Join": closed(
        addresses={
            "type": "array",
            "items": {
                "type": "string",
                "pattern": patterns.ADDRESS,
                "examples": ["10.0.0.5:7946"],
            },
            "minItems": 1,
            "maxItems": 64,
        }
    ),
    "Joined": members_of(joined=described(COUNT, "How many of them answered.")),
    "Leaving": members_of(leaving=YES),
    "MemberName": members_of(id=TEXT, name=TEXT),
    "Drain": members_of(
        id=TEXT,
        name=TEXT,
        draining=BOOLEAN,
        replicas=COUNT,
        leads=COUNT,
        blocked=list_of(TEXT),
        safe_to_stop=BOOLEAN,
    ),
    "RaiseLevel": closed(
        {
            "level": {"type": "integer", "minimum": 1, "maximum": MAX_LEVEL},
            "without": described(list_of(TEXT), "Agents that are gone for good, by id or name."),
        }
    ),
    "Level": members_of(
        level=COUNT,
        possible=or_null(COUNT),
        members=list_of(
            members_of(id=TEXT, name=or_null(TEXT), status=TEXT, lowest=COUNT, highest=COUNT, holds=BOOLEAN)
        ),
    ),
    "Recover": closed(topic=NAME, partition=PARTITION_NUMBER, accept_data_loss=YES),
    "Recovery": members_of(
        topic=TEXT,
        partition=COUNT,
        log_end_offset=OFFSET,
        entries=COUNT,
        committed_entries=COUNT,
        lost=list_of(members_of(id=TEXT, name=TEXT)),
        refusal=or_null(TEXT),
    ),
    "KeyChange": closed(
        {"force": BOOLEAN},
        key=described({"type": "string", "pattern": patterns.KEY}, "In base64, or a fingerprint."),
    ),
    "NewKey": closed(
        {"force": BOOLEAN}, key=described({"type": "string", "pattern": patterns.WHOLE_KEY}, "In base64.")
    ),
    "Keys": members_of(
        members=COUNT,
        keys=list_of(members_of(fingerprint=TEXT, held_by=COUNT, used_by=or_null(COUNT))),
        failures=list_of(members_of(id=TEXT, name=TEXT, reason=TEXT)),
        away=list_of(TEXT),
    ),
    "Index": members_of(
        {
            "agent": described(TEXT, "The name of the agent that answers, for those who may describe it."),
            "cluster": or_null(TEXT),
            "version": TEXT,
        },
        **each(TEXT, "docs", "openapi", "topics", "members"),
    ),
    "Alive": members_of(status=one_of("alive")),
    "Ready": members_of({"checks": by_name(TEXT)}, status=one_of("ready")),
}
