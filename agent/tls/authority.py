"""The authority of a cluster, and the certificates that it signs: for agents and for clients.

Law of this file: PEM in, PEM out. It knows neither files nor the clock; keys and serial numbers come from
chance. Keys are EC P-256, which every TLS library and browser takes. The authority's path length is 0, and
its purposes are those of TLS. It has no name constraints, since nobody knows the names of later hosts.
An agent compares the whole URI name with that of its own cluster.

    Authority   CN "Shoal authority", O CLUSTER; signs certificates and no further authority.
    Agent       CN NAME, O CLUSTER; its hosts, and shoal://CLUSTER/agent; for servers and for clients.
    Client      CN NAME, O CLUSTER; shoal://CLUSTER/client/NAME; for clients only.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.addresses import is_address, is_host_name
from shoal.agent.tls.names import CLIENT_NAME, agent_uri, client_uri

AUTHORITY_NAME: Final = "Shoal authority"
CLOCK_EARLIEST: Final = datetime(2026, 11, 1, tzinfo=UTC)
"""This file is younger: a clock before it has not been set since the machine was switched on."""
CLOCK_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
CLOCK_SLACK: Final = timedelta(days=1)
"""Certificates are good so long before they were made: clocks of other hosts may be behind."""
AUTHORITY_YEARS_MAX: Final = 50
CERTIFICATE_DAYS_MAX: Final = 3_650
HOSTS_MAX: Final = 64
"""Names and addresses of one certificate; it is sent whole in each handshake."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""In each agent's certificate: commands on its own host call it so."""

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""As agents and clusters are named (agent/config.py); a certificate has room for 64 characters."""
_UNREADABLE: Final = (
    ValueError,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_USAGE_NONE: Final = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    ),
    False,
)  # fmt: skip


class AuthorityError(Exception):
    """A certificate or a key cannot be made or read. The text is one line."""


class CertificateKind(StrEnum):
    """The kinds of certificates."""

    AUTHORITY = "authority"
    AGENT = "agent"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class Issued(NamedTuple):
    """The contents of a certificate that was made here. `hosts`: without those of loopback."""

    kind: CertificateKind
    cluster: str
    name: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    def days_left(self, now: datetime) -> int:
        """Whole days; negative once it has expired."""
        return (self.not_after - now).days


def make_authority(cluster: str, now: datetime, years: int) -> Pair:
    """A new one. Raises AuthorityError."""
    _check_name(cluster)
    _check_span("years", years, AUTHORITY_YEARS_MAX)
    _check_clock(now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(AUTHORITY_NAME, cluster)
    usage = x509.KeyUsage(**_USAGE_NONE | {"key_cert_sign": True, "crl_sign": True})
    builder = (
        _builder(subject, subject, key.public_key(), now, now + timedelta(days=365 * years))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(_purposes(CertificateKind.AGENT), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, SHA256()), key)


@dataclass(frozen=True, slots=True)
class Authority:
    """One that signs."""

    cluster: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def from_pair(cls, pair: Pair) -> Authority:
        """Raises AuthorityError where it is none, or the key is another's."""
        issued, certificate, key = read_issued(pair.certificate), _load(pair.certificate), _load_key(pair.key)
        if issued.kind is not CertificateKind.AUTHORITY:
            raise AuthorityError(f"this is the certificate of {issued.kind} {issued.name}, and no authority")
        if key.public_key() != certificate.public_key():
            raise AuthorityError("the authority's key is not that of its certificate")
        return cls(issued.cluster, certificate, key)

    def sign_agent(self, name: str, hosts: Sequence[str], now: datetime, days: int) -> Pair:
        """For an agent that is reached at `hosts`: DNS names and IP addresses. Raises AuthorityError."""
        _check_name(name)
        names = [host_in_certificate(host) for host in dict.fromkeys((*hosts, *LOOPBACK_HOSTS))]
        if len(names) > HOSTS_MAX:
            raise AuthorityError(f"{len(names)} hosts are too many for one certificate: give {HOSTS_MAX}")
        uri = x509.UniformResourceIdentifier(agent_uri(self.cluster))
        return self._sign(CertificateKind.AGENT, name, [*names, uri], now, days)

    def sign_client(self, name: str, now: datetime, days: int) -> Pair:
        """For a client that is the principal `name`. Raises AuthorityError."""
        _check_name(name, CLIENT_NAME)
        uri = x509.UniformResourceIdentifier(client_uri(self.cluster, name))
        return self._sign(CertificateKind.CLIENT, name, [uri], now, days)

    def sign_again(self, issued: Issued, now: datetime, days: int) -> Pair:
        """A successor with a new key. Raises AuthorityError."""
        if issued.cluster != self.cluster:
            raise AuthorityError(f"its certificate is of cluster {issued.cluster}, and not of {self.cluster}")
        if issued.kind is CertificateKind.AGENT:
            return self.sign_agent(issued.name, issued.hosts, now, days)
        if issued.kind is CertificateKind.CLIENT:
            return self.sign_client(issued.name, now, days)
        raise AuthorityError("an authority has no successor: make a new one, and trust both for a while")

    def _sign(
        self, kind: CertificateKind, name: str, names: list[x509.GeneralName], now: datetime, days: int
    ) -> Pair:
        _check_span("days", days, CERTIFICATE_DAYS_MAX)
        _check_clock(now)
        ends = self.certificate.not_valid_after_utc
        if not self.certificate.not_valid_before_utc <= now < ends:
            raise AuthorityError(
                f"the authority is good from {self.certificate.not_valid_before_utc:%Y-%m-%d} to"
                f" {ends:%Y-%m-%d}, and this machine's clock says {now:%Y-%m-%d}: set the clock, or make"
                " a new authority"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(**_USAGE_NONE | {"digital_signature": True})
        issuer = self.certificate.subject
        until = min(now + timedelta(days=days), ends)
        builder = (
            _builder(_name(name, self.cluster), issuer, key.public_key(), now, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(_purposes(kind), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        return _pair(builder.sign(self.key, SHA256()), key)

    def has_signed(self, certificate: bytes) -> bool:
        """Raises AuthorityError for what is no certificate."""
        try:
            _load(certificate).verify_directly_issued_by(self.certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


def read_issued(certificate: bytes) -> Issued:
    """The contents of the first certificate of a file. Raises AuthorityError for one that no authority of a
    cluster has made."""
    found = _load(certificate)
    try:
        with warnings.catch_warnings():  # of long names: others have made them, and they are refused below
            warnings.simplefilter("ignore")
            cluster, name = (
                str(attribute.value)
                for part in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
                for attribute in found.subject.get_attributes_for_oid(part)
            )
            is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            names: list[x509.GeneralName] = []
            if not is_authority:
                names += found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _UNREADABLE:
        raise AuthorityError("`shoal secure` has not made this certificate") from None
    uris = [item.value for item in names if isinstance(item, x509.UniformResourceIdentifier)]
    known = {
        agent_uri(cluster): CertificateKind.AGENT,
        client_uri(cluster, name): CertificateKind.CLIENT,
    }
    kind = CertificateKind.AUTHORITY if is_authority else known.get(uris[0] if len(uris) == 1 else "")
    if kind is None or (is_authority and name != AUTHORITY_NAME):
        raise AuthorityError("`shoal secure` has not made this certificate")
    hosts = [str(item.value) for item in names if isinstance(item, x509.DNSName | x509.IPAddress)]
    return Issued(
        kind,
        cluster,
        name,
        tuple(host for host in hosts if host not in LOOPBACK_HOSTS),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
    )


def belong_together(pair: Pair) -> bool:
    """Whether the key is the certificate's. Raises AuthorityError."""
    return _load_key(pair.key).public_key() == _load(pair.certificate).public_key()


# ---- parts of certificates -------------------------------------------------------------------------------


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _purposes(kind: CertificateKind) -> x509.ExtendedKeyUsage:
    client = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return x509.ExtendedKeyUsage(
        client if kind is CertificateKind.CLIENT else [ExtendedKeyUsageOID.SERVER_AUTH, *client]
    )


def _name(common: str, cluster: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def host_in_certificate(host: str) -> x509.GeneralName:
    """An IP address or a DNS name, as certificates have them. Raises AuthorityError for anything else."""
    if is_address(host) and "%" not in host:
        return x509.IPAddress(ipaddress.ip_address(host))
    if is_host_name(host):
        return x509.DNSName(host)
    raise AuthorityError(f"{host[:80]!r} is neither an IP address nor a DNS name")


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _load(certificate: bytes) -> x509.Certificate:
    try:
        with warnings.catch_warnings():  # of numbers that RFC 5280 does not allow
            warnings.simplefilter("ignore")
            found = x509.load_pem_x509_certificate(certificate)
    except _UNREADABLE:
        raise AuthorityError("this is no certificate (PEM)") from None
    try:
        found.public_key()  # it is read when it is asked for
    except (ValueError, UnsupportedAlgorithm):
        raise AuthorityError("the certificate's public key cannot be read") from None
    return found


def _load_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = load_pem_private_key(key, None)
    except TypeError:
        raise AuthorityError("the key is encrypted with a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise AuthorityError("this is no private key (PEM)") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise AuthorityError("the key is not one of EC P-256, as `shoal secure` makes them")
    return found


def _check_name(text: str, pattern: re.Pattern[str] = PLAIN_NAME) -> None:
    if pattern.fullmatch(text) is None:
        raise AuthorityError(
            f"{text[:80]!r} is not a name: use 1 to 64 letters, digits, . _ -, beginning with one of the"
            " first two"
        )


def _check_clock(now: datetime) -> None:
    if not CLOCK_EARLIEST <= now < CLOCK_LATEST:
        raise AuthorityError(f"this machine's clock says {now:%Y-%m-%d}: set it first")


def _check_span(unit: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise AuthorityError(f"{count} {unit} is out of range: give 1 to {most}")
