"""Where this agent is if it is known by a name: gossip's packets carry addresses, so the name is looked up.

Law of this file: what a lookup of the own name means. At the start an address is chosen, or the agent does
not start. Later the pool is told of another address once the name leads there and this host has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from ipaddress import ip_address

from shoal.addresses import plain_address
from shoal.agent.config import AgentConfig, is_loopback, is_unspecified
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import is_own_address
from shoal.lookup import Lookup, LookupFailed

START_PATIENCE_S = 60.0
"""A name of a new pod or container is served some seconds after its start, or half a minute: resolvers keep
the answer that there is no such name."""
START_RETRY_S = 1.0
WATCH_INTERVAL_S = 5.0
AGREEING_LOOKUPS = 2
"""Lookups in a row that lead elsewhere: of two resolvers one may still tell the old address."""

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class Unusable(Exception):
    """None of a name's addresses will do; the text says why and what to do."""


def choose_address(found: Sequence[str], bind: str, is_own: Callable[[str], bool]) -> str:
    """The address that the pool is told: one that the agent listens on and that this host has. If there is
    none, it is the first, which a translation of addresses may lead here. Raises Unusable."""
    addresses = [plain_address(one) for one in found]
    # Hosts often have their own name at 127.0.1.1.
    is_meant = bind in addresses or (not is_loopback(bind) and all(map(is_loopback, addresses)))
    if not is_unspecified(bind) and is_meant:
        return bind
    if is_loopback(bind):
        raise Unusable(f"cannot be reached while --bind is {bind} (loopback): bind that address, or 0.0.0.0")
    outward = [one for one in addresses if not is_loopback(one)]
    if not outward:
        raise Unusable("is loopback, which no other host reaches: mend /etc/hosts, or --bind an address")
    version = ip_address(bind).version
    reachable = [one for one in outward if version == 6 or ip_address(one).version == version]
    if not reachable:
        raise Unusable(f"is IPv6, and --bind {bind} takes IPv4: give --bind ::, or a name with both")
    return next(filter(is_own, reachable), reachable[0])


async def settle_address(config: AgentConfig, lookup: Lookup) -> str:
    """The address of this run. A name that has none yet gets some time. Raises StartError, which names it."""
    name = config.advertised_name
    if name is None:
        return config.advertised_host
    found = await _patiently(name, lookup)
    address = _usable(name, found, config.bind)
    count = len(set(map(plain_address, found)))
    if count > 1:
        logger.info("%s has %d addresses: the pool is told %s", name, count, address, extra=about("own-name"))
    if not is_own_address(address):
        logger.warning(
            "%s leads to %s, which is not an address of this host: others must reach this agent there",
            name,
            address,
            extra=about("own-name"),
        )
    return address


async def address_now(name: str, bind: str, lookup: Lookup) -> str:
    """The address that a start would settle, if the name has one now. Raises StartError."""
    try:
        found = await lookup.addresses(name)
    except LookupFailed as error:
        raise _nowhere(name, error) from None
    return _usable(name, found, bind)


def _usable(name: str, found: Sequence[str], bind: str) -> str:
    try:
        return choose_address(found, bind, is_own_address)
    except Unusable as error:
        raise StartError(f"--advertise {name}: its address {', '.join(found)} {error}") from None


def _nowhere(name: str, error: LookupFailed) -> StartError:
    return StartError(f"--advertise {name}: {error}: give a name that this host can look up, or an address")


async def _patiently(name: str, lookup: Lookup) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    give_up_s, was_said = loop.time() + START_PATIENCE_S, False
    while True:
        try:
            return await lookup.addresses(name)
        except LookupFailed as error:
            if loop.time() >= give_up_s:
                raise _nowhere(name, error) from None
            if not was_said:
                logger.warning("waiting: --advertise %s: %s", name, error, extra=about("waiting"))
                was_said = True
        await asyncio.sleep(START_RETRY_S)


class NameWatch:
    """run() for the agent's life. `move` tells the pool, and says whether that was possible."""

    def __init__(
        self,
        config: AgentConfig,
        address: str,
        lookup: Lookup,
        move: Callable[[str], bool],
        is_own: Callable[[str], bool] = is_own_address,
    ) -> None:
        self.address = address
        self._config = config
        self._lookup = lookup
        self._move = move
        self._is_own = is_own
        self._elsewhere = 0
        self._said = ""

    async def run(self) -> None:
        """Until cancelled; at once where there is no name."""
        while self._config.advertised_name is not None:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self.look(self._config.advertised_name)

    async def look(self, name: str) -> None:
        """Once."""
        try:
            found = await self._lookup.find(name)
        except LookupFailed as error:
            self._say(f"{error}; peers and clients that look it up do not find this agent")
            return
        if found.is_known or self.address in map(plain_address, found.addresses):
            self._elsewhere, self._said = 0, ""
            return
        self._elsewhere += 1
        if self._elsewhere < AGREEING_LOOKUPS:
            return
        try:
            self._follow(name, choose_address(found.addresses, self._config.bind, self._is_own))
        except Unusable as error:
            self._say(f"--advertise {name}: its address {', '.join(found.addresses)} {error}")

    def _follow(self, name: str, address: str) -> None:
        if address == self.address:
            return  # bound to it, whatever the name says
        if self._is_own(self.address) and not self._is_own(address):
            self._say(f"{name} leads to {address}, which is not this host's; the pool is told {self.address}")
        elif not self._move(address):
            self._say(f"{name} leads to {address}: the Serf agent tells the pool where this agent is")
        else:
            logger.warning(
                "%s leads to %s now, no longer to %s: telling the pool",
                name,
                address,
                self.address,
                extra=about("own-name"),
            )
            self.address, self._elsewhere, self._said = address, 0, ""

    def _say(self, reason: str) -> None:
        """Once per reason, until the name leads here again."""
        if reason != self._said:
            self._said = reason
            seldom.warning("%s", reason, extra=about("own-name"))
