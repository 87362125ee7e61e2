"""Requests made of the description at /openapi.json: such as fit it, and such as miss it in one place."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pyarrow as pa
from json_schema import faults, resolve

from shoal.format.batch import DEFAULT_SCHEMA
from shoal.format.records import RecordColumns, columns_to_batch

TRIES = 200
REPEATED_MAX = 6  # of what a pattern lets repeat
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"
ODD = [
    "",
    " ",
    "0",
    "-1",
    "ü",
    "\0",
    "a/b",
    "..",
    "%",
    "null",
    "true",
    "9" * 30,
    "{}",
    "'\"<>&",
    "\ud7ff",
    "x" * 300,
]
WRONG = [*ODD, 0, -1, 1.5, None, True, [], {}, [[]], {"a": {}}]


class Made(NamedTuple):
    """A request. `misses`: what of it does not fit the description; nothing where all of it does."""

    name: str
    method: str
    target: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    misses: str | None


class Maker:
    """Values for schemas, right and wrong ones."""

    def __init__(self, seed: int, document: Mapping[str, Any]) -> None:
        self.rng = random.Random(seed)
        self.document = document

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """One that fits."""
        for _ in range(TRIES):
            made = self._value(schema, depth)
            if not faults(schema, made, self.document):
                return made
        raise AssertionError(f"nothing fits {schema}")

    def _value(self, schema: Mapping[str, Any], depth: int) -> Any:
        rng = self.rng
        if "$ref" in schema:
            return self.value(resolve(schema["$ref"], self.document), depth)
        for choices in ("anyOf", "enum"):
            if choices in schema:
                chosen = rng.choice(schema[choices])
                return self.value(chosen, depth) if choices == "anyOf" else chosen
        if "examples" in schema and rng.random() < 0.5:
            return rng.choice(schema["examples"])
        kind = schema.get("type", rng.choice(["string", "integer", "boolean", "null", "object"]))
        if kind == "object":
            return self._members(schema, depth)
        if kind == "array":
            count = rng.randint(schema.get("minItems", 0), min(3, schema.get("maxItems", 3)))
            return [self.value(schema["items"], depth + 1) for _ in range(count)]
        if kind == "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 2**40)
            made = rng.choice([low, high, rng.randint(low, high)])
            return float(made) if rng.random() < 0.2 and float(made) == made < 2**53 else made
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        if "pattern" in schema:
            return text_like(schema["pattern"], rng)
        return rng.choice(["t", "abc", "YWJj", "Köln"])

    def _members(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        chosen = [name for name in properties if name in required or (depth < 4 and self.rng.random() < 0.5)]
        if len(chosen) < schema.get("minProperties", 0):
            chosen = list(properties)
        made = {name: self.value(properties[name], depth + 1) for name in chosen}
        further = schema.get("additionalProperties")
        if not properties and isinstance(further, Mapping):
            made["name"] = self.value(further, depth + 1)
        return made

    def wrong(self, schema: Mapping[str, Any], as_sent: Callable[[Any], list[Any]]) -> Any:
        """One that does not fit, whichever way it is read."""
        for _ in range(TRIES):
            made = self.rng.choice(WRONG)
            if all(faults(schema, read, self.document) for read in as_sent(made)):
                return made
        return None


def text_like(pattern: str, rng: random.Random) -> str:
    """A text that the pattern fits."""
    tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
    for _ in range(TRIES):
        made = _text(tree, rng)
        if re.search(pattern, made):
            return made
    raise AssertionError(f"nothing fits {pattern}")


def _text(tree: Any, rng: random.Random) -> str:
    made = ""
    for kind, given in tree:
        name = str(kind)
        if name == "LITERAL":
            made += chr(given)
        elif name == "IN":
            made += _one_of(given, rng)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, inner = given
            count = rng.randint(low, max(low, min(int(high), low + REPEATED_MAX)))
            made += "".join(_text(inner, rng) for _ in range(count))
        elif name == "SUBPATTERN":
            made += _text(given[3], rng)
        elif name == "BRANCH":
            made += _text(rng.choice(given[1]), rng)
        elif name == "ANY":
            made += "x"
        elif name == "NOT_LITERAL":
            made += rng.choice([letter for letter in "ab0:=" if ord(letter) != given])
        else:
            assert name in ("AT", "ASSERT_NOT"), name
    return made


def _one_of(choices: Any, rng: random.Random) -> str:
    kind, given = rng.choice(choices)
    return chr(given if str(kind) == "LITERAL" else rng.randint(*given))


def as_text(value: Any) -> str:
    """As a query, a path or a header has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def readings(value: Any) -> list[Any]:
    """What the text may be taken for: itself, or the number or the switch that it writes."""
    text = as_text(value)
    read: list[Any] = [text]
    if re.fullmatch("-?[0-9]+|true|false", text):
        read.append(json.loads(re.sub("^(-?)0+([0-9])", r"\1\2", text)))
    return read


