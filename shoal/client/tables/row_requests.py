"""One row at its partition's leader: read, put, deleted, compared. No write is stored twice.

Law of this file: it asks and reads answers, and keeps no row. Each write carries a producer's id and
sequence. A repetition after a lost answer is told what the first attempt did: it overwrites nobody's later
value.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from shoal.client.http.requests import Answer, Call, Cluster, Unreachable, now_ms
from shoal.client.http.topics import known_routes, outcome_of
from shoal.client.tables.entries import TableEntry, offset_of_etag, row_place
from shoal.errors import ShoalError
from shoal.format.hash_ranges import key_hash, partition_for
from shoal.format.timestamps import parse_time

DEPOSED_GRACE_MS: Final = 1_000
"""A leader may be silent so long before other agents are asked who leads by now."""
WRITES_MAX: Final = 64
"""Writes of one table under way at a time; others wait. An agent remembers a producer for each of those that
were under way in a partition at the same moment."""
WRITER_KEPT_MS: Final = 600_000
"""An idle producer is not used again after so long: agents forget theirs after a day."""
IF_ABSENT: Final = {"If-None-Match": "*"}
"""The condition that the row is not there."""


class _Writer(NamedTuple):
    """A producer of one partition, used by one write at a time."""

    identity: str
    sequence: int
    idle_ms: int


class RowRequests:
    """Rows of one table. `local`: reads are answered by the replica that is nearest. All methods raise
    ShoalError and Unreachable."""

    def __init__(self, cluster: Cluster, topic: str, *, local: bool) -> None:
        self.topic = topic
        self.local = local
        self._cluster = cluster
        self._idle: dict[int, deque[_Writer]] = {}
        """By partition, the latest used last: together no more than WRITES_MAX a partition."""
        self._room = asyncio.Semaphore(WRITES_MAX)

    async def get(self, key: bytes) -> TableEntry | None:
        """The row; None when it is not there."""
        partition = await self._partition(key)
        path, params = row_place(self.topic, key)
        call = Call("GET", path, params, bulk=True)
        try:
            answer = None
            if self.local:
                near = call._replace(params={**params, "consistency": "local"})
                answer = await self._cluster.at_replica(self.topic, partition, near)
            if answer is None:
                answer = await self._cluster.at_leader(self.topic, partition, call, DEPOSED_GRACE_MS)
        except ShoalError as error:
            if error.code == "unknown-key":
                return None
            raise
        return _entry(key, partition, answer)

    async def put(self, key: bytes, value: bytes, conditions: Mapping[str, str]) -> int:
        """Store the value; its ETag. `conditions`: `if_match`, IF_ABSENT, or none."""
        headers = {"Content-Type": "application/octet-stream", **conditions}
        path, params = row_place(self.topic, key)
        return await self._write(key, Call("PUT", path, params, headers, body=value, append=True))

    async def delete(self, key: bytes, conditions: Mapping[str, str]) -> int:
        """Remove the row; the offset of the record that does."""
        path, params = row_place(self.topic, key)
        return await self._write(key, Call("DELETE", path, params, conditions, append=True))

    async def _write(self, key: bytes, call: Call) -> int:
        partition = await self._partition(key)
        async with self._room:
            idle = self._idle.get(partition)
            if idle and now_ms() - idle[-1].idle_ms < WRITER_KEPT_MS:
                writer = idle.pop()
            else:
                self._idle.pop(partition, None)  # all are older
                writer = _Writer(secrets.token_hex(16), 0, now_ms())
            headers = {
                **call.headers,
                "Shoal-Producer-Id": writer.identity,
                "Shoal-Producer-Epoch": "0",
                "Shoal-Producer-Sequence": str(writer.sequence),
            }
            call = call._replace(headers=headers)
            try:
                answer = await self._cluster.at_leader(self.topic, partition, call, DEPOSED_GRACE_MS)
            except (ShoalError, Unreachable) as error:
                if error.definite:  # else nobody knows whether the sequence is used, and it never is again
                    self._keep(partition, writer, 0)
                raise
            self._keep(partition, writer, 1)
        offset, _ = outcome_of(answer)
        if offset is None:
            raise ShoalError("internal", "the agent's answer does not say where the row is")
        return offset

    def _keep(self, partition: int, writer: _Writer, used: int) -> None:
        """Keep the producer for a later write. `used`: sequences that this one has taken."""
        idle = self._idle.setdefault(partition, deque())
        idle.append(_Writer(writer.identity, writer.sequence + used, now_ms()))

    async def _partition(self, key: bytes) -> int:
        """The partition of the key."""
        routes = await known_routes(self._cluster, self.topic)
        return routes.partitions[partition_for(key_hash(key), routes.ranges)].partition


def _entry(key: bytes, partition: int, answer: Answer) -> TableEntry:
    headers = answer.headers
    try:
        timestamp_us = parse_time(headers["Shoal-Timestamp"])
    except (KeyError, ValueError) as error:
        raise ShoalError("internal", f"the agent's answer about a row is damaged: {error!r}") from error
    return TableEntry(key, bytes(answer.body), partition, offset_of_etag(headers), timestamp_us)
