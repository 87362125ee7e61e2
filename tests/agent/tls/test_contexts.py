"""Files of TLS become contexts that work, or one line that says what is wrong with which of them."""

from __future__ import annotations

import os
import pathlib
import ssl
import time
from dataclasses import replace

import pytest
from certificates import AGENT, CLUSTER, Authority, Issued, write_files
from cryptography.x509.oid import ExtendedKeyUsageOID

from shoal.agent.tls import contexts as contexts_module
from shoal.agent.tls.contexts import FILE_BYTES_MAX, Contexts, TlsError, make_contexts, shake_hands
from shoal.agent.tls.refusals import RefusalKind, kind_of
from shoal.agent.tls_settings import TlsSettings

OURS = Authority()
OTHERS = Authority("others")


@pytest.fixture
def good(tmp_path: pathlib.Path) -> TlsSettings:
    """Files of an agent that fit."""
    return write_files(tmp_path, OURS.agent(), OURS.pem)


def meet(one: Contexts, other: Contexts) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """`one` connects to `other`, in memory. Raises what either side raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = one.agents.wrap_bio(to_client, to_server)
    server = other.server.wrap_bio(to_server, to_client, server_side=True)
    shake_hands((client, server))
    return client, server


def test_agents_meet(good: TlsSettings, tmp_path: pathlib.Path) -> None:
    """Both ends know that they speak to an agent, by TLS 1.3; and when the files expire."""
    contexts = make_contexts(good, CLUSTER)
    others = make_contexts(write_files(tmp_path / "b", OURS.agent(), OURS.pem), CLUSTER)
    client, server = meet(contexts, others)
    assert client.version() == server.version() == "TLSv1.3"
    peer = others.peer_of(server)
    assert peer is not None
    assert peer.is_agent
    for left_s in (expires - time.time() for expires in contexts.expires.values()):
        assert 28 * 86_400 < left_s <= 30 * 86_400
    assert set(contexts.expires) == {"tls_cert", "tls_ca"}


def test_authorities_in_one_file_are_all_believed(tmp_path: pathlib.Path) -> None:
    """So an authority can be exchanged: both are known for a while."""
    new = make_contexts(write_files(tmp_path, OTHERS.agent(), OURS.pem + OTHERS.pem), CLUSTER)
    old = make_contexts(write_files(tmp_path / "b", OURS.agent(), OURS.pem + OTHERS.pem), CLUSTER)
    meet(new, old)
    meet(old, new)


@pytest.mark.parametrize(
    ("issued", "says"),
    [
        (OURS.issue(AGENT, days=(-3, -1)), "has expired"),
        (OURS.issue(AGENT, days=(1, 3)), "is not valid yet"),
        (OURS.issue(AGENT, by_itself=True), "is signed by itself, not by an authority of tls_ca"),
        (OTHERS.issue(AGENT), "is of another authority than those of tls_ca"),
        (OURS.issue(AGENT, "shoal://herring/agent"), "has more than one URI name"),
        (OURS.issue(f"{AGENT}\0.example.org"), "with a control in it"),
        (OURS.issue("shoal://herring/agent"), "has a URI name that is none of cluster fish"),
        (OURS.client("anna"), f"is not an agent's: it has not the URI name {AGENT}"),
        (OURS.issue(common_name="anna"), f"is not an agent's: it has not the URI name {AGENT}"),
        (OURS.issue(AGENT, usages=[ExtendedKeyUsageOID.SERVER_AUTH]), "is not for servers and clients both"),
        (OURS.issue(AGENT, usages=[ExtendedKeyUsageOID.CLIENT_AUTH]), "is not for servers and clients both"),
        (Issued(OURS.agent().cert, OURS.agent().key), "do not belong together"),
    ],
)
def test_certificates_that_no_agent_can_use(tmp_path: pathlib.Path, issued: Issued, says: str) -> None:
    """Whatever other agents would refuse, the agent itself refuses before it starts with it."""
    with pytest.raises(TlsError, match=says) as caught:
        make_contexts(write_files(tmp_path, issued, OURS.pem), CLUSTER)
    assert "tls_cert" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_ca"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xff\x00hello", "in PEM"),
        (b"x" * (FILE_BYTES_MAX + 1), "over 1048576 bytes"),
        (b"-----BEGIN CERTIFICATE-----\nBEGIN PRIVATE KEY-----\nAAAA", "cannot be"),
        (None, "No such file"),
    ],
)
def test_files_that_hold_something_else(
    good: TlsSettings, setting: str, content: bytes | None, says: str
) -> None:
    """The line names the setting and the path."""
    path = pathlib.Path(getattr(good, setting))
    path.unlink()
    if content is not None:
        path.touch(mode=0o600)
        path.write_bytes(content)
    with pytest.raises(TlsError, match=says) as caught:
        make_contexts(good, CLUSTER)
    assert f"{setting} {path}" in str(caught.value)
    assert "hello" not in str(caught.value)


def test_paths_that_are_no_files(good: TlsSettings, tmp_path: pathlib.Path) -> None:
    """A directory, and a pipe that nobody writes to, which is not waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(TlsError, match="is not a file"):
            make_contexts(replace(good, tls_key=str(path)), CLUSTER)


