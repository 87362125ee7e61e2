"""The bodies of requests about consumer groups, checked: nothing is asked of the agent before that.

Law of this file: plain values in and out; ShoalError bad-request names the field and its legal values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, NamedTuple

from shoal.agent.http.api import patterns
from shoal.agent.interface import NOBODY, DuePlace, Json, Range
from shoal.errors import ShoalError, shown
from shoal.format.timestamps import format_duration, parse_duration_ms, parse_time

LIMIT_MAX = 100_000
DEFAULT_LIMIT = 10
DEFAULT_ARROW_LIMIT = 1_000
MAX_BYTES_MAX = 64 * 2**20
DEFAULT_MAX_BYTES = 2**20
WAIT_MAX_MS = 60_000
RECEIPTS_MAX = 100_000
REASON_BYTES_MAX = 256
_HOUR_MS = 3_600_000
VISIBILITY_MS = (1_000, 12 * _HOUR_MS)
DELAY_MS = (0, 7 * 24 * _HOUR_MS)
RECEIVE_FIELDS = (
    "limit", "max_bytes", "wait", "visibility", "consumer", "instance", "request", "retry", "ack", "promise",
    "acked",
)  # fmt: skip
OFFSET_MAX = 2**63 - 1
PLACE_MAX = 2**62
"""No log gets so far."""


class ReceiveBody(NamedTuple):
    """A receive. `visibility_ms` None: the group's. `acks`: receipts. Of an agent that forwards: `promise`, 0
    for none, and `acked`, the outcomes of acks that it has told to others."""

    limit: int
    max_bytes: int
    wait_ms: int
    visibility_ms: int | None
    consumer: str
    instance: str
    request: str
    retry: bool
    acks: list[str]
    promise: int
    acked: Json | None


class ActBody(NamedTuple):
    """A word about messages. `up_to`: offsets by partition, all that the consumer holds there is done."""

    receipts: list[str]
    delay_ms: int | None
    reason: str
    up_to: dict[int, int]
    consumer: str


def name_hash(name: str) -> bytes:
    """A consumer, an instance or a request as groups know it."""
    return blake2b(name.encode(), digest_size=16).digest() if name else NOBODY


def receive_body(body: Json | None, *, is_arrow: bool) -> ReceiveBody:
    """Of POST .../receive; without a body everything is as it is by default."""
    body = body or {}
    check_fields(body, RECEIVE_FIELDS)
    retry = body.get("retry", False)
    if not isinstance(retry, bool):
        raise ShoalError("bad-request", "retry must be true or false")
    default = DEFAULT_ARROW_LIMIT if is_arrow else DEFAULT_LIMIT
    visibility = body.get("visibility")
    return ReceiveBody(
        integer_in(body, "limit", default, 1, LIMIT_MAX),
        integer_in(body, "max_bytes", DEFAULT_MAX_BYTES, 1, MAX_BYTES_MAX),
        duration_in(body.get("wait", 0), "wait", 0, WAIT_MAX_MS),
        None if visibility is None else duration_in(visibility, "visibility", *VISIBILITY_MS),
        label_in(body, "consumer"),
        label_in(body, "instance"),
        label_in(body, "request"),
        retry,
        receipts_in(body, "ack"),
        integer_in(body, "promise", 0, 0, OFFSET_MAX),
        body.get("acked"),
    )


def act_body(verb: str, body: Json | None) -> ActBody:
    """Of POST .../ack, nack, release, reject, extend."""
    body = body or {}
    fields = {"nack": ("delay", "reason"), "reject": ("reason",), "extend": ("visibility",)}
    more = ("up_to", "consumer") if verb == "ack" else fields.get(verb, ())
    check_fields(body, ("receipts", *more))
    receipts = receipts_in(body, "receipts")
    up_to = _offsets_in(body.get("up_to"), "up_to") if "up_to" in body else {}
    if not receipts and not up_to:
        raise ShoalError("bad-request", 'no receipt: send {"receipts": [...]} with those of a receive')
    delay = {"nack": body.get("delay"), "extend": body.get("visibility")}.get(verb)
    label, bounds = ("visibility", VISIBILITY_MS) if verb == "extend" else ("delay", DELAY_MS)
    delay_ms = None if delay is None else duration_in(delay, label, *bounds)
    consumer = label_in(body, "consumer")
    if up_to and not consumer:
        raise ShoalError("bad-request", "up_to speaks of what one consumer holds: name it in `consumer`")
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason.encode("utf-8", "replace")) > REASON_BYTES_MAX:
        raise ShoalError("bad-request", f"reason must be text of at most {REASON_BYTES_MAX} bytes")
    return ActBody(receipts, delay_ms, reason, up_to, consumer)


def receipts_in(body: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts; whether they are receipts is told of each."""
    receipts = body.get(name)
    if receipts is None:
        return []
    if not isinstance(receipts, list) or not all(isinstance(item, str) for item in receipts):
        raise ShoalError("bad-request", f"{name} must be a list of receipts, which are texts")
    if len(receipts) > RECEIPTS_MAX:
        raise ShoalError("bad-request", f"{name} has {len(receipts)} receipts, at most {RECEIPTS_MAX}")
    return receipts


