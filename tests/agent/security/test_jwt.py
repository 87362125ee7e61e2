"""JWTs: good ones are who they say, and each bad one is refused in words that repeat nothing of it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import string
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jwt_issuer import (
    AUDIENCE,
    CONFIGURED,
    NOW_MS,
    NOW_S,
    bad_jwts,
    base64url,
    claims,
    forged,
    key_set,
    number,
    public_jwk,
    signed,
)

from shoal.agent.security import jwt as subject
from shoal.agent.security.access import ANONYMOUS, AskedBy, Identity, Proof
from shoal.agent.security.judge import CLOCK_BACK_MAX_MS, Judge
from shoal.agent.security.jwt import (
    CLOCK_DIFFERENCE_MS_MAX,
    LIFETIME_MS_MAX,
    REMEMBERED_MAX,
    JwtError,
    Verifier,
    verify,
)
from shoal.agent.security.jwt_keys import ALGORITHMS, KEY_SET_BYTES_MAX, KEYS_MAX, KeySetError, keys_from
from shoal.agent.security.needs import Action, ResourceKind, need
from shoal.agent.security.principals import PutPrincipal, Security
from shoal.agent.security.rules import rules_from_texts
from shoal.errors import ShoalError

KEYS = keys_from(key_set())
BAD = bad_jwts()
HOUR_MS = 3_600_000
READ = need(ResourceKind.TOPIC, Action.READ)
WRITE = need(ResourceKind.TOPIC, Action.WRITE)


def refusal(text: str, now_ms: int = NOW_MS) -> str:
    with pytest.raises(JwtError) as caught:
        verify(text, KEYS, CONFIGURED, now_ms)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512"), ("Ed25519", "EdDSA"),
        *(("RSA", name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
    ],
)  # fmt: skip
def test_each_algorithm_that_is_taken_verifies_by_its_own_kind_of_key(kind: str, algorithm: str) -> None:
    """And by no other kind: the same token is refused where the issuer has every key but that."""
    others = [one for one in ("P-256", "P-384", "P-521", "Ed25519", "RSA") if one != kind]
    text = signed(claims(), kind, algorithm)
    assert verify(text, keys_from(key_set(kind)), CONFIGURED, NOW_MS) == Identity(
        "ann", Proof.JWT, NOW_MS + 600_000
    )
    with pytest.raises(JwtError):
        verify(text, keys_from(key_set(*others)), CONFIGURED, NOW_MS)
    assert algorithm in ALGORITHMS


@pytest.mark.parametrize("title", BAD)
def test_a_bad_jwt_is_refused_with_one_error_that_repeats_nothing_of_it(title: str) -> None:
    """The words are a fixed sentence: no part of the token that is longer than a word is in them."""
    text = refusal(BAD[title])
    assert 10 < len(text) < 200
    for part in BAD[title].split("."):
        assert len(part) < 8 or part not in text
    assert "passwd" not in text
    assert "attacker" not in text


def test_the_refusals_say_what_is_wrong() -> None:
    """Who runs the issuer or the cluster can tell from the words what to change."""
    for title, words in {
        "alg none": "alg is none that is taken",
        "HS256 by the public key": "alg is none that is taken",
        "alg of another family": "alg is not that of the key",
        "another key under the kid": "signature",
        "kid is a path": "none that its issuer has published",
        "another issuer": "another issuer than jwt_issuer",
        "another audience": "another audience than jwt_audience",
        "no expiry": "has no exp",
        "expired": "has expired",
        "expires in a million years": "over 24 hours",
        "not before an hour": "not valid yet (nbf)",
        "a header of 300 lists": "over 16 objects and lists",
        "300 nested claims": "over 64 objects and lists",
        "no principal": "claim sub is no name of a principal",
        "17 roles": "over 16 roles",
    }.items():
        assert words in refusal(BAD[title]), title


def test_the_clock_may_be_wrong_by_an_hour_either_way() -> None:
    """Ahead: what has ended by it is refused. Behind: what has not begun by it, and what seems to last too
    long. Nothing else changes, and a minute of the issuer's clock is borne."""
    text = signed(claims(nbf=NOW_S))
    assert "expired" in refusal(text, NOW_MS + HOUR_MS)
    assert "not valid yet" in refusal(text, NOW_MS - HOUR_MS)
    assert verify(text, KEYS, CONFIGURED, NOW_MS - CLOCK_DIFFERENCE_MS_MAX).principal == "ann"
    assert "not valid yet" in refusal(text, NOW_MS - CLOCK_DIFFERENCE_MS_MAX - 1)
    assert verify(text, KEYS, CONFIGURED, NOW_MS + 599_999).principal == "ann"
    assert "expired" in refusal(text, NOW_MS + 600_000)
    longest = signed(claims(exp=NOW_S + LIFETIME_MS_MAX // 1_000))
    assert verify(longest, KEYS, CONFIGURED, NOW_MS).expires_ms == NOW_MS + LIFETIME_MS_MAX
    assert "over 24 hours" in refusal(longest, NOW_MS - HOUR_MS)


def test_claims_become_principal_and_roles() -> None:
    """By the names that are configured; a list, or a text with blanks; each role once."""
    issuer = CONFIGURED._replace(principal_claim="email", roles_claim="https://fish/roles")
    for roles in (["viewer", "operator", "viewer"], "operator viewer"):
        payload = claims(email="ann@example.com", aud=["x", AUDIENCE], **{"https://fish/roles": roles})
        told = verify(signed(payload), KEYS, issuer, NOW_MS)
        assert told == Identity("ann@example.com", Proof.JWT, NOW_MS + 600_000, ("operator", "viewer"))
    without = CONFIGURED._replace(roles_claim=None)
    assert verify(signed(claims(roles=["admin"])), KEYS, without, NOW_MS).roles == ()


def test_a_key_is_found_by_its_id_or_alone() -> None:
    """A token without a kid is taken where one key fits, and refused where two do. One kid for keys of two
    kinds is one for each; for two of one kind it is none."""
    text = signed(claims(), kid=None)
    assert verify(text, KEYS, CONFIGURED, NOW_MS).principal == "ann"
    two = keys_from(key_set("P-256", "other"))
    with pytest.raises(JwtError, match="names no key"):
        verify(text, two, CONFIGURED, NOW_MS)
    shared = keys_from(key_set(public_jwk("P-256", kid="k"), public_jwk("RSA", kid="k")))
    assert verify(signed(claims(), kid="k"), shared, CONFIGURED, NOW_MS).principal == "ann"
    assert verify(signed(claims(), "RSA", "PS256", kid="k"), shared, CONFIGURED, NOW_MS).principal == "ann"
    twice = keys_from(key_set(public_jwk("P-256", kid="k"), public_jwk("other", kid="k")))
    with pytest.raises(JwtError):
        verify(signed(claims(), kid="k"), twice, CONFIGURED, NOW_MS)


@pytest.mark.parametrize("with_alg", ["RS256", "PS512"])
def test_a_key_for_one_algorithm_verifies_no_other(with_alg: str) -> None:
    """Its `alg` narrows its family."""
    keys = keys_from(key_set(public_jwk("RSA", alg=with_alg)))
    for algorithm in ("RS256", "PS512"):
        text = signed(claims(), "RSA", algorithm)
        if algorithm == with_alg:
            assert verify(text, keys, CONFIGURED, NOW_MS).principal == "ann"
        else:
            with pytest.raises(JwtError, match="alg is not that of the key"):
                verify(text, keys, CONFIGURED, NOW_MS)


SHARED = {"kty": "oct", "kid": "P-256", "k": base64url(b"x" * 32), "alg": "HS256"}


@pytest.mark.parametrize(
    "unfit",
    [
        SHARED,
        public_jwk("P-256", use="enc"),
        public_jwk("P-256", key_ops=["sign"]),
        public_jwk("P-256", alg="HS256"),
        public_jwk("P-256", alg="ES384"),
        public_jwk("P-256", crv="P-384"),
        public_jwk("P-256", crv="secp256k1"),
        public_jwk("P-256", y=public_jwk("P-256")["x"]),
        public_jwk("P-256", x="A" * 4_000),
        public_jwk("P-256", kid="k" * 300),
        public_jwk("P-256", kid=7),
        public_jwk("P-256", kty=["EC"]),
        public_jwk("RSA", n=number((1 << 1_023) | 1)),
        public_jwk("RSA", n=number((1 << 16_383) | 1)),
        public_jwk("RSA", e=number((1 << 40) | 1)),
        public_jwk("RSA", e="AQ"),
        public_jwk("RSA", n=7),
        public_jwk("Ed25519", x="AAAA"),
        public_jwk("Ed25519", crv="X25519"),
        {},
    ],
)
def test_keys_that_verify_nothing_here_are_left_out(unfit: dict[str, Any]) -> None:
    """Those beside them count; alone they make no key set."""
    keys = keys_from(key_set(unfit, public_jwk("P-384")))
    assert len(keys) == 1
    assert verify(signed(claims(), "P-384", "ES384"), keys, CONFIGURED, NOW_MS).principal == "ann"
    with pytest.raises(KeySetError, match="no public key that verifies"):
        keys_from(key_set(unfit))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", "no JSON object"),
        (b"<html>", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"[" * 60_000, "no JSON object"),
        (b'{"keys": {}}', "no list of keys"),
        (b'{"keys": [7]}', "no list of keys"),
        (b'{"keys": []}', "no public key"),
        (b" " * (KEY_SET_BYTES_MAX + 1), "over 65536 bytes"),
        (json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(), "there may be 64"),
        (key_set(public_jwk("P-256", d="AAAA"), "RSA"), "a private key"),
    ],
)
def test_a_document_that_is_no_key_set_is_refused(document: bytes, words: str) -> None:
    """With its one error."""
    with pytest.raises(KeySetError, match=re.escape(words)):
        keys_from(document)


