"""The routes of tables, as operations.py has the others, and their documents.

Pure values. The documents join SCHEMAS here, so that references find them.
"""

from __future__ import annotations

from shoal.agent.http.api import patterns
from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.api.needs import TOPIC_READ, TOPIC_WRITE
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter, Schema
from shoal.agent.http.api.operations import (
    ANY,
    FORWARD,
    LAST_EVENT_ID,
    PRODUCER,
    TIMEOUT,
    VALUE,
    VIEW,
)
from shoal.agent.http.api.schemas import (
    BOOLEAN,
    BYTES,
    PARTITION_NUMBER,
    SCHEMAS,
    TEXT,
    described,
    list_of,
    members_of,
    one_of,
    reference,
)
from shoal.agent.interface import MAX_SCAN_BYTES, MAX_SCAN_ROWS

SCHEMAS["TableRows"] = members_of(
    topic=TEXT,
    rows=list_of({"$ref": "#/components/schemas/MergedRecord"}),
    as_of=described(TEXT, "Offsets by partition: all records before them were considered."),
    is_last=described(BOOLEAN, "There is no further row; else go on with `after` the last key."),
)

_TABLE = "/v1/tables/{topic}"
_ROW = f"{_TABLE}/{{key}}"
KEY: Schema = {"type": "string", "minLength": 1, "examples": ["ann", "users/ann"]}
_BASE64: Schema = {"type": "string", "pattern": patterns.BASE64, "minLength": 4, "contentEncoding": "base64"}
_AFTER_BASE64: Schema = {key: value for key, value in _BASE64.items() if key != "minLength"}
TAG: Schema = {"type": "string", "pattern": '^"[0-9]{1,18}"$', "examples": ['"17"']}
ROW_HEADERS = ("ETag", "Shoal-Partition", "Shoal-Timestamp", "Shoal-As-Of")
SCAN_HEADERS = ("Shoal-As-Of", "Shoal-Is-Last")

_CONSISTENCY = Parameter(
    "consistency",
    "`local`: this agent's own replica may answer, with committed records.",
    one_of("leader", "local"),
)
KEY_BASE64 = Parameter("key_base64", "The row of this key, in base64.", _BASE64)
_NEEDED_KEY = Parameter("key_base64", "The row's key, in base64.", _BASE64, required=True)
_CONDITIONS = (
    Parameter("If-Match", "Only if the row is there with this ETag.", TAG),
    Parameter("If-None-Match", "`*`: only if there is no such row.", one_of("*")),
)
_READS = (_CONSISTENCY, TIMEOUT, FORWARD)
_CHANGES = (TIMEOUT, FORWARD)
_VALUE_BODY = Body({ANY: described(BYTES, "The value, of any type; an empty one is no deletion.")})
_STORED = {200: Answer("Stored.", {JSON_TYPE: reference("Appended")}, ("ETag",))}
_ROW_CONTENT: dict[str, Schema] = {ANY: BYTES, JSON_TYPE: reference("MergedRecord")}
_UNCHANGED = Answer("The row is the one that the client has.", {}, ROW_HEADERS)

READ_ROW = Operation(
    "readRow",
    f"GET {_ROW}",
    "The value of a row, or with `Accept: application/json` the whole row.",
    {200: Answer("The row.", _ROW_CONTENT, ROW_HEADERS), 304: _UNCHANGED},
    _READS,
    (Parameter("If-None-Match", "ETags that the client has: 304 if the row has one.", TEXT),),
    needs=TOPIC_READ,
)
PUT_ROW = Operation(
    "putRow",
    f"PUT {_ROW}",
    "Make or replace a row.",
    _STORED,
    _CHANGES,
    (*_CONDITIONS, *PRODUCER),
    _VALUE_BODY,
    needs=TOPIC_WRITE,
)
DELETE_ROW = Operation(
    "deleteRow",
    f"DELETE {_ROW}",
    "Delete a row; again does no harm.",
    {200: Answer("Gone.", {JSON_TYPE: reference("Appended")}, ("ETag",))},
    _CHANGES,
    (_CONDITIONS[0], *PRODUCER),
    needs=TOPIC_WRITE,
)
SCAN_TABLE = Operation(
    "scanTable",
    f"GET {_TABLE}",
    "Rows in the order of their keys, at one cut of each partition; as an event stream all changes too.",
    {
        200: Answer(
            "The rows, or with `key_base64` that row; with text/event-stream without end.",
            {
                JSON_TYPE: reference("TableRows"),
                NDJSON_TYPE: reference("MergedRecord"),
                ARROW_TYPE: BYTES,
                EVENT_STREAM: BYTES,
                ANY: BYTES,
            },
            (*SCAN_HEADERS, *ROW_HEADERS[:3]),
        ),
        304: _UNCHANGED,
    },
    (
        Parameter("prefix", "Only keys that begin so.", TEXT),
        Parameter("prefix_base64", "The same in base64.", _AFTER_BASE64),
        Parameter("after", "Only keys behind this one.", TEXT),
        Parameter("after_base64", "The same in base64.", _AFTER_BASE64),
        Parameter(
            "limit",
            f"Rows, at most; 100 unless told, {MAX_SCAN_ROWS:,} for Arrow. An answer may have fewer.",
            {"type": "integer", "minimum": 1, "maximum": MAX_SCAN_ROWS},
        ),
        Parameter(
            "max_bytes",
            "About so much memory of rows, 1 MiB unless told; one row always fits.",
            {"type": "integer", "minimum": 1, "maximum": MAX_SCAN_BYTES},
        ),
        Parameter("partition", "Only rows of this partition.", PARTITION_NUMBER),
        VIEW,
        VALUE,
        KEY_BASE64,
        *_READS,
    ),
    (LAST_EVENT_ID, *READ_ROW.headers),
    needs=TOPIC_READ,
)
PUT_ROW_BY_BYTES = Operation(
    "putRowByBytes",
    f"PUT {_TABLE}",
    "Make or replace the row of a key that is given as bytes.",
    _STORED,
    (_NEEDED_KEY, *_CHANGES),
    PUT_ROW.headers,
    _VALUE_BODY,
    needs=TOPIC_WRITE,
)
DELETE_ROW_BY_BYTES = Operation(
    "deleteRowByBytes",
    f"DELETE {_TABLE}",
    "Delete the row of a key that is given as bytes.",
    DELETE_ROW.answers,
    (_NEEDED_KEY, *_CHANGES),
    DELETE_ROW.headers,
    needs=TOPIC_WRITE,
)