def label_in(body: Mapping[str, Any], name: str) -> str:
    """1 to 128 printable characters; empty where the body has none."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or re.fullmatch(patterns.PRODUCER_ID, value) is None:
        raise ShoalError("bad-request", f"{name} must be 1 to 128 printable ASCII characters")
    return value


def integer_in(body: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ShoalError("bad-request", f"{name} must be a whole number from {low} to {high}")
    return value


def duration_in(value: Any, name: str, low_ms: int, high_ms: int) -> int:
    """A duration as text, or milliseconds."""
    length_ms = -1
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            length_ms = parse_duration_ms(str(value))
        except ShoalError:
            length_ms = -1
    if not low_ms <= length_ms <= high_ms:
        bounds = f"{format_duration(low_ms)} to {format_duration(high_ms)}"
        raise ShoalError("bad-request", f"{name} must be a duration from {bounds}, such as 30s")
    return length_ms


def check_fields(body: Mapping[str, Any], known: Collection[str]) -> None:
    """ShoalError bad-request for a field that nobody knows, with the one that was probably meant."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        meant = get_close_matches(unknown[0].lower(), known, n=1)
        hint = f": did you mean {meant[0]!r}? Use" if meant else ": use"
        raise ShoalError("bad-request", f"unknown field {shown(unknown[0])}{hint} {', '.join(known)}")


SeekTarget = str | int | dict[int, int]


def seek_target(body: Json | None) -> SeekTarget:
    """Of POST .../seek: earliest, latest, @TIME, an offset, or offsets by partition."""
    body = body or {}
    check_fields(body, ("to",))
    target = body.get("to")
    if isinstance(target, dict):
        return _offsets_in(target, "to")
    if isinstance(target, int) and not isinstance(target, bool) and 0 <= target <= OFFSET_MAX:
        return target
    if isinstance(target, str) and target.startswith("@"):
        parse_time(target[1:])
        return target
    if target in ("earliest", "latest"):
        return str(target)
    raise ShoalError(
        "bad-request", 'to must be "earliest", "latest", "@" and a time, or offsets as {"0": 17}'
    )


def _offsets_in(value: Any, name: str) -> dict[int, int]:
    wrong = ShoalError("bad-request", f'{name} must be offsets by partition, as {{"0": 17}}')
    if not isinstance(value, dict) or not value:
        raise wrong
    found: dict[int, int] = {}
    for partition, offset in value.items():
        if re.fullmatch("0|[1-9][0-9]{0,3}", partition) is None:
            raise wrong
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
            raise wrong
        found[int(partition)] = offset
    return found


def stopped_range(body: Json | None) -> tuple[int, Range, str]:
    """Of POST .../decide: partition, message, and what becomes of it."""
    body = body or {}
    check_fields(body, ("partition", "offset", "action"))
    if not {"partition", "offset"} <= body.keys():
        raise ShoalError("bad-request", "decide needs partition, offset and action")
    partition = integer_in(body, "partition", 0, 0, 2**31 - 1)
    offset = integer_in(body, "offset", 0, 0, PLACE_MAX)
    action = body.get("action")
    if action not in ("retry", "letter", "drop"):
        raise ShoalError("bad-request", "action must be retry, letter or drop")
    return partition, Range(*DuePlace(0, offset), 1), str(action)
