"""One server's connection: where it stands between requests and answers, without a socket.

Pure. Bytes go in as they come, in any pieces. Heads of requests come out, each with as much of its body as is
there, then the rest of that body. The next request's bytes wait until this one is answered whole. A head that
is not read strictly hands the connection over: it and all bytes behind it are another parser's. So no byte is
ever read by two parsers that may disagree about it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

from shoal.agent.http.admission.limits import HEAD_END, WHOLE_HEAD_BYTES_MAX
from shoal.agent.http.http1.head import may_become_head

_HEAD_END_BYTES: Final = len(HEAD_END)


class ConnectionState(Enum):
    """The part of a request that may come next."""

    IDLE = auto()
    """A request, of which perhaps part of the head is held."""
    BODY = auto()
    """The rest of a body; its request may be answered already."""
    ANSWERING = auto()
    """An answer: the request is whole. Bytes that come meanwhile are held."""
    HANDED_OVER = auto()
    """Anything: another parser has the connection for good."""
    CLOSING = auto()
    """Nothing: bytes that come are dropped. The answer may still be under way."""


class Framed(Protocol):
    """A head that was read."""

    @property
    def body_bytes(self) -> int:
        """How much follows it."""


F = TypeVar("F", bound=Framed)


Received = tuple[bytes, F | None, memoryview]
"""Bytes in their place: a request's head, the request, and the part of its body that is here, a view of the
bytes that were given: use it before the next ones. Without head and request: more of the same body, or of a
connection that was handed over."""


class HttpConnection(Generic[F]):
    """One per connection. `read`: what a whole head says; None where it cannot be read strictly."""

    __slots__ = ("_after", "_left", "_read", "held", "state")

    def __init__(self, read: Callable[[bytes], F | None]) -> None:
        self._read = read
        self.state = ConnectionState.IDLE
        self.held = bytearray()  # the beginning of a head, or what came behind a request under way
        self._left = 0  # of the body
        self._after = ConnectionState.ANSWERING  # the body; another one when the answer has left before

    def receive(self, data: memoryview) -> Received[F] | None:
        """These bytes have come behind those that are held. None: more are needed, or an answer is."""
        state = self.state
        if state is ConnectionState.BODY:
            return b"", None, self._body_of(data)
        if state is ConnectionState.HANDED_OVER:
            return b"", None, data
        if state is ConnectionState.ANSWERING:
            self.held += data
        if state is not ConnectionState.IDLE:
            return None
        if self.held:
            self.held += data
            data, self.held = memoryview(self.held), bytearray()
        start = bytes(data[:WHOLE_HEAD_BYTES_MAX])
        end = start.find(HEAD_END) + _HEAD_END_BYTES
        if end >= _HEAD_END_BYTES:
            head = start[:end]
            request = self._read(head)
            if request is not None:
                body = data[end:]
                if request.body_bytes == len(body):  # nearly every request
                    self.state = ConnectionState.ANSWERING
                    return head, request, body
                self.begin(request)
                return head, request, self._body_of(body)
        elif may_become_head(start):
            self.held += data
            return None
        self.state = ConnectionState.HANDED_OVER
        return b"", None, data

    def begin(self, request: F) -> None:
        """A head has come, by `receive` or where its like was expected."""
        assert self.state is ConnectionState.IDLE, self.state
        self._left = request.body_bytes
        self._after = ConnectionState.ANSWERING
        self.state = ConnectionState.BODY if self._left else ConnectionState.ANSWERING

    def _body_of(self, data: memoryview) -> memoryview:
        """Of these bytes, those of the body; what is behind them is held, unless nothing may follow."""
        size = min(self._left, len(data))
        if size:
            self.body_came(size)
        if size < len(data) and self.state is not ConnectionState.CLOSING:
            self.held += data[size:]
        return data[:size]

    def body_came(self, size_bytes: int) -> None:
        """So much of the body has come, here or elsewhere."""
        self._left -= size_bytes
        assert self._left >= 0, "more came than the body has"
        if not self._left and self.state is ConnectionState.BODY:
            self.state = self._after

    def answered(self, *, keep_alive: bool = True) -> None:
        """The answer has left whole; if it came before the body's end, the rest of the body is awaited."""
        after = ConnectionState.IDLE if keep_alive else ConnectionState.CLOSING
        if self.state is ConnectionState.BODY:
            self._after = after
        elif self.state is ConnectionState.ANSWERING:
            self.state = after
        if not keep_alive:
            self.held.clear()

    def close(self) -> None:
        """Take nothing more, and keep nobody who reads heads."""
        self._read = lambda _: None
        self.state = ConnectionState.CLOSING
        self.held.clear()
