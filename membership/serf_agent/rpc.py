"""A client of the Serf agent's RPC: one connection with everything on it, and a client that keeps one up.

Law of this file: sockets, sequence numbers and waiting. Commands stand in commands.py, bytes in
wire/rpc.py. Everything is bounded: a reply, the calls under way, the records that wait to be read.

One connection carries all calls and streams; replies find their caller by Seq. What would leave the
stream unreadable closes it: a reply that nobody asked for, bytes that are no msgpack, and "Authentication
required", after which the agent takes the body of our own command for the next header.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.ready import ReplyKind
from shoal.membership.serf_agent.commands import CALL_TIMEOUT_S, Command, Commands, query_body
from shoal.membership.serf_agent.commands import RpcError as RpcError
from shoal.membership.serf_agent.rpc_wire import (
    AnswerRecord,
    Record,
    ValueDecoder,
    decode_answer,
    decode_header,
    decode_record,
    encode_request,
)
from shoal.membership.wire.errors import WireError

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
"""To the socket, and again for handshake and authentication: the agent is on this host or near it."""

READ_BYTES = 1 << 16

MAX_CALLS = 1024
"""Calls and streams of one connection that are not over. One that timed out counts until its reply comes, so
that the reply is not taken for another's."""

MAX_RECORDS = 512
"""Records of one stream that wait to be read, as many as the agent itself keeps for a slow reader; then they
are dropped and counted."""

BACKOFF_MS_MIN, BACKOFF_MS_MAX = 250, 10_000
"""Pauses between attempts to connect: an agent that restarts is back within a second."""

FATAL_ERRORS = ("Authentication required", "Handshake required")


@dataclass(frozen=True, slots=True)
class Gap:
    """So many records were dropped at this place, for the reader was too slow."""

    count: int


class RpcStream:
    """Records of one stream or query, until it is stopped or the connection is lost."""

    def __init__(self, sequence: int, decode: Callable[[Any], Record]) -> None:
        self.sequence = sequence
        self.decode = decode
        self._records: deque[Record | Gap] = deque()
        self._arrived = asyncio.Event()
        self.over = False

    def put(self, record: Record) -> None:
        """Beyond the bound a gap stands for the record."""
        if len(self._records) < MAX_RECORDS:
            self._records.append(record)
        elif isinstance(last := self._records[-1], Gap):
            self._records[-1] = Gap(last.count + 1)
        else:
            self._records.append(Gap(1))
        self._arrived.set()

    def end(self) -> None:
        """Nothing more will come; what has come can still be read."""
        self.over = True
        self._arrived.set()

    async def read(self) -> Record | Gap | None:
        """The next record, or Gap in the place of lost ones; None at the end."""
        while not self._records:
            if self.over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._records.popleft()

    async def __aiter__(self) -> AsyncIterator[Record | Gap]:
        while (record := await self.read()) is not None:
            yield record


@dataclass(slots=True)
class _Pending:
    """A call whose reply has not come, or a stream, which `replied` once it is open."""

    command: Command
    answer: asyncio.Future[tuple[Any, str]]
    stream: RpcStream | None = None
    replied: bool = False


