"""Reading request bodies: bounded in size, in time and in what the whole agent holds at once.

Nothing here decompresses: aiohttp is told not to, and a Content-Encoding is refused. `Request.post()` is
never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache

import aiohttp
from aiohttp import web

from shoal.agent.http.context import Call
from shoal.agent.http.parameters import is_number, shown
from shoal.errors import ShoalError

EXPECT_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@lru_cache(maxsize=256)  # clients send the same few; a hostile one costs no more than without
def media_type(header: str | None) -> str:
    """The type without parameters, lower case; "" without a header. A charset other than UTF-8 is refused."""
    if header is None:
        return ""
    essence, semicolon, parameters = header.partition(";")
    essence = essence.strip().lower()
    if semicolon and not essence.startswith("multipart/"):
        _check_charset(parameters)
    return essence


def _check_charset(parameters: str) -> None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii"):
            raise ShoalError("unsupported-media-type", f"charset {shown(charset)}: text has to be UTF-8")


def declared_length(call: Call, limit_bytes: int | None) -> int | None:
    """Content-Length, checked against a limit before a byte of the body is read."""
    text = call.headers.get("Content-Length")
    if text is None:
        return None
    length = int(text) if is_number(text) else -1
    if length < 0:
        raise ShoalError("bad-request", f"Content-Length {shown(text)} is not a length")
    if limit_bytes is not None and length > limit_bytes:
        raise too_large(limit_bytes)
    return length


def too_large(limit_bytes: int) -> ShoalError:
    """413 with what would work instead."""
    return ShoalError(
        "too-large",
        f"the body is over {limit_bytes} bytes; application/x-ndjson and Arrow streams have no total limit",
        limit_bytes=limit_bytes,
    )


def prepare_body(call: Call) -> None:
    """Refuse codings; let a client that sent `Expect: 100-continue` go on. Call before the first read."""
    refuse_coding(call)
    expect = call.headers.get("Expect")
    if expect is None:
        return
    if expect.strip().lower() != "100-continue":
        raise ShoalError("bad-request", f"Expect: {shown(expect)} cannot be met; only 100-continue can")
    transport = call.request.transport
    if transport is not None and not call.request.content.is_eof():
        transport.write(EXPECT_CONTINUE)


def refuse_coding(call: Call) -> None:
    """ShoalError unsupported-media-type for a compressed body: nothing is ever decompressed here."""
    coding = call.headers.get("Content-Encoding")
    if coding is not None and coding.strip().lower() != "identity":
        raise ShoalError("unsupported-media-type", f"Content-Encoding {shown(coding)}: send the body plain")


async def read_body(call: Call, limit_bytes: int) -> bytes:
    """The whole body, at most `limit_bytes`. ShoalError too-large, bad-request (stalled), unsupported-
    media-type.
    """
    content = call.request.content
    if content.is_eof():  # everything came with the head: the common case, without a timer
        refuse_coding(call)
        body = what_is_here(content)
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
        return body
    declared_length(call, limit_bytes)
    prepare_body(call)
    pieces: list[bytes] = []
    size = 0
    async for piece in stream_body(call):
        size += len(piece)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def stream_body(call: Call) -> AsyncIterator[bytes]:
    """The body as it comes, in pieces of at most aiohttp's read buffer; the sender is held back in
    between.
    """
    content = call.request.content
    stall_seconds = call.context.limits.body_stall_ms / 1000
    while not content.is_eof():  # afterwards all that is left is here, and needs no timer
        try:
            async with asyncio.timeout(stall_seconds):
                piece = await content.readany()
        except TimeoutError:
            raise ShoalError(
                "bad-request", f"the body brought nothing for {stall_seconds:g} s and is not complete"
            ) from None
        except web.RequestPayloadError as error:
            raise broken_body(error) from None
        if piece:
            yield piece
    rest = what_is_here(content)
    if rest:
        yield rest


def what_is_here(content: aiohttp.StreamReader) -> bytes:
    """The rest of a body that has ended."""
    try:
        return content.read_nowait(-1)
    except web.RequestPayloadError as error:
        raise broken_body(error) from None


def broken_body(error: web.RequestPayloadError) -> ShoalError:
    """400 for wrong chunks and the like."""
    return ShoalError("bad-request", f"the body is broken: {error}")
