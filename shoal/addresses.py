"""Addresses in their one spelling, and URLs that a member may claim: at its own address, and nothing more.

Law of this file: pure. Without these rules the tag of any member could choose the address that this agent
connects to, and the path that it asks there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

# As agents write it: an address, a port, nothing behind them.
_URL = re.compile(r"http://(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")


@lru_cache(maxsize=8_192)
def plain_address(text: str) -> str:
    """An address in its one spelling; one of IPv4 that a socket of both families shows is one of IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=8_192)
def host_of(url: str) -> str | None:
    """The address in an agent's URL, in its one spelling; None for any other text."""
    found = _URL.fullmatch(url)
    if found is None or int(found[3]) > 65_535:
        return None
    try:
        return plain_address(str(ip_address(found[1] or found[2])))
    except ValueError:
        return None