@given(st.binary(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["keys", "kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops"]), inner
    ), max_leaves=20,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_document_is_a_key_set_or_its_one_error(document: bytes) -> None:
    """Nothing else is raised, and nothing without keys is a set."""
    with contextlib.suppress(KeySetError):
        assert len(keys_from(document)) > 0


SEGMENT = st.text("abcXYZ019-_", max_size=24) | st.binary(max_size=60).map(base64url)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
HEADER = st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "jwk", "x5c"]), VALUE)
CLAIMS = st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "roles", "jti"]), VALUE)


@given(
    st.text(max_size=200)
    | st.lists(SEGMENT, min_size=1, max_size=4).map(".".join)
    | st.builds(
        lambda head, body: forged({"alg": "ES256", "kid": "P-256"} | head, body, b"x"), HEADER, CLAIMS
    )
)
@example("..")
@example("a.b.c\n")
@example("٣.٣.٣")
def test_any_text_is_refused_with_the_one_error(text: str) -> None:
    """Nobody's signature: each is refused, whatever it is."""
    with pytest.raises(JwtError):
        verify(text, KEYS, CONFIGURED, NOW_MS)


@given(CLAIMS)
def test_any_signed_claims_are_an_identity_within_bounds_or_the_one_error(more: dict[str, Any]) -> None:
    """Whatever an issuer signs."""
    payload = claims() | more
    try:
        told = verify(signed(json.dumps(payload).encode()), KEYS, CONFIGURED, NOW_MS)
    except JwtError:
        return
    assert told.proof is Proof.JWT
    assert told.expires_ms is not None
    assert NOW_MS < told.expires_ms <= NOW_MS + LIFETIME_MS_MAX + CLOCK_DIFFERENCE_MS_MAX
    assert told.principal == payload["sub"]


