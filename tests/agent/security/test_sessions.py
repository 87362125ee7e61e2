"""Sessions of browsers: what seals them, what ends them, and that no bound brings an ended one back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt_issuer import ISSUER, NOW_MS, claims, key_set, signed

from shoal.agent.security import sessions as session_state
from shoal.agent.security.access import AskedBy, Identity, OpenAccess, Place, Proof
from shoal.agent.security.documents import (
    OPERATIONS,
    command_document,
    command_from,
    state_document,
    state_from,
)
from shoal.agent.security.judge import Judge
from shoal.agent.security.jwt import Issuer, Verifier
from shoal.agent.security.jwt_keys import keys_from
from shoal.agent.security.needs import Action, ResourceKind, need
from shoal.agent.security.principals import (
    BOOTSTRAP,
    DeletePrincipal,
    MakeToken,
    PutPrincipal,
    RevokeToken,
    Security,
    SecurityCommand,
)
from shoal.agent.security.rules import rules_from_texts
from shoal.agent.security.sessions import (
    CLOCKS_DIFFER_MS,
    ENDED_KEPT_MS,
    ENDED_OF_ONE_MAX,
    KEY_AGE_MS,
    KEY_SETTLES_MS,
    SEALED_CHARACTERS_MAX,
    SESSION_LIFETIME_MS,
    BrowserSession,
    EndSession,
    MakeSessionKey,
    SessionError,
    SessionKey,
    Sessions,
    SessionSource,
    SourceKind,
    key_id_of,
    open_session,
    seal,
    sessions_from,
)
from shoal.agent.security.tokens import make_token
from shoal.errors import ShoalError

BY = AskedBy("ann", "token", "127.0.0.1", NOW_MS, "r")
KEY = SessionKey("a" * 8, b"k" * 32, NOW_MS)
OTHER = SessionKey("b" * 8, b"l" * 32, NOW_MS)
SESSION = BrowserSession(
    "a" * 16,
    "ann",
    SessionSource(SourceKind.TOKEN, "abcdefgh"),
    ("viewer", "consumer:é*"),
    (3, 17),
    NOW_MS + 5,
)
FIRST, BOBS = (make_token(bytes([n]) * 5, bytes([n]) * 32) for n in (1, 2))
READ = need(ResourceKind.TOPIC, Action.READ)
ADMINISTER = need(ResourceKind.CLUSTER, Action.ADMIN)


def ended(number: int, principal: str = "ann", at_ms: int = NOW_MS) -> EndSession:
    return EndSession(name(number), principal, at_ms + SESSION_LIFETIME_MS, BY._replace(at_ms=at_ms))


def name(number: int) -> str:
    return "".join("abcdefghijklmnop"[number >> shift & 15] for shift in range(60, -1, -4))


def made_key(number: int, before: str | None = None, at_ms: int = NOW_MS) -> MakeSessionKey:
    return MakeSessionKey("abcdefgh"[number] * 8, bytes([number]) * 32, before, BY._replace(at_ms=at_ms))


# ---- the seal ----------------------------------------------------------------------------------------------


def test_a_session_is_opened_as_it_was_sealed_and_by_its_key_alone() -> None:
    """Another key of that name, and another name of that key, are refused; nothing is shown of it."""
    text = seal(SESSION, KEY)
    assert open_session(text, KEY) == SESSION
    assert key_id_of(text) == KEY.id
    for key in (OTHER, KEY._replace(secret=OTHER.secret), OTHER._replace(secret=KEY.secret)):
        with pytest.raises(SessionError, match="not sealed by this cluster") as caught:
            open_session(text, key)
        assert text.split(".")[1] not in str(caught.value)
    assert KEY.secret.hex() not in repr(KEY)
    assert repr(KEY.secret) not in repr(KEY)


def test_every_character_of_a_sealed_session_counts() -> None:
    """One other character anywhere, one more or one fewer: refused with the one error."""
    text = seal(SESSION, KEY)
    for place in range(len(text)):
        for other in (text[:place] + text[place + 1 :], text[:place] + "A" + text[place:]):
            with pytest.raises(SessionError):
                open_session(other, KEY)
        changed = text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
        with pytest.raises(SessionError):
            open_session(changed, KEY)


@given(
    st.one_of(
        st.text(max_size=200), st.from_regex(r"shoals_[a-z2-7]{8}\.[A-Za-z0-9_-]{1,80}\.[A-Za-z0-9_-]{43}")
    )
)
def test_whatever_else_comes_is_refused_with_the_one_error(text: str) -> None:
    """Of any form."""
    with pytest.raises(SessionError):
        open_session(text, KEY)


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=8))
)
def test_a_payload_of_another_form_under_a_right_seal_is_refused(value: Any) -> None:
    """Another version of Shoal may have sealed it."""
    from shoal.agent.security import sessions as module

    payload = module._base64(json.dumps(value).encode())
    text = f"shoals_{KEY.id}.{payload}.{module._seal_of(payload, KEY)}"
    with pytest.raises(SessionError):
        open_session(text, KEY)


def test_a_session_fits_into_a_cookie_or_is_not_made() -> None:
    """Sixteen roles of the greatest length do not."""
    many = SESSION._replace(roles=tuple(f"consumer:{'x' * 300}{number}" for number in range(16)))
    with pytest.raises(SessionError, match=f"a cookie holds {SEALED_CHARACTERS_MAX}"):
        seal(many, KEY)
    some = SESSION._replace(roles=tuple(f"consumer:{'x' * 100}{number}" for number in range(16)))
    assert open_session(seal(some, KEY), KEY) == some


# ---- the state ---------------------------------------------------------------------------------------------


def folded(*commands: SecurityCommand, state: Security | None = None) -> tuple[Security, list[str]]:
    """At offsets from 1. Every command and every state is read back as it was written."""
    state = state or Security()
    outcomes: list[str] = []
    for command in commands:
        document = json.loads(json.dumps(command_document(command)))
        assert command_from(OPERATIONS[type(command)], document) == command
        outcomes.append(state.apply(command, (0, state.changed[1] + 1)))
        state.check_invariants()
        assert state_from(json.loads(json.dumps(state_document(state)))) == state
    return state, outcomes


def test_of_two_keys_made_at_once_one_counts_and_two_are_kept() -> None:
    """By the newest that the maker knew."""
    state, outcomes = folded(made_key(0), made_key(1), made_key(1, "a" * 8), made_key(1, "b" * 8))
    assert outcomes == ["done", "other-version", "done", "other-version"]
    assert [key.id for key in state.sessions.keys] == ["b" * 8, "a" * 8]
    state, _ = folded(made_key(2, "b" * 8), state=state)
    assert [key.id for key in state.sessions.keys] == ["c" * 8, "b" * 8]
    assert state.sessions.key("a" * 8) is None


def test_a_key_seals_once_all_know_it_and_until_it_is_old() -> None:
    """The first has no former one. A clock that is an hour behind the maker's makes no key more."""
    sessions = Sessions()
    assert sessions.sealing_key(NOW_MS) is None
    first, second = (
        SessionKey("a" * 8, bytes(32), NOW_MS),
        SessionKey("b" * 8, bytes(32), NOW_MS + KEY_AGE_MS),
    )
    sessions.keys = (first,)
    assert sessions.sealing_key(NOW_MS) == sessions.sealing_key(NOW_MS + KEY_AGE_MS - 1) == first
    assert sessions.sealing_key(NOW_MS - CLOCKS_DIFFER_MS) == first
    assert sessions.sealing_key(NOW_MS + KEY_AGE_MS) is None
    sessions.keys = (second, first)
    assert sessions.sealing_key(second.made_ms + KEY_SETTLES_MS - 1) == first
    assert sessions.sealing_key(second.made_ms + KEY_SETTLES_MS) == second


