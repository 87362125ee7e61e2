"""The JSON documents about consumer groups, beside those of schemas.py.

Pure values. They join SCHEMAS here, so that references find them.
"""

from __future__ import annotations

from shoal.agent.http.api import patterns
from shoal.agent.http.api.operation import Schema
from shoal.agent.http.api.schemas import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION_NUMBER,
    PAUSE,
    SCHEMAS,
    TEXT,
    TIME,
    closed,
    described,
    each,
    list_of,
    members_of,
    one_of,
    or_null,
    reference,
)

GROUP_NAME: Schema = {"type": "string", "pattern": patterns.GROUP_NAME}
LABEL: Schema = {"type": "string", "pattern": patterns.PRODUCER_ID}
HOUR_MS = 3_600_000


def duration(low_ms: int, high_ms: int) -> Schema:
    """Text such as 30s, or milliseconds."""
    text: Schema = {"type": "string", "pattern": patterns.durations(low_ms, high_ms)}
    return {"anyOf": [text, {"type": "integer", "minimum": low_ms, "maximum": high_ms}]}


DELAY = duration(0, 7 * 24 * HOUR_MS)
VISIBILITY = duration(1_000, 12 * HOUR_MS)
MODE = one_of("shared", "exclusive", "key-ordered")
_RETRY = closed({"first": DELAY, "factor": {"type": "integer", "minimum": 1, "maximum": 10}, "most": DELAY})
_ATTEMPTS: Schema = or_null({"type": "integer", "minimum": 1, "maximum": 100})
_CHANGEABLE: dict[str, Schema] = {
    "visibility": described(VISIBILITY, "So long a message is in one consumer's hands, 1s to 12h."),
    "max_attempts": described(_ATTEMPTS, "Then a message is given up; null: never."),
    "retry": {"$ref": "#/components/schemas/Retry"},
    "dead": described(one_of("letter", "stop", "drop"), "What becomes of a message that is given up."),
    "session": described(
        duration(1_000, 300_000), "So long a silent consumer of an exclusive group is there, 1s to 5m."
    ),
    "paused": described(BOOLEAN, "Nothing is given."),
}
_START: Schema = {
    "type": "string",
    "pattern": patterns.START,
    "examples": ["earliest", "latest", "@2026-01-01T00:00:00Z"],
}
_RECEIPT = described(TEXT, "Opaque.")
_RECEIPTS: Schema = {
    **list_of({"type": "string", "pattern": patterns.RECEIPT}),
    "minItems": 1,
    "maxItems": 100_000,
}
_OUTCOME = members_of(receipt=TEXT, code=TEXT, detail=TEXT)
_SUMS = ("lag", "in_flight", "delayed", "dying", "stopped", "dead", "skipped", "dropped")
_AGE: Schema = {"type": "number", "minimum": 0}
_DUE = described({"type": "string"}, "On topics of kind timer: the due time of the position.")
_NUMBERS = members_of(
    {
        "due": _DUE,
        "pending": described(COUNT, "On topics of kind timer: messages that are not due yet, about."),
        "stopped_offsets": described(list_of(OFFSET), "Of the first 16 messages that stopped."),
        "blocked_offset": described(OFFSET, "Of the message whose key all others wait for."),
        "blocked_key": described(TEXT, "That key, if it is UTF-8 of at most 1,024 bytes."),
        "blocked_key_base64": described(TEXT, "That key, if it is no UTF-8."),
    },
    partition=COUNT,
    leader=TEXT,
    generation=COUNT,
    position=described(OFFSET, "All before it is done."),
    next=described(OFFSET, "All before it was given at least once."),
    high_watermark=OFFSET,
    **each(COUNT, *_SUMS, "acked"),
    lag_seconds=described(_AGE, "Since the oldest message that is not done was appended."),
    window=described(or_null(TEXT), "Why nothing more is given now."),
    blocked_by=described(or_null(TEXT), "The hash of the key that all others wait for."),
    owner=or_null(TEXT),
    consumers=list_of(members_of(consumer=or_null(TEXT), holds=COUNT, seen_ms=COUNT)),
)
_PLACES: Schema = {
    "type": "object",
    "properties": {"0": OFFSET},
    "additionalProperties": OFFSET,
    "minProperties": 1,
}
_REASON: Schema = {"type": "string", "maxLength": 64}

_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 100_000}