@given(st.data())
def test_a_changed_character_of_a_good_jwt_is_refused(data: st.DataObject) -> None:
    """Also one of which only those bits differ that stand for nothing."""
    text = signed(claims())
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCDwxyz0189-_."))
    if text[place] != letter:
        refusal(text[:place] + letter + text[place + 1 :])


def test_one_jwt_has_one_form() -> None:
    """The last letter of a signature of 64 bytes has four bits that stand for nothing."""
    text = signed(claims())
    assert verify(text, KEYS, CONFIGURED, NOW_MS).principal == "ann"
    same = base64.urlsafe_b64decode(text.rpartition(".")[2] + "==")
    others = [f"{text[:-1]}{letter}" for letter in string.ascii_letters + string.digits if letter != text[-1]]
    alike = [one for one in others if base64.urlsafe_b64decode(one.rpartition(".")[2] + "==") == same]
    assert len(alike) >= 13
    for other in alike:
        assert "base64url" in refusal(other)


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
def test_a_time_that_no_float_can_hold_is_none(name: str) -> None:
    """Whoever signs it: the one error, and no other."""
    assert f"{name} is no time" in refusal(signed(claims(**{name: 10**400})))


# ---- what an agent remembers -------------------------------------------------------------------------------


def test_a_verified_jwt_is_remembered_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verified once; refused at its end all the same, and verified anew with other keys."""
    calls: list[str] = []

    def counted(text: str, *rest: Any) -> Identity:
        calls.append(text)
        return verify(text, *rest)

    monkeypatch.setattr(subject, "verify", counted)
    verifier = Verifier(CONFIGURED)
    verifier.use(KEYS)
    text = signed(claims())
    for _ in range(3):
        assert verifier.identify(text, NOW_MS).principal == "ann"
    assert calls == [text]
    with pytest.raises(ShoalError, match="expired"):
        verifier.identify(text, NOW_MS + 600_000)
    verifier.use(keys_from(key_set("P-384")))
    with pytest.raises(ShoalError) as caught:
        verifier.identify(text, NOW_MS)
    assert caught.value.code == "unauthenticated"
    assert text not in repr(verifier)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When full it is forgotten."""
    monkeypatch.setattr(subject, "verify", lambda text, *_: Identity(text, Proof.JWT, NOW_MS + 1))
    verifier = Verifier(CONFIGURED)
    verifier.use(KEYS)
    for n in range(2 * REMEMBERED_MAX + 10):
        assert verifier.identify(f"{n}", NOW_MS).principal == f"{n}"
        assert len(verifier._known) <= REMEMBERED_MAX


