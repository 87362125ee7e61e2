"""The routes of consumer groups, as operations.py has the others."""

from __future__ import annotations

import dataclasses

from shoal.agent.http.api.group_schemas import reference
from shoal.agent.http.api.media import ARROW_TYPE, JSON_TYPE
from shoal.agent.http.api.needs import GROUP_CONSUME, GROUP_MAKE, GROUP_MANAGE, TOPIC_DESCRIBE
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter
from shoal.agent.http.api.operations import FORWARD, TIMEOUT, VERSION_CHARACTERS_MAX
from shoal.agent.http.api.operations import WAIT as FOR_SO_LONG
from shoal.agent.http.api.schemas import BYTES

_GROUPS = "/v1/topics/{topic}/groups"
_GROUP = f"{_GROUPS}/{{group}}"
_IN_PARTITION = "/v1/topics/{topic}/partitions/{partition}/groups/{group}"
_CHANGES = (TIMEOUT, FORWARD)
RECEIVE_HEADERS = (
    "Shoal-Partition", "Shoal-Delivery", "Shoal-Receipt", "Shoal-Delivered-At", "Shoal-Ranges",
    "Shoal-Reason", "Shoal-Acked", "Shoal-Ack-Failed", "Shoal-Created",
)  # fmt: skip


def _ok(name: str, description: str = "Done.") -> dict[int, Answer]:
    return {200: Answer(description, {JSON_TYPE: reference(name)})}


def _body(name: str, example: str, *, required: bool = True) -> Body:
    return Body({JSON_TYPE: reference(name)}, required=required, example=example)


