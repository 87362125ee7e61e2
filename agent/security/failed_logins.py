"""Failed logins of each address: how many are answered with the reason, until it is only said that there were
too many.

Law of this file: pure. The time is an argument, in nanoseconds of a clock that never goes back. Credentials
that are right pass from every address at all times: an office behind one address goes on while somebody there
guesses. Nobody guesses a token of 256 bits; the limit keeps the work, the log and the audit of those small
who try. An address that is refused takes nothing, so its wait ends whatever it does meanwhile.

Nobody is forgotten before its failures are paid for, within LOGINS_AT_ONCE times LOGIN_NS. While the table is
full of others, all further addresses count as one. So many addresses make no room for the one that they
belong to.

A loopback address and a unix socket have no limit: every user and every proxy of the host asks from there.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

LOGINS_AT_ONCE: Final = 10
LOGIN_NS: Final = 6_000_000_000
"""Pays for one: ten a minute."""
ADDRESSES_MAX: Final = 10_000
"""Some 2 MB. Only addresses with failures of the last minute are there."""
IPV6_PREFIX_BITS: Final = 64
"""A host has at least so many addresses of its own."""

Key: TypeAlias = tuple[int, int]
"""The version of the address, and the number of the address or of its network."""
OTHERS: Final[Key] = (0, 0)


@lru_cache(maxsize=1_024)
def key_of(address: str) -> Key | None:
    """None for an address without a limit."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:  # of a unix socket
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return None
    if isinstance(found, IPv4Address):
        return 4, int(found)
    return 6, int(found) >> (128 - IPV6_PREFIX_BITS)


class FailedLogins:
    """Of one agent."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        self._paid_ns: OrderedDict[Key, int] = OrderedDict()
        """When the failures of each are paid for; the one that failed longest ago comes first."""

    def __len__(self) -> int:
        return len(self._paid_ns)

    def failed(self, address: str, now_ns: int) -> int:
        """A login has failed. 0 where the reason may be told, else the time until the next one may be."""
        key = key_of(address)
        if key is None:
            return 0
        self._forget_paid(now_ns)
        if key not in self._paid_ns and len(self._paid_ns) >= self._addresses_max:
            key = OTHERS
        paid_ns = max(self._paid_ns.get(key, 0), now_ns) + LOGIN_NS
        wait_ns = paid_ns - now_ns - LOGINS_AT_ONCE * LOGIN_NS
        if wait_ns > 0:
            return wait_ns
        self._paid_ns[key] = paid_ns
        self._paid_ns.move_to_end(key)
        return 0

    def _forget_paid(self, now_ns: int) -> None:
        """The first is paid for after a minute at the latest, and those behind it soon after."""
        while self._paid_ns and next(iter(self._paid_ns.values())) <= now_ns:
            self._paid_ns.popitem(last=False)

    def check_invariants(self) -> None:
        """The table is bounded: all others have one place."""
        assert len(self._paid_ns) <= self._addresses_max + 1
