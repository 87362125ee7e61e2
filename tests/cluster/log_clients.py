"""Clients that write down what they did: producers, readers, and whoever reads everything at the end.

Law of this file: they use HTTP as users do, through asyncio alone, so that the same clients work on real
sockets and in the simulation; they know nothing of agents but their addresses. What an answer means is
decided by `definite` in it, never by guessing.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from client_credentials import AUTHORIZATION, CREDENTIALS
from log_history import EARLIEST, LATEST, Append, Ends, FinalLog, History, Outcome, Partition, Poll

from shoal.format.batch import DEFAULT_SCHEMA

CONNECT_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_MS = 3_000
GRACE_S = 2.0
"""Beyond the timeout that a request names itself, before its client gives it up."""
PAUSE_S = 0.05
CALM_PRODUCER_SLOWNESS = 6.0
CALM_READER_SLOWNESS = 2.0
LAST_SHARE, FIRST_SHARE, ENDS_SHARE = 0.2, 0.26, 0.32
"""Of a reader's requests, each with those before it."""
FINAL_LIMIT = 1_000
TRIMMED_MAX = 5
BAD_REQUEST, GONE = 400, 410
FINAL_REFUSALS_MAX = 20
"""That are kept of a whole run."""
MAX_HEAD_BYTES = 64 * 1_024
MAX_SHOWN_BYTES = 1_000
ARROW_TYPE = "application/vnd.apache.arrow.stream"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer with a JSON body."""

    status: int
    body: Any

    @property
    def definite(self) -> bool:
        """Whether a refusal says that nothing happened."""
        return isinstance(self.body, dict) and self.body.get("definite") is True

    @property
    def is_final(self) -> bool:
        """Whether a refusal says that the same request will never succeed: a user would see an error."""
        return self.status >= BAD_REQUEST and not (
            isinstance(self.body, dict) and self.body.get("retriable") is True
        )


class NoAnswer(Exception):
    """`sent`: whether the request may have arrived."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Connections:
    """One client's connections, one for each agent, kept while they work."""

    def __init__(self) -> None:
        self._open: dict[Address, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def request(
        self, agent: Address, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """With a JSON body. Raises NoAnswer."""
        status, _, answer = await self.exchange(agent, method, path, body, headers)
        try:
            return Answer(status, json.loads(answer) if answer else None)
        except ValueError:
            return Answer(status, None)

    async def exchange(
        self, agent: Address, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, fields by their names in small letters, body as it is. A body of bytes is an Arrow stream,
        unless `headers` say otherwise. Raises NoAnswer."""
        reader, writer = await self._connected(agent)
        is_raw = isinstance(body, bytes)
        data = b"" if body is None else body if is_raw else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {agent[0]}:{agent[1]}", f"Content-Length: {len(data)}"]
        shown = {} if headers is not None and AUTHORIZATION in headers else CREDENTIALS.get().headers
        lines += [f"{name}: {value}" for name, value in {**(headers or {}), **shown}.items()]
        if body is not None and "Content-Type" not in (headers or {}):
            lines.append(f"Content-Type: {ARROW_TYPE if is_raw else 'application/json'}")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1_000 + GRACE_S):
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
                await writer.drain()
                return await _read_answer(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            self._drop(agent)
            raise NoAnswer(f"{type(error).__name__} {error}", sent=True) from None
        except asyncio.CancelledError:
            self._drop(agent)
            raise

    async def _connected(self, agent: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        known = self._open.get(agent)
        if known is not None and not known[1].is_closing() and not known[0].at_eof():
            return known
        self._drop(agent)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                tls = CREDENTIALS.get().tls
                self._open[agent] = await asyncio.open_connection(*agent, limit=2**24, ssl=tls)
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"cannot connect: {type(error).__name__} {error}", sent=False) from None
        return self._open[agent]

    def _drop(self, agent: Address) -> None:
        known = self._open.pop(agent, None)
        if known is not None:
            known[1].transport.abort()

    def close(self) -> None:
        for agent in list(self._open):
            self._drop(agent)


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, fields and body. Raises ValueError for what is no answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise ValueError("a head without an end")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    status = int(first.split(" ")[1])
    if fields.get("transfer-encoding", "").lower() == "chunked":
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return status, fields, b"".join(pieces)
    return status, fields, await reader.readexactly(int(fields.get("content-length", "0")))


def now_s() -> float:
    """The clock of all operations: the loop's, real or simulated."""
    return asyncio.get_running_loop().time()


@dataclass
class Workload:
    """What all clients share. `agents()`: the addresses that may be asked now."""

    history: History
    agents: Callable[[], Sequence[Address]]
    rng: random.Random
    stopping: bool = False
    is_calm: bool = False
    """Nothing is wrong, or about to be: clients rest for longer."""
    final_refusals: list[str] = field(default_factory=list)
    """Of producers and readers, but for offsets that are trimmed."""

    def refused(self, name: str, answer: Answer) -> None:
        """A client had this answer to an append or a read, other than 200."""
        if answer.is_final and answer.status != GONE and len(self.final_refusals) < FINAL_REFUSALS_MAX:
            self.final_refusals.append(f"{name}: {answer.status} {answer.body}"[:MAX_SHOWN_BYTES])

    def pause_s(self, mean_s: float, slowness: float) -> float:
        """How long a client rests before its next request; in calm times by `slowness` longer."""
        return self.rng.uniform(0, 2 * mean_s) * (slowness if self.is_calm else 1.0)

    def some_agent(self) -> Address:
        return self.rng.choice(list(self.agents()))


def arrow_body(values: Sequence[str]) -> bytes:
    """An Arrow stream of one batch with these values."""
    timestamp, key, value, headers = (field.type for field in DEFAULT_SCHEMA)
    columns = [
        pa.array([index for index, _ in enumerate(values)], pa.int64()).cast(timestamp),
        pa.nulls(len(values), key),
        pa.array([item.encode() for item in values], value),
        pa.nulls(len(values), headers),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA))
    return sink.getvalue().to_pybytes()


class Steady(ABC):
    """A client over connections of its own that acts, pauses and acts again. `calm_slowness`: how many times
    as long it pauses while the work is calm."""

    calm_slowness = CALM_PRODUCER_SLOWNESS

    def __init__(self, work: Workload, pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._connections = Connections()

    async def run(self) -> None:
        """Until the work stops; what is under way is finished, or given up as unknown."""
        try:
            while not self._work.stopping:
                await self._act()
                await asyncio.sleep(self._work.pause_s(self._pause_s, self.calm_slowness))
        finally:
            self._connections.close()

    @abstractmethod
    async def _act(self) -> None:
        """Once."""


class Producer(Steady):
    """Appends to one partition, one request after the other. `producer_id`: sends sequences and repeats what
    was not answered; None: each request is sent once. `arrow`: as Arrow streams, otherwise as JSON.
    `leader_acks`: the share of requests without a sequence that are answered when the leader has synced."""

    def __init__(
        self,
        work: Workload,
        name: str,
        partition: Partition,
        *,
        producer_id: str | None,
        batch_max: int,
        pause_s: float,
        padding: int = 0,
        arrow: bool = False,
        leader_acks: float = 0.0,
    ) -> None:
        super().__init__(work, pause_s)
        self.name = name
        self._partition = partition
        self._arrow = arrow
        self._leader_acks = leader_acks if producer_id is None else 0.0
        self._id = producer_id
        self._batch_max = batch_max
        self._padding = "." * padding
        self._agent: Address | None = None
        self._sequence = 0
        self._number = 0

    async def _act(self) -> None:
        work = self._work
        count = work.rng.randint(1, self._batch_max)
        values = tuple(
            f"{self.name}-{number}{self._padding}" for number in range(self._number, self._number + count)
        )
        self._number += count
        at_leader_only = work.rng.random() < self._leader_acks
        invoked_at = now_s()
        outcome, base_offset = await self._until_known(values, "leader" if at_leader_only else "all")
        append = Append(
            self.name,
            self._sequence,
            self._partition,
            values,
            invoked_at,
            now_s(),
            outcome,
            base_offset,
            at_leader_only,
        )
        work.history.appends.append(append)
        self._sequence += 1

    async def _until_known(self, values: tuple[str, ...], acks: str) -> tuple[Outcome, int | None]:
        """An idempotent request is sent until it is answered: its sequence must not be left open."""
        uncertain = False
        while True:
            outcome, base_offset = await self._send(values, acks)
            if outcome == "ok":
                return outcome, base_offset
            self._agent = None
            uncertain = uncertain or outcome == "info"
            if self._id is None:
                return outcome, None
            if self._work.stopping:
                return "info", None  # nobody asks again: with what was sent before, nobody knows
            await asyncio.sleep(PAUSE_S * self._work.rng.uniform(0.5, 2))

    async def _send(self, values: tuple[str, ...], acks: str) -> tuple[Outcome, int | None]:
        topic, number = self._partition
        path = f"/v1/topics/{topic}/partitions/{number}/records?acks={acks}&timeout={REQUEST_TIMEOUT_MS}ms"
        headers = {}
        if self._id is not None:
            headers = {
                "Shoal-Producer-Id": self._id,
                "Shoal-Producer-Epoch": "0",
                "Shoal-Producer-Sequence": str(self._sequence),
            }
        if self._agent is None or self._agent not in self._work.agents():
            self._agent = self._work.some_agent()
        try:
            answer = await self._connections.request(self._agent, "POST", path, self._body(values), headers)
        except NoAnswer as error:
            return ("info" if error.sent else "fail"), None
        if answer.status == 200:
            [run] = answer.body["appended"]
            return "ok", run["base_offset"]
        self._work.refused(self.name, answer)
        return ("fail" if answer.definite else "info"), None

    def _body(self, values: tuple[str, ...]) -> Any:
        return arrow_body(values) if self._arrow else {"records": [{"value": value} for value in values]}


class Reader(Steady):
    """Follows one partition from its start; now and then asks for the first record, the last one, or where
    the logs begin and end."""

    calm_slowness = CALM_READER_SLOWNESS

    def __init__(
        self, work: Workload, name: str, partition: Partition, *, local: bool, pause_s: float
    ) -> None:
        super().__init__(work, pause_s)
        self._name = name
        self._partition = partition
        self._local = local
        self._offset = 0
        self._high_watermark = 0
        self._told_start = 0

    async def _act(self) -> None:
        chance = 1.0 if self._local else self._work.rng.random()
        if chance < LAST_SHARE:
            await self._poll(LATEST)
        elif chance < FIRST_SHARE:
            await self._poll(EARLIEST)
        elif chance < ENDS_SHARE:
            await self._ask_ends()
        else:
            await self._poll(self._offset)

    async def _ask_ends(self) -> None:
        """Of all partitions of the topic: the answer is put together from what their leaders say."""
        topic = self._partition[0]
        invoked_at = now_s()
        try:
            answer = await self._connections.request(
                self._work.some_agent(), "GET", f"/v1/topics/{topic}/offsets?timeout=2s"
            )
        except NoAnswer:
            return
        if answer.status != 200:
            return
        for entry in answer.body["partitions"]:
            start, end = int(entry["log_start_offset"]), int(entry["high_watermark"])
            place = (topic, int(entry["partition"]))
            self._work.history.ends.append(Ends(self._name, place, start, end, invoked_at, now_s()))

    async def _poll(self, offset: int) -> None:
        topic, number = self._partition
        place = "earliest&limit=3" if offset == EARLIEST else offset
        path = f"/v1/topics/{topic}/partitions/{number}/records?offset={place}&timeout=2s"
        headers = {}
        if self._local:
            path += "&consistency=local"
            headers["Shoal-High-Watermark"] = str(self._high_watermark)
        elif offset >= 0:
            path += "&wait=200ms"
        invoked_at = now_s()
        try:
            answer = await self._connections.request(self._work.some_agent(), "GET", path, None, headers)
        except NoAnswer:
            return
        if answer.status == GONE:
            self._told_start = int(answer.body["log_start_offset"])
            self._offset = max(self._offset, self._told_start)
            if not self._local:
                ends = Ends(self._name, self._partition, self._told_start, None, invoked_at, now_s())
                self._work.history.ends.append(ends)
        if answer.status != 200:
            self._work.refused(self._name, answer)
            return
        self._note(answer.body, offset, invoked_at)

    def _note(self, body: Any, offset: int, invoked_at: float) -> None:
        records = tuple((int(item["offset"]), str(item["value"])) for item in body["records"])
        poll = Poll(
            self._name,
            self._partition,
            offset,
            records,
            int(body["next_offset"]),
            invoked_at,
            not self._local,
            int(body["log_start_offset"]),
            self._high_watermark if self._local else 0,
            int(body["high_watermark"]),
            self._told_start,
            now_s(),
        )
        self._work.history.polls.append(poll)
        self._high_watermark = max(self._high_watermark, int(body["high_watermark"]))
        if offset >= 0:
            self._offset = poll.next_offset


async def read_all(agent: Address, partition: Partition, *, local: bool, arrow: bool = False) -> FinalLog:
    """The whole partition as this agent gives it. `arrow`: as stored batches, otherwise as JSON. Begun anew
    where this agent's log begins when retention has taken what was to be read next. Raises NoAnswer, or
    AssertionError for a refusal."""
    connections = Connections()
    suffix = "&consistency=local" if local else ""
    try:
        first = await _final_page(connections, agent, partition, "offset=earliest&limit=1")
        offset = start = first.log_start_offset
        records: list[tuple[int, str]] = []
        for _ in range(TRIMMED_MAX):
            while True:
                question = f"offset={offset}&limit={FINAL_LIMIT}{suffix}"
                page = await _final_page(connections, agent, partition, question, arrow=arrow)
                if page.next_offset < 0:
                    break
                records += (record for record in page.records if record[0] >= offset)
                if not page.records:
                    return FinalLog(partition, f"{agent[0]}:{agent[1]}", start, tuple(records))
                offset = page.next_offset
            offset = start = page.log_start_offset
            records = []
    finally:
        connections.close()
    raise AssertionError(f"{agent} trimmed {partition} {TRIMMED_MAX} times while it was read")


class _Page(NamedTuple):
    records: list[tuple[int, str]]
    next_offset: int
    """Negative where the offset was trimmed."""
    log_start_offset: int


async def _final_page(
    connections: Connections, agent: Address, partition: Partition, question: str, *, arrow: bool = False
) -> _Page:
    topic, number = partition
    path = f"/v1/topics/{topic}/partitions/{number}/records?{question}"
    accept = {"Accept": ARROW_TYPE} if arrow else None
    status, fields, body = await connections.exchange(agent, "GET", path, None, accept)
    if status == GONE:
        return _Page([], -1, int(json.loads(body)["log_start_offset"]))
    assert status == 200, (
        f"{agent} refuses {path}: {status} {body[:MAX_SHOWN_BYTES].decode(errors='replace')}"
    )
    if arrow:
        return _arrow_page(fields, body)
    page = json.loads(body)
    records = [(int(item["offset"]), str(item["value"])) for item in page["records"]]
    return _Page(records, int(page["next_offset"]), int(page["log_start_offset"]))


def _arrow_page(fields: dict[str, str], body: bytes) -> _Page:
    """Whole batches: the first may begin before the offset that was asked for."""
    values = pa.ipc.open_stream(body).read_all().column("value").to_pylist()
    records = list(enumerate((value.decode() for value in values), int(fields["shoal-base-offset"])))
    return _Page(records, int(fields["shoal-next-offset"]), int(fields["shoal-log-start-offset"]))
