"""Records as people write and read them: what each form means, and which record is at fault."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.format import records
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    MAX_RECORD_BYTES,
    TIMER_SCHEMA,
    StreamDecoder,
    message_from_batch,
    schema_message,
)
from shoal.format.record_text import render_ndjson, render_records
from shoal.format.records import (
    RecordColumns,
    columns_to_batch,
    parse_ndjson,
    parse_ndjson_line,
    parse_raw,
)
from shoal.format.timestamps import format_time, parse_duration_ms, parse_time

NOW_US = 1_700_000_000_000_000
parse_json = partial(records.parse_json, now_us=NOW_US)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times_us = st.integers(-(2**63), 2**63 - 1)
columns_of_records = st.lists(
    st.tuples(
        st.none() | times_us,
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20),
        st.none() | st.lists(st.tuples(text, st.none() | st.binary(max_size=5)), max_size=3),
    ),
    max_size=20,
).map(lambda rows: RecordColumns(*([list(column) for column in zip(*rows, strict=True)] or [[], [], [], []])))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)


def error_of(call: Callable[[], Any]) -> ShoalError:
    """The error that a call must raise."""
    with pytest.raises(ShoalError) as caught:
        call()
    return caught.value


def parse_one(record: Any) -> RecordColumns:
    """One record behind a good one, so that its number is 1."""
    return parse_json(json.dumps({"records": [{"value": "good"}, record]}).encode())


def test_json_values_become_bytes() -> None:
    """Strings are their UTF-8, everything else compact JSON, null a tombstone, *_base64 any bytes."""
    columns = parse_json(
        b"""{"records": [
        {"key": "k", "value": "text \xc3\xa4", "timestamp": "2013-01-01T05:00:00.25Z"},
        {"key": null, "value": {"a": [1, 2.5, "\xc3\xa4"], "b": null}, "timestamp": 1700000000123},
        {"key": 7, "value": null},
        {"key_base64": "/w==", "value_base64": "AAE="},
        {"value": true}, {"value": []}, {"value": ""}
    ]}"""
    )
    assert columns.keys == [b"k", None, b"7", b"\xff", None, None, None]
    assert columns.values == [
        "text ä".encode(),
        '{"a":[1,2.5,"ä"],"b":null}'.encode(),
        None,
        b"\0\1",
        b"true",
        b"[]",
        b"",
    ]
    assert columns.timestamps_us[:3] == [1_357_016_400_250_000, 1_700_000_000_123_000, None]


def test_headers_come_as_an_object_or_a_list() -> None:
    """A list keeps repeated names and takes bytes."""
    columns = parse_json(
        b"""{"records": [
        {"value": 1, "headers": {"a": "x", "b": null, "c": 5}},
        {"value": 1, "headers": [{"key": "a", "value": "x"}, {"key": "a", "value_base64": "/w=="}]},
        {"value": 1, "headers": []}, {"value": 1}
    ]}"""
    )
    assert columns.headers == [
        [("a", b"x"), ("b", None), ("c", b"5")],
        [("a", b"x"), ("a", b"\xff")],
        [],
        None,
    ]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("just text", "must be an object"),
        ({}, "no 'value'"),
        ({"key": "k"}, "no 'value'"),
        ({"value": "v", "vlaue": 1}, "unknown field 'vlaue'"),
        ({"value": "v", "value_base64": ""}, "both 'value' and 'value_base64'"),
        ({"value_base64": "not base64!"}, "not base64"),
        ({"value_base64": "ä"}, "not base64"),
        ({"value_base64": 5}, "must be a string"),
        ({"value": "v", "timestamp": "yesterday"}, "neither like"),
        ({"value": "v", "timestamp": True}, "'timestamp'"),
        ({"value": "v", "timestamp": 1.5}, "'timestamp'"),
        ({"value": "v", "timestamp": 10**17}, "neither like"),
        ({"value": "v", "headers": "x"}, "'headers'"),
        ({"value": "v", "headers": [{"value": "x"}]}, "header"),
        ({"value": "v", "headers": [{"key": "x", "more": 1}]}, "header"),
        ({"value": "v", "headers": {f"h{n}": "" for n in range(257)}}, "more than 256 headers"),
        ({"value": "\ud800"}, "surrogate"),
        ({"value": {"a": "\ud800"}}, "surrogate"),
        ({"value": "v", "headers": {"\ud800": ""}}, "surrogate"),
        ({"value": "v", "key": "\ud800"}, "surrogate"),
    ],
)
def test_a_wrong_record_is_named(record: Any, says: str) -> None:
    """400 says which record, and what is wrong with it."""
    error = error_of(lambda: parse_one(record))
    assert error.code == "bad-request"
    assert "record 1" in error.detail
    assert says in error.detail
    assert error.extra["record"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"carrier":"UA"}',
        b'{"records":{}}',
        b'{"records":[],"more":1}',
        b'{"records":[NaN]}',
        b'{"records":[]} x',
        b'{"records":["\xff"]}',
        b"[" * 100_000,
        b'{"records":[' + b"9" * 5_000 + b"]}",
    ],
)
def test_a_body_without_records_shows_the_wrapping(body: bytes) -> None:
    """The two forms that would have worked are in the answer."""
    error = error_of(lambda: parse_json(body))
    assert error.code == "bad-request"
    assert '{"records":[' in error.detail
    assert "x-ndjson" in error.detail


def test_numbers_that_json_cannot_express_are_refused() -> None:
    """1e999 parses as infinity, which no JSON reader would take back."""
    error = error_of(lambda: parse_json(b'{"records":[{"value":[1e999]}]}'))
    assert (error.code, error.extra["record"]) == ("bad-request", 0)


def test_sizes_are_bounded() -> None:
    """A body and a record have 8 MiB at most, key and headers included."""
    assert error_of(lambda: parse_json(bytes(8 * 2**20 + 1))).code == "too-large"
    assert error_of(lambda: parse_raw(bytes(8 * 2**20 + 1), None, None)).code == "too-large"
    assert error_of(lambda: parse_raw(bytes(8 * 2**20), None, b"k")).code == "too-large"
    assert len(parse_raw(bytes(8 * 2**20), None, None)) == 1
    line = b'"' + b"x" * MAX_RECORD_BYTES + b'"'
    assert error_of(lambda: parse_ndjson(b"1\n" + line, None)).extra["record"] == 1
    half = MAX_RECORD_BYTES // 2
    fits = b'{"k":"' + b"x" * (half - 4) + b'"}'
    assert len(parse_ndjson(fits, "k")) == 1
    over = b'{"k":"' + b"x" * (half - 3) + b'"}'
    assert error_of(lambda: parse_ndjson(over, "k")).code == "too-large"


def test_ndjson_lines_are_stored_verbatim() -> None:
    """Spaces, escapes and number forms stay; blank lines and carriage returns do not count."""
    columns = parse_ndjson(b'{"a" : 1.0}\r\n\n  \n "x\\u00e4"\n7', None)
    assert columns.values == [b'{"a" : 1.0}', b' "x\\u00e4"', b"7"]
    assert columns.keys == [None, None, None]
    assert columns.timestamps_us == [None, None, None]
    assert len(parse_ndjson(b"", None)) == 0


def test_ndjson_takes_keys_from_a_field() -> None:
    """A string's UTF-8, a number's digits, null: no key."""
    columns = parse_ndjson(b'{"c":"UA"}\n{"c":17}\n{"c":null}', "c")
    assert columns.keys == [b"UA", b"17", None]
    assert parse_ndjson_line(b'{"c":"UA"}', "c", 0) == (b"UA", b'{"c":"UA"}')


@pytest.mark.parametrize(
    "line", [b"plain words", b"{", b'{"d":1}', b"[1]", b"\xff", b'{"c":"\\ud800"}', b"NaN"]
)
def test_a_wrong_ndjson_line_is_named(line: bytes) -> None:
    """Numbered through the whole stream, not through the piece that is being parsed."""
    error = error_of(lambda: parse_ndjson(b'{"c":"x"}\n' + line, "c", first_record=40))
    assert error.code == "bad-request"
    assert error.extra["record"] == 41


def test_a_raw_body_is_one_value() -> None:
    """Whatever its type says, the empty body included."""
    for body, content_type in (
        (b"\xff\0", None),
        (b"", "text/plain"),
        (b"a=b", "application/x-www-form-urlencoded"),
    ):
        columns = parse_raw(body, content_type, b"k")
        assert (columns.values, columns.keys) == ([body], [b"k"])


ENVELOPE = b'{"records":[{"value":1}]}'
LINES = b'{"user":"ann"}\n{"user":"bob"}\n'


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (LINES, "application/x-www-form-urlencoded", "x-ndjson"),
        (LINES.replace(b"\n", b""), "application/x-www-form-urlencoded", "--data-binary"),  # curl -d @FILE
        (b"[1]\r\n[2]", "text/plain", "x-ndjson"),
        (LINES, None, "without a Content-Type"),
        (ENVELOPE, "text/plain;charset=UTF-8", "application/json"),  # fetch() of a browser
        (ENVELOPE, None, "application/json"),
        (ENVELOPE, "text/json", "application/json"),
        (b"--x\r\n\r\nvalue\r\n--x--", "multipart/form-data; boundary=x", "--data-binary"),
    ],
)
def test_what_was_meant_for_several_records_is_not_stored_as_one(
    body: bytes, content_type: str | None, says: str
) -> None:
    """It is told what to say instead, and how to store it all the same."""
    error = error_of(lambda: parse_raw(body, content_type, None))
    assert error.code == "ambiguous-body"
    assert says in error.detail
    assert "application/octet-stream" in error.detail
    assert parse_raw(body, "Application/Octet-Stream", None).values == [body]


@pytest.mark.parametrize(
    "body",
    [
        b'{"user":"ann"}', b'{"a":[{"b":1},{"c":2}]}', b"[{},{}]", b'{"records', b'{"a":"}{"}', b"{}{",
        b'"records" is a word', b'{"a":1} and text', b"[1]\xff[2]", b"[" * 100_000 + b"]" * 100_000,
        b'{"a":"\\"records\\""}', b"} {",
    ],
)  # fmt: skip
@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", None])
def test_one_value_stays_one_value(body: bytes, content_type: str | None) -> None:
    """One JSON value, or what is none."""
    assert parse_raw(body, content_type, None).values == [body]


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "Application/X-WWW-Form-Urlencoded; charset=utf-8"]
)
def test_records_sent_as_a_form_are_ambiguous(content_type: str) -> None:
    """curl -d with the JSON of the documentation: name --json instead of storing the text."""
    error = error_of(lambda: parse_raw(b'{"records":[{"value":1}]}', content_type, None))
    assert error.code == "ambiguous-body"
    assert "--json" in error.detail


@given(columns_of_records)
def test_columns_become_a_batch_that_an_agent_would_admit(columns: RecordColumns) -> None:
    """Types are the default schema's, the missing time is filled in, every value comes back."""
    batch = columns_to_batch(columns, 1_234)
    assert batch.schema == DEFAULT_SCHEMA
    expected = [1_234 if time is None else time for time in columns.timestamps_us]
    assert batch.column("timestamp").cast("int64").to_pylist() == expected
    assert batch.column("key").to_pylist() == columns.keys
    assert batch.column("value").to_pylist() == columns.values
    assert [
        None if headers is None else [(header["key"], header["value"]) for header in headers]
        for headers in batch.column("headers").to_pylist()
    ] == columns.headers
    message = message_from_batch(batch)
    prefix = b"\xff" * 4 + len(message.metadata).to_bytes(4, "little")
    decoder = StreamDecoder(DEFAULT_SCHEMA)
    (admitted,) = decoder.feed(
        schema_message(DEFAULT_SCHEMA) + prefix + message.metadata + bytes(message.body)
    )
    assert admitted.record_count == len(columns)
    assert admitted.max_timestamp_us == max(expected, default=0)


