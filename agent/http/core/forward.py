"""Handing a request to the agent that can answer it: one hop, a shrinking timeout, bounded bodies.

A broken forward (safety 22): if no connection was made, nothing happened (definite). If the connection broke
afterwards, the outcome is unknown (not definite), unless the request changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from shoal.agent.http.admission.answer_rate import StreamDeadline
from shoal.agent.http.admission.limits import MIB, HttpLimits
from shoal.agent.http.core.cors import prepare
from shoal.agent.interface import Admit
from shoal.agent.security.agents_tls import AgentsTls, OtherScheme, context_for, in_the_open
from shoal.connector import EndingConnector
from shoal.errors import PROBLEM_MEDIA_TYPE, ShoalError
from shoal.lookup import Lookup

FORWARDED_BY = "Shoal-Forwarded-By"
AUTHORIZATION = "Authorization"
PRINCIPAL = "Shoal-Principal"
"""The client that an agent asks for, where only a certificate has named it: believed from agents alone."""
# The other agent's own answer to its timeout should arrive before ours fires.
ANSWER_GRACE_MS = 500
# Taken off the timeout that the other agent gets, for the way there and back.
TRANSIT_MS = 20
CONNECT_SECONDS = 1.0
# A JSON answer that is read whole: topics, offsets, appends.
REPLY_BYTES_MAX = 16 * MIB
RELAY_PIECE_BYTES = 256 * 1024
FORMER_SESSIONS_MAX = 12  # of four moves within a minute or two; the oldest are cut off
RELAYED_HEADERS = ("Content-Type", "Content-Length", "Retry-After", "Allow", "ETag")
UNCHANGING_METHODS = ("GET", "HEAD")


class ForwardInterrupted(aiohttp.ClientError):
    """The connection broke with a request on its way that changes something."""


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """aiohttp sends PUT and DELETE again when their connection breaks. The first one may have been carried
    out, and the second is then told that there is no such topic: as if nothing had happened."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in UNCHANGING_METHODS:
            raise
        raise ForwardInterrupted(str(error)) from error


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class Reply(NamedTuple):
    """A whole answer of another agent."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> dict[str, Any]:
        """The JSON object in the body; ShoalError leadership-lost when there is none."""
        document = _json_object(self.body)
        if document is None:
            raise ShoalError("leadership-lost", f"the leader's answer ({self.status}) is not a JSON object")
        return document


def topic_path(name: str, *below: object) -> str:
    """The path of a topic, or of what is below it."""
    return "/".join(("/v1/topics", quote(name, safe=""), *map(str, below)))


def forward_target(path: str, query: Mapping[str, str], timeout_ms: int) -> str:
    """Path and query for the next hop: the same, but for `forward` (spent) and the timeout (shrunk)."""
    kept = {name: value for name, value in query.items() if name not in ("forward", "timeout")}
    kept["timeout"] = f"{max(1, timeout_ms - TRANSIT_MS)}ms"
    return f"{path}?{urlencode(kept)}"


class Forwarder:
    """Two bounded pools of connections: short exchanges never wait behind long polls. And connections for
    one request each, as many as for long polls at most. More than fit wait, as long as their timeout."""

    def __init__(
        self,
        agent_id: str,
        limits: HttpLimits,
        lookup: Lookup | None = None,
        tls: AgentsTls = in_the_open,
    ) -> None:
        self._agent_id = agent_id
        self._tls = tls
        self._limits = limits
        self._lookup = lookup or Lookup()
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._former: dict[aiohttp.ClientSession, asyncio.Task[None]] = {}
        """Those with requests that began before an agent moved, and what will close them."""
        self._closed = False

    async def close(self) -> None:
        """Close all connections; nothing can be forwarded afterwards."""
        self._closed = True
        closings = list(self._former.values())
        for closing in closings:
            closing.cancel()
        await asyncio.gather(*closings, return_exceptions=True)
        for session in (*self._former, *self._sessions.values()):
            await session.close()
        self._former.clear()
        self._sessions.clear()

    def renew(self) -> None:
        """An agent has moved: a connection that was kept under its name leads where nobody is, and says so to
        nobody. Or agents prove themselves in another way by now. Requests from now on make new ones."""
        for session in self._sessions.values():
            self._former[session] = asyncio.get_running_loop().create_task(self._close_later(session))
        self._sessions.clear()
        for closing in list(self._former.values())[:-FORMER_SESSIONS_MAX]:
            closing.cancel()

    async def _close_later(self, session: aiohttp.ClientSession) -> None:
        """When everything that is under way has ended; sooner if cancelled."""
        limits = self._limits
        try:
            await asyncio.sleep((limits.timeout_ms + limits.wait_ms + ANSWER_GRACE_MS) / 1000)
        finally:
            if not self._closed:
                await session.close()
                self._former.pop(session, None)

    def _session(self, purpose: str) -> aiohttp.ClientSession:
        if self._closed:
            raise ShoalError("stopping", "this agent is stopping")
        session = self._sessions.get(purpose)
        if session is None:
            limits = self._limits
            all_agents, per_agent = (
                (0, limits.forward_connections) if purpose == "exchange" else (limits.relay_connections, 0)
            )
            connector = EndingConnector(
                self._lookup, limit=all_agents, limit_per_host=per_agent, force_close=purpose == "anew"
            )
            session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                middlewares=(_send_once,),
            )
            self._sessions[purpose] = session
        return session

    async def _request(
        self, purpose: str, method: str, address: URL, **values: Any
    ) -> aiohttp.ClientResponse:
        """Over a connection that was kept, if there is one. An agent whose host lost its power says goodbye
        to none of them: what changes nothing is then asked again over a new one. (aiohttp asks again, too,
        but over the next that was kept.)"""
        values["ssl"] = context_for(str(address), self._tls) or True
        try:
            return await self._session(purpose).request(method, address, **values)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if method not in UNCHANGING_METHODS:
                raise
        return await self._session("anew").request(method, address, **values)

    async def exchange(
        self,
        url: str,
        method: str,
        path: str,
        *,
        passed_on: Mapping[str, str],
        timeout_ms: int,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        wait_ms: int | None = None,
        reply_bytes: int = REPLY_BYTES_MAX,
        admit: Admit | None = None,
    ) -> Reply:
        """One request whose answer is held whole, of at most so many bytes. ShoalError: the other agent's
        problem, or that of the way there. `passed_on`: says whose request it is. `wait_ms`: a long poll,
        which must not take a connection from those that do not wait. `admit`: told the answer's size before
        it is received.
        """
        sent = {**passed_on, FORWARDED_BY: self._agent_id}
        if body is not None:
            sent["Content-Length"] = str(len(body))
        try:
            async with await self._request(
                "exchange" if wait_ms is None else "relay",
                method,
                _address(url, forward_target(path, query or {}, timeout_ms)),
                headers={**(headers or {}), **sent},
                data=body if body is None or len(body) <= RELAY_PIECE_BYTES else _pieces(body),
                timeout=_timeout(timeout_ms + (wait_ms or 0)),
                allow_redirects=False,
            ) as response:
                if admit is not None and response.status < 300:
                    await admit(min(response.content_length or reply_bytes, reply_bytes))
                data = await _read_bounded(response, reply_bytes)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise broken(error, url, method) from None
        if response.status >= 300:
            raise _problem(response.status, response.content_type, data)
        return Reply(response.status, response.headers, data)

    async def relay(
        self,
        request: web.BaseRequest,
        url: str,
        target: str,
        *,
        passed_on: Mapping[str, str],
        headers: Mapping[str, str],
        timeout_ms: int,
        spend: Callable[[], Awaitable[None]],
        body: bytes | None = None,
        added: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        """A request whose answer may be large: passed on as it comes, with the headers `added`. Problems are
        raised, before a byte is sent. `body`: of a POST, which is sent once. `spend`: called before each
        piece.
        """
        try:
            async with await self._request(
                "relay",
                request.method,
                _address(url, target),
                headers={**headers, **passed_on, FORWARDED_BY: self._agent_id},
                data=body if body is None or len(body) <= RELAY_PIECE_BYTES else _pieces(body),
                timeout=_timeout(timeout_ms),
                allow_redirects=False,
            ) as response:
                if response.status >= 300:
                    data = await _read_bounded(response)
                    raise _problem(response.status, response.content_type, data)
                return await self._pass_on(request, response, added or {}, spend)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise broken(error, url, request.method) from None

    async def _pass_on(
        self,
        request: web.BaseRequest,
        response: aiohttp.ClientResponse,
        added: Mapping[str, str],
        spend: Callable[[], Awaitable[None]],
    ) -> web.StreamResponse:
        answer = web.StreamResponse(status=response.status, headers=added)
        for name, value in response.headers.items():
            if name in RELAYED_HEADERS or name.startswith("Shoal-"):
                answer.headers[name] = value
        await prepare(answer, request)
        if request.method == "HEAD":
            return answer
        taking = StreamDeadline(self._limits)
        async for piece in response.content.iter_chunked(RELAY_PIECE_BYTES):
            await spend()
            await taking.write(answer, piece)
        await answer.write_eof()
        return answer


def _address(url: str, target: str) -> URL:
    return URL(url.rstrip("/") + target, encoded=True)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Of a large body, so that the loop is not held by one long write."""
    for start in range(0, len(body), RELAY_PIECE_BYTES):
        yield body[start : start + RELAY_PIECE_BYTES]


