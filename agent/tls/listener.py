"""Listening by TLS: connections are accepted, shake hands in bounded time and number, and are handed on.

Law of this file: how many handshakes there are at a time, and who makes way when there are too many. The
kernel's queue has one order for all, and what finds no room there comes again after 1, 3 and 7 s. So it is
kept empty: who waits does so here, where networks take turns. Each connection takes the contexts of the
moment when its handshake begins, so files that were exchanged count from the next one on. Servers of asyncio
would take any number of half-open handshakes.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from shoal.addresses import plain_address
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.tls.contexts import Contexts
from shoal.agent.tls.newcomer import Handshake, Opening, Reception, tell_crowded
from shoal.agent.tls.refusals import RefusalKind, Refusals
from shoal.agent.tls.waiting_room import WaitingRoom, may_enter

HANDSHAKES_MAX: Final = 256
"""Under way at a time. One that has sent no whole greeting costs its descriptor and bytes; one that has costs
half a millisecond of a core and about 100 KiB."""
GRACE_S: Final = 1.0
"""While connections wait, a handshake that has lasted so long makes way for the next one. Beside ten thousand
half-open ones others are served at once (lab/2026-11-28-half-open-handshakes.md)."""
WITHDRAWN_S: Final = 30.0
"""From the withdrawal of an authority to the end of the connections that only its word has let in. Other
agents have dialled anew by then, and what they had asked is answered."""
WAITING_MAX: Final = 1_024
"""Connections for whose handshakes there is no place. Nothing of them is read: each costs its descriptor. Of
a full room 256 a second get a place."""
WAITING_S: Final = 5.0
"""So long one waits, and no longer: a full room is empty after 4 s, if nobody else comes."""
WAITING_FILES_SHARE: Final = 16
"""Of the files that the process may have open, as a divisor: clients, links and logs need the others."""
ACCEPTED_PER_TURN: Final = 64
"""Of the loop: a few milliseconds. So handshakes go on meanwhile, and a host whose clients all come back at
once is served about as fast as it is let in."""
BACKLOG: Final = 1_024
"""Connections in the kernel's queue, as of the port in the open (agent/process/ports.py): those that come in
one turn of the loop."""
NO_DESCRIPTORS_S: Final = 1.0
"""Until a connection is accepted again, after none could be."""
NETWORK_BITS: Final = 64
"""Of an IPv6 address, whose holder has all others of that network."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


