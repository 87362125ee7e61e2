"""Connections to other agents: by TLS or in the open, as this agent itself speaks, and never otherwise.

Law of this file: no file and no socket. An agent in the open does not ask one that speaks TLS, for it could
prove nothing; and one that speaks TLS says nothing to an agent in the open.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final, TypeAlias

AgentsTls: TypeAlias = Callable[[], ssl.SSLContext | None]
"""The context for connections to other agents, as it is at the moment; None where this agent speaks no TLS.
A handshake by it fails unless the other side is an agent of the cluster."""
REASONS: Final[Mapping[int, str]] = {
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself, not by an authority of tls_ca",
    19: "is of another authority than those of tls_ca",
    20: "is of another authority than those of tls_ca",
    21: "is of another authority than those of tls_ca",
    26: "has an extended key usage that is not for servers and clients both",
}
"""By OpenSSL's number of a fault in verification (x509_vfy.h)."""


class OtherScheme(OSError):
    """An agent that speaks TLS is to be asked by one that does not, or the reverse."""


class Misnamed(ssl.SSLCertVerificationError):
    """A certificate that verifies, and has not the names that it should have; they are told by its cause."""


def in_the_open() -> ssl.SSLContext | None:
    """Of an agent that speaks no TLS."""
    return None


OWN_TLS: Final[ContextVar[AgentsTls]] = ContextVar("OWN_TLS", default=in_the_open)
"""Of the agent in whose context something runs: for questions that are asked before there are links."""


def context_for(url: str, tls: AgentsTls) -> ssl.SSLContext | None:
    """The context by which the agent at this URL is connected to. Raises OtherScheme."""
    context, is_https = tls(), url.startswith("https://")
    if is_https and context is None:
        raise OtherScheme("it speaks TLS and this agent does not: start all agents with --tls-cert, or none")
    if context is not None and not is_https:
        raise OtherScheme("it does not speak TLS and this agent does: start all agents with --tls-cert")
    return context


def why_unverified(error: ssl.SSLCertVerificationError) -> str:
    """The end of a sentence about a certificate."""
    if isinstance(error, Misnamed):
        return str(error.__cause__)
    code = getattr(error, "verify_code", None)
    return REASONS.get(code or 0, f"does not verify: {getattr(error, 'verify_message', None) or error}")


def why_not_connected(error: BaseException) -> str:
    """The fault of a connection to an agent, in words; empty where it has none."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate {why_unverified(error)}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS failed: {error.reason.replace('_', ' ').lower()}"
    return str(error)