def _timeout(timeout_ms: int) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=(timeout_ms + ANSWER_GRACE_MS) / 1000, sock_connect=CONNECT_SECONDS, ceil_threshold=3600
    )


async def _read_bounded(response: aiohttp.ClientResponse, bytes_max: int = REPLY_BYTES_MAX) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > bytes_max:
            raise aiohttp.ClientPayloadError(f"the answer is over {bytes_max} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def broken(error: Exception, url: str, method: str) -> ShoalError:
    """The client's error for a failed exchange."""
    definite = True if method in UNCHANGING_METHODS else None
    if isinstance(error, OtherScheme):
        return ShoalError("no-leader", f"{url} cannot be asked: {error}")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ShoalError("no-leader", f"{url} cannot be reached: {error.os_error}")
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return ShoalError("no-leader", f"{url} cannot be reached: {error}")
    if isinstance(error, TimeoutError):
        return ShoalError("timeout", f"{url} did not answer in time", definite=definite)
    return ShoalError("leadership-lost", f"the connection to {url} broke: {error}", definite=definite)


def _problem(status: int, content_type: str, data: bytes) -> ShoalError:
    document = _json_object(data) if content_type == PROBLEM_MEDIA_TYPE else None
    if document is not None:
        return ShoalError.from_problem(document)
    return ShoalError("leadership-lost", f"the leader answered {status} without a problem document")
