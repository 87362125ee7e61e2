"""The media types of requests and answers."""

from __future__ import annotations

EVENT_STREAM = "text/event-stream"
JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
STREAMED_TYPES = frozenset((NDJSON_TYPE, ARROW_TYPE))
