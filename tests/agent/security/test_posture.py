"""The posture: loopback is open to its host, and nothing else starts without all three protections."""

from __future__ import annotations

import itertools

import pytest

from shoal.agent.config import AgentConfig
from shoal.agent.security.posture import Posture, Protection, exposure_of, refused_start, warning

SUBSETS = [
    frozenset(chosen) for size in range(4) for chosen in itertools.combinations(tuple(Protection), size)
]
KEY = "A" * 43 + "="


@pytest.mark.parametrize("has", SUBSETS, ids=lambda has: "+".join(sorted(has)) or "nothing")
def test_beyond_loopback_everything_is_needed(has: frozenset[Protection]) -> None:
    """What is missing is named, and nothing else, in the refused_start and in the warning."""
    inside = exposure_of("127.0.0.1", is_loopback=True, has=has)
    outside = exposure_of("10.0.0.5", is_loopback=False, has=has)
    assert outside.missing == inside.missing == tuple(one for one in Protection if one not in has)
    assert not inside.is_insecure
    if len(has) == len(Protection):
        assert outside.posture is inside.posture is Posture.SECURED
        return
    assert (outside.posture, inside.posture) == (Posture.INSECURE, Posture.LOOPBACK)
    for text in (refused_start(outside, "fish", "shoal-1.example.com"), warning(outside)):
        assert "10.0.0.5" in text
        assert "\n" not in text
        named = text.split(": everybody" if "needs" in text else "; everybody")[0]
        assert [one for one in Protection if one in named] == list(outside.missing)


@pytest.mark.parametrize(
    ("has", "remedy"),
    [
        (set(), "`shoal secure init --cluster fish --address shoal-1.example.com`"),
        ({Protection.GOSSIP_KEY, Protection.AUTHENTICATION}, "`shoal secure init --cluster fish"),
        ({Protection.TLS, Protection.AUTHENTICATION}, "`shoal keygen`"),
        ({Protection.TLS, Protection.GOSSIP_KEY}, "leave out `authentication = off`"),
    ],
)
def test_a_refusal_names_the_remedy(has: set[Protection], remedy: str) -> None:
    """One command, that fits; and the way round it."""
    exposure = exposure_of("0.0.0.0", is_loopback=False, has=frozenset(has))
    text = refused_start(exposure, "fish", "shoal-1.example.com")
    assert remedy in text
    assert text.endswith("--insecure starts without")


def missing(**values: object) -> tuple[Protection, ...]:
    """Of a configuration beyond loopback, where the data directory keeps no key."""
    config = AgentConfig.from_sources({"data": "d", "bind": "10.0.0.5", **values})
    return config.exposure(has_gossip_key=config.pool.gossip_key is not None).missing


def test_a_configuration_tells_its_protections() -> None:
    """A key that lets unsealed gossip in is none; with a Serf agent the key is that agent's."""
    files = {"tls_cert": "a", "tls_key": "b", "tls_ca": "c"}
    assert Protection.TLS in missing()
    assert Protection.TLS not in missing(**files)
    assert Protection.GOSSIP_KEY in missing()
    assert Protection.GOSSIP_KEY not in missing(gossip_key=KEY)
    assert Protection.GOSSIP_KEY in missing(gossip_key=KEY, gossip_verify_incoming="false")
    assert Protection.GOSSIP_KEY not in missing(gossip="serf")
    kept = AgentConfig(data="d", bind="10.0.0.5").exposure(has_gossip_key=True)
    assert Protection.GOSSIP_KEY not in kept.missing


@pytest.mark.parametrize(
    ("bind", "posture"),
    [
        ("127.0.0.1", Posture.LOOPBACK),
        ("127.9.9.9", Posture.LOOPBACK),
        ("::1", Posture.LOOPBACK),
        ("10.0.0.5", Posture.INSECURE),
        ("fe80::1", Posture.INSECURE),
        ("::ffff:127.0.0.1", Posture.INSECURE),
    ],
)
def test_loopback_is_what_only_this_host_reaches(bind: str, posture: Posture) -> None:
    """An address of IPv4 in IPv6's clothes is on the safe side."""
    assert AgentConfig(data="d", bind=bind).exposure(has_gossip_key=False).posture is posture
    for text in ("0.0.0.0", "::"):
        config = AgentConfig(data="d", bind=text, advertise="10.0.0.5")
        assert config.exposure(has_gossip_key=False).is_insecure
