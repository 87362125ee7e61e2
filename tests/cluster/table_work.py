"""A table under load, from its clients to the verdict: on real agents and in the simulation.

Law of this file: it starts clients, reads at the end, and judges. What clients do is table_clients.py's and
table_watchers.py's, what must hold of what they saw table_history.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from group_work import NotInTime
from log_clients import BAD_REQUEST, Address, Connections, NoAnswer, Workload, now_s
from log_history import Anomaly
from table_clients import OK, RowClient, TableWork, positions_in
from table_history import Scanned, Stored, TableHistory, anomalies
from table_watchers import StreamWatcher, TableWatcher

RETRY_S = 0.2
FINAL_LIMIT = 1_000
FINAL_ROWS = 10_000
LAST = "last"
"""The client that gets every row once all is over."""
TableClient = RowClient | TableWatcher | StreamWatcher


class TableRun:
    """`limit_s`: in the end, for each thing that is to be read."""

    def __init__(
        self, work: Workload, topic: str, partitions: int, *, limit_s: float, padding: int = 0
    ) -> None:
        self.history = TableHistory()
        self._work = TableWork(work, topic, partitions, self.history, padding)
        self._limit_s = limit_s

    def clients(self, count: int, pause_s: float) -> list[TableClient]:
        """So many that ask for rows, some of which send each request once, while others repeat it; and two
        that watch."""
        found: list[TableClient] = [
            RowClient(self._work, f"t{number}", pause_s, sequenced=number % 2 == 0) for number in range(count)
        ]
        return [*found, TableWatcher(self._work, "w"), StreamWatcher(self._work, "s")]

    @property
    def summary(self) -> str:
        """A part of a line."""
        told = sum(len(watch.changes) for watch in self.history.watches)
        return f"{self.known_acts} acts on rows, {len(self.history.scans)} scans, {told} changes watched"

    @property
    def known_acts(self) -> int:
        """Requests about single rows whose outcome is known."""
        return sum(act.status is not None for act in self.history.acts)

    async def finish(self, agents: Sequence[Address]) -> list[Anomaly]:
        """What is wrong, when every row was read once more, the log, and what each of these agents has of all
        rows. Raises NotInTime."""
        reader = RowClient(self._work, LAST, 0.0, sequenced=False)
        for key in sorted({act.key for act in self.history.acts}):
            await self._until_done(f"row {key}", lambda key=key: reader.get(key))
        connections = Connections()
        for number in range(self._work.partitions):
            await self._until_done(
                f"partition {number}", lambda number=number: self._read_log(connections, number)
            )
        for agent in agents:
            await self._until_done(
                f"the rows of {agent[0]}", lambda agent=agent: self._read_rows(connections, agent)
            )
        connections.close()
        return anomalies(self.history)

    async def _until_done(self, what: str, read: Callable[[], Awaitable[bool]]) -> None:
        end_s = now_s() + self._limit_s
        while not await read():
            if now_s() > end_s:
                raise NotInTime(f"{what} of {self._work.topic} cannot be read at the end")
            await asyncio.sleep(RETRY_S)

    async def _read_log(self, connections: Connections, number: int) -> bool:
        """Whether all of it could be read."""
        records: dict[int, Stored] = {}
        offset: int | str = "earliest"
        while True:
            path = f"/v1/topics/{self._work.topic}/partitions/{number}/records?offset={offset}"
            try:
                answer = await connections.request(
                    self._work.work.some_agent(), "GET", f"{path}&limit={FINAL_LIMIT}"
                )
            except NoAnswer:
                return False
            if answer.status >= BAD_REQUEST:
                return False
            page = answer.body
            records |= {
                record["offset"]: Stored(record["key"], record["value"]) for record in page["records"]
            }
            offset = page["next_offset"]
            if offset >= page["high_watermark"]:
                self.history.logs[number] = records
                self.history.starts[number] = page["log_start_offset"]
                return True

    async def _read_rows(self, connections: Connections, agent: Address) -> bool:
        """Whether this agent's own replicas have told all rows at the end of the log."""
        begun, query = now_s(), f"consistency=local&limit={FINAL_ROWS}"
        try:
            answer = await connections.request(agent, "GET", f"/v1/tables/{self._work.topic}?{query}")
        except NoAnswer:
            return False
        if answer.status != OK or not answer.body["is_last"]:
            return False
        cut = positions_in(answer.body["as_of"])
        if any(max(log, default=-1) >= cut.get(number, 0) for number, log in self.history.logs.items()):
            return False
        rows = {row["key"]: (row["value"], row["offset"]) for row in answer.body["rows"]}
        self.history.scans.append(Scanned(f"{LAST} at {agent[0]}", "", None, None, rows, cut, begun))
        return True
