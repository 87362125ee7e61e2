"""The judge: who is let in, by which credential and until when; and that each change has another version."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.security.access import ANONYMOUS, Access, AskedBy, Identity, PeerCertificate, Proof
from shoal.agent.security.judge import CLOCK_BACK_MAX_MS, REMEMBERED_MAX, Judge
from shoal.agent.security.needs import ACTIONS, Action, Need, ResourceKind, need
from shoal.agent.security.principals import (
    BOOTSTRAP,
    DeletePrincipal,
    MakeToken,
    PutPrincipal,
    PutRole,
    RevokeToken,
    Security,
    SecurityCommand,
)
from shoal.agent.security.quota import NO_QUOTAS, Quotas
from shoal.agent.security.rules import rules_from_texts
from shoal.agent.security.tokens import Token, make_token
from shoal.errors import ShoalError

BY = AskedBy(BOOTSTRAP, "token", "127.0.0.1", 1_000, "r")
READ = need(ResourceKind.TOPIC, Action.READ)
ADMINISTER = need(ResourceKind.CLUSTER, Action.ADMIN)
HOUR_MS = 3_600_000
FIRST, BOBS, ANNS, STRANGE = (make_token(bytes([n]) * 5, bytes([n]) * 32) for n in range(1, 5))


def bearer(token: Token) -> str:
    return f"Bearer {token.reveal()}"


def made(principal: str, token: Token, expires_ms: int | None = None) -> MakeToken:
    return MakeToken(principal, token.id, token.hash(), expires_ms, BY)


def put(name: str, *texts: str, roles: tuple[str, ...] = ()) -> PutPrincipal:
    return PutPrincipal(name, None, roles, rules_from_texts(texts), BY)


class World:
    """A state that commands change, and the judge of an agent that has it."""

    def __init__(self, *commands: SecurityCommand, first: bytes | None = None) -> None:
        self.state = Security()
        self.told: list[str] = []
        self.judge = Judge(lambda: self.state, first, self.tell)
        for command in commands:
            self.apply(command)

    def tell(self, token_id: str) -> None:
        self.told.append(token_id)

    def apply(self, command: SecurityCommand) -> None:
        offset = self.state.changed[1] + 1
        assert self.state.apply(command, (0, offset)) == "done"

    def refused(self, authorization: str | None, now_ms: int = 1_000) -> str:
        with pytest.raises(ShoalError) as caught:
            self.judge.identify(authorization, None, now_ms)
        assert caught.value.code == "unauthenticated"
        return caught.value.detail


def test_a_token_is_its_principal_until_it_expires_or_is_revoked() -> None:
    """Each refusal says which, with the token's id and nothing else of it."""
    world = World(put("bob", "topic:a*=read"), made("bob", BOBS, 5_000))
    judge: Access = world.judge
    assert judge.is_on
    identity = judge.identify(bearer(BOBS), None, 4_999)
    assert identity == Identity("bob", Proof.TOKEN, 5_000)
    assert judge.may(identity, READ, "ab")
    assert not judge.may(identity, READ, "b")
    refusals = [world.refused(bearer(BOBS), 5_000), world.refused(bearer(STRANGE))]
    world.apply(RevokeToken(BOBS.id, BY))
    refusals.append(world.refused(bearer(BOBS)))
    assert ["expired" in text for text in refusals] == [True, False, False]
    assert all("not known" in text for text in refusals[1:])
    for token, text in zip((BOBS, STRANGE, BOBS), refusals, strict=True):
        assert token.id in text
        assert token.reveal().split("_")[2] not in text
    assert BOBS.reveal() not in repr(judge)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a b", "Bearer " + "x" * 8_192, "Bearer \x00\n"]
)
def test_another_credential_is_refused(header: str) -> None:
    """Also where a certificate would do: a wrong one is a mistake to be told."""
    world = World()
    world.refused(header)
    with pytest.raises(ShoalError):
        world.judge.identify(header, PeerCertificate("bob", is_agent=True), 0)


