"""Addresses in their one spelling, host names, and URLs that a member may claim: at its own address or name.

Law of this file: pure. Without these rules the tag of any member could choose the address that this agent
connects to, and the path that it asks there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

# As agents write it: an address, a port, nothing behind them.
_URL = re.compile(r"https?://(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([1-9][0-9]{0,4}))?")
_USUAL_PORTS = {"http": "80", "https": "443"}
HOST_NAME_CHARACTERS_MAX = 128
"""Longer than any name of a pod; names share 512 bytes with everything else that a member says of itself."""
# RFC 1123, and the underscore that container engines allow in names of services. No empty label.
_HOST_NAME = re.compile(r"(?:(?!-)[A-Za-z0-9_-]{1,63}(?<!-)\.)*(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
# Resolvers take 10.1, 0x7f000001 and 2130706433 for addresses.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


@lru_cache(maxsize=8_192)
def plain_address(text: str) -> str:
    """An address in its one spelling; one of IPv4 that a socket of both families shows is one of IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def is_address(text: str) -> bool:
    """Whether a host is a number (IPv4 or IPv6)."""
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


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


def is_host_name(text: str) -> bool:
    """Whether a text is a DNS name, and no number that resolvers take for an address."""
    is_name = len(text) <= HOST_NAME_CHARACTERS_MAX and _HOST_NAME.fullmatch(text) is not None
    return is_name and _NUMBER.fullmatch(text.rpartition(".")[2]) is None


def url_at(host: str, port: int, scheme: str = "http") -> str:
    """An agent's URL: `host` is a name or an address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def plain_origin(text: str) -> str | None:
    """A page's origin as browsers write it (RFC 6454, 6.2): lower case, without a port that goes without
    saying. None for any other text, such as a URL with a path."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None or int(found[3] or 1) > 65_535:
        return None
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" if port in (None, _USUAL_PORTS[scheme]) else f"{scheme}://{host}:{port}"


@lru_cache(maxsize=8_192)
def named_url(url: str, name: str) -> str:
    """The URL under which an agent at an address (`url`) is reached: by its name, if it has told one."""
    if not is_host_name(name) or host_of(url) is None:
        return url
    return url_at(name, int(url.rpartition(":")[2]), url.partition(":")[0])
