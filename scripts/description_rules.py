"""What a request has to keep to beside the description at /openapi.json, which has no words for it.

A description says what each parameter may be, not which belong together. Whatever breaks one of these rules
is refused; nothing else that fits the description is called wrong. Standard library only: the campaign's
fuzzer reads it in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

PRODUCER_HEADERS = ("Shoal-Producer-Id", "Shoal-Producer-Epoch", "Shoal-Producer-Sequence")
ORDER_HEADER = "Shoal-Producer-Order"
NDJSON = "application/x-ndjson"
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
PLACES = ("after", "cursor")
DUE_TIMES = ("delay", "deliver_at")
NEEDS_TIMER = "need a topic of kind timer"
"""In the refusal of a record with a due time for a log. No description knows the kind of a topic."""
READS = ("readMerged", "readOffsets")
TABLES = ("readRow", "scanTable", "putRow", "putRowByBytes", "deleteRow", "deleteRowByBytes")
ONE_ROW = ("key_base64", "consistency", "timeout", "forward")


def broken_rule(operation: str, query: Mapping[str, object], headers: Mapping[str, object]) -> str | None:
    """The rule that the request breaks; None when it keeps to all."""
    if operation in ("produce", "produceToPartition"):
        return _of_appends(query, headers)
    if operation in TABLES:
        return _of_rows(query, headers)
    for name in PLACES:
        if operation in READS and str(query.get(name, "")).startswith("p"):
            return f"{name}: a compact cursor is one that an agent gave"
    if operation == "readMerged" and "cursor" in query and "offset" in query:
        return "offset and cursor both say where to begin"
    return None


def _of_rows(query: Mapping[str, object], headers: Mapping[str, object]) -> str | None:
    given = {name.lower() for name in headers}
    if {"if-match", "if-none-match"} <= given:
        return "no row is both there and not"
    if broken := _of_producers(given):
        return broken
    if "key_base64" in query and not query.keys() <= {*ONE_ROW}:
        return "key_base64 names one row"
    for name in ("prefix", "after"):
        if {name, f"{name}_base64"} <= query.keys():
            return f"{name} is given once, as text or as bytes"
    return None


def _of_producers(given: Collection[str]) -> str | None:
    producer = [name for name in PRODUCER_HEADERS if name.lower() in given]
    if producer != list(PRODUCER_HEADERS) and (producer or ORDER_HEADER.lower() in given):
        return "the three headers of a producer go together"
    return None


def _of_appends(query: Mapping[str, object], headers: Mapping[str, object]) -> str | None:
    given = {name.lower() for name in headers}
    if broken := _of_producers(given):
        return broken
    media = next((str(value) for name, value in headers.items() if name.lower() == "content-type"), "")
    if "key" in query and media in (JSON, NDJSON, ARROW):
        return "key belongs to a body that is one value"
    if "key_field" in query and media != NDJSON:
        return "key_field belongs to a body of lines"
    if any(name in query for name in DUE_TIMES):
        return "due times belong to topics of kind timer, which nobody asks here"
    return None