@given(columns_of_records, st.integers(0, 2**60), st.sampled_from(["text", "json"]))
def test_any_batch_can_be_rendered(columns: RecordColumns, base_offset: int, value_as: Any) -> None:
    """Each line is JSON in UTF-8, offsets are dense, and bytes can be had back."""
    batch = columns_to_batch(columns, 0)
    lines = render_ndjson(batch, base_offset, "record", value_as).decode("utf-8").splitlines()
    rendered = [json.loads(line) for line in render_ndjson(batch, base_offset).split(b"\n") if line]
    assert len(rendered) == len(columns)
    assert [record["offset"] for record in rendered] == list(range(base_offset, base_offset + len(columns)))
    assert len(lines) >= len(columns)
    for name, expected in (("key", columns.keys), ("value", columns.values)):
        for record, content in zip(rendered, expected, strict=True):
            if f"{name}_base64" in record:
                assert base64.b64decode(record[f"{name}_base64"]) == content
            else:
                assert record[name] == (None if content is None else content.decode())


@given(st.lists(st.tuples(st.none() | text, json_values), max_size=5))
def test_json_round_trips(rows: list[tuple[str | None, Any]]) -> None:
    """What a producer posts as JSON is what value=json shows (strings that look like JSON apart)."""
    body = json.dumps({"records": [{"key": key, "value": value} for key, value in rows]}).encode()
    batch = columns_to_batch(parse_json(body), 0)
    rendered = json.loads(json.dumps(render_records(batch, 0, "json")))
    for (key, value), record in zip(rows, rendered, strict=True):
        assert record["key"] == key
        if not isinstance(value, str):
            assert record["value"] == value


