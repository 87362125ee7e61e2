"""The requests of a consumer to its group, and the answers to them.

Law of this file: it writes bodies and reads answers; it waits for nothing and keeps nothing. docs/http.md has
the shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from shoal.client.http.requests import Answer, Call
from shoal.client.subscribe.ledger import ActRequest, MessagePiece
from shoal.errors import ShoalError
from shoal.format.arrow_stream import ARROW_STREAM
from shoal.format.batch import decode_stream

_RANGE: Final = re.compile(r"(\d+)(?:@(\d+))?\+(\d+)\*(\d+)", re.ASCII)
_JSON: Final = {"Content-Type": "application/json"}
_DAMAGED: Final = "the agent's answer to a receive is damaged"


class ReceiveTerms(NamedTuple):
    """The part of a receive that is the same in all of a consumer."""

    consumer: str
    instance: str
    limit: int
    max_bytes: int
    visibility_ms: int


class RepeatableBody:
    """The body of a request that may be repeated. `again`: an attempt before the last one may have
    happened."""

    def __init__(self, document: dict[str, Any], **repeated: Any) -> None:
        """`repeated`: what a repetition says beside that."""
        self.again = False
        self._document = document
        self._repeated = repeated

    def first(self) -> bytes:
        """Of the first attempt."""
        return json.dumps(self._document).encode()

    def repeat(self) -> bytes:
        """Of all after one that may have happened."""
        self.again = True
        return json.dumps({**self._document, **self._repeated}).encode()


def receive_body(asking: ReceiveTerms, request: str, wait_ms: int, acks: Sequence[str]) -> RepeatableBody:
    """A receive. Repeated after an attempt that may have happened, it brings the same messages."""
    document: dict[str, Any] = {
        "limit": asking.limit,
        "max_bytes": asking.max_bytes,
        "wait": f"{wait_ms}ms",
        "visibility": f"{asking.visibility_ms}ms",
        "consumer": asking.consumer,
        "instance": asking.instance,
        "request": request,
    }
    if acks:
        document["ack"] = list(acks)
    return RepeatableBody(document, retry=True)


def receive_call(path: str, body: RepeatableBody, wait_ms: int) -> Call:
    """The request of a receive that an agent may hold so long."""
    headers = {**_JSON, "Accept": ARROW_STREAM}
    path = f"{path}/receive"
    return Call("POST", path, headers=headers, body=body.first(), body_again=body.repeat, wait_ms=wait_ms)


def act_body(request: ActRequest) -> RepeatableBody:
    """A word about messages."""
    document: dict[str, Any] = {"receipts": request.receipts}
    if request.word.delay_ms is not None:
        document["delay"] = f"{request.word.delay_ms}ms"
    if request.word.reason and request.word.kind == "nack":
        document["reason"] = request.word.reason
    return RepeatableBody(document)


def act_call(path: str, request: ActRequest, body: RepeatableBody) -> Call:
    """The request that says the word."""
    path = f"{path}/{request.word.kind}"
    return Call("POST", path, headers=_JSON, body=body.first(), body_again=body.repeat)


def extend_call(path: str, receipts: Sequence[str], visibility_ms: int) -> Call:
    """These messages are worked on: they are held so long from now on."""
    return _posted(f"{path}/extend", {"receipts": list(receipts), "visibility": f"{visibility_ms}ms"})


def presence_call(path: str, consumer: str, instance: str, *, leaves: bool) -> Call:
    """The consumer of an exclusive group is there, or goes."""
    call = _posted(f"{path}/consumers/{quote(consumer, safe='')}", {"instance": instance})
    return call._replace(method="DELETE") if leaves else call


def _posted(path: str, body: Mapping[str, Any]) -> Call:
    return Call("POST", path, headers=_JSON, body=json.dumps(body).encode())


class Arrival(NamedTuple):
    """The answer to a receive. `rows` None: there were no messages, and `reason` says why. `refused`: acks
    of the request that were not taken. `again`: an attempt before this answer may have happened."""

    partition: int
    receipt: str
    pieces: tuple[MessagePiece, ...]
    rows: pa.RecordBatch | None
    reason: str
    refused: int
    again: bool = False


def arrival_of(answer: Answer) -> Arrival:
    """Raises ShoalError internal for an answer that breaks the contract."""
    headers = answer.headers
    try:
        _, batches = decode_stream(answer.body)
        refused = int(headers.get("Shoal-Ack-Failed", "0"))
        filled = [batch for batch in batches if batch.num_rows]
        if not filled:
            return Arrival(-1, "", (), None, headers.get("Shoal-Reason", "empty"), refused)
        partition = int(headers["Shoal-Partition"])
        receipt = headers["Shoal-Receipt"]
        pieces = _pieces(headers["Shoal-Ranges"])
    except (KeyError, ValueError) as error:  # BatchError is a ValueError
        raise ShoalError("internal", f"{_DAMAGED}: {error!r}") from error
    rows = filled[0] if len(filled) == 1 else pa.concat_batches(filled)
    told = sum(piece.rows for piece in pieces)
    if told != rows.num_rows:
        raise ShoalError("internal", f"{_DAMAGED}: {rows.num_rows} rows for {told} messages")
    return Arrival(partition, receipt, pieces, rows, "", refused)


def _pieces(text: str) -> tuple[MessagePiece, ...]:
    pieces = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"no range of messages: {part[:80]!r}")
        first, due, rows, attempt = found.groups()
        pieces.append(MessagePiece(int(first), int(rows), int(attempt), int(due or 0)))
    return tuple(pieces)


def refusals(answer: Answer) -> list[tuple[str, str]]:
    """Receipt and code of each message that an act was refused for. Raises ShoalError internal."""
    try:
        return [(entry["receipt"], entry["code"]) for entry in answer.document()["failed"]]
    except (KeyError, TypeError) as error:
        raise ShoalError("internal", f"the agent's answer about receipts lacks {error}") from error
