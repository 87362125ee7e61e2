"""The authority of a cluster: its certificates hold in a handshake; everything else is refused."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import SignatureAlgorithmOID

from shoal.agent.tls.authority import (
    AUTHORITY_NAME,
    CLOCK_SLACK,
    HOSTS_MAX,
    Authority,
    AuthorityError,
    CertificateKind,
    Pair,
    belong_together,
    make_authority,
    read_issued,
)

NOW = datetime(2026, 11, 28, 3, 0, tzinfo=UTC)
MADE = make_authority("fish", NOW, 10)
AUTHORITY = Authority.from_pair(MADE)
AGENT = AUTHORITY.sign_agent("herring", ["10.0.0.1", "fd00::1", "shoal-1.example.com"], NOW, 365)
CLIENT = AUTHORITY.sign_client("ann", NOW, 30)


def shaken(server: Pair, client: Pair, trusted: Pair, host: str) -> str:
    """A whole handshake of TLS 1.3 in memory; "" or the words of the error."""
    contexts = [ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
    for context, pair in zip(contexts, (server, client), strict=True):
        load(context, pair)
        context.load_verify_locations(cadata=trusted.certificate.decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_REQUIRED
    pipes = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    ends = [
        contexts[0].wrap_bio(pipes[0], pipes[1], server_side=True),
        contexts[1].wrap_bio(pipes[1], pipes[0], server_hostname=host),
    ]
    for _ in range(4):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error)
    for end in ends:
        assert end.version() == "TLSv1.3"
    return ""


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Python's ssl reads a certificate and its key from files only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "shoal-1.example.com", "localhost", "127.0.0.1"])
def test_agents_and_clients_prove_themselves(host: str) -> None:
    """Under each name and address, by OpenSSL's strictest rules; an agent is a client of others as well."""
    assert shaken(AGENT, CLIENT, MADE, host) == ""
    assert shaken(AGENT, AGENT, MADE, host) == ""


def test_a_certificate_is_good_for_its_purpose_only() -> None:
    """A client serves nobody, another host is another name, another authority is none."""
    assert "unsuitable certificate purpose" in shaken(CLIENT, AGENT, MADE, "localhost")
    assert "Hostname mismatch" in shaken(AGENT, CLIENT, MADE, "shoal-2.example.com")
    other = make_authority("fish", NOW, 10)
    assert "certificate verify failed" in shaken(AGENT, CLIENT, other, "localhost")


def test_a_certificate_tells_whose_it_is() -> None:
    """Read back as it was made, without the hosts that each agent has."""
    agent, client, authority = (read_issued(pair.certificate) for pair in (AGENT, CLIENT, MADE))
    assert agent[:4] == (
        CertificateKind.AGENT,
        "fish",
        "herring",
        ("10.0.0.1", "fd00::1", "shoal-1.example.com"),
    )
    assert client[:4] == (CertificateKind.CLIENT, "fish", "ann", ())
    assert authority[:3] == (CertificateKind.AUTHORITY, "fish", AUTHORITY_NAME)
    assert (client.not_before, client.not_after) == (NOW - CLOCK_SLACK, NOW + timedelta(days=30))
    assert client.days_left(NOW + timedelta(days=29, hours=1)) == 0
    assert client.days_left(NOW + timedelta(days=30, hours=1)) == -1
    names = x509.load_pem_x509_certificate(CLIENT.certificate).extensions
    uris = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [item.value for item in uris] == ["shoal://fish/client/ann"]


def test_keys_are_of_p_256_and_signatures_of_ecdsa_with_sha_256() -> None:
    """Of all three kinds."""
    for pair in (MADE, AGENT, CLIENT):
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
        assert certificate.signature_algorithm_oid == SignatureAlgorithmOID.ECDSA_WITH_SHA256


def test_a_successor_has_the_names_and_another_key() -> None:
    """Also where the authority has less time left than asked for: nothing outlives it."""
    later = NOW + timedelta(days=3_600)
    for pair in (AGENT, CLIENT):
        before = read_issued(pair.certificate)
        made = AUTHORITY.sign_again(before, later, 365)
        after = read_issued(made.certificate)
        assert after[:4] == before[:4]
        assert after.not_after == read_issued(MADE.certificate).not_after
        assert belong_together(made)
        assert not belong_together(Pair(made.certificate, pair.key))
        assert AUTHORITY.has_signed(made.certificate)
    with pytest.raises(AuthorityError, match="no successor"):
        AUTHORITY.sign_again(read_issued(MADE.certificate), NOW, 1)
    elsewhere = Authority.from_pair(make_authority("birds", NOW, 1))
    with pytest.raises(AuthorityError, match="of cluster fish, and not of birds"):
        elsewhere.sign_again(read_issued(AGENT.certificate), NOW, 1)
    assert not elsewhere.has_signed(AGENT.certificate)


