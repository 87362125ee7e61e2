"""Sending answers that may be large: in pieces, with a bound on how long a reader may take nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiohttp import web

from shoal.agent.http.context import Call

# Below the transport's high-water mark: aiohttp never waits for the reader.
SENT_AT_ONCE_BYTES = 48 * 1024
PIECE_BYTES = 256 * 1024


async def send_parts(
    call: Call, parts: Sequence[bytes | memoryview], content_type: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer 200 with the parts one after the other. A reader that stalls is cut off."""
    total_bytes = sum(map(len, parts))
    if total_bytes <= SENT_AT_ONCE_BYTES:
        return web.Response(body=b"".join(parts), headers=headers, content_type=content_type)
    response = web.StreamResponse(headers=headers)
    response.content_type = content_type
    response.content_length = total_bytes
    await response.prepare(call.request)
    if call.request.method == "HEAD":
        return response
    stall_seconds = call.context.limits.send_stall_ms / 1000
    try:
        for piece in coalesced(parts):
            async with asyncio.timeout(stall_seconds):
                await response.write(piece)
        async with asyncio.timeout(stall_seconds):
            await response.write_eof()
    except TimeoutError:
        cut_off(call.request)
        raise ConnectionResetError(f"the reader took nothing for {stall_seconds:g} s") from None
    return response


def coalesced(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Small parts joined to pieces of at least PIECE_BYTES; large ones as they are."""
    pieces: list[bytes | memoryview] = []
    waiting: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            pieces.append(waiting[0] if len(waiting) == 1 else b"".join(waiting))
            waiting = []
            size = 0
    if waiting:
        pieces.append(b"".join(waiting))
    return pieces


def cut_off(request: web.BaseRequest) -> None:
    """End a connection in the middle of an answer, so that the client cannot take it for a whole one."""
    if request.transport is not None:
        request.transport.abort()
