"""A small checker of values against the schemas that the API describes itself with (JSON Schema, draft
2020-12). It knows the words used there and refuses others, so that nothing is passed over; objects are closed
unless they say otherwise, so that no answer has a member that is not described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
WORDS = frozenset(
    (
        "$ref", "additionalProperties", "anyOf", "const", "contentEncoding", "dependentSchemas",
        "description", "enum", "examples", "format", "if", "items", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "not", "pattern",
        "properties", "required", "then", "type",
    )
)  # fmt: skip


def faults(
    schema: Mapping[str, Any] | bool, value: Any, document: Mapping[str, Any], at: str = "$"
) -> list[str]:
    """What is wrong with the value, each with its place; empty when it fits."""
    if isinstance(schema, bool):
        return [] if schema else [f"{at}: nothing may stand here"]
    assert schema.keys() <= WORDS, schema.keys() - WORDS
    if "$ref" in schema:
        return faults(resolve(schema["$ref"], document), value, document, at)
    if "anyOf" in schema:
        tried = [faults(choice, value, document, at) for choice in schema["anyOf"]]
        return [] if any(not found for found in tried) else min(tried, key=len)
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "type" in schema and not is_type(schema["type"], value):
        return [*found, f"{at}: {value!r} is no {schema['type']}"]
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{at}: {value} is below {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        found.append(f"{at}: {value} is above {schema['maximum']}")
    if isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get(
        "maxItems", 2**63
    ):
        found.append(f"{at}: {len(value)} items are too few or too many")
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get(
        "maxLength", 2**63
    ):
        found.append(f"{at}: {len(value)} characters are too few or too many")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            found += faults(schema["items"], item, document, f"{at}[{place}]")
    if isinstance(value, dict) and not schema.get("minProperties", 0) <= len(value) <= schema.get(
        "maxProperties", 2**63
    ):
        found.append(f"{at}: {len(value)} members are too few or too many")
    if "not" in schema and not faults(schema["not"], value, document, at):
        found.append(f"{at}: {value!r} is what it must not be")
    if "if" in schema and not faults(schema["if"], value, document, at):
        found += faults(schema["then"], value, document, at)
    if isinstance(value, dict):
        found += object_faults(schema, value, document, at)
    return found


def is_type(wanted: str | list[str], value: Any) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and value.is_integer():
        return "integer" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def object_faults(
    schema: Mapping[str, Any], value: dict[str, Any], document: Mapping[str, Any], at: str
) -> list[str]:
    found = [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, further in schema.get("dependentSchemas", {}).items():
        if name in value:
            found += faults({"type": "object", "additionalProperties": True, **further}, value, document, at)
    described = schema.get("properties", {})
    further = schema.get("additionalProperties", not described)
    for name, member in value.items():
        if name in described:
            found += faults(described[name], member, document, f"{at}.{name}")
        elif isinstance(further, Mapping):
            found += faults(further, member, document, f"{at}.{name}")
        elif not further:
            found.append(f"{at}: {name} is not described")
    return found


def resolve(reference: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference within the document stands for."""
    found: Any = document
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found  # type: ignore[no-any-return]


def answer_faults(
    document: Mapping[str, Any], method: str, path: str, status: int, media: str, value: Any
) -> list[str]:
    """What is wrong with an answer, as the description has it."""
    template, item = find_path(document, path)
    operation = item[method.lower()]
    answers = operation["responses"]
    answer = answers.get(str(status)) or resolve(answers["default"]["$ref"], document)
    if media not in answer.get("content", {}):
        return [f"{method} {template}: {status} as {media} is not described"]
    schema = answer["content"][media]["schema"]
    return [f"{method} {template} {status}: {fault}" for fault in faults(schema, value, document)]


def find_path(document: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, Any]]:
    """The template of a path, and what stands there; the one with the fewest variables, as routers choose."""
    fitting = []
    for template, item in document["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            fitting.append((template.count("{"), template, item))
    assert fitting, f"{path} is not described"
    _, template, item = min(fitting, key=lambda found: found[:2])
    return template, item
