"""A long answer that is read while it is sent: headers first, then piece by piece what the log gives.

Law of this file: a piece goes from its buffer straight to the socket, before the next is read into the same
buffer. Pages that the log lends go there uncopied. Bytes that the kernel does not take at once stay in the
buffer until it does. An error after the headers have left ends the connection. No byte that did not verify is
sent, and a cut answer never looks whole. Where they come from is the log's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from shoal.agent.http.admission.answer_rate import AnswerDeadline
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.request_quota import Meter
from shoal.agent.http.core.respond import begin_answer
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
    size_bytes = len(before) + pieces.size_bytes + len(after)
    response, has_body = await begin_answer(call, content_type, headers, size_bytes)
    transport = call.request.transport
    try:
        if not has_body or transport is None:
            return response
        async with AnswerDeadline(call.context.limits, pieces.held_bytes) as patience:
            await response.write(before)
            transport_socket = transport.get_extra_info("socket")
            if transport_socket is None or transport.get_extra_info("sslcontext") is not None:
                await _send_by_transport(call, response, pieces, after, patience)
            else:
                await _emptied(transport, call.request.writer)
                with contextlib.closing(_DirectSocket(transport, transport_socket.dup(), pieces)) as out:
                    await _send(pieces, out, after, patience, call.asker.meter)
            await response.write_eof()
    finally:
        await pieces.let_go()
    return response


async def _send_by_transport(
    call: Call, response: web.StreamResponse, pieces: Pieces, after: bytes, patience: AnswerDeadline
) -> None:
    """Where there is no socket, or something between it and us. Each piece is copied: the next one is read
    into the same memory."""
    while True:
        with patience.excused():
            piece = await pieces.next()
        if piece is None:
            break
        data = bytes(piece)
        with patience.excused():
            await call.spend()
        await response.write(data)
        patience.took(len(data))
    await response.write(after)


async def _send(
    pieces: Pieces, out: _DirectSocket, after: bytes, patience: AnswerDeadline, meter: Meter | None
) -> None:
    """The bytes behind the pieces go with the last piece, not as a packet of their own. `meter`: told of the
    pieces here, since they pass by the writer."""
    left = pieces.size_bytes
    lent_bytes = 0
    await pieces.prepare_lending()
    while left:
        lent = pieces.lend()
        if lent is not None:
            left -= len(lent)
            size = len(lent)
            lent_bytes += size
            await _pass_on(lent, out, b"" if left else after, patience)
            if meter is not None:
                await _spend(meter, size, left, patience)
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
        await out.send(memoryview(piece), b"" if left else after, patience.took)
        if meter is not None:
            await _spend(meter, len(piece), left, patience)


async def _spend(meter: Meter, size: int, left: int, patience: AnswerDeadline) -> None:
    meter.passed(size)
    if left:
        with patience.excused():
            await meter.rest_holding()


async def _pass_on(lent: Lent, out: _DirectSocket, behind: bytes, patience: AnswerDeadline) -> None:
    with contextlib.closing(lent):
        while True:
            size = len(lent)
            has_gone = out.offer_lent(lent)
            patience.took(size - len(lent))
            if has_gone:
                break
            await out.room()
    if behind:
        await out.send(memoryview(b""), behind, patience.took)


async def _emptied(transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
    """Until the kernel has what was written so far: what goes past the transport must not overtake it."""
    if transport.get_write_buffer_size():
        transport.set_write_buffer_limits(0)
        try:
            await writer.drain()
        finally:
            transport.set_write_buffer_limits()


class _DirectSocket:
    """Into the socket, past the transport, which has nothing to write meanwhile. A descriptor of our own: it
    can be waited for, and it names this socket until we close it. All of it raises ConnectionResetError."""

    def __init__(self, transport: asyncio.Transport, own_socket: socket.socket, pieces: Pieces) -> None:
        self._transport = transport
        self._socket = own_socket
        self._pieces = pieces
        self._loop = asyncio.get_running_loop()
        self._pinned_at = self._loop.time()

    def offer_lent(self, lent: Lent) -> bool:
        """Send what goes at once of what is lent; whether all of it has gone."""
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

    async def send(self, piece: memoryview, behind: bytes, took: Callable[[int], None]) -> None:
        """Returns once the memory of the piece may be used again, and what is behind it has gone as well;
        `took` is told of what leaves of the piece."""
        while True:
            self._check()
            try:
                sent = self._socket.sendmsg((piece, behind)) if behind else self._socket.send(piece)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise ConnectionResetError(f"the client has gone: {error}") from None
            of_piece = min(sent, len(piece))
            took(of_piece)
            piece, behind = piece[of_piece:], behind[sent - of_piece :]
            if not piece and not behind:
                return
            await self.room()

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
        """The transport keeps its own descriptor."""
        self._socket.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