@given(st.binary(max_size=60))
def test_any_body_is_records_or_a_shoal_error(body: bytes) -> None:
    """The parsers' only error."""
    for parse in (parse_json, lambda data: parse_ndjson(data, "k"), lambda data: parse_ndjson(data, None)):
        try:
            columns_to_batch(parse(body), 0)
        except ShoalError as error:
            assert error.status in (400, 413)  # noqa: PT017 - both outcomes are right


def test_views_for_pipes() -> None:
    """view=value gives what was produced; a tombstone is the line null; value=json embeds what it can."""
    columns = parse_json(
        b'{"records":[{"value":{"a":1}},{"value":null},{"value":"words"},{"value":"[1e999]"}]}'
    )
    batch = columns_to_batch(columns, 0)
    assert render_ndjson(batch, 0, "value") == b'{"a":1}\nnull\nwords\n[1e999]\n'
    assert [record["value"] for record in render_records(batch, 5, "json")] == [
        {"a": 1},
        None,
        "words",
        "[1e999]",
    ]
    assert render_records(batch, 5)[0] == {
        "offset": 5,
        "timestamp": "1970-01-01T00:00:00.000000Z",
        "key": None,
        "value": '{"a":1}',
        "headers": [],
    }


def test_columns_can_be_joined_and_picked() -> None:
    """extend and take keep all four columns in step; sizes count what a batch will hold."""
    columns = parse_json(b'{"records":[{"key":"a","value":"1"},{"key":"b","value":"2","headers":{"h":"x"}}]}')
    size_bytes = columns.size_bytes
    columns.extend(parse_raw(b"three", None, None))
    assert columns.size_bytes == size_bytes + 32 + 5
    picked = columns.take([2, 1])
    assert (picked.values, picked.keys, picked.headers) == (
        [b"three", b"2"],
        [None, b"b"],
        [None, [("h", b"x")]],
    )
    assert len(picked) == len(picked.timestamps_us) == 2


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123_000),
        ("-5", -5_000),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:01.5z", 1_500_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T01:00:00 01:00", 0),  # a plus that a query string turned into a space
        ("1969-12-31T23:00:00-01:00", 0),
        ("1970-01-01T00:00:00.000001999Z", 1),
        ("2024-02-29T12:00:00.123456Z", 1_709_208_000_123_456),
    ],
)
def test_times_are_read(written: str, us: int) -> None:
    """RFC 3339 or milliseconds."""
    assert parse_time(written) == us


