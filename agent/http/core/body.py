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

from shoal.agent.http.admission.body_rate import BodyReservation, Pace
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.parameters import is_number
from shoal.errors import ShoalError, shown

# JSON lines have no registered name: tools use these.
ALIASES = dict.fromkeys(
    ("application/ndjson", "application/jsonl", "application/jsonlines", "application/x-jsonlines"),
    "application/x-ndjson",
)
EXPECT_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@lru_cache(maxsize=256)  # clients send the same few; a hostile one costs no more than without
def media_type(header: str | None) -> str:
    """The type without parameters, lower case; "" without a header. A charset other than UTF-8 is refused."""
    if header is None:
        return ""
    essence, _, parameters = header.partition(";")
    essence = essence.strip().lower()
    essence = ALIASES.get(essence, essence)
    for parameter in parameters.split(";") if not essence.startswith("multipart/") else ():
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii"):
            raise ShoalError("unsupported-media-type", f"charset {shown(charset)}: text has to be UTF-8")
    return essence


def check_length(call: Call, limit_bytes: int) -> None:
    """Content-Length against a limit, before a byte of the body is read."""
    text = call.headers.get("Content-Length", "0")
    if not is_number(text):
        raise ShoalError("bad-request", f"Content-Length {shown(text)} is not a length")
    if int(text) > limit_bytes:
        raise too_large(limit_bytes)


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


async def read_body(call: Call, limit_bytes: int, receiving: BodyReservation | None = None) -> bytes:
    """The whole body, at most `limit_bytes`, counted by `receiving`, or else while it arrives. ShoalError
    too-large, overloaded, bad-request (too slow), unsupported-media-type.
    """
    if receiving is None:
        with BodyReservation(call.context.gate) as until_it_is_here:
            return await read_body(call, limit_bytes, until_it_is_here)
    content = call.request.content
    if content.is_eof():  # everything came with the head: the common case, without a timer
        prepare_body(call)
        body = what_is_here(content)
        if len(body) > limit_bytes:
            raise too_large(limit_bytes)
        receiving.take_whole(len(body))
        return body
    check_length(call, limit_bytes)
    prepare_body(call)
    pieces: list[bytes] = []
    async for piece in stream_body(call, receiving):
        if receiving.size_bytes > limit_bytes:
            raise too_large(limit_bytes)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def stream_body(call: Call, receiving: BodyReservation) -> AsyncIterator[bytes]:
    """The body as it comes, in pieces of at most aiohttp's read buffer. `receiving` counts each until it is
    dropped there; the sender is held back in between. A sender that may no longer gets no further: ShoalError
    unauthenticated, forbidden.
    """
    content = call.request.content
    pace = Pace(call.context.limits)
    now, meter = asyncio.get_running_loop().time, call.asker.meter
    while not content.is_eof():  # afterwards all that is left is here, and needs no timer
        began = now()
        piece = b""
        try:
            async with asyncio.timeout(pace.patience_s()):
                piece = await content.readany()
        except TimeoutError:
            pass  # whether that was too long is for the pace to say
        except web.RequestPayloadError as error:
            raise broken_body(error) from None
        pace.came(len(piece), now() - began, receiving.size_bytes)
        call.asker.go_on()
        if piece:
            receiving.arrive(len(piece))
            if meter is not None and "Content-Length" not in call.headers:
                meter.came(content.total_bytes)
                await meter.rest()
            yield piece
    call.asker.go_on()
    rest = what_is_here(content)
    receiving.complete()
    if rest:
        receiving.take_whole(len(rest))
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
