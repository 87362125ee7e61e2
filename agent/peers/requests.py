"""Questions that two agents ask each other over their bulk connection, and the answers.

Law of this file: numbers that tie an answer to its question, and how many may be under way. The answer to a
question is its handler's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.peers.frames import (
    MAX_BULK_PAYLOAD_BYTES,
    FrameType,
    Piece,
    decode_request,
    encode_request,
)
from shoal.agent.peers.linked_peer import LinkedPeer
from shoal.errors import ShoalError

MAX_REQUESTS_IN_FLIGHT = 64
"""Per peer and direction: placement and catalogue questions, a few a second."""
_OK, _FAILED = 0, 1

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)

RequestHandler = Callable[[str, bytes], Awaitable[bytes]]


class PeerUnavailable(Exception):
    """No answer: not connected, lost on the way, too many questions, or out of time. It may have been
    carried out."""


class PeerRequestFailed(Exception):
    """The peer answered that it cannot; the text is its reason."""


class Requests:
    """`send` puts a frame on a peer's bulk connection; False when it was dropped."""

    def __init__(self, send: Callable[[str, int, Sequence[Piece]], bool]) -> None:
        self.handlers: dict[int, RequestHandler] = {}
        self._send = send
        self._correlation = 0

    async def ask(self, peer: LinkedPeer, request_type: int, payload: bytes, timeout_ms: int) -> bytes:
        """The peer's answer. Raises PeerUnavailable, or PeerRequestFailed with the peer's reason."""
        assert len(payload) < MAX_BULK_PAYLOAD_BYTES
        if len(peer.requests) >= MAX_REQUESTS_IN_FLIGHT:
            raise PeerUnavailable(
                f"{MAX_REQUESTS_IN_FLIGHT} requests to {agent_name(peer.agent_id)} wait already"
            )
        self._correlation += 1
        correlation = self._correlation
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        peer.requests[correlation] = answer
        request = encode_request(correlation, request_type, payload)
        try:
            if not self._send(peer.agent_id, FrameType.REQUEST, request):
                raise PeerUnavailable(f"{agent_name(peer.agent_id)} is not connected, or takes nothing")
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise PeerUnavailable(
                f"{agent_name(peer.agent_id)} did not answer within {timeout_ms} ms"
            ) from None
        finally:
            peer.requests.pop(correlation, None)

    def fail(self, peer: LinkedPeer) -> None:
        """The link is lost, and its answers with it."""
        for answer in peer.requests.values():
            if not answer.done():
                answer.set_exception(PeerUnavailable(f"the link to {agent_name(peer.agent_id)} was lost"))
        peer.requests.clear()

    def take_response(self, peer: LinkedPeer, payload: bytes) -> None:
        """A RESPONSE frame. Raises PeerWireError."""
        correlation, status, answer = decode_request(payload)
        waiting = peer.requests.pop(correlation, None)
        if waiting is None or waiting.done():
            return  # out of time here; the peer could not know
        if status == _OK:
            waiting.set_result(answer)
        else:
            waiting.set_exception(PeerRequestFailed(answer.decode("utf-8", "replace")))

    def take_request(self, peer: LinkedPeer, payload: bytes) -> Awaitable[None] | None:
        """A REQUEST frame: the work of answering it. Raises PeerWireError."""
        correlation, request_type, question = decode_request(payload)
        if peer.answering >= MAX_REQUESTS_IN_FLIGHT:
            self._respond(peer, correlation, _FAILED, b"too many requests")
            return None
        peer.answering += 1
        return self._answer(peer, correlation, request_type, question)

    async def _answer(self, peer: LinkedPeer, correlation: int, request_type: int, question: bytes) -> None:
        handler = self.handlers.get(request_type)
        try:
            if handler is None:
                self._respond(peer, correlation, _FAILED, f"unknown request type {request_type}".encode())
                return
            self._respond(peer, correlation, _OK, await handler(peer.agent_id, question))
        except ShoalError as error:
            seldom.info("refused a request of %s: %s", agent_name(peer.agent_id), error)
            self._respond(peer, correlation, _FAILED, str(error).encode())
        except Exception as error:
            # The asker must not wait for its timeout to learn of the failure.
            logger.exception("a request of %s failed; this is a bug", agent_name(peer.agent_id))
            self._respond(peer, correlation, _FAILED, str(error).encode())
        finally:
            peer.answering -= 1

    def _respond(self, peer: LinkedPeer, correlation: int, status: int, answer: bytes) -> None:
        self._send(peer.agent_id, FrameType.RESPONSE, encode_request(correlation, status, answer))