GROUP_SCHEMAS: dict[str, Schema] = {
    "Retry": _RETRY,
    "GroupSettings": closed({"mode": MODE, "start": _START, **_CHANGEABLE}),
    "GroupChanges": {**closed(_CHANGEABLE), "minProperties": 1},
    "Group": members_of(
        {
            "totals": members_of(**each(COUNT, *_SUMS), lag_seconds=_AGE),
            "partitions": list_of(_NUMBERS),
            "unavailable": described(list_of(COUNT), "Partitions whose leaders did not answer."),
        },
        name=TEXT,
        topic=TEXT,
        id=TEXT,
        settings_version=described(TEXT, "Opaque; for `if_version`."),
        mode=MODE,
        start=_START,
        **_CHANGEABLE,
    ),
    "GroupList": members_of(
        groups=list_of(
            members_of(name=TEXT, mode=MODE, paused=BOOLEAN, **each(COUNT, "lag", "in_flight", "dead"))
        )
    ),
    "Receive": closed(
        {
            "limit": described(
                {"type": "integer", "minimum": 1, "maximum": 100_000}, "10 unless told; Arrow: 1,000."
            ),
            "max_bytes": {"type": "integer", "minimum": 1, "maximum": 64 * 2**20},
            "wait": described(
                {"anyOf": [PAUSE, {**COUNT, "maximum": 60_000}]},
                "How long to wait for a message, at most 60s.",
            ),
            "visibility": _CHANGEABLE["visibility"],
            "consumer": described(LABEL, "Needed in exclusive groups."),
            "instance": described(LABEL, "Of the process that is this consumer."),
            "request": described(LABEL, "The same request of the same consumer gets the same messages."),
            "retry": described(BOOLEAN, "It is repeated: nothing new until every partition has been asked."),
            "ack": described(_RECEIPTS, "Acknowledged with the same commit."),
            "promise": described(COUNT, "Between agents."),
            "acked": described({"$ref": "#/components/schemas/Outcomes"}, "Between agents."),
        }
    ),
    "ReceivedMessage": members_of(
        {
            "timestamp": ANYTHING,
            "key": or_null(TEXT),
            "key_base64": TEXT,
            "value": ANYTHING,
            "value_base64": TEXT,
            "headers": ANYTHING,
        },
        partition=COUNT,
        offset=OFFSET,
        attempt=described(COUNT, "1 for the first."),
        receipt=_RECEIPT,
    ),
    "Received": members_of(
        partition=or_null(COUNT),
        delivery=or_null(COUNT),
        receipt=described(or_null(TEXT), "Of the whole answer."),
        delivered_at=or_null(TIME),
        messages=list_of({"$ref": "#/components/schemas/ReceivedMessage"}),
        reason=described(
            or_null(TEXT), "Why there is none: empty, unavailable, window-full, paused, not-owner, blocked."
        ),
        acked={"$ref": "#/components/schemas/Outcomes"},
    ),
    "Outcomes": members_of(
        done=described(COUNT, "Receipts that were carried out."),
        failed=described(list_of(_OUTCOME), "The others, and why."),
    ),
    "Acks": {
        "anyOf": [
            {"$ref": "#/components/schemas/AckReceipts"},
            {"$ref": "#/components/schemas/AckPlaces"},
        ]
    },
    "AckReceipts": closed(receipts=_RECEIPTS),
    "AckPlaces": closed(
        {"receipts": _RECEIPTS},
        up_to=described(_PLACES, "All that the owner of an exclusive group's partition holds up to there."),
        consumer=LABEL,
    ),
    "Nacks": closed({"delay": DELAY, "reason": _REASON}, receipts=_RECEIPTS),
    "Rejects": closed({"reason": _REASON}, receipts=_RECEIPTS),
    "Releases": closed(receipts=_RECEIPTS),
    "Extends": closed({"visibility": _CHANGEABLE["visibility"]}, receipts=_RECEIPTS),
    "GroupWait": closed(
        {"consumer": LABEL, "instance": LABEL, "request": LABEL, "limit": _LIMIT, "served": BOOLEAN},
        partitions={**list_of(PARTITION_NUMBER), "minItems": 1},
    ),
    "GroupPromise": members_of(
        {"partition": COUNT, "promise": COUNT, "repeat": BOOLEAN, "led": list_of(COUNT)}
    ),
    "GroupBegun": members_of(partitions=list_of(members_of(partition=COUNT))),
    "SeekGroup": closed(to={"anyOf": [_START, _PLACES]}),
    "SeekPartition": closed(to={"anyOf": [_START, OFFSET]}),
    "Sought": members_of(partitions=list_of({"$ref": "#/components/schemas/SoughtPartition"})),
    "SoughtPartition": members_of({"due": _DUE}, partition=COUNT, offset=OFFSET, generation=COUNT),
    "RedriveGroup": closed(limit=or_null({"type": "integer", "minimum": 1, "maximum": 10**9})),
    "Redriven": members_of(
        {
            "kept": described(COUNT, "Letters that cannot come again, and stay in their topic alone."),
            "kept_letters": described(
                list_of(members_of(partition=COUNT, offset=OFFSET, reason=TEXT)), "The first 16 of them."
            ),
        },
        redriven=COUNT,
        copied=COUNT,
    ),
    "DecideStopped": closed(
        partition=PARTITION_NUMBER,
        offset={**COUNT, "maximum": 2**62},
        action=one_of("retry", "letter", "drop"),
    ),
    "Decided": members_of(done=BOOLEAN),
    "Presence": closed({"instance": LABEL}),
    "Assigned": members_of(
        partitions=described(list_of(COUNT), "Those that should be the consumer's."),
        led=described(list_of(COUNT), "Those whose leaders were told."),
    ),
}
SCHEMAS.update(GROUP_SCHEMAS)

__all__ = ["GROUP_SCHEMAS", "reference"]
