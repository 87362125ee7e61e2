"""Listening by TLS: connections are accepted, shake hands in bounded time and number, and are handed on.

Law of this file: it knows certificates and nothing of HTTP. A Reception makes protocols and refusals. Each
connection takes the contexts of its own moment, so files that were exchanged count from the next one on.
SSLProtocol of asyncio does the work. Servers of asyncio would take any number of half-open handshakes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.agents_tls import why_not_connected
from shoal.agent.tls.contexts import Contexts
from shoal.agent.tls.names import NameFault
from shoal.errors import ShoalError

HANDSHAKES_MAX: Final = 64
"""Under way at a time. Each costs half a millisecond of a core and about 100 KiB."""
HANDSHAKE_S: Final = 5
GRACE_S: Final = 1.0
"""When all places are taken, a handshake that has lasted so long makes way for the next connection. Ten
thousand half-open ones then delay others by seconds, and are gone after three minutes."""
SHUTDOWN_S: Final = 2
"""For the other side's goodbye; then the connection is cut."""
LINGER_S: Final = 1.0
"""For a client without TLS to read its refusal."""
NO_DESCRIPTORS_S: Final = 1.0
"""Until a connection is accepted again, after none could be."""
READ_BYTES: Final = 64 * 1024
"""Of each connection's buffer; asyncio's 256 KiB would make thousands of idle connections dear."""
HANDSHAKE_RECORD: Final = 22  # the first byte of TLS
ALERT_BYTES_MAX: Final = 1_024

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class Reception(Protocol):
    """The owner of connections that have shaken hands."""

    def admit(self, peer: PeerCertificate | None) -> asyncio.BaseProtocol:
        """The protocol of one connection; None: the other side has no certificate."""
        ...

    def refusal(self, error: ShoalError) -> bytes:
        """An answer to a request that nobody will read, after which the connection ends."""
        ...


class TlsListener:
    """One bound socket, which is closed in the end. Made inside the event loop that runs it."""

    def __init__(
        self, listener: socket.socket, contexts: Callable[[], Contexts], reception: Reception
    ) -> None:
        self._listener = listener
        self._contexts = contexts
        self.reception = reception
        self._loop = asyncio.get_running_loop()
        self._opening: dict[Opening, float] = {}  # since when; the one that waits longest comes first
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_accepting = False
        self.has_stopped = False

    @property
    def opening(self) -> int:
        """Handshakes under way."""
        return len(self._opening)

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._listener.listen()
        self._resume()

    async def stop(self) -> None:
        """Accept nobody any more; handshakes under way are cut."""
        self.has_stopped = True
        self._pause()
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()
        for opening in list(self._opening):
            opening.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def left(self, opening: Opening) -> None:
        """Its handshake has ended, in whichever way."""
        if self._opening.pop(opening, None) is not None and not self._is_accepting:
            self._resume()

    def _resume(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.has_stopped and not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        while len(self._opening) < HANDSHAKES_MAX:
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                seldom.error("cannot accept connections: %s", error, extra=about("accept-failed"))
                self._pause()
                self._timer = self._loop.call_later(NO_DESCRIPTORS_S, self._resume)
                return
            accepted.setblocking(False)
            opening = Opening(self, self._contexts(), str(address[0]) if address else "")
            self._opening[opening] = self._loop.time()
            task = self._loop.create_task(self._loop.connect_accepted_socket(opening.itself, accepted))
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._was_connected, opening, accepted))
        self._pause()
        self._make_way()

    def _was_connected(self, opening: Opening, accepted: socket.socket, task: asyncio.Task[Any]) -> None:
        """Its transport is there; or it is not, since the other side has gone already."""
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if task.cancelled() or fault is not None:
            logger.debug("lost a connection from %s at once: %s", opening.address, fault)
            accepted.close()
            self.left(opening)

    def _make_way(self) -> None:
        """All places are taken: the one that waits longest goes, once it has had its time."""
        if self.has_stopped or self._is_accepting:
            return
        opening, since_s = next(iter(self._opening.items()))
        left_s = since_s + GRACE_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._make_way)
        else:
            opening.give_way()


