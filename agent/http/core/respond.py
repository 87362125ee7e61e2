"""Sending answers that may be large: in pieces, to readers who keep taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from aiohttp import web

from shoal.agent.http.admission.answer_rate import Patience, TookTooLittle
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.problems import SERVER

# Below the transport's high-water mark: aiohttp never waits for the reader.
SENT_AT_ONCE_BYTES = 48 * 1024
PIECE_BYTES = 256 * 1024
# A part of this size is worth a write of its own: that costs less than copying it.
UNCOPIED_BYTES = 64 * 1024


async def send_parts(
    call: Call, parts: Sequence[bytes | memoryview], content_type: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer 200 with the parts one after the other. A reader that stalls is cut off."""
    total_bytes = sum(map(len, parts))
    if total_bytes <= SENT_AT_ONCE_BYTES:
        return web.Response(body=b"".join(parts), headers=headers, content_type=content_type)
    response = web.StreamResponse(headers={**headers, "Server": SERVER})
    response.content_type = content_type
    response.content_length = total_bytes
    await response.prepare(call.request)
    if call.request.method == "HEAD":
        return response
    try:
        async with Patience(call.context.limits, total_bytes) as patience:
            for piece in coalesced(parts):
                await response.write(piece)
                patience.took(len(piece))
            patience.last()
            await response.write_eof()
    except TookTooLittle:
        cut_off(call.request)
        raise
    return response


async def send_made(
    call: Call, pieces: Iterator[bytes], content_type: str, headers: Mapping[str, str], held_bytes: int
) -> web.StreamResponse:
    """Answer 200 with what is made piece by piece, each when the one before has left: nobody else waits for
    the whole, and none of it waits in memory but the `held_bytes` it is made of. A reader that stalls is cut
    off."""
    first: list[bytes] = []
    size = 0
    for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > SENT_AT_ONCE_BYTES:
            break
    else:
        return web.Response(body=b"".join(first), headers=headers, content_type=content_type)
    response = web.StreamResponse(headers={**headers, "Server": SERVER})
    response.content_type = content_type
    await response.prepare(call.request)
    if call.request.method == "HEAD":
        return response
    try:
        async with Patience(call.context.limits, held_bytes) as patience:
            for piece in chain((b"".join(first),), pieces):
                await response.write(piece)
                patience.took(len(piece))
                await asyncio.sleep(0)
            patience.last()
            await response.write_eof()
    except TookTooLittle:
        cut_off(call.request)
        raise
    return response


def coalesced(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Small parts joined to pieces of about PIECE_BYTES; large ones as they are, uncopied."""
    pieces: list[bytes | memoryview] = []
    waiting: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        is_large = len(part) >= UNCOPIED_BYTES
        if waiting and (is_large or size >= PIECE_BYTES):
            pieces.append(b"".join(waiting))
            waiting = []
            size = 0
        if is_large:
            pieces.append(part)
        else:
            waiting.append(part)
            size += len(part)
    if waiting:
        pieces.append(b"".join(waiting))
    return pieces


def cut_off(request: web.BaseRequest) -> None:
    """End a connection in the middle of an answer, so that the client cannot take it for a whole one."""
    if request.transport is not None:
        request.transport.abort()