@pytest.mark.parametrize(
    "host",
    ["", "a b", "10.0.0.1:7070", "*.example.com", "fe80::1%eth0", "a\0b", "x" * 300, "ä.example", "10.1"],
)
def test_an_address_that_is_none(host: str) -> None:
    """Is named, and no certificate is made."""
    with pytest.raises(AuthorityError, match="neither an IP address nor a DNS name"):
        AUTHORITY.sign_agent("herring", [host], NOW, 1)


def test_bounds() -> None:
    """Of time, of names, of the number of hosts, of the clock."""
    with pytest.raises(AuthorityError, match="0 years is out of range: give 1 to 50"):
        make_authority("fish", NOW, 0)
    with pytest.raises(AuthorityError, match="9999 days is out of range"):
        AUTHORITY.sign_client("ann", NOW, 9_999)
    for name in ("f" * 65, "", "a/b", "a\0", "..", "a b", "ä", "a b@c"):
        with pytest.raises(AuthorityError, match="is not a name"):
            make_authority(name, NOW, 1)
        with pytest.raises(AuthorityError, match="is not a name"):
            AUTHORITY.sign_client(name, NOW, 1)
    with pytest.raises(AuthorityError, match="too many for one certificate"):
        AUTHORITY.sign_agent("herring", [f"10.0.0.{n}" for n in range(HOSTS_MAX)], NOW, 1)
    for clock in (datetime(1970, 1, 2, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)):
        with pytest.raises(AuthorityError, match=r"clock says .*: set it first"):
            make_authority("fish", clock, 1)
        with pytest.raises(AuthorityError, match=r"clock says .*: set it first"):
            AUTHORITY.sign_client("ann", clock, 1)
    with pytest.raises(AuthorityError, match=r"good from 2026-11-27 to 2036-11-25, and .* 2037-01-01"):
        AUTHORITY.sign_client("ann", datetime(2037, 1, 1, tzinfo=UTC), 1)


def test_no_authority_is_taken_from_what_is_none() -> None:
    """Nor is a key of another certificate, kind, or with a password; and nothing shows a key."""
    key = load_pem_private_key(MADE.key, None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    edwards = ed25519.Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    refused = {
        "no certificate": Pair(b"", MADE.key),
        "and no authority": AGENT,
        "not that of its certificate": Pair(MADE.certificate, AGENT.key),
        "no private key": Pair(MADE.certificate, b"-----BEGIN PRIVATE KEY-----\n"),
        "encrypted": Pair(MADE.certificate, locked),
        "not one of EC": Pair(MADE.certificate, edwards),
    }
    for said, pair in refused.items():
        with pytest.raises(AuthorityError, match=said):
            Authority.from_pair(pair)
    assert "PRIVATE" not in repr(MADE)
    assert "key" not in repr(AUTHORITY)


@pytest.mark.parametrize(
    ("pair", "before", "after"),
    [(AGENT, b"shoal://fish", b"shoal://bird"), (CLIENT, b"client/ann", b"client/bob")],
)
def test_a_certificate_of_others_is_told_apart(pair: Pair, before: bytes, after: bytes) -> None:
    """One of ours with another URI name, as somebody else's authority may sign it."""
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
    assert der.count(before) == 1
    with pytest.raises(AuthorityError, match="has not made this"):
        read_issued(ssl.DER_cert_to_PEM_cert(der.replace(before, after)).encode())


def test_a_certificate_whose_public_key_is_none_is_told() -> None:
    """By each reader, with the one error: its key is looked at only when somebody asks for it."""
    der = ssl.PEM_cert_to_DER_cert(AGENT.certificate.decode())
    point = (
        x509.load_pem_x509_certificate(AGENT.certificate)
        .public_key()
        .public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    )
    pem = ssl.DER_cert_to_PEM_cert(der.replace(point, point[:1] + bytes(64))).encode()
    for read in (read_issued, AUTHORITY.has_signed, lambda one: belong_together(Pair(one, AGENT.key))):
        with pytest.raises(AuthorityError, match="public key cannot be read"):
            read(pem)


def test_damaged_certificates_are_read_or_refused() -> None:
    """Each byte changed, once to zero and once by a bit: nothing else is ever raised."""
    der = ssl.PEM_cert_to_DER_cert(AGENT.certificate.decode())
    outcomes = set()
    for at, byte in enumerate(der):
        for other in (0, byte ^ 1):
            changed = bytes((*der[:at], other, *der[at + 1 :]))
            try:
                outcomes.add(read_issued(ssl.DER_cert_to_PEM_cert(changed).encode()).cluster)
            except AuthorityError as error:
                outcomes.add(str(error))
    assert "this is no certificate (PEM)" in outcomes
    assert "`shoal secure` has not made this certificate" in outcomes