@pytest.mark.parametrize(
    "written",
    ["", "now", "2013-01-01", "2013-01-01T05:00:00", "2013-02-30T00:00:00Z", "2013-01-01T24:01:00Z", "1.5",
     "2013-01-01T00:00:00+24:00", "2013-01-01T00:00:00+01:60", "9999999999999999", "\u0661", "1e9",
     "0000-01-01T00:00:00Z"],
)  # fmt: skip
def test_other_times_are_refused(written: str) -> None:
    """No guessing of zones or of units."""
    assert error_of(lambda: parse_time(written)).code == "bad-request"


@given(times_us)
def test_times_round_trip(us: int) -> None:
    """Every microsecond of the years 1 to 9999; beyond, milliseconds that parse_time takes."""
    written = format_time(us)
    if written.endswith("Z"):
        assert parse_time(written) == us
    else:
        assert 0 <= us - int(written) * 1000 < 1000


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("0", 0),
        ("250", 250),
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
    ],
)
def test_durations_are_read(written: str, milliseconds: int) -> None:
    """A number and a unit."""
    assert parse_duration_ms(written) == milliseconds


@pytest.mark.parametrize("written", ["", "-5s", "1.5s", "5 s", "5w", "s", "1" * 16, "\u0665s"])
def test_other_durations_are_refused(written: str) -> None:
    """One clear line instead of a guess."""
    assert error_of(lambda: parse_duration_ms(written)).code == "bad-request"


