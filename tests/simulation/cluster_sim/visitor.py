"""Somebody who tries everything else that agents answer: reads of whole topics, streams, settings, documents,
and requests that are none.

Law of this file: one request at a time, through any agent. What it reads of records goes into the history;
beyond that an answer is wrong if it is an internal error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

from log_clients import ARROW_TYPE, Connections, NoAnswer, Workload, now_s
from log_history import Poll

from cluster_sim.invariants import InvariantViolation

OWN_TOPIC = "visited"
PAUSE_S = 0.15
INTERNAL = 500
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
LONG_RECORDS, LONG_VALUE_BYTES = 24, 60_000
"""Together more than is answered whole."""


class Visitor:
    """`topic`: that of the others, which it only reads."""

    def __init__(self, work: Workload, topic: str) -> None:
        self._work = work
        self._topic = topic
        self._connections = Connections()
        self._reads = 0
        self._agent = ("", 0)

    async def run(self) -> None:
        """Until the work stops."""
        try:
            for method, path, body, headers in itertools.cycle(list(self._requests())):
                if self._work.stopping:
                    return
                await self._ask(method, path, body, headers)
                await asyncio.sleep(self._work.pause_s(PAUSE_S, 1.0))
        finally:
            self._connections.close()

    def _requests(self) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """(method, path, body, headers)."""
        own, other = f"/v1/topics/{OWN_TOPIC}", f"/v1/topics/{self._topic}"
        yield "PUT", own, {"partitions": 2}, {}
        yield from self._whole_topic(other)
        yield from self._bodies(own)
        yield from self._reads_of(own)
        for path in ("/v1/topics", own, "/v1/members", "/v1/routes", "/v1/agent", "/v1/agent/drain"):
            yield "GET", path, None, {}
        for path in ("/livez", "/readyz?verbose", "/metrics", "/v1/kept-topics", "/v1/keys"):
            yield "GET", path, None, {}
        yield "GET", "/v1/members/n0", None, {}
        yield "GET", "/v1/events", None, {"Accept": EVENTS}
        yield "PATCH", own, {"retention": {"bytes": 1 << 20}}, {}
        yield "POST", f"{own}/partitions/0/trim", {"before": 3}, {}
        yield from self._refused(own)

    @staticmethod
    def _whole_topic(other: str) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """All partitions in one order."""
        yield "GET", f"{other}/records?limit=50", None, {}
        yield "GET", f"{other}/records?limit=20&offset=-10", None, {"Accept": NDJSON}
        yield "GET", f"{other}/records?limit=10&offset=-2", None, {"Accept": EVENTS}
        yield "GET", f"{other}/partitions/0/records?offset=-5&limit=3", None, {"Accept": EVENTS}
        yield "GET", f"{other}/partitions/0/records?offset=@2023-11-14T22:13:20Z&limit=5", None, {}
        yield "GET", f"{other}/offsets?at=2023-11-14T22:20:00Z", None, {}
        yield "GET", f"{other}/offsets?after=0:0&wait=100ms", None, {}

    @staticmethod
    def _bodies(own: str) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """Everything that can be sent, and enough of it for a long answer."""
        lines = b"".join(b'{"n": %d}\n' % number for number in range(20))
        yield "POST", f"{own}/records?key_field=n", lines, {"Content-Type": NDJSON}
        yield "POST", f"{own}/records?key=a", b"one value", {"Content-Type": "text/plain"}
        headers = {"name": "value"}
        record = {"value": {"a": 1}, "key": "b", "timestamp": 1, "headers": headers}
        yield "POST", f"{own}/partitions/0/records?acks=none", {"records": [record]}, {}
        values = [{"value": "x" * LONG_VALUE_BYTES} for _ in range(LONG_RECORDS)]
        yield "POST", f"{own}/partitions/0/records", {"records": values}, {}

    @staticmethod
    def _reads_of(own: str) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        for accept in (NDJSON, ARROW_TYPE, "application/json"):
            path = f"{own}/partitions/0/records?value=json&limit=100"
            yield "GET", path if accept != ARROW_TYPE else path.partition("?")[0], None, {"Accept": accept}
        yield "GET", f"{own}/partitions/0/records?view=value&offset=latest", None, {"Accept": NDJSON}
        yield "GET", f"{own}/partitions/0/records?offset=999999", None, {}

    @staticmethod
    def _refused(own: str) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """What no agent takes, each for another reason."""
        yield "GET", "/v1/nothing", None, {}
        yield "PUT", "/v1/agent", None, {}
        yield "GET", f"{own}/records?cursor=rubbish", None, {}
        yield "GET", f"{own}/partitions/99/records", None, {}
        yield "POST", f"{own}/records", b"{", {"Content-Type": "application/json"}
        yield "POST", f"{own}/records", b"", {"Content-Type": "text/plain"}
        yield "POST", f"{own}/partitions/0/records", b"no stream", {}
        yield "POST", f"{own}/records?timeout=never", b"a", {"Content-Type": "text/plain"}
        yield "GET", "/v1/agent", None, {"Origin": "http://elsewhere.example"}
        yield "PATCH", own, {"partitions": 0}, {}
        yield "GET", "/v1/agent/recover?topic=visited&partition=0", None, {}

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> None:
        self._agent = self._work.some_agent()
        invoked_at = now_s()
        try:
            status, _, answer = await self._connections.exchange(self._agent, method, path, body, headers)
        except NoAnswer:
            return
        if status == INTERNAL:
            raise InvariantViolation("NoInternalError", f"{method} {path}: {answer[:500]!r}")
        if method == "GET" and status == 200 and path.startswith(f"/v1/topics/{self._topic}/records?"):
            self._note(answer, headers.get("Accept", ""), invoked_at)

    def _note(self, answer: bytes, form: str, invoked_at: float) -> None:
        """Records of several partitions in one order: of each, without a hole."""
        by_partition: dict[int, list[tuple[int, str]]] = {}
        for record in _records(answer.decode(), form):
            place = by_partition.setdefault(int(record["partition"]), [])
            place.append((int(record["offset"]), str(record["value"])))
        self._reads += 1
        for partition, records in by_partition.items():
            first, last = records[0][0], records[-1][0]
            self._work.history.polls.append(
                Poll(
                    f"visitor.{self._reads}",
                    (self._topic, partition),
                    first,
                    tuple(records),
                    last + 1,
                    invoked_at,
                    linearizable=False,
                    completed_at=now_s(),
                )
            )


def _records(text: str, form: str) -> list[dict[str, Any]]:
    """Of an answer in any of its forms."""
    if form == NDJSON:
        lines = text.splitlines()
    elif form == EVENTS:
        lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    else:
        lines = [json.dumps(record) for record in json.loads(text)["records"]]
    return [found for line in lines if "offset" in (found := json.loads(line)) and "value" in found]