LIST_GROUPS = Operation(
    "listGroups",
    f"GET {_GROUPS}",
    "The consumer groups of a topic.",
    _ok("GroupList", "By name."),
    _CHANGES,
    needs=TOPIC_DESCRIBE,
)
CREATE_GROUP = Operation(
    "createGroup",
    f"PUT {_GROUP}",
    "Create a consumer group; again with equal settings changes nothing.",
    {
        200: Answer("It was there, with these settings.", {JSON_TYPE: reference("Group")}),
        201: Answer("Created, and begun in every partition.", {JSON_TYPE: reference("Group")}),
    },
    _CHANGES,
    body=_body("GroupSettings", '{"mode": "shared", "visibility": "1m", "max_attempts": 10}', required=False),
    needs=GROUP_MAKE,
)
DESCRIBE_GROUP = Operation(
    "describeGroup",
    f"GET {_GROUP}",
    "Settings, and each partition's numbers.",
    _ok("Group"),
    _CHANGES,
    needs=TOPIC_DESCRIBE,
)
CHANGE_GROUP = Operation(
    "changeGroup",
    f"PATCH {_GROUP}",
    "Change settings of a group, or pause it; the rest stays.",
    _ok("Group", "Its settings as they are now."),
    (
        Parameter(
            "if_version",
            "The `settings_version` that was read: 409 if the settings have become others since.",
            {"type": "string", "minLength": 1, "maxLength": VERSION_CHARACTERS_MAX},
        ),
        *_CHANGES,
    ),
    body=_body("GroupChanges", '{"paused": true}'),
    needs=GROUP_MANAGE,
)
DELETE_GROUP = Operation(
    "deleteGroup",
    f"DELETE {_GROUP}",
    "Delete a group; the topic of its dead letters stays.",
    {204: Answer("Gone, durably.")},
    _CHANGES,
    needs=GROUP_MANAGE,
)
RECEIVE = Operation(
    "receive",
    f"POST {_GROUP}/receive",
    "Messages for a consumer, from one partition; the first receive of a group makes it.",
    {
        200: Answer(
            "The messages, or why there are none.",
            {JSON_TYPE: reference("Received"), ARROW_TYPE: BYTES},
            RECEIVE_HEADERS,
        )
    },
    _CHANGES,
    body=_body("Receive", '{"limit": 10, "wait": "20s", "consumer": "worker-1"}', required=False),
    needs=GROUP_CONSUME,
)
RECEIVE_FROM_PARTITION = dataclasses.replace(
    RECEIVE,
    name="receiveFromPartition",
    method_and_path=f"POST {_IN_PARTITION}/receive",
    summary="Messages for a consumer, from this partition.",
)
_WORDS = {
    "ack": ("These messages are done.", "Acks", "{}"),
    "nack": (
        "These failed: they come again later, which counts.",
        "Nacks",
        '{"receipts": [], "delay": "10s"}',
    ),
    "release": ("These were not begun: they come again at once, which does not count.", "Releases", "{}"),
    "reject": ("These are hopeless: they do not come again.", "Rejects", '{"receipts": [], "reason": "bad"}'),
    "extend": ("These are worked on: they stay in hand.", "Extends", '{"receipts": [], "visibility": "1m"}'),
}
ACTS = {
    verb: Operation(
        f"{verb}Messages",
        f"POST {_GROUP}/{verb}",
        summary,
        _ok("Outcomes", "What became of each receipt, durably."),
        _CHANGES,
        body=_body(schema, example if example != "{}" else '{"receipts": ["g1..."]}'),
        needs=GROUP_CONSUME,
    )
    for verb, (summary, schema, example) in _WORDS.items()
}
PARTITION_ACTS = {
    verb: dataclasses.replace(
        operation,
        name=f"{verb}MessagesOfPartition",
        method_and_path=f"POST {_IN_PARTITION}/{verb}",
    )
    for verb, operation in ACTS.items()
}
AWAIT_MESSAGES = Operation(
    "awaitMessages",
    f"POST {_GROUP}/wait",
    "Between agents: a promise of messages in partitions that this agent leads.",
    _ok("GroupPromise", "A promise; empty for none."),
    (FOR_SO_LONG, *_CHANGES),
    body=_body("GroupWait", '{"partitions": [0, 3], "consumer": "worker-1"}'),
    needs=GROUP_CONSUME,
)
BEGIN = Operation(
    "beginGroup",
    f"POST {_GROUP}/begin",
    "Between agents: the group begins in the partitions that this agent leads.",
    _ok("GroupBegun", "Where it has begun."),
    _CHANGES,
    needs=GROUP_MAKE,
)
SEEK = Operation(
    "seekGroup",
    f"POST {_GROUP}/seek",
    "Go on elsewhere: earliest, latest, a time, or offsets. Receipts from before count no more.",
    _ok("Sought", "Where it goes on."),
    _CHANGES,
    body=_body("SeekGroup", '{"to": "@2026-01-01T00:00:00Z"}'),
    needs=GROUP_MANAGE,
)
SEEK_PARTITION = Operation(
    "seekGroupInPartition",
    f"POST {_IN_PARTITION}/seek",
    "The same in one partition.",
    _ok("SoughtPartition", "Where it goes on."),
    _CHANGES,
    body=_body("SeekPartition", '{"to": 17}'),
    needs=GROUP_MANAGE,
)
DECIDE = Operation(
    "decideStopped",
    f"POST {_GROUP}/decide",
    "What becomes of a message that was stopped.",
    _ok("Decided", "Whether it was stopped."),
    _CHANGES,
    body=_body("DecideStopped", '{"partition": 0, "offset": 17, "action": "retry"}'),
    needs=GROUP_MANAGE,
)
REDRIVE = Operation(
    "redriveGroup",
    f"POST {_GROUP}/redrive",
    "Dead letters come again to the group, at most `limit` of them: each message once.",
    _ok("Redriven", "How many came again, `copied` of them as new records; `kept` stay dead letters."),
    _CHANGES,
    body=_body("RedriveGroup", '{"limit": 100}', required=False),
    needs=GROUP_MANAGE,
)
REDRIVE_PARTITION = Operation(
    "redriveGroupInPartition",
    f"POST {_IN_PARTITION}/redrive",
    "The same in one partition.",
    _ok("Redriven", "How many came again."),
    _CHANGES,
    body=_body("RedriveGroup", '{"limit": 100}', required=False),
    needs=GROUP_MANAGE,
)
PRESENCE = Operation(
    "consumerPresent",
    f"POST {_GROUP}/consumers/{{consumer}}",
    "A consumer of an exclusive group is there.",
    _ok("Assigned", "Which partitions should be its own."),
    _CHANGES,
    body=_body("Presence", '{"instance": "host-1/4711"}', required=False),
    needs=GROUP_CONSUME,
)
LEAVE_GROUP = Operation(
    "consumerLeaves",
    f"DELETE {_GROUP}/consumers/{{consumer}}",
    "A consumer of an exclusive group goes.",
    _ok("Assigned"),
    _CHANGES,
    body=_body("Presence", '{"instance": "host-1/4711"}', required=False),
    needs=GROUP_CONSUME,
)
