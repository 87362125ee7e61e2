"""Clients of a table that write down what they did: they get, put, delete, compare and set, and watch.

Law of this file: HTTP as users speak it, at whichever agent, and the Python client for watches. What an
answer means is decided by `definite` in it. Each value is written once.
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
from table_history import RowAct, Stored, TableHistory, Watched

from shoal import AsyncClient, ClientConfig, RetryPolicy, ShoalError, TableChangeKind, Unreachable
from shoal.errors import ClientError
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for

OK, ABSENT, REFUSED = 200, 404, 412
KEYS = 4
ACTS_PER_GENERATION = 100
"""Then other keys are used: the search for an order is over few acts of each."""
KINDS = ("get", "get", "get", "local", "put", "put", "put-if", "put-if", "put-if", "delete", "delete-if")
WATCH_RETRY_MS = 8_000


@dataclass
class TableWork:
    """What the clients of one table share."""

    work: Workload
    topic: str
    partitions: int
    history: TableHistory
    acts: int = 0

    def some_key(self) -> str:
        """One of those that are in use now. None of its characters may be lost on the way."""
        self.acts += 1
        return f"{self.acts // ACTS_PER_GENERATION}/../%2F {self.work.rng.randrange(KEYS)}"

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

    async def _write(self, kind: str, key: str) -> None:
        seen = self._known.get(key)
        if kind == "delete-if" and seen is None:
            kind = "delete"
        self._number += 1
        value = None if kind.startswith("delete") else f"{self._name}-{self._number}"
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
        elif answer is not None and answer.status == REFUSED and not uncertain:
            status, current = REFUSED, answer.body["current"]
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


class TableWatcher:
    """Watches the whole table by the Python client; after a failure it begins anew."""

    def __init__(self, table: TableWork, name: str) -> None:
        self._table = table
        self._name = name

    async def run(self) -> None:
        """Until the work stops."""
        work = self._table.work
        while not work.stopping:
            urls = [f"http://{host}:{port}" for host, port in work.agents()]
            config = ClientConfig(retry=RetryPolicy(total_ms=WATCH_RETRY_MS))
            try:
                async with AsyncClient(urls, config=config) as client:
                    watching = asyncio.ensure_future(self._watch(client))
                    while not (work.stopping or watching.done()):
                        await asyncio.sleep(PAUSE_S)
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                    if not watching.cancelled() and (error := watching.exception()) is not None:
                        raise error
            except (ShoalError, Unreachable, ClientError):
                await asyncio.sleep(PAUSE_S)

    async def _watch(self, client: AsyncClient) -> None:
        watched: Watched | None = None
        async with client.table(self._table.topic).watch() as watch:
            async for change in watch:
                if change.kind is TableChangeKind.CURRENT:
                    watched = Watched(self._name, watch.positions() or {})
                    self._table.history.watches.append(watched)
                elif watched is not None:
                    value = None if change.value is None else change.value.decode()
                    place = (change.partition, change.offset)
                    watched.changes.append((place, Stored(change.key.decode(), value)))