def test_an_unknown_key_is_asked_for_and_not_refused_while_it_may_come() -> None:
    """not-ready while keys are looked for; unauthenticated where no look is due. Other faults ask nobody."""
    verifier = Verifier(CONFIGURED)
    asked: list[bool] = []
    verifier.ask = lambda: bool(asked.append(True)) or len(asked) < 2
    unknown = signed(claims(), "other")
    codes = []
    with pytest.raises(ShoalError) as caught:
        verifier.identify(unknown, NOW_MS)
    assert (caught.value.code, asked) == ("not-ready", [])
    verifier.use(KEYS)
    for text in (unknown, unknown, BAD["alg none"], BAD["another key under the kid"]):
        with pytest.raises(ShoalError) as caught:
            verifier.identify(text, NOW_MS)
        codes.append(caught.value.code)
    assert codes == ["not-ready", *["unauthenticated"] * 3]
    assert len(asked) == 2


def judge_with(verifier: Verifier | None) -> Judge:
    state = Security()
    by = AskedBy("bootstrap", "token", "127.0.0.1", 1_000, "r")
    put = PutPrincipal("ann", None, (), rules_from_texts(["topic:orders*=read"]), by)
    assert state.apply(put, (0, 1)) == "done"
    return Judge(lambda: state, jwts=verifier)


def test_the_judge_takes_a_bearer_with_two_dots_for_a_jwt() -> None:
    """The principal has its own rules, and those of the claims' roles beside them. Other keys are another
    version, so that verdicts are judged again."""
    verifier = Verifier(CONFIGURED)
    verifier.use(KEYS)
    judge = judge_with(verifier)
    version = judge.version
    told = judge.identify(f"Bearer {signed(claims())}", None, NOW_MS)
    assert (judge.may(told, READ, "orders"), judge.may(told, WRITE, "orders")) == (True, False)
    told = judge.identify(f"Bearer {signed(claims(roles=['producer:or*', 'none such']))}", None, NOW_MS)
    assert (judge.may(told, READ, "orders"), judge.may(told, WRITE, "orders")) == (True, True)
    nobody = judge.identify(f"Bearer {signed(claims(sub='bob'))}", None, NOW_MS)
    assert not judge.may(nobody, READ, "orders")
    assert judge.version == version
    verifier.use(keys_from(key_set("P-384")))
    assert judge.version != version
    assert judge.identify(None, None, NOW_MS).principal == ANONYMOUS


def test_an_expired_jwt_does_not_come_alive_when_the_clock_jumps_back() -> None:
    """The judge goes on with the latest time that it has seen, up to an hour."""
    verifier = Verifier(CONFIGURED)
    verifier.use(KEYS)
    judge = judge_with(verifier)
    text = f"Bearer {signed(claims())}"
    assert judge.identify(text, None, NOW_MS).principal == "ann"
    for now_ms in (NOW_MS + 600_000, NOW_MS + 600_000 - CLOCK_BACK_MAX_MS):
        with pytest.raises(ShoalError, match="expired"):
            judge.identify(text, None, now_ms)


def test_an_agent_without_an_issuer_takes_no_jwt() -> None:
    """It says so."""
    with pytest.raises(ShoalError, match="takes no JWTs") as caught:
        judge_with(None).identify(f"Bearer {signed(claims())}", None, NOW_MS)
    assert caught.value.code == "unauthenticated"
