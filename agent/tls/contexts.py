"""Contexts of TLS from three files, tried out against each other before anybody uses them.

Law of this file: a context that leaves it works. Its certificate, key and authorities fit, are valid now, and
make an agent of this cluster. A handshake of the agent with itself, in memory, has shown it. Checks of names
stand in names.py.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.agents_tls import Misnamed, why_unverified
from shoal.agent.tls.names import NameFault, NameRules, agent_uri, client_uri
from shoal.agent.tls_settings import TlsSettings
from shoal.tls import CERTIFIED, HTTP

FILE_BYTES_MAX: Final = 1 << 20  # a bundle of all public authorities has a quarter of it
READABLE_BY_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH
HANDSHAKE_STEPS_MAX: Final = 16  # one with itself takes four
EXPIRED: Final = 10
"""OpenSSL's number of that fault (x509_vfy.h)."""
DISBELIEVED: Final = (InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion, TypeError, ValueError)
"""Raised by reading and verifying a certificate."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: those that RFC 9325 recommends. TLS 1.3 has no others."""
MINIMUM: Final = {"1.3": ssl.TLSVersion.TLSv1_3, "1.2": ssl.TLSVersion.TLSv1_2}


class TlsError(Exception):
    """Files that cannot be used. The text is one line: which, why, and the remedy; nothing of a key."""


class ServerObject(ssl.SSLObject):
    """The server's side of a connection. Its handshake fails where names of a certificate are no text, or the
    certificate of a resumed session has expired."""

    def do_handshake(self) -> None:
        super().do_handshake()
        try:
            certificate = certificate_of(self)
        except NameFault as fault:
            raise Misnamed(f"the certificate of the other side {fault}") from fault
        # TLS 1.2 resumes sessions by their number, which cannot be turned off. OpenSSL keeps them for two
        # hours, and looks at no date again.
        if self.session_reused and certificate is not None and _ends_s(certificate) <= time.time():
            error = ssl.SSLCertVerificationError("the certificate of a resumed session has expired")
            error.verify_code, error.verify_message = EXPIRED, "certificate has expired"  # as OpenSSL says it
            raise error


def _ends_s(certificate: Mapping[str, Any]) -> int:
    """Unix time. Raises ValueError for a date that is none."""
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths and contents, as they were read together."""

    settings: TlsSettings
    cert: bytes
    key: bytes
    ca: bytes

    @classmethod
    def read(cls, settings: TlsSettings) -> TlsFiles:
        """Raises TlsError."""
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        assert settings.tls_ca is not None
        files = cls(
            settings,
            _read("tls_cert", settings.tls_cert, "-----BEGIN CERTIFICATE-----"),
            _read("tls_key", settings.tls_key, "PRIVATE KEY-----", is_secret=True),
            _read("tls_ca", settings.tls_ca, "-----BEGIN CERTIFICATE-----"),
        )
        if b"ENCRYPTED" in files.key:
            raise TlsError(f"tls_key {settings.tls_key} has a passphrase: an agent needs a key without one")
        return files


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """`server`: for clients and agents that connect, and are asked for a certificate. `unasked`: for those
    that are not. `agents`: for links and forwards to other agents, whose handshake fails unless the other
    side is an agent. `expires`: unix time by setting, the earliest one of a file. `certificate`: of this
    agent."""

    files: TlsFiles
    rules: NameRules
    server: ssl.SSLContext
    unasked: ssl.SSLContext
    agents: ssl.SSLContext
    expires: Mapping[str, float]
    certificate: Mapping[str, Any]

    def for_client(self, *, says_certified: bool) -> ssl.SSLContext:
        """For one that connects. With tls_clients = none the others are not asked: a browser that is asked
        shows its user a choice of certificates."""
        is_asked = says_certified or self.files.settings.tls_clients != "none"
        return self.server if is_asked else self.unasked

    def peer_of(self, connection: ssl.SSLObject) -> PeerCertificate | None:
        """The other end of a connection to this agent; None without a certificate. Raises NameFault.
        With tls_clients = none the certificates of clients are nobody's."""
        certificate = certificate_of(connection)
        if certificate is None:
            return None
        peer = self.rules.peer(certificate)
        return peer if peer.is_agent or self.files.settings.tls_clients != "none" else None

    def believes(self, certificate: bytes) -> bool:
        """Whether an authority of `tls_ca` has signed it itself (DER). Of a chain the rest is not known here,
        so that one in between makes it False. So does a certificate that OpenSSL reads and this library does
        not, such as one of version 2."""
        for authority in self.server.get_ca_certs(binary_form=True):
            with contextlib.suppress(*DISBELIEVED):
                found = x509.load_der_x509_certificate(certificate)
                found.verify_directly_issued_by(x509.load_der_x509_certificate(authority))
                return True
        return False


def rules_of(settings: TlsSettings, cluster: str) -> NameRules:
    """Of the agents of this cluster."""
    return NameRules(cluster, settings.tls_agent_name or agent_uri(cluster))