def test_an_ended_session_stays_ended_as_long_as_any_clock_takes_it() -> None:
    """Ended twice, it is told; forgotten long after it would have expired."""
    state, outcomes = folded(made_key(0), ended(1), ended(1), ended(2, "bob"))
    assert outcomes == ["done", "done", "session-ended", "done"]
    sessions = state.sessions
    assert sessions.has_ended(name(1), "ann", (0, 9))
    assert not sessions.has_ended(name(2), "ann", (0, 9))
    later_ms = NOW_MS + SESSION_LIFETIME_MS + ENDED_KEPT_MS
    state, _ = folded(ended(3, "eve", later_ms - 1), state=state)
    assert set(sessions.ended) == {"ann", "bob", "eve"}
    state, _ = folded(ended(4, "eve", later_ms), state=state)
    assert set(sessions.ended) == {"eve"}


def test_a_principal_that_ends_too_many_sessions_loses_those_that_it_has() -> None:
    """And may log in again. Nobody else's end."""
    state, _ = folded(made_key(0), *(ended(number) for number in range(ENDED_OF_ONE_MAX)))
    before = state.changed
    sessions = state.sessions
    assert not sessions.has_ended("z" * 16, "ann", before)
    state, outcomes = folded(ended(99), state=state)
    assert outcomes == ["done"]
    for number in (*range(ENDED_OF_ONE_MAX), 99, 100):
        assert sessions.has_ended(name(number), "ann", before)
    assert not sessions.has_ended(name(100), "ann", state.changed)
    assert not sessions.has_ended(name(100), "bob", before)
    assert len(sessions.ended["ann"].sessions) == 0
    state, _ = folded(*(ended(200 + number) for number in range(3 * ENDED_OF_ONE_MAX)), state=state)
    assert sessions.has_ended(name(100), "ann", before)


