"""The proof that clients of a run show: none, or a token, over TLS or in the open.

Law of this file: each task has the credentials of its context, so that clients which prove nothing stay as
they are. A request that names its own `Authorization` keeps it.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from dataclasses import dataclass, field

from shoal.credentials import CredentialOptions

AUTHORIZATION = "Authorization"


@dataclass(frozen=True)
class ClientCredentials:
    """`ca`: the file of the authority whose agents are believed; None where they speak in the open."""

    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def over_tls(cls, token: str | None, ca: str) -> ClientCredentials:
        """Raises OSError where the file of the authority cannot be read."""
        return cls(token, ca, ssl.create_default_context(cafile=ca))

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        return {} if self.token is None else {AUTHORIZATION: f"Bearer {self.token}"}

    def url(self, agent: tuple[str, int]) -> str:
        """Of an agent at this address and port."""
        return f"{'http' if self.tls is None else 'https'}://{agent[0]}:{agent[1]}"

    @property
    def options(self) -> CredentialOptions:
        """Of the Python client."""
        return {"token": self.token, "ca": self.ca}


NOTHING = ClientCredentials()
CREDENTIALS: ContextVar[ClientCredentials] = ContextVar("CREDENTIALS", default=NOTHING)
