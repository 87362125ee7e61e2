"""Headers of every answer for browsers: it is data, of nobody else's pages, and not to be kept.

Law of this file: headers, made once. A page brings a policy of its own; an answer that may be kept says so
itself. Over TLS the browser is also told to come by TLS alone (HSTS, RFC 6797), which in the open is
forbidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

POLICY: Final = "default-src 'none'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"
"""Of answers that are no page. A value that looks like HTML runs no script, and reaches nothing of ours."""
_ALWAYS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """Such headers: as they are, and as the lines of a head."""

    headers: Mapping[str, str]
    lines: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", "".join(f"{k}: {v}\r\n" for k, v in self.headers.items()))

    def stand_in(self, response: web.StreamResponse) -> None:
        """Add those that an answer does not have of its own."""
        own = response.headers
        for name, value in self.headers.items():
            own.setdefault(name, value)


GUARD: Final = web.RequestKey("guard", Guard)
"""Of the connection that a request came by."""
IN_THE_OPEN: Final = Guard(_ALWAYS)


def over_tls(hsts_ms: int) -> Guard:
    """So long no browser that knows the certificate's authority comes without TLS to this host's name. 0: it
    forgets that it was told."""
    told = f"max-age={hsts_ms // 1_000}; includeSubDomains"
    return Guard({**_ALWAYS, "Strict-Transport-Security": told})
