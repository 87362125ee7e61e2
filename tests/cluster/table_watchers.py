"""Watchers of a table that write down what they were told, by the Python client and as an event stream.

Law of this file: each change stands behind the one before, whatever breaks. An event stream goes on at any
agent behind the last id that was told. The rows that come first, with the changes before the word `current`,
are a page of the whole table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from client_credentials import CREDENTIALS
from log_clients import CONNECT_TIMEOUT_S, GONE, MAX_HEAD_BYTES, PAUSE_S, Address, now_s
from table_clients import OK, TableWork, positions_in
from table_history import Scanned, Stored, Watched

from shoal import AsyncClient, ClientConfig, RetryPolicy, ShoalError, TableChangeKind, Unreachable
from shoal.errors import ClientError

WATCH_RETRY_MS = 8_000
STAY_S = (0.3, 1.0, 4.0)
"""So long a stream is read, then it is broken off and resumed elsewhere."""


class Contents:
    """The rows of a watch that begins, until they are the table at one cut."""

    def __init__(self) -> None:
        self._begun = now_s()
        self._rows: dict[str, tuple[str, int]] = {}

    def take(self, key: str, value: str | None, offset: int) -> None:
        """A row, or a change of one."""
        self._rows.pop(key, None)
        if value is not None:
            self._rows[key] = (value, offset)

    def page(self, client: str, cut: dict[int, int]) -> Scanned:
        """All of them, at this cut."""
        return Scanned(client, "", None, None, self._rows, cut, self._begun)


class TableWatcher:
    """Watches the whole table by the Python client; after a failure it begins anew."""

    def __init__(self, table: TableWork, name: str) -> None:
        self._table = table
        self._name = name

    async def run(self) -> None:
        """Until the work stops."""
        work = self._table.work
        while not work.stopping:
            proof = CREDENTIALS.get()
            urls = [proof.url(agent) for agent in work.agents()]
            config = ClientConfig(retry=RetryPolicy(total_ms=WATCH_RETRY_MS))
            try:
                async with AsyncClient(urls, config, **proof.options) as client:
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
        contents, watched = Contents(), None
        async with client.table(self._table.topic).watch() as watch:
            async for change in watch:
                value = None if change.value is None else change.value.decode()
                if change.kind is TableChangeKind.CURRENT:
                    watched = Watched(self._name, watch.positions() or {})
                    self._table.history.watches.append(watched)
                    self._table.history.scans.append(contents.page(self._name, watched.since))
                elif watched is None:
                    contents.take(change.key.decode(), value, change.offset)
                else:
                    place = (change.partition, change.offset)
                    watched.changes.append((place, Stored(change.key.decode(), value)))


class StreamWatcher:
    """Watches the whole table as an event stream. What it was told over all its connections is one watch, as
    long as each goes on behind the one before."""

    def __init__(self, table: TableWork, name: str) -> None:
        self._table = table
        self._name = name
        self._last_id: str | None = None
        self._watched: Watched | None = None

    async def run(self) -> None:
        """Until the work stops."""
        work = self._table.work
        while not work.stopping:
            try:
                async with asyncio.timeout(work.rng.choice(STAY_S)):
                    await self._stream(work.some_agent())
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                pass  # a stream that breaks, at any byte: the next one goes on
            await asyncio.sleep(PAUSE_S)

    async def _stream(self, agent: Address) -> None:
        """Raises OSError, TimeoutError, IncompleteReadError, ValueError."""
        contents = Contents()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            proof = CREDENTIALS.get()
            reader, writer = await asyncio.open_connection(*agent, limit=2**24, ssl=proof.tls)
        try:
            resumes = "" if self._last_id is None else f"Last-Event-ID: {self._last_id}\r\n"
            head = f"GET /v1/tables/{self._table.topic} HTTP/1.1\r\nHost: {agent[0]}:{agent[1]}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in proof.headers.items())
            writer.write(f"{head}Accept: text/event-stream\r\n{resumes}\r\n".encode())
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            if len(answer) > MAX_HEAD_BYTES:
                raise ValueError("a head without an end")
            status = int(answer.split(b" ")[1])
            if status == GONE:
                self._last_id = self._watched = None
            if status == OK:
                async for fields in _events(reader):
                    self._take(fields, contents)
        finally:
            writer.transport.abort()

    def _take(self, fields: dict[str, str], contents: Contents) -> None:
        kind, watched, told = fields.get("event"), self._watched, json.loads(fields.get("data", "null"))
        self._last_id = fields.get("id", self._last_id)
        if kind == "current" and watched is None:
            self._watched = watched = Watched(self._name, positions_in(told["as_of"]))
            self._table.history.watches.append(watched)
            self._table.history.scans.append(contents.page(self._name, watched.since))
        elif kind == "change" and watched is not None:
            place = (told["partition"], told["offset"])
            watched.changes.append((place, Stored(told["key"], told["value"])))
        elif kind in ("row", "change"):
            contents.take(told["key"], told["value"], told["offset"])


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, str]]:
    """The fields of each whole event of a chunked answer."""
    text = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        text += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, text = text.split(b"\n\n")
        for event in whole:
            lines = [line.partition(": ") for line in event.decode().split("\n")]
            yield {name: value for name, _, value in lines if name}
