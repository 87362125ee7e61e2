"""Cookies with sessions of browsers: how one is told, and from whom one is taken.

Law of this file: headers. A browser sends cookies by itself. So one counts only in a request of the agent's
own pages, or of no page (RFC 6265bis, Fetch Metadata). Other clients send neither of the headers that tell.
"""

from __future__ import annotations

from typing import Final

from multidict import CIMultiDictProxy

from shoal.agent.http.admission.origin import is_own_page
from shoal.errors import ShoalError, shown

COOKIE: Final = "shoal-session"
SECURE_COOKIE: Final = "__Host-shoal-session"
"""Over TLS: no page of a neighbouring name can plant it."""
OWN_SITES: Final = frozenset(("same-origin", "none"))
"""Of `Sec-Fetch-Site`: the agent's own pages, and addresses that a person has typed."""
COOKIES_CHARACTERS_MAX: Final = 16_384
_HEADER: Final = "Cookie"


def sessions_in(headers: CIMultiDictProxy[str], name: str) -> list[str]:
    """The values of all cookies of this name; other sites on the same host have others."""
    values: list[str] = []
    for header in headers.getall(_HEADER, ()):
        for pair in header[:COOKIES_CHARACTERS_MAX].split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                values.append(value.strip('"'))
    return values


def refuse_other_pages(headers: CIMultiDictProxy[str], *, over_tls: bool) -> None:
    """Raises ShoalError foreign-origin for a request that another page makes, those of --cors-origins
    included."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if site is not None and site not in OWN_SITES:
        raise ShoalError("foreign-origin", f"a page of another site ({shown(site)}) may use no session here")
    if origin is not None and not is_own_page(origin, headers.get("Host"), over_tls=over_tls):
        raise ShoalError("foreign-origin", f"a page from {shown(origin)} may use no session here")


def cookie(name: str, value: str, lifetime_s: int, *, secure: bool) -> str:
    """The value of a header Set-Cookie. Without a lifetime the browser forgets it."""
    told = f"{name}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict"
    return f"{told}; Secure" if secure else told
