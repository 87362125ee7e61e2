"""One connection to a port of TLS, from its first byte until somebody owns it, or until it is refused.

Law of this file: it knows certificates and nothing of HTTP, and its handshake ends in bounded time. OpenSSL
sees nothing before the client's whole first record is there: until then a connection costs its bytes alone.
SSLProtocol of asyncio does the work afterwards, for the connection's life.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final, Protocol, cast

from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.agents_tls import why_not_connected
from shoal.agent.tls.client_hello import HANDSHAKE_RECORD, has_certificate, is_whole
from shoal.agent.tls.contexts import Contexts
from shoal.agent.tls.names import NameFault
from shoal.agent.tls.refusals import RefusalKind, kind_of
from shoal.errors import ShoalError

HANDSHAKE_S: Final = 5
"""From the moment when a connection has its place to the end of its handshake."""
SHUTDOWN_S: Final = 2
"""For the other side's goodbye; then the connection is cut."""
LINGER_S: Final = 1.0
"""For a client without TLS to read its refusal."""
READ_BYTES: Final = 64 * 1024
"""Of each connection's buffer; asyncio's 256 KiB would make thousands of idle connections dear."""
ALERT_BYTES_MAX: Final = 1_024
REFUSED: Final = about("tls-refused")

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class Reception(Protocol):
    """The owner of connections that have shaken hands."""

    def admit(self, peer: PeerCertificate | None) -> asyncio.BaseProtocol:
        """The protocol of one connection; None: the other side has no certificate."""
        ...

    def refusal(self, error: ShoalError, *, over_tls: bool) -> bytes:
        """An answer to a request that nobody will read, after which the connection ends."""
        ...


class Doorway(Protocol):
    """The listener, as its connections need it."""

    @property
    def reception(self) -> Reception: ...
    @property
    def has_stopped(self) -> bool: ...
    def left(self, opening: Opening) -> None: ...
    def certified(self, handshake: Handshake) -> None: ...
    def gone(self, handshake: Handshake) -> None: ...
    def refused(self, kind: RefusalKind, address: str) -> None: ...