class RpcConnection(Commands):
    """One connection, authenticated. Made by `open`; of no more use once `closed` is set."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self._reader = reader
        self._writer = writer
        self.peer = peer
        self._decoder = ValueDecoder()
        self._pending: dict[int, _Pending] = {}
        self._sequence = 0
        self._header: tuple[_Pending, str] | None = None  # its body comes next
        self.closed = asyncio.Event()
        self.fault = RpcError("closed", f"the connection to {peer} was closed")
        self._reading = asyncio.create_task(self._read(), name="serf rpc")

    @classmethod
    async def open(cls, host: str, port: int, auth_key: str = "") -> RpcConnection:
        """Connect, shake hands, authenticate. Raises RpcError."""
        peer = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError, UnicodeError) as error:
            reason = str(error) or "timed out"
            raise RpcError("closed", f"no Serf agent answers at {peer}: {reason}") from None
        connection = cls(reader, writer, peer)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.handshake()
                await connection.auth(auth_key)
        except TimeoutError:
            await connection.close()
            raise RpcError("timeout", f"{peer} does not answer as a Serf agent") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close; calls under way fail, streams end. Idempotent."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._fail(self.fault)
        with contextlib.suppress(OSError):  # it may have been lost long ago
            await self._writer.wait_closed()

    # Calls

    async def call(self, command: Command, decode: Callable[[Any, str], T]) -> T:
        value, error = await self._reply_of(self._send(command, None))
        if error and not command.body_on_error:
            raise self.refused(command.name, error)
        try:
            return decode(value, error)
        except WireError as fault:
            raise RpcError("format", f"the answer to {command.name}: {fault}") from None

    async def _reply_of(self, pending: _Pending) -> tuple[Any, str]:
        command = pending.command
        try:
            async with asyncio.timeout(command.timeout_s):
                return await asyncio.shield(pending.answer)
        except TimeoutError:
            detail = f"{command.name} had no answer from {self.peer} in {command.timeout_s:g} s"
            raise RpcError("timeout", detail) from None

    def _send(self, command: Command, decode: Callable[[Any], Record] | None) -> _Pending:
        if self.closed.is_set():
            raise self.fault
        if len(self._pending) >= MAX_CALLS:
            raise RpcError("limit", f"{MAX_CALLS} calls to {self.peer} have no answer yet")
        self._sequence += 1
        stream = None if decode is None else RpcStream(self._sequence, decode)
        answer: asyncio.Future[tuple[Any, str]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_look_at)
        pending = self._pending[self._sequence] = _Pending(command, answer, stream)
        self._writer.write(encode_request(command.name, self._sequence, command.body))
        return pending

    # Streams

    async def stream(self, kinds: str = "*") -> RpcStream:
        """Events and queries: "*" for all, or a list such as "member-join,user:deploy,query:load"."""
        return await self._open("stream", {"Type": kinds}, decode_record)

    async def query(self, request: QueryRequest) -> RpcStream:
        """AnswerRecords, until the one of kind done ends the stream."""
        return await self._open("query", query_body(request), decode_answer)

    async def _open(self, name: str, body: dict[str, object], decode: Callable[[Any], Record]) -> RpcStream:
        pending = self._send(Command(name, body, False, False, CALL_TIMEOUT_S), decode)
        assert pending.stream is not None
        _, error = await self._reply_of(pending)
        if error:
            del self._pending[pending.stream.sequence]
            raise self.refused(name, error)
        return pending.stream

    async def stop(self, stream: RpcStream) -> None:
        """End a stream or monitor. Its place stays taken: records may be on their way."""
        stream.end()
        await self._plain("stop", {"Stop": stream.sequence})

    # What comes in

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                for value in self._decoder.feed(data):
                    self._take(value)
        except WireError as fault:
            self.fault = RpcError("format", f"{self.peer} does not speak Serf's RPC: {fault}")
        except RpcError as fault:
            self.fault = fault
        except OSError as fault:
            self.fault = RpcError("closed", f"the connection to {self.peer} was lost: {fault}")
        finally:
            self._fail(self.fault)

    def _take(self, value: Any) -> None:
        if self._header is None:
            self._take_header(*decode_header(value))
            return
        (pending, error), self._header = self._header, None
        if pending.stream is not None and pending.replied:
            self._take_record(pending.stream, value)
        else:
            self._reply(pending, value, error)

    def _take_header(self, sequence: int, error: str) -> None:
        pending = self._pending.get(sequence)
        if pending is None:
            raise WireError("format", f"an answer to call {sequence}, which was not made")
        if error in FATAL_ERRORS:
            raise RpcError("refused", f"{self.peer}: {error}: give the agent's RPC key")
        command = pending.command
        is_record = pending.stream is not None and pending.replied
        if is_record or (command.body_on_error if error else command.has_body):
            self._header = (pending, error)
        else:
            self._reply(pending, None, error)
        if pending.stream is None:
            del self._pending[sequence]

    def _reply(self, pending: _Pending, value: Any, error: str) -> None:
        pending.replied = True
        if not pending.answer.done():
            pending.answer.set_result((value, error))

    def _take_record(self, stream: RpcStream, value: Any) -> None:
        record = stream.decode(value)
        if not stream.over:
            stream.put(record)
        if isinstance(record, AnswerRecord) and record.kind is ReplyKind.DONE:
            stream.end()
            del self._pending[stream.sequence]

    def _fail(self, fault: RpcError) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        self._writer.close()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(fault)
            if pending.stream is not None:
                pending.stream.end()
        self._pending.clear()


def _look_at(answer: asyncio.Future[tuple[Any, str]]) -> None:
    """A call that was given up does not wait for its fault; asyncio would report that as an error of ours."""
    if not answer.cancelled():
        answer.exception()


class SerfClient(Commands):
    """Keeps one connection to a Serf agent while it is started. A call without one waits a while."""

    def __init__(self, host: str, port: int, auth_key: str = "", *, rng: random.Random) -> None:
        self.host, self.port = host, port
        self.peer = f"{host}:{port}"
        self._auth_key = auth_key
        self._rng = rng
        self._connection: RpcConnection | None = None
        self._connected = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._fault = RpcError("closed", "the client is not started")

    async def start(self) -> None:
        """Raises RpcError when there is no agent, or when it refuses us: then nothing is running."""
        self._take(await RpcConnection.open(self.host, self.port, self._auth_key))
        self._keeping = asyncio.create_task(self._keep(), name="serf client")

    async def stop(self) -> None:
        """Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
            self._keeping = None
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self._connected.clear()
        self._fault = RpcError("closed", "the client has stopped")

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed.is_set()

    async def connection(self) -> RpcConnection:
        """The connection that is up, or the next that will be; waits for ever."""
        while not self.is_connected:
            self._connected.clear()
            await self._connected.wait()
        assert self._connection is not None
        return self._connection

    async def call(self, command: Command, decode: Callable[[Any, str], T]) -> T:
        if self._keeping is None:
            raise self._fault
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self.connection()
        except TimeoutError:
            raise self._fault from None
        return await connection.call(command, decode)

    def _take(self, connection: RpcConnection) -> None:
        self._connection = connection
        self._connected.set()

    async def _keep(self) -> None:
        assert self._connection is not None
        while True:
            await self._connection.closed.wait()
            self._fault = self._connection.fault
            logger.warning("lost the Serf agent, connecting again: %s", self._fault.detail)
            self._take(await self._reconnect())
            logger.info("connected to the Serf agent at %s again", self.peer)

    async def _reconnect(self) -> RpcConnection:
        delay_ms = BACKOFF_MS_MIN
        while True:
            await asyncio.sleep(delay_ms * self._rng.uniform(0.5, 1.0) / 1_000)
            try:
                return await RpcConnection.open(self.host, self.port, self._auth_key)
            except RpcError as fault:
                if fault.reason == "refused" and self._fault.reason != "refused":
                    logger.error("%s", fault.detail, extra={"event": "serf-agent-refused"})
                self._fault = fault
                delay_ms = min(2 * delay_ms, BACKOFF_MS_MAX)