def waiting_places(open_files: int) -> int:
    """Of a process that may have so many files open."""
    return max(1, min(WAITING_MAX, open_files // WAITING_FILES_SHARE))


class _Accepted(NamedTuple):
    """A connection that waits for its handshake. `since_s`: by the loop's clock."""

    socket: socket.socket
    address: str
    since_s: float


class TlsListener:
    """One bound socket, which is closed in the end. Made inside the event loop that runs it. `waiting_max`:
    see WAITING_MAX."""

    def __init__(
        self,
        listener: socket.socket,
        contexts: Callable[[], Contexts],
        reception: Reception,
        refusals: Refusals | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._listener = listener
        self._contexts = contexts
        self.reception = reception
        self._refusals = refusals or Refusals()
        self._loop = asyncio.get_running_loop()
        self._opening: dict[Opening, float] = {}  # since when; the one that waits longest comes first
        self._by_network: dict[str, dict[Opening, None]] = {}  # the same ones, in the same order
        self._waiting = WaitingRoom[_Accepted](waiting_max)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._certified: set[Handshake] = set()
        self._partings: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None  # to accept
        self._way: asyncio.TimerHandle | None = None  # to make way
        self.has_stopped = False

    @property
    def opening(self) -> int:
        """Handshakes under way."""
        return len(self._opening)

    @property
    def waiting(self) -> int:
        """Connections whose handshakes have not begun."""
        return len(self._waiting)

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._resume()

    async def stop(self) -> None:
        """Accept nobody any more; handshakes under way are cut."""
        self.has_stopped = True
        for timer in (self._again, self._way):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for accepted in self._waiting.clear():
            accepted.socket.close()
        for opening in list(self._opening):
            opening.abort()
        for parting in self._partings:
            parting.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def left(self, opening: Opening) -> None:
        """Its handshake has ended, in whichever way."""
        if self._opening.pop(opening, None) is None:
            return
        network = network_of(opening.address)
        places = self._by_network[network]
        del places[opening]
        if not places:
            del self._by_network[network]
        self._let_in()

    def certified(self, handshake: Handshake) -> None:
        """The other side has a certificate, by which it is somebody."""
        self._certified.add(handshake)

    def gone(self, handshake: Handshake) -> None:
        """Its connection has ended."""
        self._certified.discard(handshake)

    def withdrawn(self) -> None:
        """An authority is believed no more: its connections end, in a while."""
        if not self.has_stopped:
            parting = self._loop.create_task(self._part())
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)

    async def _part(self) -> None:
        await asyncio.sleep(WITHDRAWN_S)
        found = {
            one: certificate for one in self._certified if (certificate := one.certificate()) is not None
        }
        contexts, all_of_them = self._contexts(), set(found.values())
        # Some 0.1 ms for each: in a thread, since there may be thousands.
        ended = await asyncio.to_thread(lambda: {one for one in all_of_them if not contexts.believes(one)})
        for handshake in self._certified & found.keys():
            if found[handshake] in ended:
                handshake.end()

    def refused(self, kind: RefusalKind, address: str) -> None:
        """A connection that TLS does not let in."""
        self._refusals.note(kind, address, int(time.time() * 1_000))

    def _resume(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                seldom.error("cannot accept connections: %s", error, extra=about("accept-failed"))
                self._loop.remove_reader(self._listener.fileno())
                self._again = self._loop.call_later(NO_DESCRIPTORS_S, self._resume)
                return
            accepted.setblocking(False)
            source = plain_address(str(address[0])) if address else ""
            self._arrive(_Accepted(accepted, source, self._loop.time()))

    def _arrive(self, accepted: _Accepted) -> None:
        self._waiting.enter(network_of(accepted.address), accepted)
        self._let_in()
        gone = self._waiting.overflow()
        if gone is not None:
            self._send_away(gone)
        if self._way is None:
            self._make_way()

    def _send_away(self, accepted: _Accepted) -> None:
        accepted.socket.close()
        tell_crowded(self, accepted.address)

    def _has_place(self, network: str) -> bool:
        """Whether another handshake of that network may begin."""
        return may_enter(len(self._by_network.get(network, ())), HANDSHAKES_MAX - len(self._opening))

    def _let_in(self) -> None:
        """Those for whose handshakes there is room."""
        while len(self._opening) < HANDSHAKES_MAX and not self.has_stopped:
            accepted = self._waiting.leave(self._has_place)
            if accepted is None:
                return
            opening = Opening(self, self._contexts(), accepted.address)
            self._opening[opening] = self._loop.time()
            self._by_network.setdefault(network_of(opening.address), {})[opening] = None
            connecting = self._loop.connect_accepted_socket(opening.itself, accepted.socket)
            task = self._loop.create_task(connecting)
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._was_connected, opening, accepted.socket))

    def _was_connected(self, opening: Opening, accepted: socket.socket, task: asyncio.Task[Any]) -> None:
        """Its transport is there; or it is not, since the other side has gone already."""
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if task.cancelled() or fault is not None:
            logger.debug("lost a connection from %s at once: %s", opening.address, fault)
            accepted.close()
            opening.abort()

    def _make_way(self) -> None:
        """Somebody waits. Of the network that has most places the one that waits longest goes, once it has
        had its time. So one that takes all it can costs nobody else a handshake."""
        self._way = None
        since_s = self._loop.time() - WAITING_S
        for accepted in self._waiting.leave_while(lambda one: one.since_s < since_s):
            self._send_away(accepted)
        while self._waiting and not self.has_stopped:
            most = max(self._by_network, key=lambda network: len(self._by_network[network]))
            opening = next(iter(self._by_network[most]))
            left_s = self._opening[opening] + GRACE_S - self._loop.time()
            if left_s > 0:
                self._way = self._loop.call_later(left_s, self._make_way)
                return
            opening.give_way()


def network_of(address: str) -> str:
    """The addresses that one host may have at will: an IPv4 address, or an IPv6 network. A socket of both
    families shows IPv4 addresses as ones of IPv6, all of them in one network."""
    plain = plain_address(address.partition("%")[0])
    if ":" not in plain:
        return plain
    return str(ipaddress.ip_network((plain, NETWORK_BITS), strict=False))