def test_where_too_many_principals_end_sessions_all_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys go, and the next login makes another."""
    monkeypatch.setattr(session_state, "ENDED_PRINCIPALS_MAX", 3)
    state, _ = folded(made_key(0), *(ended(1, f"p{number}") for number in range(3)))
    assert state.sessions.keys
    state, outcomes = folded(ended(2, "p1"), ended(1, "p3"), state=state)
    assert outcomes == ["done", "done"]
    assert state.sessions == Sessions()


def test_the_largest_state_of_sessions_stays_small() -> None:
    """All principals that there may be, with the longest names."""
    sessions = Sessions(
        (KEY, OTHER),
        {
            f"{number:03}{'x' * 253}": session_state.EndedSessions(
                {name(one): NOW_MS for one in range(ENDED_OF_ONE_MAX)}, (1 << 40, 1 << 40), NOW_MS + 1
            )
            for number in range(session_state.ENDED_PRINCIPALS_MAX)
        },
    )
    sessions.check_invariants()
    text = json.dumps(sessions.document())
    assert len(text) < 1 << 19
    assert sessions_from(json.loads(text)) == sessions


@pytest.mark.parametrize("change", [
    lambda one: one.update(keys=one["keys"] * 2), lambda one: one.update(keys=None),
    lambda one: one.pop("ended"), lambda one: one["keys"][0].pop(),
    lambda one: one["keys"][0].__setitem__(0, "A" * 8),
    lambda one: one["keys"][0].__setitem__(1, "aa"), lambda one: one["keys"][0].__setitem__(2, -1),
    lambda one: one["ended"].update(bob=[{"x": 1}, None, 1]),
    lambda one: one["ended"].update(bob=[{}, [1], 1]),
    lambda one: one["ended"].update(bob=[{name(n): 1 for n in range(17)}, None, 1]),
    lambda one: one["ended"].update({"": [{}, [1, 2], 1]}), lambda one: one["ended"].update(bob=None),
])  # fmt: skip
def test_a_damaged_state_is_refused_with_the_one_error(change: Callable[[dict[str, Any]], Any]) -> None:
    """Whatever is damaged in it."""
    document = json.loads(json.dumps(Sessions((KEY,), {}).document()))
    sessions_from(document)
    change(document)
    with pytest.raises(ValueError, match=r"."):
        sessions_from(document)


# ---- the judge ---------------------------------------------------------------------------------------------


class World:
    """A state that commands change, and the judge of an agent that has it."""

    def __init__(self, *commands: SecurityCommand, jwts: Verifier | None = None) -> None:
        self.state = Security()
        self.judge = Judge(lambda: self.state, FIRST.hash(), jwts=jwts)
        for command in (made_key(0), *commands):
            self.apply(command)

    def apply(self, command: SecurityCommand) -> None:
        assert self.state.apply(command, (0, self.state.changed[1] + 1)) == "done"

    def login(self, bearer: str, session_id: str = "s" * 16, now_ms: int = NOW_MS) -> tuple[str, Identity]:
        found = self.judge.begin_session(f"Bearer {bearer}", session_id, now_ms)
        assert found is not None
        sealed, identity = found
        assert self.identify(sealed, now_ms) == identity
        return found

    def identify(self, sealed: str, now_ms: int = NOW_MS) -> Identity:
        return self.judge.identify(f"Session {sealed}", None, now_ms)

    def refused(self, sealed: str, now_ms: int = NOW_MS) -> str:
        with pytest.raises(ShoalError) as caught:
            self.identify(sealed, now_ms)
        assert caught.value.code == "unauthenticated"
        assert sealed not in caught.value.detail
        return caught.value.detail


def put(principal: str, *texts: str, before: Place | None = None) -> PutPrincipal:
    return PutPrincipal(principal, before, (), rules_from_texts(texts), BY)


def bobs(expires_ms: int | None = None) -> tuple[SecurityCommand, SecurityCommand]:
    return put("bob", "topic:a=read"), MakeToken("bob", BOBS.id, BOBS.hash(), expires_ms, BY)


def test_a_session_is_its_tokens_principal_for_half_a_day() -> None:
    """With the rules that the principal has at each request. A clock that goes back an hour brings none
    back."""
    world = World(*bobs())
    sealed, identity = world.login(BOBS.reveal())
    ends_ms = NOW_MS + SESSION_LIFETIME_MS
    assert identity == Identity("bob", Proof.SESSION, ends_ms, (), "s" * 16)
    assert world.judge.may(identity, READ, "a")
    world.apply(put("bob", "topic:b=read", before=world.state.principals["bob"].version))
    assert not world.judge.may(identity, READ, "a")
    assert world.judge.may(world.identify(sealed, ends_ms - 1), READ, "b")
    assert "has expired" in world.refused(sealed, ends_ms)
    assert "has expired" in world.refused(sealed, ends_ms - CLOCKS_DIFFER_MS)


@pytest.mark.parametrize("how", ["revoked", "deleted", "expired", "ended", "made anew"])
def test_a_session_ends_with_its_token(how: str) -> None:
    """At every agent that knows of it; the refusal says what ended."""
    world = World(*bobs(NOW_MS + 5_000 if how == "expired" else None))
    sealed, identity = world.login(BOBS.reveal())
    version, now_ms = world.judge.version, NOW_MS
    match how:
        case "revoked":
            world.apply(RevokeToken(BOBS.id, BY))
        case "deleted":
            world.apply(DeletePrincipal("bob", world.state.principals["bob"].version, BY))
        case "expired":
            assert identity.expires_ms == NOW_MS + 5_000
            now_ms += 5_000
        case "ended":
            assert identity.expires_ms is not None
            world.apply(EndSession(identity.session, "bob", identity.expires_ms, BY))
            assert world.login(BOBS.reveal(), "t" * 16)
        case "made anew":
            world.apply(DeletePrincipal("bob", world.state.principals["bob"].version, BY))
            world.apply(put("bob"))
    words = {"expired": "has expired", "ended": "was ended"}.get(how, "has ended with the credential")
    assert words in world.refused(sealed, now_ms)
    assert how == "expired" or world.judge.version != version


def test_a_session_of_the_first_token_counts_until_there_is_an_administrator() -> None:
    """As the token itself."""
    world = World()
    sealed, identity = world.login(FIRST.reveal())
    assert identity.principal == BOOTSTRAP
    assert world.judge.may(identity, ADMINISTER, "")
    other = Judge(lambda: world.state, bytes(32))
    with pytest.raises(ShoalError, match="ended with the credential"):
        other.identify(f"Session {sealed}", None, NOW_MS)
    world.apply(PutPrincipal("ann", None, ("admin",), (), BY))
    world.apply(MakeToken("ann", BOBS.id, BOBS.hash(), None, BY))
    assert "ended with the credential" in world.refused(sealed)
    assert not world.judge.may(identity, ADMINISTER, "")


@pytest.mark.parametrize("role", ["schlüssel", "\ud800"], ids=["of other letters", "half of a pair"])
def test_roles_that_do_not_exist_are_sealed_whatever_they_are_called(role: str) -> None:
    """An issuer has names of its own, and they grant nothing here."""
    verifier = Verifier(Issuer(ISSUER, "shoal-fish", roles_claim="roles"))
    verifier.use(keys_from(key_set("P-256")))
    world = World(jwts=verifier)
    sealed, identity = world.login(signed(claims(roles=[role])))
    assert world.identify(sealed) == identity
    assert identity.roles == (role,)


def test_a_session_of_a_jwt_ends_with_it_and_with_its_key() -> None:
    """It has the JWT's roles. Another issuer's settings end it, too."""
    issuer = Issuer(ISSUER, "shoal-fish", roles_claim="roles")
    verifier = Verifier(issuer)
    world = World(jwts=verifier)
    with pytest.raises(ShoalError) as caught:
        world.login(signed(claims()))
    assert caught.value.code == "not-ready"
    verifier.use(keys_from(key_set("P-256", "RSA")))
    text = signed(claims(roles=["consumer:a*"]))
    sealed, identity = world.login(text)
    assert (identity.principal, identity.roles) == ("ann", ("consumer:a*",))
    assert identity.expires_ms == NOW_MS + 600_000
    assert world.judge.may(identity, READ, "ab")
    verifier.use(keys_from(key_set("RSA")))
    assert "ended with the credential" in world.refused(sealed)
    verifier.use(keys_from(key_set("P-256")))
    assert world.identify(sealed) == identity
    assert "has expired" in world.refused(sealed, NOW_MS + 600_000)
    for other in (issuer._replace(audience="other"), issuer._replace(roles_claim="groups")):
        changed = Verifier(other)
        changed.use(keys_from(key_set("P-256")))
        with pytest.raises(ShoalError, match="ended with the credential"):
            Judge(lambda: world.state, jwts=changed).identify(f"Session {sealed}", None, NOW_MS)
    with pytest.raises(ShoalError, match="ended with the credential"):
        Judge(lambda: world.state).identify(f"Session {sealed}", None, NOW_MS)


def test_an_identity_without_any_rule_is_known_as_that() -> None:
    """Rules of everybody are rules; the first token has all of them while it counts."""
    world = World(*bobs(), put("eve"))
    _, bob = world.login(BOBS.reveal())
    _, first = world.login(FIRST.reveal())
    eve = Identity("eve", Proof.CERTIFICATE)
    assert [world.judge.has_rules(one) for one in (bob, first, eve)] == [True, True, False]
    assert world.judge.has_rules(Identity("x", Proof.AGENT))
    assert OpenAccess().has_rules(Identity("x", Proof.OPEN))
    world.apply(put("anonymous", "topic:a=read"))
    assert world.judge.has_rules(eve)


def test_no_session_is_made_of_a_session_or_without_a_key() -> None:
    """Else one could be drawn out for ever. Where nobody is asked, none is needed."""
    world = World(*bobs())
    sealed, _ = world.login(BOBS.reveal())
    with pytest.raises(ShoalError, match="not of a session"):
        world.judge.begin_session(f"Session {sealed}", "t" * 16, NOW_MS)
    with pytest.raises(ShoalError, match="no token"):
        world.judge.begin_session("Bearer x", "t" * 16, NOW_MS)
    later_ms = NOW_MS + KEY_AGE_MS
    assert world.judge.begin_session(f"Bearer {BOBS.reveal()}", "t" * 16, later_ms) is None
    with pytest.raises(ShoalError, match="no session is needed"):
        OpenAccess().begin_session("Bearer x", "t" * 16, NOW_MS)
    unknown = Judge(lambda: None)
    with pytest.raises(ShoalError) as caught:
        unknown.identify(f"Session {sealed}", None, NOW_MS)
    assert caught.value.code == "not-ready"


def test_a_session_of_another_cluster_is_refused() -> None:
    """By its key, whether it has the same name or not."""
    sealed, _ = World(*bobs()).login(BOBS.reveal())
    stranger = World(*bobs())
    stranger.state.sessions.keys = (KEY._replace(id="a" * 8),)
    assert "not sealed by this cluster" in stranger.refused(sealed)
    stranger.state.sessions.keys = ()
    assert "of another cluster" in stranger.refused(sealed)