def test_certificates_and_the_anonymous() -> None:
    """An agent may do everything; a client is the principal of its name; a token counts before both."""
    world = World(put("bob", "topic:a=read"), put(ANONYMOUS, "topic:open=read"), made("bob", BOBS))
    judge = world.judge
    agent = judge.identify(None, PeerCertificate("shoal://c/agent", is_agent=True), 0)
    client = judge.identify(None, PeerCertificate("bob", is_agent=False), 0)
    stranger = judge.identify(None, PeerCertificate("eve", is_agent=False), 0)
    nobody = judge.identify(None, None, 0)
    passed_on = judge.identify(bearer(BOBS), PeerCertificate("shoal://c/agent", is_agent=True), 0)
    assert [item.proof for item in (agent, client, stranger, nobody, passed_on)] == [
        Proof.AGENT, Proof.CERTIFICATE, Proof.CERTIFICATE, Proof.NONE, Proof.TOKEN,
    ]  # fmt: skip
    able = {
        (who.principal, name)
        for who, name in itertools.product((client, stranger, nobody, passed_on), ("a", "open"))
        if judge.may(who, READ, name)
    }
    assert able == {("bob", "a"), ("bob", "open"), ("eve", "open"), (ANONYMOUS, "open")}
    for kind, actions in ACTIONS.items():
        assert all(judge.may(agent, Need(action, kind), "x") for action in actions)
    for name in (BOOTSTRAP, ANONYMOUS):  # a name alone opens nothing
        identity = judge.identify(None, PeerCertificate(name, is_agent=False), 0)
        assert not judge.may(identity, ADMINISTER, "")


def test_a_new_cluster_has_nobody_who_may_do_anything() -> None:
    """By no name that other systems begin with, and not without one; agents aside."""
    judge = Judge(Security)
    assert (Security().principals, Security().roles) == ({}, {})
    nobody = [judge.identify(None, None, 0)]
    for name in (ANONYMOUS, BOOTSTRAP, "admin", "operator", "root", "sa", "shoal"):
        nobody.append(judge.identify(None, PeerCertificate(name, is_agent=False), 0))
    for identity, kind in itertools.product(nobody, ACTIONS):
        assert not judge.has_rules(identity)
        assert not any(judge.may(identity, Need(action, kind), "a") for action in ACTIONS[kind])


def test_a_clients_certificate_proves_nothing_once_it_has_expired() -> None:
    """Though its connection is still open, and whatever the clock does then. Agents make theirs anew."""
    world = World(put("bob", "topic:a=read"))
    client = PeerCertificate("bob", is_agent=False, expires_ms=9_000_000)
    identity = world.judge.identify(None, client, 8_999_999)
    assert identity == Identity("bob", Proof.CERTIFICATE, 9_000_000)
    for now_ms in (9_000_000, 8_999_999):
        with pytest.raises(ShoalError, match="has expired") as refused:
            world.judge.identify(None, client, now_ms)
        assert refused.value.code == "unauthenticated"
    agent = client._replace(is_agent=True)
    assert world.judge.identify(None, agent, 9_000_000) == Identity("bob", Proof.AGENT)


def test_roles_of_an_identity_count_beside_those_of_its_principal() -> None:
    """As a proof of another kind may bring them."""
    judge = World(PutRole("clerk", None, rules_from_texts(["topic:c=read"]), BY)).judge
    identity = Identity("eve", Proof.JWT, None, ("clerk", "consumer:x", "gone"))
    assert [judge.may(identity, READ, name) for name in ("c", "x", "y")] == [True, True, False]
    assert not judge.may(identity._replace(roles=()), READ, "c")


def test_the_first_token_is_an_administrator_until_there_is_one_and_never_again() -> None:
    """Each use is told. Nothing of it is kept in the state."""
    world = World(first=FIRST.hash())
    identity = world.judge.identify(bearer(FIRST), None, 0)
    assert (identity, world.told) == (Identity(BOOTSTRAP, Proof.TOKEN), [FIRST.id])
    assert world.judge.may(identity, ADMINISTER, "")
    world.apply(put("ann", roles=("admin",)))
    assert world.judge.may(identity, ADMINISTER, ""), "ann has no token yet"
    version = world.judge.version
    world.apply(made("ann", ANNS, 2_000))
    assert world.judge.version != version
    assert not world.judge.may(identity, ADMINISTER, "")
    assert "counts no more" in world.refused(bearer(FIRST))
    assert "counts no more" in world.refused(bearer(FIRST), now_ms=9_000)
    assert world.told == [FIRST.id]
    assert "not known" in World(first=None).refused(bearer(FIRST))


@pytest.mark.parametrize("is_new", [True, False])
def test_an_agent_that_knows_no_catalog_says_that_it_is_not_ready(is_new: bool) -> None:
    """And not that a token is wrong, which clients would take for the last word. The first token counts at
    one that has no cluster, so that somebody can make it join."""
    state: Security | None = None
    judge = Judge(lambda: state, FIRST.hash(), is_new=lambda: is_new)
    client = judge.identify(None, PeerCertificate("bob", is_agent=False), 0)
    agent = judge.identify(None, PeerCertificate("a", is_agent=True), 0)
    assert judge.may(agent, ADMINISTER, "")
    refused = [lambda: judge.identify(bearer(BOBS), None, 0), lambda: judge.may(client, READ, "a")]
    if is_new:
        assert judge.may(judge.identify(bearer(FIRST), None, 0), ADMINISTER, "")
    else:
        refused.append(lambda: judge.identify(bearer(FIRST), None, 0))
    for ask in refused:
        with pytest.raises(ShoalError) as caught:
            ask()
        assert caught.value.code == "not-ready"
    version = judge.version
    state = Security()
    assert judge.version != version
    assert not judge.may(client, READ, "a")