class Opening(asyncio.Protocol):
    """The listener counts it until its handshake is over. `contexts`: of the moment when it was accepted."""

    def __init__(self, doorway: Doorway, contexts: Contexts, address: str) -> None:
        self.address = address
        self.doorway = doorway
        self.contexts = contexts
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + HANDSHAKE_S
        self._timer = self._loop.call_at(self._deadline_s, self.end_late)
        self._begun = bytearray()
        self._is_refused = False
        self._transport: asyncio.Transport | None = None

    def itself(self) -> Opening:
        """A factory of one protocol."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.doorway.has_stopped:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._begun += data
        if self._begun[0] != HANDSHAKE_RECORD:
            self._refuse_plain(chr(self._begun[0]))
        elif is_whole(self._begun):
            self._shake_hands()

    def _shake_hands(self) -> None:
        """From now on the connection belongs to TLS, beginning with what has come already."""
        assert self._transport is not None
        self._timer.cancel()
        context = self.contexts.for_client(says_certified=has_certificate(self._begun))
        begun, self._begun = bytes(self._begun), bytearray()
        handshake = Handshake(self, context, max(0.001, self._deadline_s - self._loop.time()))
        self._transport.set_protocol(handshake)
        handshake.connection_made(self._transport)
        handshake.take(begun)

    def _refuse_plain(self, first: str) -> None:
        """A client that speaks HTTP is told so in HTTP; for any other there is no language."""
        assert self._transport is not None
        self._is_refused = True
        self._timer.cancel()
        self._begun.clear()
        seldom.info("refused a connection from %s: it does not speak TLS", self.address, extra=REFUSED)
        self.doorway.refused(RefusalKind.NO_TLS, self.address)
        if not ("A" <= first <= "Z"):
            self._transport.abort()
            return
        error = ShoalError("bad-request", "this port speaks TLS: ask https:// instead of http://")
        self._transport.write(self.doorway.reception.refusal(error, over_tls=False))
        self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def end_late(self) -> None:
        """It has not shaken hands in time."""
        tell_late(self)
        self.abort()

    def arrived(self) -> None:
        """The handshake is over, and good."""
        self.doorway.left(self)

    def give_way(self) -> None:
        """Others wait."""
        tell_crowded(self.doorway, self.address)
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        self._timer.cancel()
        self.doorway.left(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:
            logger.debug("lost a connection from %s before its handshake: %s", self.address, exc)
        self._timer.cancel()
        self._transport = None
        self.doorway.left(self)


class Handshake(SSLProtocol):
    """Of one Opening; afterwards the way to the connection's owner."""

    max_size = READ_BYTES

    def __init__(self, opening: Opening, context: ssl.SSLContext, timeout_s: float) -> None:
        self._opening = opening
        self._has_arrived = False
        self._under_tls: asyncio.Transport | None = None
        self._admitted: tuple[asyncio.Transport, asyncio.BaseProtocol] | None = None
        self._ends = _Ends(context)
        super().__init__(
            asyncio.get_running_loop(),
            _Arrival(self),
            cast("ssl.SSLContext", self._ends),
            cast("asyncio.Future[Any]", None),  # nobody waits: an arrival is told, and so is an end
            server_side=True,
            ssl_handshake_timeout=cast("int", timeout_s),  # any number does
            ssl_shutdown_timeout=SHUTDOWN_S,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._under_tls = cast("asyncio.Transport", transport)
        super().connection_made(self._under_tls)

    def take(self, data: bytes) -> None:
        """Bytes that came before this was the protocol."""
        view = memoryview(data)
        while view:
            buffer = self.get_buffer(len(view))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self.buffer_updated(size)
            view = view[size:]

    def arrived(self, tls: asyncio.Transport) -> None:
        """The handshake is over: the front's from now on, unless the certificate is nobody's."""
        self._has_arrived = True
        opening = self._opening
        opening.arrived()
        try:
            peer = opening.contexts.peer_of(tls.get_extra_info("ssl_object"))
        except NameFault as fault:
            seldom.info(
                "refused a connection from %s: its certificate %s", opening.address, fault, extra=REFUSED
            )
            opening.doorway.refused(RefusalKind.CERTIFICATE_MISNAMED, opening.address)
            error = ShoalError("unauthenticated", f"the certificate of this connection {fault}")
            tls.write(opening.doorway.reception.refusal(error, over_tls=True))
            tls.close()
            return
        protocol = opening.doorway.reception.admit(peer)
        if peer is not None:
            self._admitted = tls, protocol
            opening.doorway.certified(self)
        tls.set_protocol(protocol)
        protocol.connection_made(tls)

    def certificate(self) -> bytes | None:
        """Of the other side (DER); None where it counts for nothing here. Links are ended by their owner."""
        if self._admitted is None:
            return None
        tls, protocol = self._admitted
        found = tls.get_extra_info("ssl_object")
        if found is None or tls.get_protocol() is not protocol:
            return None
        return cast("bytes | None", found.getpeercert(binary_form=True))

    def end(self) -> None:
        """Its certificate is believed no more."""
        seldom.info(
            "ended a connection from %s: the authority of its certificate was taken out of tls_ca",
            self._opening.address,
            extra=REFUSED,
        )
        if self._admitted is not None:
            self._admitted[0].close()

    def connection_lost(self, exc: BaseException | None) -> None:
        opening = self._opening
        if not self._has_arrived and exc is not None:
            self._send_alert()
            _tell_failure(opening, exc)
        opening.connection_lost(None)
        opening.doorway.gone(self)
        self._under_tls = self._admitted = None
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
                logger.debug("%s has gone before it could be told", self._opening.address)


class _Ends:
    """The context of one connection, as SSLProtocol uses it: what waits to be sent is known here, too."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.outgoing: ssl.MemoryBIO | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **values: Any) -> ssl.SSLObject:
        """See SSLContext."""
        self.outgoing = outgoing
        return self._context.wrap_bio(incoming, outgoing, **values)


class _Arrival(asyncio.Protocol):
    """The protocol until the handshake is over."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.arrived(cast("asyncio.Transport", transport))


def tell_late(opening: Opening) -> None:
    """Of a handshake that has not ended in time."""
    seldom.info(
        "refused a connection from %s: no handshake within %s s", opening.address, HANDSHAKE_S, extra=REFUSED
    )
    opening.doorway.refused(RefusalKind.TIMEOUT, opening.address)


def tell_crowded(doorway: Doorway, address: str) -> None:
    """Of a connection that makes way for others, in its handshake or before."""
    seldom.warning(
        "cut off handshakes of TLS that others wait for, such as that of %s",
        address,
        extra=about("tls-handshakes-cut"),
    )
    doorway.refused(RefusalKind.CROWDED, address)


def _tell_failure(opening: Opening, error: BaseException) -> None:
    """Of a handshake; a connection that was opened and closed, as monitors do, is no matter."""
    if isinstance(error, ssl.SSLError):
        reason = why_not_connected(error)
        seldom.info("refused a connection from %s: %s", opening.address, reason, extra=REFUSED)
        opening.doorway.refused(kind_of(error), opening.address)
    elif isinstance(error, ConnectionAbortedError):
        tell_late(opening)
    else:
        logger.debug("lost a connection from %s in its handshake: %s", opening.address, error)