class Opening(SSLProtocol):
    """One connection, from its first byte to its end; the listener counts it until its handshake is over."""

    max_size = READ_BYTES

    def __init__(self, listener: TlsListener, contexts: Contexts, address: str) -> None:
        self.address = address
        self._listener = listener
        self._is_first = True
        self._is_refused = False
        self._has_arrived = False
        self._under_tls: asyncio.Transport | None = None
        self._ends = _Ends(contexts)
        super().__init__(
            asyncio.get_running_loop(),
            _Arrival(self, contexts),
            cast("ssl.SSLContext", self._ends),
            cast("asyncio.Future[Any]", None),  # nobody waits: an arrival is told, and so is an end
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )

    @property
    def reception(self) -> Reception:
        """The owner of what arrives."""
        return self._listener.reception

    def itself(self) -> Opening:
        """A factory of one protocol."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._under_tls = cast("asyncio.Transport", transport)
        super().connection_made(self._under_tls)
        if self._listener.has_stopped:
            self.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_first:
            self._is_first = False
            first = self.get_buffer(1)[0]
            if first != HANDSHAKE_RECORD:
                self._refuse_plain(chr(first))
        if not self._is_refused:
            super().buffer_updated(nbytes)

    def _refuse_plain(self, first: str) -> None:
        """A client that speaks HTTP is told so in HTTP; for any other there is no language."""
        assert self._under_tls is not None
        self._is_refused = True
        seldom.info("refused a connection from %s: it does not speak TLS", self.address, extra=REFUSED)
        if not ("A" <= first <= "Z"):
            self._under_tls.abort()
            return
        error = ShoalError("bad-request", "this port speaks TLS: ask https:// instead of http://")
        self._under_tls.write(self.reception.refusal(error))
        self._under_tls.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def arrived(self) -> None:
        """The handshake is over, and good."""
        self._has_arrived = True
        self._listener.left(self)

    def give_way(self) -> None:
        """Others wait."""
        seldom.warning(
            "cut off handshakes of TLS that others wait for, such as that of %s",
            self.address,
            extra=about("tls-handshakes-cut"),
        )
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        self._listener.left(self)
        if self._under_tls is not None:
            self._under_tls.abort()

    def eof_received(self) -> None:
        if not self._is_refused:
            super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self._has_arrived and not self._is_refused and exc is not None:
            self._send_alert()
            _tell_failure(self.address, exc)
        self._listener.left(self)
        self._under_tls = None
        super().connection_lost(exc)

    def _send_alert(self) -> None:
        """The reason, in TLS' words, which asyncio leaves unsent."""
        assert self._under_tls is not None
        found = self._under_tls.get_extra_info("socket")
        outgoing = self._ends.outgoing
        if found is not None and outgoing is not None and 0 < outgoing.pending <= ALERT_BYTES_MAX:
            try:
                with found.dup() as own:
                    own.send(outgoing.read())
            except OSError:
                logger.debug("%s has gone before it could be told", self.address)


REFUSED: Final = about("tls-refused")


class _Ends:
    """The context of one connection, as SSLProtocol uses it: what waits to be sent is known here, too."""

    def __init__(self, contexts: Contexts) -> None:
        self._context = contexts.server
        self.outgoing: ssl.MemoryBIO | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **values: Any) -> ssl.SSLObject:
        """See SSLContext."""
        self.outgoing = outgoing
        return self._context.wrap_bio(incoming, outgoing, **values)


class _Arrival(asyncio.Protocol):
    """The protocol until the handshake is over; then the front's, unless the certificate is nobody's."""

    def __init__(self, opening: Opening, contexts: Contexts) -> None:
        self._opening = opening
        self._contexts = contexts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opening = self._opening
        opening.arrived()
        tls = cast("asyncio.Transport", transport)
        try:
            peer = self._contexts.peer_of(tls.get_extra_info("ssl_object"))
        except NameFault as fault:
            seldom.info(
                "refused a connection from %s: its certificate %s", opening.address, fault, extra=REFUSED
            )
            error = ShoalError("unauthenticated", f"the certificate of this connection {fault}")
            tls.write(opening.reception.refusal(error))
            tls.close()
            return
        protocol = opening.reception.admit(peer)
        tls.set_protocol(protocol)
        protocol.connection_made(tls)


def _tell_failure(address: str, error: BaseException) -> None:
    """Of a handshake; a connection that was opened and closed, as monitors do, is no matter."""
    if isinstance(error, ssl.SSLError):
        reason = why_not_connected(error)
    elif isinstance(error, ConnectionAbortedError):
        reason = f"no handshake within {HANDSHAKE_S} s"
    else:
        logger.debug("lost a connection from %s in its handshake: %s", address, error)
        return
    seldom.info("refused a connection from %s: %s", address, reason, extra=REFUSED)