def make_contexts(settings: TlsSettings, cluster: str) -> Contexts:
    """Read the files, and try them out. Blocks for some milliseconds. Raises TlsError."""
    files = TlsFiles.read(settings)
    rules = rules_of(settings, cluster)
    if rules.is_agent(client_uri(cluster, "ann")):
        raise TlsError(f"tls_agent_name {settings.tls_agent_name} is the name of clients, too")
    asked = ssl.CERT_REQUIRED if settings.tls_clients == "required" else ssl.CERT_OPTIONAL
    server, unasked = _server_context(files, asked), _server_context(files, ssl.CERT_NONE)
    agents = agents_context(files, rules)
    try:
        ends = [_ends_s(authority) for authority in server.get_ca_certs()]
    except ValueError:  # names that are no UTF-8, or a date that is none
        raise TlsError(f"tls_ca {settings.tls_ca} has an authority whose names cannot be read") from None
    if not ends:
        raise TlsError(f"tls_ca {settings.tls_ca} has certificates, but none of an authority")
    certificate = _try_out(files, server, agents, rules)
    expires = {
        "tls_cert": _ends_s(certificate),
        "tls_ca": min(ends),
    }
    if TlsFiles.read(settings) != files:
        raise TlsError("tls_cert, tls_key and tls_ca were changed while they were read")
    return Contexts(files, rules, server, unasked, agents, expires, certificate)


def _server_context(files: TlsFiles, verify_mode: ssl.VerifyMode) -> ssl.SSLContext:
    context = _context(files, ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify_mode
    # A resumed session would take the certificate of its first handshake, and nobody would look at its dates.
    # Sessions of TLS 1.2 are resumed all the same: ServerObject looks.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([HTTP])
    context.sslobject_class = ServerObject
    return context


def agents_context(files: TlsFiles, rules: NameRules) -> ssl.SSLContext:
    """For connections to other agents. Names of hosts do not matter: agents move, their name does not."""
    context = _context(files, ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([CERTIFIED, HTTP])

    class AgentObject(ssl.SSLObject):
        """The client's side of a connection whose handshake fails unless the server is an agent."""

        def do_handshake(self) -> None:
            super().do_handshake()
            try:
                rules.check_agent(certificate_of(self))
            except NameFault as fault:
                raise Misnamed(f"the certificate of the other side {fault}") from fault

    context.sslobject_class = AgentObject
    return context


def certificate_of(connection: ssl.SSLObject) -> Mapping[str, Any] | None:
    """Of the other side, as verified. Raises NameFault: its names are no text."""
    try:
        return connection.getpeercert()
    except ValueError:
        raise NameFault("has names that cannot be read") from None


def _read(setting: str, path: str, mark: str, *, is_secret: bool = False) -> bytes:
    """A regular file, whole. A device or a pipe is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise TlsError(f"{setting} {path} is not a file: give the path of a PEM file")
            content = os.read(descriptor, FILE_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TlsError(f"{setting} {path} cannot be read: {error.strerror or error}") from None
    if is_secret and mode & READABLE_BY_OTHERS:
        raise TlsError(f"{setting} {path} is open to every user of this host: `chmod 600 {path}`")
    if not content:
        raise TlsError(f"{setting} {path} is empty")
    if len(content) > FILE_BYTES_MAX:
        raise TlsError(f"{setting} {path} has over {FILE_BYTES_MAX} bytes: it is no PEM file")
    if mark.encode() not in content:
        raise TlsError(f"{setting} {path} has no {mark.strip('-').removeprefix('BEGIN ').lower()} in PEM")
    return content


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    settings = files.settings
    context = ssl.SSLContext(protocol)
    context.minimum_version = MINIMUM[settings.tls_minimum]
    context.set_ciphers(CIPHERS)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=files.ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"tls_ca {settings.tls_ca} cannot be read: {_reason(error)}") from None
    both = f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key}"
    try:
        context.load_cert_chain(str(settings.tls_cert), settings.tls_key, password=b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{both} do not belong together: the key is another certificate's") from None
        raise TlsError(f"{both} cannot be used: {_reason(error)}") from None
    except OSError as error:  # gone since it was read
        raise TlsError(f"{both} cannot be read: {error.strerror or error}") from None
    return context


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else "it is no PEM"


def _try_out(
    files: TlsFiles, server: ssl.SSLContext, agents: ssl.SSLContext, rules: NameRules
) -> Mapping[str, Any]:
    """The agent speaks to itself; its certificate as the other side sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        agents.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        shake_hands(ends)
        certificate = certificate_of(ends[1])
        rules.check_agent(certificate)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"tls_cert {files.settings.tls_cert} {why_unverified(error)}") from None
    except NameFault as fault:
        raise TlsError(f"tls_cert {files.settings.tls_cert} {fault}") from None
    except ssl.SSLError as error:
        raise TlsError(f"tls_cert {files.settings.tls_cert} cannot be used: {_reason(error)}") from None
    assert certificate is not None
    return certificate


def shake_hands(ends: Sequence[ssl.SSLObject]) -> None:
    """In memory, until both ends are done. Raises SSLError."""
    waiting = deque(ends)
    for _ in range(HANDSHAKE_STEPS_MAX):
        try:
            waiting[0].do_handshake()
        except ssl.SSLWantReadError:
            waiting.rotate()
        else:
            waiting.popleft()
        if not waiting:
            return
    raise ssl.SSLError("a handshake with itself has no end")
