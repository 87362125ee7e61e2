"""Authorities and certificates for tests: EC P-256, made in a millisecond, good and bad ones."""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.agent.tls_settings import TlsSettings

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1", "::1")
CLUSTER = "fish"
AGENT = f"shoal://{CLUSTER}/agent"


class Issued(NamedTuple):
    """A certificate and its key, in PEM."""

    cert: bytes
    key: bytes


class Authority:
    """One that signs."""

    def __init__(
        self, name: str = "tests", days: tuple[int, int] = (-1, 30), names: bytes | None = None
    ) -> None:
        """`days`: from when to when it is valid, counted from now. `names`: further ones, in DER."""
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {name}")])
        builder = _builder(self._subject, self._subject, self._key, days)
        limits = x509.BasicConstraints(ca=True, path_length=None)
        if names is not None:
            odd = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, names)
            builder = builder.add_extension(odd, critical=False)
        self.pem = _pem(
            builder.add_extension(limits, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(
        self,
        *uris: str,
        common_name: str | None = None,
        hosts: Sequence[str] = HOSTS,
        days: tuple[int, int] = (-1, 30),
        usages: Sequence[x509.ObjectIdentifier] = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        ),
        by_itself: bool = False,
    ) -> Issued:
        """A certificate with these URI names. `by_itself`: it is signed with its own key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [] if common_name is None else [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        subject = x509.Name(names)
        builder = _builder(subject, subject if by_itself else self._subject, key, days)
        alternative = [*map(x509.UniformResourceIdentifier, uris), *map(_host, hosts)]
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        signed = builder.sign(key if by_itself else self._key, hashes.SHA256())
        return Issued(_pem(signed), _key_pem(key))

    def agent(self, cluster: str = CLUSTER) -> Issued:
        """A good one for an agent."""
        return self.issue(f"shoal://{cluster}/agent")

    def of_version(self, version: int, issued: Issued) -> Issued:
        """The same certificate with a version (RFC 5280, 4.1.2.1) from 2 to 128 other than 3. OpenSSL takes
        any."""
        body = x509.load_pem_x509_certificate(issued.cert).tbs_certificate_bytes
        head = b"\xa0\x03\x02\x01"
        assert body.count(head + b"\x02") == 1
        odd = body.replace(head + b"\x02", head + bytes([version - 1]))
        algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
        signature = self._key.sign(odd, ec.ECDSA(hashes.SHA256()))
        text = odd + algorithm + bytes([3, len(signature) + 1, 0]) + signature
        der = b"\x30\x82" + len(text).to_bytes(2) + text
        return Issued(ssl.DER_cert_to_PEM_cert(der).encode(), issued.key)

    def client(self, name: str, cluster: str = CLUSTER) -> Issued:
        """A good one for a client."""
        return self.issue(f"shoal://{cluster}/client/{name}", hosts=())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: tuple[int, int]
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = (now + count * DAY for count in days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(begins).not_valid_after(ends)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_files(directory: pathlib.Path, issued: Issued, ca: bytes, name: str = "agent") -> TlsSettings:
    """The files of one agent, each replaced in one step, and the settings that name them."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.{kind}" for kind in ("crt", "key", "ca")]
    for path, content in zip(paths, (issued.cert, issued.key, ca), strict=True):
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(content)
        os.replace(new, path)
    cert, key, authority = map(str, paths)
    return TlsSettings(tls_cert=cert, tls_key=key, tls_ca=authority)
