"""The JSON documents of the HTTP API as schemas, each under the name that the description gives it.

Pure values (JSON Schema, draft 2020-12). An object is described whole: a member that stands here is always
there unless `optional` has it; readers must expect further members in later versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.agent.http.operation import Schema
from shoal.errors import ERRORS


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


def reference(name: str) -> Schema:
    """A schema of SCHEMAS by its name."""
    assert name in SCHEMAS, f"there is no schema {name!r}"
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Schema = {"type": "string"}
BYTES: Schema = {"type": "string", "format": "binary"}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "integer"}
OFFSET = described(COUNT, "An offset: records of a partition are numbered from 0 without gaps.")
TIME: Schema = {"type": "string", "format": "date-time"}
URL = or_null({"type": "string", "format": "uri"})
ANYTHING: Schema = {}
BASE64: Schema = {"type": "string", "contentEncoding": "base64"}
DURATION: Schema = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)?$", "examples": ["500ms", "30s", "5m"]}
VERSION = described(TEXT, "Opaque; of this agent's present run.")
ROLE = one_of("leader", "follower", "learner")
FACTOR: Schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]}

RETENTION = members_of({"age": or_null(DURATION), "bytes": or_null(COUNT)})
SEGMENT = members_of({"bytes": COUNT, "age": or_null(DURATION)})
SETTINGS: dict[str, Schema] = {
    "kind": one_of("log"),
    "partitions": {"type": "integer", "minimum": 1},
    "replication_factor": FACTOR,
    "retention": RETENTION,
    "segment": SEGMENT,
    "fsync": BOOLEAN,
}
_SUMMARY: dict[str, Schema] = {
    "name": TEXT,
    "id": TEXT,
    "kind": TEXT,
    "partitions": COUNT,
    "replication_factor": FACTOR,
    "under_replicated": COUNT,
    "records": COUNT,
    "bytes": COUNT,
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
    "log_start_offset": OFFSET,
    "high_watermark": OFFSET,
    "log_end_offset": OFFSET,
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
    "timestamp": TIME,
    "key": or_null(TEXT),
    "key_base64": BASE64,
    "value": described(ANYTHING, "Text; with value=json whatever JSON it is; null is a tombstone."),
    "value_base64": described(BASE64, "Instead of `value`, where that is not UTF-8."),
    "headers": _HEADERS,
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
    "TopicSettings": members_of(SETTINGS),
    "TopicChanges": members_of({"retention": RETENTION, "segment": SEGMENT}),
    "TopicList": members_of({"next_cursor": TEXT}, topics=list_of(members_of(**_SUMMARY))),
    "Topic": members_of(
        {"warning": TEXT},
        **(_SUMMARY | SETTINGS | {"partitions": list_of(members_of(**_TOPIC_PARTITION))}),
        settings=members_of(**SETTINGS),
        effective_replication_factor=COUNT,
        created_at=TIME,
    ),
    "KeptTopics": members_of(
        topics=list_of(
            members_of(
                id=TEXT,
                name=described(or_null(TEXT), "The name it had, where an agent remembers it."),
                partitions=described(or_null(COUNT), "How many it had."),
                adoptable=described(BOOLEAN, "Whether an agent remembers its settings."),
                held=list_of(members_of(partition=COUNT, agents=list_of(members_of(id=TEXT, name=TEXT)))),
            )
        )
    ),
    "Adopt": members_of({"name": described(TEXT, "Another name than it had.")}),
    "Offsets": members_of(
        partitions=list_of(
            members_of(
                {"offset": described(OFFSET, "Of the first record at or after `at`.")},
                partition=COUNT,
                log_start_offset=OFFSET,
                high_watermark=OFFSET,
                log_end_offset=OFFSET,
            )
        ),
        cursor=described(TEXT, "The high watermarks: `after` for a wait that ends when one has passed."),
    ),
    "Trim": members_of(before=OFFSET),
    "Trimmed": members_of(log_start_offset=OFFSET),
    "NewRecords": members_of(
        records=list_of(members_of({**_RECORD, "timestamp": {"type": ["string", "integer"]}}))
    ),
    "Appended": members_of(
        {"appended_truncated": BOOLEAN, "duplicate": BOOLEAN}, count=COUNT, appended=list_of(_RUN)
    ),
    "Record": members_of(_RECORD, offset=OFFSET),
    "MergedRecord": members_of(_RECORD, partition=COUNT, offset=OFFSET),
    "Records": members_of(
        topic=TEXT,
        partition=COUNT,
        records=list_of({"$ref": "#/components/schemas/Record"}),
        next_offset=OFFSET,
        log_start_offset=OFFSET,
        high_watermark=OFFSET,
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
        id=TEXT,
        name=TEXT,
        version=TEXT,
        cluster=TEXT,
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
        kept=list_of(members_of(id=TEXT, name=or_null(TEXT), partitions=list_of(COUNT))),
        configuration=by_name(ANYTHING),
    ),
    "Join": members_of(addresses=list_of(described(TEXT, "HOST:PORT"))),
    "Joined": members_of(joined=described(COUNT, "How many of them answered.")),
    "Leaving": members_of(leaving={"const": True}),
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
    "Recover": members_of(topic=TEXT, partition=COUNT, accept_data_loss={"const": True}),
    "Recovery": members_of(
        topic=TEXT,
        partition=COUNT,
        log_end_offset=OFFSET,
        entries=COUNT,
        committed_entries=COUNT,
        lost=list_of(members_of(id=TEXT, name=TEXT)),
        refusal=or_null(TEXT),
    ),
    "KeyChange": members_of({"force": BOOLEAN}, key=described(TEXT, "In base64, or a fingerprint.")),
    "Keys": members_of(
        members=COUNT,
        keys=list_of(members_of(fingerprint=TEXT, held_by=COUNT, used_by=or_null(COUNT))),
        failures=list_of(members_of(id=TEXT, name=TEXT, reason=TEXT)),
        away=list_of(TEXT),
    ),
    "Alive": members_of(status={"const": "alive"}),
    "Ready": members_of({"checks": by_name(TEXT)}, status={"const": "ready"}),
}


def schemas_document() -> dict[str, Any]:
    """The schemas as they stand under `components`."""
    return {name: dict(schema) for name, schema in sorted(SCHEMAS.items())}