def test_due_times_in_json() -> None:
    """As times of the API are told, or as a delay from now; null and no word mean at once."""
    columns = parse_json(
        b'{"records":[{"value":1},{"value":2,"deliver_at":"2030-01-01T00:00:00.000001Z"},{"value":3,"delay":"10m"},'
        b'{"value":4,"deliver_at":1000.0},{"value":5,"delay":1500},{"value":6,"delay":null}]}'
    )
    due_us = parse_time("2030-01-01T00:00:00.000001Z")
    expected = [None, due_us, NOW_US + 600_000_000, 1_000_000, NOW_US + 1_500_000, None]
    assert columns.deliver_at_us == expected
    assert parse_json(b'{"records":[{"value":1,"deliver_at":null}]}').deliver_at_us is None
    batch = columns_to_batch(columns, 0, TIMER_SCHEMA)
    assert batch.schema == TIMER_SCHEMA
    assert batch.column("deliver_at").cast("int64").to_pylist() == expected
    shown = [record["deliver_at"] for record in render_records(batch, 0)]
    assert shown == [None if time_us is None else format_time(time_us) for time_us in expected]
    lines = [json.loads(line) for line in render_ndjson(batch, 0).splitlines()]
    assert lines == render_records(batch, 0)


@pytest.mark.parametrize(
    "record",
    [
        {"delay": "-10m"}, {"delay": -1}, {"delay": True}, {"delay": "soon"}, {"delay": 1.5}, {"delay": [1]},
        {"deliver_at": "tomorrow"}, {"deliver_at": True}, {"deliver_at": {}},
        {"deliver_at": "2030-01-01T00:00:00Z", "delay": "1s"},
    ],
)  # fmt: skip
def test_a_due_time_that_is_none_is_refused(record: dict[str, Any]) -> None:
    """By its record's number."""
    error = error_of(lambda: parse_one({"value": "x", **record}))
    assert (error.code, error.extra["record"]) == ("bad-request", 1)


def test_due_times_are_kept_in_step() -> None:
    """Also where only some of what is joined has any."""
    plain, timed = parse_one({"value": 1}), parse_one({"value": 2, "delay": 1})
    due_us = NOW_US + 1_000
    joined = RecordColumns()
    for columns in (plain, timed, plain):
        joined.extend(columns)
    assert joined.deliver_at_us == [None, None, None, due_us, None, None]
    assert joined.take([3, 0]).deliver_at_us == [due_us, None]
    assert plain.take([0]).deliver_at_us is None
    assert columns_to_batch(plain, 0, TIMER_SCHEMA).column("deliver_at").null_count == 2
