"""The names in certificates: which make an agent, which a client, and which are refused.

Law of this file: pure. It sees names of certificates that TLS has verified already, in the form of
SSLSocket.getpeercert(). An agent has one URI name, that of the agents of its cluster. A client has one URI
name, or a subject with one common name. A certificate with two URI names is nobody's: a reader of the first
and a reader of the second would take it for different ones.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.addresses import is_address, plain_address
from shoal.agent.security.access import ANONYMOUS, PeerCertificate
from shoal.agent.security.principals import BOOTSTRAP

OWN_SCHEME: Final = "shoal://"
URI_CHARACTERS_MAX: Final = 256
"""Longer than any SPIFFE name in use (2,048 bytes are allowed there), short enough for a line of the log."""
_PRINTABLE: Final = re.compile(r"[!-~]+")  # of a URI; NUL, controls and blanks are none
CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Of a principal, as a certificate names it."""
RESERVED: Final = (ANONYMOUS, BOOTSTRAP)
"""Principals that no certificate proves: whoever shows nothing, and the first token."""


class NameFault(ValueError):
    """A verified certificate whose names make nobody. The text is one line, without the certificate's own
    words."""


def agent_uri(cluster: str) -> str:
    """The URI name of each agent of a cluster, unless tls_agent_name is another."""
    return f"{OWN_SCHEME}{cluster}/agent"


def client_uri(cluster: str, name: str) -> str:
    """The URI name of a client: the principal is `name`."""
    return f"{OWN_SCHEME}{cluster}/client/{name}"


@dataclass(frozen=True, slots=True)
class NameRules:
    """Of one cluster. `agent_name`: a URI, where `*` stands for any characters of one segment."""

    cluster: str
    agent_name: str

    def is_agent(self, uri: str) -> bool:
        """Whether agents are called so."""
        parts = map(re.escape, self.agent_name.split("*"))
        return re.fullmatch("[^/]*".join(parts), uri) is not None

    def check_agent(self, certificate: Mapping[str, Any] | None) -> None:
        """Raises NameFault unless it is an agent's."""
        if certificate is None or not self.peer(certificate).is_agent:
            raise NameFault(f"is not an agent's: it has not the URI name {self.agent_name}")

    def peer(self, certificate: Mapping[str, Any]) -> PeerCertificate:
        """The holder of a verified certificate. Raises NameFault."""
        uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        if len(uris) > 1:
            raise NameFault("has more than one URI name")
        ends = certificate.get("notAfter")
        try:
            ends_ms = None if ends is None else 1_000 * ssl.cert_time_to_seconds(ends)
        except ValueError:
            raise NameFault("has an end that is no time") from None
        if not uris:
            return _client(_common_name(certificate), ends_ms)
        (uri,) = uris
        if len(uri) > URI_CHARACTERS_MAX or _PRINTABLE.fullmatch(uri) is None:
            raise NameFault(f"has a URI name over {URI_CHARACTERS_MAX} characters, or with a control in it")
        if self.is_agent(uri):
            return PeerCertificate(uri, True, ends_ms)
        if not uri.lower().startswith(OWN_SCHEME):
            return _client(uri, ends_ms)
        name = uri.removeprefix(client_uri(self.cluster, ""))
        if name == uri or CLIENT_NAME.fullmatch(name) is None:
            raise NameFault(f"has a URI name that is none of cluster {self.cluster}")
        return _client(name, ends_ms)


def _client(name: str, ends_ms: int | None) -> PeerCertificate:
    if name in RESERVED:
        raise NameFault(f"names a principal that no certificate proves: {' and '.join(RESERVED)} are none")
    return PeerCertificate(name, False, ends_ms)


def names_host(certificate: Mapping[str, Any], host: str) -> bool:
    """Whether clients that connect to this name or address take the certificate (RFC 9525)."""
    named = {(kind, value.lower()) for kind, value in certificate.get("subjectAltName", ())}
    if is_address(host):
        addresses = {plain_address(value) for kind, value in named if kind == "IP Address"}
        return plain_address(host) in addresses
    wildcard = f"*.{host.lower().partition('.')[2]}"
    return not named.isdisjoint({("DNS", host.lower()), ("DNS", wildcard)})


def _common_name(certificate: Mapping[str, Any]) -> str:
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for kind, value in pairs if kind == "commonName"]
    if len(names) != 1 or CLIENT_NAME.fullmatch(names[0]) is None:
        raise NameFault(
            "names nobody: a URI name is wanted, or one common name of letters, digits, dots, @, _ and -"
        )
    return str(names[0])
