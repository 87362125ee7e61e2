"""Origins that may use a port without a password: no web page of another site.

A browser on the same machine or LAN reaches every agent. A foreign page's requests carry its `Origin`; a
page that rebinds its own name to our address carries that name in `Host`. Both get 403
(docs/http.md). Addresses written as numbers cannot be rebound, so they pass as `Host`. The configuration
names further hosts, and origins whose pages may.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from shoal.addresses import is_address, plain_origin
from shoal.errors import ShoalError, shown

# Host headers remembered as good; a client cannot add to it but by numbers, which are bounded here.
REMEMBERED_HOSTS_MAX = 1_024


class HostPolicy:
    """Checks `Host` and `Origin`; one dictionary lookup for a host seen before."""

    def __init__(
        self, own_url: str, allowed_hosts: Iterable[str] = (), cors_origins: Iterable[str] = ()
    ) -> None:
        own = urlsplit(own_url).hostname
        machine = socket.gethostname()
        names = {"localhost", machine, machine.partition(".")[0], *allowed_hosts}
        if own:
            names.add(own)
        self._names = frozenset(name.lower() for name in names)
        self._origins = frozenset(filter(None, map(plain_origin, cors_origins)))
        self._good: set[str] = set()

    def check(self, host: str | None, origin: str | None, *, over_tls: bool = False) -> str | None:
        """Raise ShoalError foreign-origin, or bad-request for a Host that is not one. Returns the origin of a
        page that is not this agent's and may all the same. `over_tls`: the request's connection is."""
        if host is not None and host not in self._good:
            self._check_host(host)
        if origin is None or is_own_page(origin, host, over_tls=over_tls):
            return None
        if plain_origin(origin) not in self._origins:
            raise ShoalError(
                "foreign-origin",
                f"a page from {shown(origin)} may not use this agent; its own pages may, and those of"
                " --cors-origins",
            )
        return origin

    def _check_host(self, host: str) -> None:
        name = host_name(host)
        if name is None:
            raise ShoalError("bad-request", f"the Host header {shown(host)} is not HOST[:PORT]")
        if name not in self._names and not is_address(name):
            raise ShoalError(
                "foreign-origin",
                f"the Host {shown(host)} is none of this agent's names: use its address or localhost, or name"
                " it in --allowed-hosts",
            )
        if len(self._good) < REMEMBERED_HOSTS_MAX:
            self._good.add(host)


def is_own_page(origin: str, host: str | None, *, over_tls: bool) -> bool:
    """Whether a page of this origin was served at the address that the request is for. A page that came in
    the open to a request over TLS was not: somebody on the way may have made it. Without TLS it may be of
    either scheme, since a reverse proxy may take TLS off."""
    scheme, _, authority = origin.partition("://")
    schemes = ("https",) if over_tls else ("http", "https")
    return scheme in schemes and host is not None and authority.lower() == host.lower()


def host_name(host: str) -> str | None:
    """The name in HOST[:PORT] or [ADDRESS][:PORT], lower case; None if it is neither."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    if not name or (port and not (port.isascii() and port.isdigit() and len(port) <= 5)):
        return None
    return name.lower().rstrip(".")
