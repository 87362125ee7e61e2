"""Sending answers that may be large: in pieces, to readers who keep taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from aiohttp import web

from shoal.agent.http.admission.answer_rate import AnswerDeadline
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.cors import prepare

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
    return await _send(call, coalesced(parts), content_type, headers, total_bytes, total_bytes)


async def send_shared(call: Call, parts: Sequence[bytes], content_type: str) -> web.StreamResponse:
    """Answer 200 with parts that others are sent as well: what this reader holds is a piece on its way."""
    total_bytes = sum(map(len, parts))
    if total_bytes <= SENT_AT_ONCE_BYTES:
        return web.Response(body=b"".join(parts), headers={"Content-Type": content_type})
    return await _send(call, coalesced(parts), content_type, {}, PIECE_BYTES, total_bytes)


async def send_made(
    call: Call, pieces: Iterator[bytes], content_type: str, headers: Mapping[str, str], held_bytes: int
) -> web.StreamResponse:
    """Answer 200 with pieces, each made when the one before has left. Other requests run in between, and
    memory holds only the `held_bytes` that the pieces are made of. A reader that stalls is cut off."""
    first: list[bytes] = []
    size = 0
    for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > SENT_AT_ONCE_BYTES:
            break
    else:
        return web.Response(body=b"".join(first), headers=headers, content_type=content_type)
    return await _send(call, chain((b"".join(first),), pieces), content_type, headers, held_bytes)


async def begin_answer(
    call: Call, content_type: str, headers: Mapping[str, str], size_bytes: int | None
) -> tuple[web.StreamResponse, bool]:
    """An answer of so many bytes, or chunked, whose head has left; whether a body is to follow."""
    response = web.StreamResponse(headers=headers)
    response.content_type = content_type
    response.content_length = size_bytes
    await prepare(response, call.request)
    return response, call.request.method != "HEAD"


async def _send(
    call: Call,
    pieces: Iterable[bytes | memoryview],
    content_type: str,
    headers: Mapping[str, str],
    held_bytes: int,
    size_bytes: int | None = None,
) -> web.StreamResponse:
    response, has_body = await begin_answer(call, content_type, headers, size_bytes)
    if has_body:
        async with AnswerDeadline(call.context.limits, held_bytes) as patience:
            for piece in pieces:
                with patience.excused():
                    await call.spend()
                await response.write(piece)
                patience.took(len(piece))
                await asyncio.sleep(0)
            patience.last()
            await response.write_eof()
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
