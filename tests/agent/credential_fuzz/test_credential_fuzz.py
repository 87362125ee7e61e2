"""Hostile tokens, headers, JWTs, key sets, certificates, handshakes: a short run, and faults that it finds.

`scripts/campaign credentials` runs it for long.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from shoal.agent.http.admission.cookies import sessions_in
from shoal.agent.http.core import doorkeeper, handed_over, problems
from shoal.agent.security import judge, jwt
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.sessions import Sessions
from shoal.agent.security.tokens import parse_token
from shoal.agent.tls.names import NameRules
from tests.agent.credential_fuzz import front, rounds

CASES = 4_000


def test_each_hostile_credential_is_what_an_independent_reader_says() -> None:
    """Every kind has cases that are taken, and many that are refused; time and memory are bounded."""
    told: list[int] = []
    outcomes = rounds.run_round(1, CASES, told.append)
    assert set(outcomes) == set(rounds.SHARES)
    assert sum(told) == sum(map(sum, outcomes.values())) >= CASES * 0.99
    for kind, (taken, refused) in outcomes.items():
        assert taken >= 5, kind
        assert refused >= 5, kind


def _first_uri(rules: NameRules, certificate: Any) -> PeerCertificate:
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return PeerCertificate(uris[0], rules.is_agent(uris[0])) if uris else PeerCertificate("", is_agent=False)


def _first_header(headers: Any, certificate: PeerCertificate | None, *_: Any) -> doorkeeper.ShownCredentials:
    return doorkeeper.ShownCredentials(headers.get("Authorization"), certificate)


def _any_forwarder(headers: Any, certificate: PeerCertificate | None, *_: Any) -> doorkeeper.ShownCredentials:
    return doorkeeper.ShownCredentials(
        headers.get("Authorization"), certificate, headers.get("Shoal-Principal")
    )


def _first_session(headers: Any, name: str) -> list[str]:
    return sessions_in(headers, name)[:1]


FAULTS: dict[str, tuple[str, object, str, object]] = {
    "blanks around a token": ("headers", judge, "parse_token", lambda text: parse_token(text.strip())),
    "a token in capitals": ("headers", judge, "parse_token", lambda text: parse_token(text.lower())),
    "another type of JWT": ("jwts", jwt, "TYPES", frozenset(("jwt", "logout+jwt", "jose"))),
    "an expired JWT": ("jwts", jwt, "_expiry", lambda claims, now_ms: int(claims["exp"] * 1_000)),
    "a clock of another hour": ("jwts", jwt, "CLOCK_DIFFERENCE_MS_MAX", 3_600_000),
    "a name twice in a JWT": ("jwts", jwt, "read_object", lambda data, most: __import__("json").loads(data)),
    "a seal that nobody compares": ("sessions", hmac, "compare_digest", lambda *_: True),
    "a session that was ended": ("sessions", Sessions, "has_ended", lambda *_: False),
    "the first of two names": ("certificates", NameRules, "peer", _first_uri),
    "the first of two headers": ("heads", doorkeeper, "shown_credentials", _first_header),
    "a principal of a client's": ("heads", doorkeeper, "shown_credentials", _any_forwarder),
    "a cookie of another site": ("heads", doorkeeper, "refuse_other_pages", lambda *_, **__: None),
    "the first of two cookies": ("heads", doorkeeper, "sessions_in", _first_session),
    "a header in an answer": ("heads", problems, "parsers_words", str),
    "a header in the log": ("heads", handed_over, "parsers_words", str),
}


@pytest.mark.parametrize("title", FAULTS)
def test_planted_faults_are_found(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within the cases of some rounds."""
    kind, place, name, fault = FAULTS[title]
    monkeypatch.setattr(place, name, fault)
    run: Callable[[], Any]
    if kind == "heads":
        run = lambda: asyncio.run(front.ask(1, 4_000))  # noqa: E731
    else:
        monkeypatch.setattr(rounds, "SHARES", {one: 100 * (one == kind) for one in rounds.SHARES})
        run = lambda: rounds.run_round(1, 4_000)  # noqa: E731
    with pytest.raises((AssertionError, KeyError, ValueError, RecursionError)):
        run()
