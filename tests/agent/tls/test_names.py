"""Names in certificates make an agent, a client, or nobody."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.security.access import PeerCertificate
from shoal.agent.tls.names import NameFault, NameRules, agent_uri, client_uri, names_host

RULES = NameRules("fish", agent_uri("fish"))
SPIFFE = NameRules("fish", "spiffe://example.org/ns/prod/sa/shoal-*")


def certificate(*uris: str, common_names: tuple[str, ...] = ()) -> dict[str, Any]:
    """As getpeercert() has it."""
    return {
        "subject": tuple((("commonName", name),) for name in common_names),
        "subjectAltName": (("DNS", "localhost"), *(("URI", uri) for uri in uris)),
    }


def test_the_agents_of_the_cluster_have_its_name() -> None:
    """And no other name that looks like it."""
    agent = certificate("shoal://fish/agent", common_names=("x",))
    assert RULES.peer(agent) == PeerCertificate("shoal://fish/agent", is_agent=True)
    RULES.check_agent(agent)
    for other in (
        None, certificate(), certificate(common_names=("shoal",)), certificate(client_uri("fish", "a")),
        certificate("shoal://herring/agent"), certificate("shoal://fish/agent\0.example.org"),
        certificate("shoal://fish/agent", "shoal://fish/agent"), certificate("spiffe://fish/agent"),
        certificate("shoal://fish/agent/x"), certificate("shoal://fish/agent\n"),
        certificate(common_names=("shoal://fish/agent",)),
    ):  # fmt: skip
        with pytest.raises(NameFault):
            RULES.check_agent(other)


def test_a_pattern_stays_within_a_segment() -> None:
    """A star takes no slash, and no other letter of the pattern is special."""
    assert SPIFFE.peer(certificate("spiffe://example.org/ns/prod/sa/shoal-7")).is_agent
    assert SPIFFE.peer(certificate("spiffe://example.org/ns/prod/sa/shoal-")).is_agent
    assert not SPIFFE.peer(certificate("spiffe://example.org/ns/prod/sa/shoal-7/x")).is_agent
    assert not SPIFFE.peer(certificate("spiffe://exampleXorg/ns/prod/sa/shoal-7")).is_agent


def test_clients_are_called_by_their_uri_or_their_subject() -> None:
    """The principal is the name alone where the URI is the cluster's own."""
    assert RULES.peer(certificate("shoal://fish/client/anna")) == PeerCertificate("anna", is_agent=False)
    assert RULES.peer(certificate(common_names=("anna@example.org",))).name == "anna@example.org"
    assert RULES.peer(certificate("spiffe://a/b")) == PeerCertificate("spiffe://a/b", is_agent=False)
    assert RULES.peer(certificate("shoal://fish/client/anna", common_names=("b", "c"))).name == "anna"


@pytest.mark.parametrize("name", ["anonymous", "bootstrap"])
def test_no_certificate_is_of_a_principal_that_others_prove(name: str) -> None:
    """As with JWTs: nothing in an audit looks as if the first token or nobody had come with a certificate."""
    for names in (
        certificate(client_uri("fish", name)), certificate(name), certificate(common_names=(name,)),
    ):  # fmt: skip
        with pytest.raises(NameFault, match="no certificate proves"):
            RULES.peer(names)


def test_the_end_of_a_certificate_is_told() -> None:
    """Of agents and clients, by each kind of name."""
    for names in (
        certificate("shoal://fish/agent"), certificate("shoal://fish/client/anna"),
        certificate("spiffe://a/b"), certificate(common_names=("anna",)),
    ):  # fmt: skip
        assert RULES.peer(names | {"notAfter": "Jan  5 09:34:43 2018 GMT"}).expires_ms == 1_515_144_883_000
        assert RULES.peer(names).expires_ms is None
        with pytest.raises(NameFault, match="no time"):
            RULES.peer(names | {"notAfter": "Bad time value"})


@pytest.mark.parametrize(
    "refused",
    [
        certificate(),
        {},
        certificate(common_names=("a", "b")),
        certificate(common_names=("a\0b",)),
        certificate(common_names=("",)),
        certificate("shoal://fish/client/a", "shoal://fish/client/b"),
        certificate("shoal://herring/client/a"),
        certificate("SHOAL://herring/client/a"),
        certificate("shoal://fish/client/"),
        certificate("shoal://fish/client/a\0"),
        certificate("spiffe://" + "a" * 300),
        certificate(""),
    ],
)
def test_certificates_that_name_nobody(refused: dict[str, Any]) -> None:
    """They are refused, not taken for somebody without a name."""
    with pytest.raises(NameFault):
        RULES.peer(refused)


@given(st.lists(st.text(max_size=30), max_size=3), st.lists(st.text(max_size=20), max_size=2))
def test_no_name_makes_an_agent_but_the_one(uris: list[str], common_names: list[str]) -> None:
    """Whatever stands in a certificate."""
    try:
        peer = RULES.peer(certificate(*uris, common_names=tuple(common_names)))
    except NameFault:
        return
    assert not peer.is_agent
    assert peer.name


def test_the_host_that_clients_look_for() -> None:
    """An address in any spelling, a name in any case, and one below a wildcard."""
    names = (("DNS", "a.example.org"), ("DNS", "*.b.example.org"), ("IP Address", "FD00:0:0:0:0:0:0:1"))
    held = {"subjectAltName": names}
    for host in ("a.example.org", "A.example.org", "x.b.example.org", "fd00::1"):
        assert names_host(held, host)
    for host in ("b.example.org", "x.y.b.example.org", "example.org", "fd00::2", "10.0.0.1"):
        assert not names_host(held, host)
    assert not names_host({}, "a")