def requests_of(document: Mapping[str, Any], seed: int, rounds: int, left_out: frozenset[str]) -> list[Made]:
    """So many of each operation; every third misses the description somewhere."""
    maker = Maker(seed, document)
    made = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if operation["operationId"] not in left_out:
                for turn in range(rounds):
                    made.append(_request(maker, path, method, operation, misses=turn % 3 == 2))
    return made


def _request(maker: Maker, path: str, method: str, operation: Any, *, misses: bool) -> Made:
    rng = maker.rng
    target, missed = path, None
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    parameters = operation.get("parameters", [])
    spoiled = rng.choice([None, *parameters]) if misses else None
    for parameter in parameters:
        name, place = parameter["name"], parameter["in"]
        value: Any = maker.value(parameter["schema"])
        if name in ("wait", "timeout"):
            value = rng.choice(["1ms", "20ms"])  # of whatever is possible, what does not take long
        elif place == "path" and rng.random() < 0.5:
            value = 0 if name == "partition" else "t"  # what is there
        if parameter is spoiled:
            wrong = maker.wrong(parameter["schema"], readings)
            if wrong is not None and (place != "path" or as_text(wrong) not in ("", "..")):
                value, missed = wrong, name
        text = as_text(value)
        if place == "path":
            target = target.replace(f"{{{name}}}", quote(text, safe=""))
        elif place == "query":
            if parameter["required"] or name == missed or rng.random() < 0.3:
                query[name] = text
        elif text.isascii() and text.isprintable() and text == text.strip():
            if name == missed or rng.random() < 0.3:
                headers[name] = text
        elif name == missed:
            missed = None
    body, unfit = _body(maker, operation, query, headers, misses=misses and missed is None)
    if query:
        target += "?" + urlencode(query)
    return Made(operation["operationId"], method.upper(), target, query, headers, body, missed or unfit)


def _body(
    maker: Maker, operation: Any, query: Mapping[str, str], headers: dict[str, str], *, misses: bool
) -> tuple[bytes, str | None]:
    if "requestBody" not in operation:
        return b"", None
    content = operation["requestBody"]["content"]
    media = maker.rng.choice(list(content))
    headers["Content-Type"] = media
    if media == ARROW:
        return b"nothing of Arrow's" if misses else arrow(), "the Arrow stream" if misses else None
    if media == NDJSON:
        return b"not JSON" if misses else lines(query), "the lines" if misses else None
    schema = content[media]["schema"]
    if misses and media == JSON:
        wrong = maker.wrong(schema, lambda value: [value])
        return json.dumps(wrong).encode(), "the body"
    return json.dumps(maker.value(schema)).encode(), None


def lines(query: Mapping[str, str]) -> bytes:
    """Some, each with the field that has its key."""
    return b"\n".join(json.dumps({query.get("key_field", "k"): f"k{number}"}).encode() for number in range(2))


def arrow() -> bytes:
    """A stream of one record."""
    columns = RecordColumns()
    columns.append(None, b"k", b"v", None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA) as writer:
        writer.write_batch(columns_to_batch(columns, 0))
    return bytes(sink.getvalue())
