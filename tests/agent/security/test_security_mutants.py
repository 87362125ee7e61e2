"""The deliberate faults of security, in one list: for each, the test or simulation that catches it.

Law of this file: a fault that a test elsewhere makes is named by that test; one of the simulation by its
mutant there. The others are made here, and a test that exists fails with each. Without the fault it passes:
that is its own run.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shoal.agent.security import audit
from shoal.agent.security import jwt as jwt_module
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.jwt import Issuer, JwtError
from shoal.agent.security.jwt_keys import IssuerKey, KeySet
from shoal.agent.tls.names import NameRules
from tests.agent.jwt_issuer import public_pem
from tests.agent.security import test_audit, test_jwt
from tests.agent.tls import test_names

TESTS = Path(__file__).resolve().parents[2]
ROOM_OF_MUTANTS = "cluster_sim.mutants"


class Elsewhere(NamedTuple):
    """A test with the fault: a function of a module, and the fault's own function there."""

    module: str
    test: str
    mutant: str | None = None


ISSUE = {
    "a permission not asked on one route": (
        Elsewhere("tests.agent.http.test_doors", "test_the_table_finds_faults", "without_need"),
    ),
    "a verdict remembered too long": (
        Elsewhere("tests.agent.http.test_doors_in_time", "test_a_verdict_remembered_too_long_is_found"),
        Elsewhere(ROOM_OF_MUTANTS, "caught", "remember_verdicts_too_long"),
        Elsewhere(ROOM_OF_MUTANTS, "caught", "judge_by_the_state_before_a_crash"),
    ),
    "`alg` taken from the token": (
        Elsewhere(__name__, "test_a_test_fails_with_the_fault", "alg_from_the_token"),
    ),
    "a peer without its name": (
        Elsewhere(__name__, "test_a_test_fails_with_the_fault", "peer_without_its_name"),
    ),
    "a revocation lost in a snapshot": (
        Elsewhere("tests.agent.topics.test_security_catalog", "test_faults_are_found", "lose_revocations"),
        Elsewhere(ROOM_OF_MUTANTS, "caught", "lose_a_revocation_in_a_copy"),
    ),
    "a forwarder's word believed from a client": (
        Elsewhere("tests.agent.http.test_doors", "test_the_table_finds_faults", "believing"),
    ),
}
"""In the words of the requirement."""
FURTHER = {
    "a change without its record": (
        Elsewhere(ROOM_OF_MUTANTS, "caught", "leave_changes_to_the_leader"),
        Elsewhere(ROOM_OF_MUTANTS, "caught", "tell_of_a_change_as_if_alone"),
    ),
    "a flood of refusals written whole": (
        Elsewhere(__name__, "test_a_test_fails_with_the_fault", "flood_written_whole"),
    ),
    "the last administrator taken away": (
        Elsewhere(ROOM_OF_MUTANTS, "caught", "depose_the_last_administrator"),
    ),
    "a verdict by the agent's own clock": (
        Elsewhere(
            "tests.agent.topics.test_security_catalog", "test_faults_are_found", "judge_by_the_own_clock"
        ),
    ),
}


@pytest.mark.parametrize("place", [place for row in (ISSUE | FURTHER).values() for place in row])
def test_each_fault_is_run_by_a_test(place: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list names nothing that is gone."""
    for folder in ("simulation", "cluster"):
        monkeypatch.syspath_prepend(str(TESTS / folder))
    module = sys.modules[__name__] if place.module == __name__ else importlib.import_module(place.module)
    assert inspect.isfunction(getattr(module, place.test))
    if place.module == ROOM_OF_MUTANTS:
        assert place.mutant in {mutant.name for mutant in module.MUTANTS}
    elif place.mutant is not None:
        assert place.mutant in _parameters(getattr(module, place.test))


def _parameters(test: Any) -> set[str]:
    """Names of the functions that a test is run with."""
    marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return {value.__name__ for mark in marks for value in mark.args[1] if callable(value)}


# ---- faults made here --------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], Callable[[], object]]
"""Makes the fault; the test that has to fail then."""


def alg_from_the_token(patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """The key is looked up by its id alone, and what verifies is what the header says: also a secret that is
    the public key, which everybody knows."""
    claims_of = jwt_module._claims_of

    def find(self: KeySet, key_id: str | None, algorithm: str) -> IssuerKey | None:
        return next((key for key in self._keys if key.key_id == key_id), None)

    def mutated(text: str, key: IssuerKey, algorithm: str, issuer: Issuer) -> dict[str, Any]:
        if algorithm != "HS256":
            return claims_of(text, key, algorithm, issuer)
        signed, _, signature = text.rpartition(".")
        secret = public_pem(key.key_id or "")
        if test_jwt.base64url(hmac.digest(secret, signed.encode(), hashlib.sha256)) != signature:
            raise JwtError("this is no JWT that can be verified")
        return jwt_module._object(text.split(".")[1], 100, "claims")

    patch.setattr(KeySet, "find", find)
    patch.setattr(jwt_module, "ALGORITHMS", jwt_module.ALGORITHMS | {"HS256"})
    patch.setattr(jwt_module, "_claims_of", mutated)
    return lambda: test_jwt.test_a_bad_jwt_is_refused_with_one_error_that_repeats_nothing_of_it(
        "HS256 by the public key"
    )


def peer_without_its_name(patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Whoever has a certificate of the authority is an agent."""
    patch.setattr(NameRules, "peer", lambda *_: PeerCertificate("somebody", is_agent=True))
    return test_names.test_the_agents_of_the_cluster_have_its_name


def flood_written_whole(patch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Each refusal of an address has its record."""
    patch.setattr(audit, "REFUSALS_PER_SECOND_MAX", 1 << 30)
    return test_audit.test_a_flood_of_refusals_is_counted_and_told_when_its_second_is_over


@pytest.mark.parametrize("fault", [alg_from_the_token, peer_without_its_name, flood_written_whole])
def test_a_test_fails_with_the_fault(fault: Fault) -> None:
    """By an assertion of its own, not since the fault is broken; and it passes without."""
    with pytest.MonkeyPatch.context() as patch:
        test = fault(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            test()
    test()