def test_every_change_has_another_version_and_nothing_else_has() -> None:
    """A copy of the same state is no change; verdicts follow at once."""
    world = World(put("bob", roles=("viewer",)))
    judge, seen = world.judge, set()
    bob = Identity("bob", Proof.TOKEN)
    changes: list[SecurityCommand] = [
        PutPrincipal("bob", (0, 1), (), rules_from_texts(["topic:a=read"]), BY),
        made("bob", BOBS),
        RevokeToken(BOBS.id, BY),
        PutRole("clerk", None, (), BY),
        DeletePrincipal("bob", (0, 2), BY),
    ]
    for change in changes:
        seen.add(judge.version)
        world.state = copy.deepcopy(world.state)
        assert judge.version in seen
        world.apply(change)
        allowed = judge.may(bob, READ, "a")
        assert allowed == (change is not changes[-1])
    assert len({*seen, judge.version}) == len(changes) + 1


def test_only_so_many_rules_are_remembered() -> None:
    """Certificates may have any name."""
    judge = World(put(ANONYMOUS, "topic:a=read")).judge
    for number in range(REMEMBERED_MAX + 10):
        assert judge.may(Identity(f"c{number}", Proof.CERTIFICATE), READ, "a")
    assert len(judge._rules) <= REMEMBERED_MAX


# ---- clocks that jump --------------------------------------------------------------------------------------


def is_in(judge: Judge, now_ms: int) -> bool:
    try:
        judge.identify(bearer(BOBS), None, now_ms)
    except ShoalError:
        return False
    return True


def test_a_clock_that_jumps_an_hour_either_way() -> None:
    """Ahead: refused early, and let in when it is back by more. Back: the expired stays so."""
    now, expires = 100 * HOUR_MS, 100 * HOUR_MS + 1_000
    judge = World(put("bob"), made("bob", BOBS, expires)).judge
    assert is_in(judge, now)
    assert not is_in(judge, now + HOUR_MS)
    assert not is_in(judge, now + 1), "an hour back: it had expired, as far as this agent knows"
    judge = World(put("bob"), made("bob", BOBS, expires + 3 * HOUR_MS)).judge
    assert is_in(judge, now + HOUR_MS)
    assert is_in(judge, now)
    judge = World(put("bob"), made("bob", BOBS, expires)).judge
    assert not is_in(judge, now + 2 * HOUR_MS)
    assert is_in(judge, now), "two hours back: the former time was wrong, and harms no more"


@given(st.lists(st.integers(-CLOCK_BACK_MAX_MS, 10 * HOUR_MS), max_size=30), st.integers(0, 50 * HOUR_MS))
def test_the_expired_does_not_come_alive_by_jumps_back_of_up_to_an_hour(
    jumps: list[int], expires_ms: int
) -> None:
    """Of which each is from the latest time."""
    judge = World(put("bob"), made("bob", BOBS, expires_ms)).judge
    latest, was_refused = 0, False
    for jump in jumps:
        now = latest + jump
        if now < 0:
            continue
        latest = max(latest, now)
        is_refused = not is_in(judge, now)
        assert is_refused or not was_refused
        assert is_refused == (latest >= expires_ms)
        was_refused = is_refused


def test_quotas_are_those_of_the_newest_state() -> None:
    """Of a principal and its roles, those of a token's claims too; agents and the first token have none."""
    some = Quotas(requests=5)
    world = World(PutRole("clerk", None, (), BY, some), put("bob"))
    bob = Identity("bob", Proof.TOKEN)
    judge = world.judge
    assert judge.quotas_of(bob) == NO_QUOTAS
    assert judge.quotas_of(bob._replace(roles=("clerk",))) == some
    version = judge.version
    world.apply(PutPrincipal("bob", (0, 2), ("clerk",), (), BY, Quotas(bytes_in=9)))
    assert judge.quotas_of(bob) == Quotas(bytes_in=9, requests=5)
    assert judge.version != version
    assert judge.quotas_of(Identity("bob", Proof.AGENT)) == NO_QUOTAS
    assert judge.quotas_of(Identity(BOOTSTRAP, Proof.TOKEN)) == NO_QUOTAS
    assert Judge(lambda: None).quotas_of(bob) == NO_QUOTAS
