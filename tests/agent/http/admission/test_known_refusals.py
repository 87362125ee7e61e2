"""Refusals that are remembered: of one second, not beyond a change of their reason, and bounded."""

from __future__ import annotations

import pytest

from shoal.agent.http.admission import known_refusals
from shoal.agent.http.admission.known_refusals import Asked, KnownRefusals
from shoal.agent.security.access import ANONYMOUS, Identity, Proof
from shoal.errors import ShoalError

NOBODY = Identity(ANONYMOUS, Proof.NONE)
AT_MS = 1_764_300_000_250.0


def asked(number: int = 0) -> Asked:
    return f"Bearer {number}", None, "produce", "orders"


def error() -> ShoalError:
    return ShoalError("unauthenticated", "no")


@pytest.mark.parametrize(("later_ms", "is_kept"), [(0, True), (749, True), (750, False), (-251, False)])
def test_a_refusal_is_of_its_second(later_ms: int, is_kept: bool) -> None:
    """A clock that goes back counts as another second."""
    known = KnownRefusals()
    known.look(AT_MS)
    known.remember(asked(), NOBODY, error())
    known.look(AT_MS + later_ms)
    assert (asked() in known.told) == is_kept


@pytest.mark.parametrize(("expires_ms", "is_kept"), [(1, False), (749, False), (750, True), (9_000, True)])
def test_who_expires_in_this_second_has_another_reason_then(expires_ms: int, is_kept: bool) -> None:
    """`expires_ms`: from now on."""
    known = KnownRefusals()
    known.look(AT_MS)
    identity = Identity("bob", Proof.TOKEN, int(AT_MS) + expires_ms)
    known.remember(asked(), identity, error())
    assert (asked() in known.told) == is_kept


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody with ever other credentials fills no memory."""
    monkeypatch.setattr(known_refusals, "REFUSALS_MAX", 8)
    known = KnownRefusals()
    known.look(AT_MS)
    for number in range(20):
        known.remember(asked(number), NOBODY, error())
        assert len(known.told) <= 8
    assert asked(19) in known.told


def test_nothing_of_the_judgement_is_kept_alive() -> None:
    """Its frames had the credential in clear."""
    known = KnownRefusals()
    known.look(AT_MS)
    try:
        try:
            raise ValueError
        except ValueError:
            raise error() from None
    except ShoalError as raised:
        known.remember(asked(), NOBODY, raised)
    kept = known.told[asked()].error
    assert kept.__traceback__ is kept.__context__ is kept.__cause__ is None
