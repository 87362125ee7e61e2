"""Hostile values of the header Authorization for the judge; the reader is that of heads.py."""

from __future__ import annotations

import random

from jwt_issuer import NOW_MS

from shoal.agent.security.access import Identity, PeerCertificate, Proof
from shoal.agent.security.judge import Judge
from shoal.agent.security.tokens import TokenError, parse_token
from shoal.errors import ShoalError
from tests.agent.credential_fuzz.heads import ANNS, BOB, BOBS, FIRST, LIVE, bearer_of, hostile_value
from tests.agent.credential_fuzz.texts import repeats


def check_value(rng: random.Random, judge: Judge) -> bool:
    """Whether it was taken. AssertionError for what the reader does not take, and for words that tell it."""
    value = hostile_value(rng)
    certificate: PeerCertificate | None = BOB if rng.random() < 0.1 else None
    told: Identity | None = None
    refused: ShoalError | None = None
    try:
        told = judge.identify(value, certificate, NOW_MS)
    except ShoalError as error:
        refused = error
    if refused is not None:
        assert refused.code == "unauthenticated", f"{refused!r} for {value!r}"
        words = f"{refused} {refused!r} {refused.to_problem()}"
        for secret in (value.removeprefix("Bearer "), *(one.reveal()[15:] for one in (BOBS, ANNS, FIRST))):
            assert not repeats(words, secret), f"{words!r} repeats {value!r}"
    expected = bearer_of(value.encode("utf-8", "surrogatepass"))
    found = None if told is None else (told.principal, told.roles)
    assert found == expected, f"{found} and not {expected} for {value!r}"
    assert told is None or told.proof in (Proof.TOKEN, Proof.JWT)
    _check_token(value.rpartition(" ")[2])
    return told is not None


def _check_token(text: str) -> None:
    """One token has one text: what is read back is what was given."""
    try:
        token = parse_token(text)
    except TokenError:
        assert text not in LIVE, f"refused {text!r}"
        return
    assert token.reveal() == text
    assert text.isascii()
    assert text not in repr(token)