def test_a_key_that_everybody_may_read(good: TlsSettings) -> None:
    """It is no secret any more. A group may have it: service managers hand keys out like that."""
    path = pathlib.Path(str(good.tls_key))
    path.chmod(0o640)
    make_contexts(good, CLUSTER)
    path.chmod(0o644)
    with pytest.raises(TlsError, match="chmod 600"):
        make_contexts(good, CLUSTER)


def test_a_key_with_a_passphrase(good: TlsSettings) -> None:
    """Nobody is there who could type it."""
    path = pathlib.Path(str(good.tls_key))
    path.write_bytes(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(TlsError, match="has a passphrase"):
        make_contexts(good, CLUSTER)


def test_an_authority_file_without_an_authority(good: TlsSettings) -> None:
    """A certificate that may not sign others."""
    pathlib.Path(str(good.tls_ca)).write_bytes(OURS.agent().cert)
    with pytest.raises(TlsError, match="none of an authority"):
        make_contexts(good, CLUSTER)


@pytest.mark.parametrize("kind", [0x82, 0x86], ids=["DNS", "URI"])
def test_an_authority_whose_names_are_no_text(tmp_path: pathlib.Path, kind: int) -> None:
    """It is told as a file that does not fit: an agent that runs keeps its former ones."""
    odd = Authority("odd", names=bytes([0x30, 4, kind, 2, 0xFF, 0xFE]))
    settings = write_files(tmp_path, OURS.agent(), OURS.pem + odd.pem)
    with pytest.raises(TlsError, match=r"tls_ca .* has an authority whose names cannot be read"):
        make_contexts(settings, CLUSTER)


def test_every_cipher_is_authenticated_and_forgets_its_keys(good: TlsSettings) -> None:
    """Of 1.2, too; and the strongest comes first."""
    contexts = make_contexts(replace(good, tls_minimum="1.2"), CLUSTER)
    for context in (contexts.server, contexts.unasked, contexts.agents):
        ciphers = [cipher for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
        assert len(ciphers) >= 4
        assert all(cipher["aead"] and cipher["kea"] == "kx-ecdhe" for cipher in ciphers)
        assert ciphers[0]["strength_bits"] == 256
        assert min(cipher["strength_bits"] for cipher in context.get_ciphers()) >= 128


def test_agents_of_other_authorities_are_strangers(good: TlsSettings, tmp_path: pathlib.Path) -> None:
    """Whatever their names are, and whichever side they are."""
    ours = make_contexts(good, CLUSTER)
    others = make_contexts(write_files(tmp_path / "b", OTHERS.agent(), OTHERS.pem), CLUSTER)
    believing = make_contexts(write_files(tmp_path / "c", OTHERS.agent(), OURS.pem + OTHERS.pem), CLUSTER)
    for one, other in ((ours, others), (others, ours), (ours, believing), (believing, ours)):
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate in certificate chain"):
            meet(one, other)


def test_a_session_of_tls_1_2_ends_with_its_certificate(
    good: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resumed without a look at the certificate; not once that has expired."""
    server = make_contexts(replace(good, tls_minimum="1.2"), CLUSTER).server
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.maximum_version = False, ssl.TLSVersion.TLSv1_2
    client.load_verify_locations(good.tls_ca)
    client.load_cert_chain(str(good.tls_cert), good.tls_key)

    open_ones: list[ssl.SSLObject] = []  # a connection that is cut takes its session with it

    def shake(session: ssl.SSLSession | None) -> ssl.SSLObject:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        one = client.wrap_bio(to_client, to_server, session=session)
        open_ones.extend((one, server.wrap_bio(to_server, to_client, server_side=True)))
        shake_hands(open_ones[-2:])
        return one

    session = shake(None).session
    assert shake(session).session_reused
    month_later_s = time.time() + 31 * 86_400
    monkeypatch.setattr(contexts_module.time, "time", lambda: month_later_s)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired") as refused:
        shake(session)
    assert kind_of(refused.value) is RefusalKind.CERTIFICATE_EXPIRED
    assert not shake(None).session_reused  # OpenSSL's clock is another


@pytest.mark.parametrize("pattern", ["shoal://fish/*/*", "shoal://*/client/*"])
def test_a_name_of_agents_that_clients_have(good: TlsSettings, pattern: str) -> None:
    """Every client of the authority would be an agent, which may do everything."""
    with pytest.raises(TlsError, match="is the name of clients, too"):
        make_contexts(replace(good, tls_agent_name=pattern), CLUSTER)
    make_contexts(replace(good, tls_agent_name="shoal://fish/*"), CLUSTER)


def test_an_expired_authority(tmp_path: pathlib.Path) -> None:
    """Its certificates are refused with it."""
    old = Authority("old", days=(-9, -1))
    with pytest.raises(TlsError, match="has expired"):
        make_contexts(write_files(tmp_path, old.agent(), old.pem), CLUSTER)


def test_clients_of_the_same_authority_are_no_agents(good: TlsSettings, tmp_path: pathlib.Path) -> None:
    """An agent that connects does not speak to one; an agent that is connected to sees its name."""
    contexts = make_contexts(good, CLUSTER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=OURS.pem.decode())
    files = write_files(tmp_path / "client", OURS.client("anna"), OURS.pem)
    client.load_cert_chain(str(files.tls_cert), files.tls_key)
    _, server = meet(replace(contexts, agents=client), contexts)
    peer = contexts.peer_of(server)
    assert peer is not None
    assert (peer.name, peer.is_agent) == ("anna", False)
    nameless = replace(good, tls_clients="none")
    assert make_contexts(nameless, CLUSTER).peer_of(server) is None


def test_a_server_that_is_no_agent(good: TlsSettings, tmp_path: pathlib.Path) -> None:
    """The handshake of a link or a forward fails, so nothing is said to it."""
    contexts = make_contexts(good, CLUSTER)
    files = write_files(tmp_path / "web", OURS.issue(common_name="web"), OURS.pem)
    web = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    web.load_cert_chain(str(files.tls_cert), files.tls_key)
    with pytest.raises(ssl.SSLCertVerificationError, match="is not an agent's"):
        meet(contexts, replace(contexts, server=web))


def test_older_versions_are_refused_unless_they_are_asked_for(good: TlsSettings) -> None:
    """1.3 alone; 1.2 by setting; nothing older by any."""
    strict = make_contexts(good, CLUSTER)
    lax = make_contexts(replace(good, tls_minimum="1.2"), CLUSTER)
    lax.agents.maximum_version = ssl.TLSVersion.TLSv1_2
    client, _ = meet(lax, lax)
    assert client.version() == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        meet(lax, strict)
    assert lax.server.minimum_version is ssl.TLSVersion.TLSv1_2
