"""A long answer that is read while it is sent: headers first, then piece by piece what the log gives.

Law of this file: a piece goes from its buffer straight to the socket, before the next is read into the same
buffer; what the log lends goes there uncopied. What the kernel does not take at once stays where it is until
it does. What goes wrong after the headers have left ends the connection: never a byte of what did not verify,
and never fewer bytes than promised that look like all. Where they come from is the log's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from shoal.agent.http.admission.answer_rate import Patience, TookTooLittle
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.problems import SERVER
from shoal.agent.http.core.respond import cut_off
from shoal.agent.interface import Lent, Pieces

# So long a slow reader may hold on to a file of the log; then it may be trimmed, and the answer ends.
PIN_SECONDS = 5.0
# Lent in one turn of the loop: a quarter of a millisecond, as a piece that is read and checked.
LENT_TURN_BYTES = 2 * 2**20


async def send_pieces(
    call: Call, before: bytes, pieces: Pieces, after: bytes, content_type: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer 200 with `before`, all pieces, and `after`. A reader that stalls is cut off. Raises what
    `pieces` does and ConnectionResetError, both after headers have left."""
    response = web.StreamResponse(headers={**headers, "Server": SERVER})
    response.content_type = content_type
    response.content_length = len(before) + pieces.size_bytes + len(after)
    writer = await response.prepare(call.request)
    transport = call.request.transport
    if call.request.method == "HEAD" or writer is None or transport is None:
        return response
    try:
        async with Patience(call.context.limits, pieces.held_bytes) as patience:
            await response.write(before)
            await _emptied(transport, writer)
            with contextlib.closing(_outgoing(transport, writer, pieces)) as out:
                await _send(pieces, out, after, patience)
            await response.write_eof()
    except TookTooLittle:
        cut_off(call.request)
        raise
    finally:
        await pieces.let_go()
    return response


async def _send(pieces: Pieces, out: _Outgoing, after: bytes, patience: Patience) -> None:
    """What is behind the pieces goes with the last of them, not as a packet of its own."""
    left = pieces.size_bytes
    lent_bytes = 0
    if out.takes_lent:
        await pieces.prepare_lending()
    while left:
        lent = pieces.lend() if out.takes_lent else None
        if lent is not None:
            left -= len(lent)
            lent_bytes += len(lent)
            await _pass_on(lent, out, b"" if left else after, patience)
            if lent_bytes >= LENT_TURN_BYTES:
                lent_bytes = 0
                await asyncio.sleep(0)
            continue
        piece = pieces.at_once()
        if piece is None:
            with patience.excused():
                piece = await pieces.next()
        assert piece is not None, "there are as many bytes as were promised"
        left -= len(piece)
        rest = out.offer(memoryview(piece), b"" if left else after)
        patience.took(len(piece) if rest is None else len(piece) - len(rest.piece))
        if rest is not None:
            await out.finish(rest, patience.took)


async def _pass_on(lent: Lent, out: _Outgoing, behind: bytes, patience: Patience) -> None:
    with contextlib.closing(lent):
        while True:
            size = len(lent)
            has_gone = out.offer_lent(lent)
            patience.took(size - len(lent))
            if has_gone:
                break
            await out.room()
    rest = out.offer(memoryview(b""), behind) if behind else None
    if rest is not None:
        await out.finish(rest, patience.took)


async def _emptied(transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
    """Until the kernel has what was written so far: what goes past the transport must not overtake it."""
    if transport.get_write_buffer_size():
        transport.set_write_buffer_limits(0)
        try:
            await writer.drain()
        finally:
            transport.set_write_buffer_limits()


class _Rest(NamedTuple):
    """What has still to go: of the piece, and of what is behind it."""

    piece: memoryview
    behind: bytes


class _Outgoing(Protocol):
    """The way of one answer's bytes to its reader. All of it raises ConnectionResetError."""

    takes_lent: bool

    def offer_lent(self, lent: Lent) -> bool:
        """Send what goes at once of what is lent; whether all of it has gone. Only if it `takes_lent`."""

    async def room(self) -> None:
        """Returns once more may go."""

    def offer(self, piece: memoryview, behind: bytes) -> _Rest | None:
        """Send what goes at once; None: all of it has gone."""

    async def finish(self, rest: _Rest, took: Callable[[int], None]) -> None:
        """Returns once the memory of the piece may be used again; `took` is told of what leaves."""

    def close(self) -> None: ...


def _outgoing(transport: asyncio.Transport, writer: AbstractStreamWriter, pieces: Pieces) -> _Outgoing:
    transport_socket = transport.get_extra_info("socket")
    if transport_socket is None or transport.get_extra_info("sslcontext") is not None:
        return _ThroughTransport(transport, writer)
    return _Straight(transport, transport_socket.dup(), pieces)


class _ThroughTransport:
    """Where there is no socket, or something between it and us."""

    takes_lent = False

    def __init__(self, transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
        self._transport = transport
        self._writer = writer

    def offer(self, piece: memoryview, behind: bytes) -> _Rest | None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")
        return _Rest(piece, behind)

    async def finish(self, rest: _Rest, took: Callable[[int], None]) -> None:
        self._transport.write(bytes(rest.piece) + rest.behind)
        await self._writer.drain()
        took(len(rest.piece))

    def offer_lent(self, lent: Lent) -> bool:
        raise AssertionError(f"{len(lent)} bytes lent to a transport")

    async def room(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        """Nothing is held."""


class _Straight:
    """Into the socket, past the transport, which has nothing to write meanwhile. A descriptor of our own: it
    can be waited for, and it names this socket until we close it."""

    takes_lent = True

    def __init__(self, transport: asyncio.Transport, own_socket: socket.socket, pieces: Pieces) -> None:
        self._transport = transport
        self._socket = own_socket
        self._pieces = pieces
        self._loop = asyncio.get_running_loop()
        self._pinned_at = self._loop.time()

    def offer_lent(self, lent: Lent) -> bool:
        descriptor = self._socket.fileno()
        try:
            while len(lent):
                self._check()
                lent.write_to(descriptor)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionResetError(f"the client has gone: {error}") from None
        return True

    def _check(self) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")

    def offer(self, piece: memoryview, behind: bytes) -> _Rest | None:
        self._check()
        try:
            sent = self._socket.sendmsg((piece, behind)) if behind else self._socket.send(piece)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ConnectionResetError(f"the client has gone: {error}") from None
        size = len(piece)
        if sent == size + len(behind):
            return None
        return _Rest(piece[sent:], behind[max(0, sent - size) :])

    async def finish(self, rest: _Rest, took: Callable[[int], None]) -> None:
        left: _Rest | None = rest
        while left is not None:
            await self.room()
            size = len(left.piece)
            left = self.offer(*left)
            took(size if left is None else size - len(left.piece))

    async def room(self) -> None:
        """Until the socket takes more, or never will."""
        now = self._loop.time()
        if now > self._pinned_at + PIN_SECONDS:
            await self._pieces.let_go()
            self._pinned_at = now
        ready: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._socket.fileno()
        self._loop.add_writer(descriptor, _settle, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(descriptor)

    def close(self) -> None:
        self._socket.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
