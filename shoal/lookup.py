"""Names to addresses, aside from the event loop: each connection asks anew, and no answer is waited for long.

Law of this file: the system's resolver, in threads of its own. A lookup cannot be cancelled, so its thread is
a daemon, which holds up neither other work nor the end of the process. A name is asked for once at a time.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from shoal.addresses import is_address

LOOKUP_SECONDS = 3.0
"""An answer comes within milliseconds; a resolver that is down takes up to half a minute to say so."""
LOOKUPS_MAX = 32
"""Names asked for at a time, each in a thread. Beyond it something else is wrong."""
REMEMBERED_MAX = 1_024
"""Names whose last answer is known, for the time in which the resolver does not answer."""
ADDRESSES_MAX = 16
"""Of one name; each is perhaps tried, and one that swallows packets takes a second."""

_TEMPORARY = (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM)


class LookupFailed(OSError):
    """No address. The text names the name."""


class _Unanswered(LookupFailed):
    """The resolver did not say whether the name has addresses."""


class FoundAddresses(NamedTuple):
    """`is_known`: the answer of an earlier lookup, since the resolver does not answer now."""

    addresses: tuple[str, ...]
    is_known: bool = False


Resolve = Callable[[str], Sequence[str]]
"""The addresses of a name, in the order in which to try them; may block. Raises OSError."""


def system_addresses(name: str) -> list[str]:
    """As the system says: /etc/hosts, DNS, whatever is configured. Raises OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Lookup:
    """One per process or client; used from one event loop."""

    def __init__(self, resolve: Resolve = system_addresses, limit_s: float = LOOKUP_SECONDS) -> None:
        self._resolve = resolve
        self._limit_s = limit_s
        self._under_way: dict[str, Future[tuple[str, ...]]] = {}
        self._remembered: dict[str, tuple[str, ...]] = {}

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Of a name; an address is its own. A resolver that does not answer leaves the last answer in force.
        Raises LookupFailed, also when it takes too long."""
        return (await self.find(host)).addresses

    async def find(self, host: str) -> FoundAddresses:
        """The same, with whether the answer is an old one."""
        if is_address(host):
            return FoundAddresses((host,))
        try:
            found = await self._ask(host)
        except _Unanswered:
            known = self._remembered.get(host)
            if known is None:
                raise
            return FoundAddresses(known, is_known=True)
        self._remembered.pop(host, None)
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[host] = found
        return FoundAddresses(found)

    async def _ask(self, name: str) -> tuple[str, ...]:
        answer = self._under_way.get(name)
        if answer is None:
            if len(self._under_way) >= LOOKUPS_MAX:
                raise _Unanswered(f"the name {name} was not looked up: {LOOKUPS_MAX} other lookups wait")
            answer = self._begin(name)
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise _Unanswered(
                f"the name {name} could not be looked up: no answer of the resolver in {self._limit_s:g} s"
            ) from None

    def _begin(self, name: str) -> Future[tuple[str, ...]]:
        answer: Future[tuple[str, ...]] = Future()
        answer.set_running_or_notify_cancel()  # one who waits no longer takes it from nobody else

        def look() -> None:
            try:
                found = tuple(self._resolve(name))[:ADDRESSES_MAX]
            except (OSError, ValueError) as error:  # a text that is no name at all, too
                is_temporary = isinstance(error, socket.gaierror) and error.errno in _TEMPORARY
                kind = _Unanswered if is_temporary else LookupFailed
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                outcome: Any = kind(f"the name {name} has no address: {reason}")
            else:
                outcome = found or LookupFailed(f"the name {name} has no address")
            finally:
                self._under_way.pop(name, None)
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._under_way[name] = answer
        if not threading.main_thread().is_alive():  # the interpreter ends: no thread begins, and nobody waits
            look()
            return answer
        try:
            threading.Thread(target=look, name="shoal-lookup", daemon=True).start()
        except RuntimeError as error:  # no more threads
            del self._under_way[name]
            raise _Unanswered(f"the name {name} was not looked up: {error}") from None
        return answer
