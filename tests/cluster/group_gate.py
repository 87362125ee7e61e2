"""Requests of consumers over HTTP, at whichever agent.

Law of this file: routes, bodies and answers of docs/http.md, and nothing of agents but their addresses. What
an answer means is decided by `definite` in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote

from group_clients import UNKNOWN, Ask, Brought, Refused, Word
from group_history import Given
from log_clients import REQUEST_TIMEOUT_MS, Answer, Connections, NoAnswer, Workload

from shoal.format.receipt import parse, place_of
from shoal.format.timestamps import parse_time

OK = 200
MADE = (200, 201)
OUTCOMES = frozenset(
    {
        "receipt-malformed", "receipt-forged", "receipt-of-another-group", "receipt-before-seek",
        "receipt-expired", "receipt-used", "not-held", "too-fragmented", "letters-full", "bad-delay",
    }
)  # fmt: skip
"""Of a receipt. Any other code is that of a partition which did not answer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A group in one partition, as its document has it."""

    position: int
    lag: int
    skipped: int
    dropped: int
    dying: int
    dead: int
    generation: int
    high_watermark: int


class HttpGate:
    """A Gate, with connections of its own. `topic`: whose groups are asked for."""

    def __init__(self, work: Workload, topic: str) -> None:
        self._work = work
        self._topic = topic
        self._connections = Connections()

    async def create(self, group: str, settings: dict[str, Any]) -> None:
        """Raises Refused."""
        answer = await self._ask("PUT", self._path(group), settings, "3s")
        if answer.status not in MADE:
            raise _refused(answer)

    async def receive(self, ask: Ask) -> Brought:
        """See Gate."""
        body: dict[str, Any] = {
            "limit": ask.limit,
            "visibility": f"{ask.lease_ms}ms",
            "wait": f"{ask.wait_ms}ms",
            "consumer": ask.consumer,
            "instance": ask.instance,
            "request": ask.request,
            "retry": ask.retry,
            "ack": [word.receipt for word in ask.words],
        }
        path = self._path(ask.group, ask.partition)
        answer = await self._ask("POST", f"{path}/receive", body, f"{REQUEST_TIMEOUT_MS}ms")
        if answer.status != OK:
            raise _refused(answer)
        document = answer.body
        codes = _codes(document["acked"], ask.words)
        if document["partition"] is None:
            return Brought(None, 0, 0, 0, (), "", codes, document["reason"])
        messages = tuple(
            Given(
                item["offset"], item["attempt"], item["receipt"], item["value"], place_of(item["receipt"])[1]
            )
            for item in document["messages"]
        )
        receipt = document["receipt"]
        at_us = parse_time(document["delivered_at"])
        generation = parse(receipt).generation
        return Brought(
            document["partition"], document["delivery"], generation, at_us, messages, receipt, codes
        )

    async def act(
        self, group: str, partition: int | None, consumer: str, words: Sequence[Word]
    ) -> list[str | None]:
        """See Gate."""
        first = words[0]
        assert all((word.verb, word.delay_ms) == (first.verb, first.delay_ms) for word in words), words
        body: dict[str, Any] = {"receipts": [word.receipt for word in words]}
        if first.delay_ms is not None:
            body["visibility" if first.verb == "extend" else "delay"] = f"{first.delay_ms}ms"
        path = f"{self._path(group, partition)}/{first.verb}"
        answer = await self._ask("POST", path, body, f"{REQUEST_TIMEOUT_MS}ms")
        if answer.status != OK:
            raise _refused(answer)
        return list(_codes(answer.body, words))

    async def present(self, group: str, consumer: str, instance: str) -> list[int]:
        """See Gate. All partitions are told."""
        return await self._tell("POST", group, consumer, instance)

    async def leave(self, group: str, consumer: str, instance: str) -> list[int]:
        """See Gate."""
        return await self._tell("DELETE", group, consumer, instance)

    async def _tell(self, method: str, group: str, consumer: str, instance: str) -> list[int]:
        path = f"{self._path(group)}/consumers/{quote(consumer, safe='')}"
        answer = await self._ask(method, path, {"instance": instance}, "1s")
        if answer.status != OK:
            raise _refused(answer)
        return [int(partition) for partition in answer.body["led"]]

    async def seek(self, group: str, partition: int, to: Any) -> tuple[int, int]:
        """Offset and generation. Raises Refused."""
        body = await self._done("POST", f"{self._path(group, partition)}/seek", {"to": to})
        return int(body["offset"]), int(body["generation"])

    async def redrive(self, group: str, partition: int, limit: int | None) -> int:
        """How many letters came again. Raises Refused."""
        body = await self._done("POST", f"{self._path(group, partition)}/redrive", {"limit": limit})
        return int(body["redriven"])

    async def change(self, group: str, settings: dict[str, Any]) -> None:
        """Raises Refused."""
        await self._done("PATCH", self._path(group), settings)

    async def change_topic(self, settings: dict[str, Any]) -> None:
        """Raises Refused."""
        await self._done("PATCH", f"/v1/topics/{self._topic}", settings)

    async def _done(self, method: str, path: str, body: dict[str, Any]) -> Any:
        answer = await self._ask(method, path, body, "3s")
        if answer.status != OK:
            raise _refused(answer)
        return answer.body

    async def standing(self, group: str, partition: int) -> Standing:
        """Raises Refused."""
        answer = await self._ask("GET", self._path(group), None, "2s")
        entries = answer.body["partitions"] if answer.status == OK else []
        for entry in entries:
            if entry["partition"] == partition:
                return Standing(*(int(entry[item.name]) for item in fields(Standing)))
        raise _refused(answer)

    def _path(self, group: str, partition: int | None = None) -> str:
        place = "" if partition is None else f"/partitions/{partition}"
        return f"/v1/topics/{self._topic}{place}/groups/{group}"

    async def _ask(self, method: str, path: str, body: Any, timeout: str) -> Answer:
        agent = self._work.some_agent()
        sign = "&" if "?" in path else "?"
        try:
            return await self._connections.request(agent, method, f"{path}{sign}timeout={timeout}", body)
        except NoAnswer as error:
            raise Refused(str(error), definite=not error.sent) from None

    def close(self) -> None:
        """End the connections."""
        self._connections.close()


def _refused(answer: Answer) -> Refused:
    return Refused(f"{answer.status} {answer.body}"[:500], definite=answer.definite)


def _codes(said: dict[str, Any], words: Sequence[Word]) -> tuple[str | None, ...]:
    failed = {
        item["receipt"]: item["code"] if item["code"] in OUTCOMES else UNKNOWN for item in said["failed"]
    }
    codes = tuple(failed.get(word.receipt) for word in words)
    assert said["done"] == codes.count(None), f"{said} of {words}"
    return codes
