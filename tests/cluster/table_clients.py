"""Clients of a table that write down what they did: they get, put, delete, compare and set, and scan.

Law of this file: HTTP as users speak it, at whichever agent. What an answer means is decided by `definite` in
it. Each value is written once. Who watches stands in table_watchers.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import quote

from log_clients import (
    PAUSE_S,
    REQUEST_TIMEOUT_MS,
    Answer,
    NoAnswer,
    Steady,
    Workload,
    now_s,
)
from table_history import RowAct, Scanned, TableHistory

from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for

OK, ABSENT, REFUSED = 200, 404, 412
KEYS = 4
ACTS_PER_GENERATION = 100
"""Then other keys are used: the search for an order is over few acts of each."""
KINDS = ("get", "get", "get", "local", "put", "put", "put-if", "put-if", "put-if", "delete", "delete-if")
KINDS += ("scan",)
SCAN_LIMITS = (2, 7, 1_000)


@dataclass
class TableWork:
    """What the clients of one table share. `padding`: bytes behind each value."""

    work: Workload
    topic: str
    partitions: int
    history: TableHistory
    padding: int = 0
    acts: int = 0

    def some_key(self) -> str:
        """One of those that are in use now. None of its characters may be lost on the way."""
        self.acts += 1
        return f"{self.stem}/../%2F {self.work.rng.randrange(KEYS)}"

    @property
    def stem(self) -> str:
        """With which all keys begin that are in use now, and a few of before."""
        return str(self.acts // ACTS_PER_GENERATION)

    def partition_of(self, key: str) -> int:
        return partition_for(key_hash(key.encode()), hash_ranges(self.partitions))


class RowClient(Steady):
    """One act after the other. `sequenced`: with a producer's sequences, so that what was not answered is
    asked again; otherwise each request is sent once."""

    def __init__(self, table: TableWork, name: str, pause_s: float, *, sequenced: bool) -> None:
        super().__init__(table.work, pause_s)
        self._table = table
        self._name = name
        self._sequenced = sequenced
        self._number = 0
        self._known: dict[str, tuple[str, int] | None] = {}
        """Of each key the value and ETag that were seen last, None for no row."""
        self._renew()

    def _renew(self) -> None:
        self._identity = f"{self._work.rng.getrandbits(128):032x}"
        self._sequences: dict[int, int] = {}

    async def _act(self) -> None:
        kind = self._work.rng.choice(KINDS)
        key = self._table.some_key()
        if kind in ("get", "local"):
            await self._read(kind, key)
        elif kind == "scan":
            await self._scan(key)
        else:
            await self._write(kind, key)

    async def get(self, key: str) -> bool:
        """Whether the row was read, or is known not to be there."""
        return await self._read("get", key)

    async def _read(self, kind: str, key: str) -> bool:
        begun = now_s()
        query = "&consistency=local" if kind == "local" else ""
        try:
            status, fields, body = await self._connections.exchange(
                self._work.some_agent(), "GET", self._path(key, query)
            )
        except NoAnswer:
            return False
        if status not in (OK, ABSENT) or (status == ABSENT and json.loads(body)["code"] != "unknown-key"):
            return False
        value = body.decode() if status == OK else None
        if kind == "get":
            self._known[key] = None if value is None else (value, int(fields["etag"].strip('"')))
        self._note(kind, key, value, status, begun)
        return True

    async def _scan(self, key: str) -> None:
        """A page: of all rows, or of those with the keys in use, perhaps behind one of them."""
        rng, begun = self._work.rng, now_s()
        prefix = rng.choice(("", self._table.stem))
        after = rng.choice((None, key))
        query = f"?timeout={REQUEST_TIMEOUT_MS}ms&prefix={prefix}&limit={rng.choice(SCAN_LIMITS)}"
        query += "" if after is None else f"&after={quote(after, safe='')}"
        path = f"/v1/tables/{self._table.topic}{query}"
        try:
            answer = await self._connections.request(self._work.some_agent(), "GET", path)
        except NoAnswer:
            return
        if answer.status == OK:
            rows = {row["key"]: (row["value"], row["offset"]) for row in answer.body["rows"]}
            last = None if answer.body["is_last"] else max(rows, key=str.encode)
            cut = positions_in(answer.body["as_of"])
            self._table.history.scans.append(Scanned(self._name, prefix, after, last, rows, cut, begun))

    async def _write(self, kind: str, key: str) -> None:
        seen = self._known.get(key)
        if kind == "delete-if" and seen is None:
            kind = "delete"
        self._number += 1
        value = (
            None
            if kind.startswith("delete")
            else f"{self._name}-{self._number}".ljust(self._table.padding, ".")
        )
        condition = {}
        if kind.endswith("-if"):
            condition = {"If-None-Match": "*"} if seen is None else {"If-Match": f'"{seen[1]}"'}
        begun = now_s()
        answer, uncertain = await self._until_known(key, value, condition)
        self._known.pop(key, None)
        status, offset, current = None, None, None
        if answer is not None and answer.status == OK:
            status, [run] = OK, answer.body["appended"]
            offset = run["base_offset"]
            if value is not None:
                self._known[key] = (value, offset)
        elif answer is not None and answer.status == REFUSED:
            status, current = None if uncertain else REFUSED, answer.body["current"]
        elif answer is not None and answer.definite and not uncertain:
            self._table.history.undone |= {value} if value else set()
            return
        if status is None:
            self._renew()  # nobody knows which sequence is the next one
        if status == REFUSED and value:
            self._table.history.undone.add(value)
        expected = seen[0] if condition and seen is not None else None
        self._note(kind, key, value, status, begun, expected, offset, current)

    async def _until_known(
        self, key: str, value: str | None, condition: dict[str, str]
    ) -> tuple[Answer | None, bool]:
        """The answer, and whether an attempt before it may have happened."""
        partition = self._table.partition_of(key)
        headers = {**condition, "Content-Type": "application/octet-stream"}
        if self._sequenced:
            sequence = self._sequences.get(partition, 0)
            headers |= {
                "Shoal-Producer-Id": self._identity,
                "Shoal-Producer-Epoch": "0",
                "Shoal-Producer-Sequence": str(sequence),
            }
        uncertain = False
        while True:
            method, body = ("DELETE", None) if value is None else ("PUT", value.encode())
            try:
                answer = await self._connections.request(
                    self._work.some_agent(), method, self._path(key), body, headers
                )
            except NoAnswer as error:
                answer = None
                uncertain = uncertain or error.sent
            else:
                if answer.status not in (OK, REFUSED):
                    self._work.refused(self._name, answer)
                uncertain = uncertain or (answer.status not in (OK, REFUSED) and not answer.definite)
            if answer is not None and answer.status in (OK, REFUSED):
                if answer.status == OK:
                    self._sequences[partition] = self._sequences.get(partition, 0) + 1
                return answer, uncertain
            if not self._sequenced or self._work.stopping:
                return answer, uncertain
            await asyncio.sleep(PAUSE_S * self._work.rng.uniform(0.5, 2))

    def _path(self, key: str, query: str = "") -> str:
        timeout = f"?timeout={REQUEST_TIMEOUT_MS}ms{query}"
        return f"/v1/tables/{self._table.topic}/{quote(key, safe='')}{timeout}"

    def _note(
        self,
        kind: str,
        key: str,
        value: str | None,
        status: int | None,
        begun: float,
        expected: str | None = None,
        offset: int | None = None,
        current: int | None = None,
    ) -> None:
        partition = self._table.partition_of(key)
        self._table.history.acts.append(
            RowAct(self._name, kind, key, value, status, begun, now_s(), expected, partition, offset, current)
        )


def positions_in(text: str) -> dict[int, int]:
    """Of `0:17,1:9`: by partition."""
    return {
        int(number): int(offset) for number, _, offset in (item.partition(":") for item in text.split(","))
    }
