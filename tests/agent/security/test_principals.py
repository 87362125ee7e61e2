"""The security state: each refusal by its name, the last administrator, two tokens at a time, bounds."""

from __future__ import annotations

import json

import pytest

from shoal.agent.security import principals as module
from shoal.agent.security.access import ANONYMOUS, AskedBy, Place
from shoal.agent.security.documents import (
    OPERATIONS,
    command_document,
    command_from,
    state_document,
    state_from,
)
from shoal.agent.security.needs import Action, ResourceKind, need
from shoal.agent.security.principals import (
    BOOTSTRAP,
    ROLES_OF_ONE_MAX,
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    PrincipalError,
    PutPrincipal,
    PutRole,
    RevokeToken,
    Security,
    SecurityCommand,
    SecurityOutcome,
    TokenEntry,
    check_principal,
)
from shoal.agent.security.rules import Rule, RuleError, allowed, rules_from_texts

READ = need(ResourceKind.TOPIC, Action.READ)
ADMINISTRATING = ("cluster=admin",)


def asked(at_ms: int = 1_000, principal: str = BOOTSTRAP, proof: str = "token") -> AskedBy:
    return AskedBy(principal, proof, "127.0.0.1", at_ms, "r1")


def rules(*texts: str) -> tuple[Rule, ...]:
    return rules_from_texts(texts)


def put(
    name: str,
    *texts: str,
    before: Place | None = None,
    roles: tuple[str, ...] = (),
    by: AskedBy | None = None,
) -> PutPrincipal:
    return PutPrincipal(name, before, roles, rules(*texts), by or asked())


def role(name: str, *texts: str, before: Place | None = None, at_ms: int = 1_000) -> PutRole:
    return PutRole(name, before, rules(*texts), asked(at_ms))


def token(
    principal: str, number: int, expires_ms: int | None = None, at_ms: int = 1_000, by: AskedBy | None = None
) -> MakeToken:
    token_id = "".join("abcdefgh"[number >> shift & 7] for shift in range(21, -1, -3))
    return MakeToken(principal, token_id, number.to_bytes(32, "big"), expires_ms, by or asked(at_ms))


def revoke(made: MakeToken, at_ms: int = 1_000) -> RevokeToken:
    return RevokeToken(made.id, asked(at_ms))


def folded(
    *commands: SecurityCommand, state: Security | None = None
) -> tuple[Security, list[SecurityOutcome]]:
    """At offsets from 1. Every command and every state is read back as it was written."""
    state = state or Security()
    outcomes = []
    for offset, command in enumerate(commands, start=state.changed[1] + 1):
        document = json.loads(json.dumps(command_document(command)))
        assert command_from(OPERATIONS[type(command)], document) == command
        outcomes.append(state.apply(command, (0, offset)))
        state.check_invariants()
        assert state_from(json.loads(json.dumps(state_document(state)))) == state
    return state, outcomes


def test_a_principal_is_made_changed_as_expected_and_ended() -> None:
    """A change made for another version counts nothing; tokens stay through a change, and go at the end."""
    first = token("bob", 1)
    state, outcomes = folded(
        put("bob", "topic:a=read"),
        put("bob", "topic:b=read"),
        first,
        put("bob", "topic:c=read", before=(0, 1)),
        put("bob", "topic:d=read", before=(0, 1)),
        put("eve", before=(0, 1)),
        DeletePrincipal("bob", (0, 1), asked()),
    )
    other = "other-version"
    assert outcomes == ["done", "name-taken", "done", "done", other, other, other]
    assert state.token(first.hash) == ("bob", TokenEntry(first.id, first.hash, None, BOOTSTRAP, 1_000))
    assert allowed(state.rules_of("bob"), READ, "c")
    assert not allowed(state.rules_of("bob"), READ, "a")
    assert state.changed == state.principals["bob"].version == (0, 4)
    state, outcomes = folded(
        DeletePrincipal("bob", (0, 4), asked()), DeletePrincipal("bob", (0, 4), asked()), revoke(first),
        state=state,
    )  # fmt: skip
    assert outcomes == ["done", "unknown-principal", "unknown-token"]
    assert (state.token(first.hash), state.principals, state.rules_of("bob")) == (None, {}, ())


def test_roles_grant_and_are_not_deleted_while_a_principal_has_them() -> None:
    """A change of a role changes all its principals."""
    state, outcomes = folded(
        put("bob", roles=("clerk",)),
        role("clerk", "topic:a=read"),
        put("bob", roles=("clerk", "viewer", "consumer:x*")),
        role("clerk", "topic:b=read"),
        role("clerk", "topic:b=read", before=(0, 2)),
        DeleteRole("clerk", (0, 5), asked()),
        DeleteRole("nobody", (0, 5), asked()),
    )
    assert outcomes == [
        "unknown-role", "done", "done", "name-taken", "done", "role-in-use", "unknown-role",
    ]  # fmt: skip
    able = [name for name in ("a", "b", "x", "xy", "y") if allowed(state.rules_of("bob"), READ, name)]
    assert able == ["b", "x", "xy"]
    state, outcomes = folded(
        put("bob", before=(0, 3)), DeleteRole("clerk", (0, 2), asked()), DeleteRole("clerk", (0, 5), asked()),
        state=state,
    )  # fmt: skip
    assert outcomes == ["done", "other-version", "done"]
    assert allowed(state.rules_of("nobody", ["consumer:x"]), READ, "x")
    assert state.rules_of("nobody", ["gone", "consumer:_x"]) == ()


def test_two_tokens_are_live_at_a_time() -> None:
    """To rotate; expired ones count no more, and go with the next that is made."""
    one, two, three = token("bob", 1, 2_000), token("bob", 2), token("bob", 3)
    state, outcomes = folded(
        put("bob"), one, one, two, three, token("bob", 3, at_ms=2_000), token("eve", 4), revoke(two),
        token("bob", 2),
    )  # fmt: skip
    assert outcomes == [
        "done", "done", "token-taken", "done", "too-many-tokens", "done", "unknown-principal", "done", "done",
    ]  # fmt: skip
    assert [item.id for item in state.principals["bob"].tokens] == [three.id, two.id]
    assert state.token(one.hash) is None
    assert state.owner(three.id) == "bob"


def test_the_anonymous_have_rules_and_no_token() -> None:
    """And are no administrator, whatever they are granted."""
    state, outcomes = folded(put(ANONYMOUS, "topic:a=read", "cluster=admin"), token(ANONYMOUS, 1))
    assert outcomes == ["done", "unknown-principal"]
    assert not state.administrators()
    assert not state.is_settled


# ---- administrators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_role", ["", "admin", "chief"])
def test_the_last_administrator_stays(by_role: str) -> None:
    """By a rule, a built-in role or another one. Each way to lose it is refused, until there is another."""
    roles, texts = ((by_role,), ()) if by_role else ((), ADMINISTRATING)
    first, second = token("ann", 1), token("bob", 2)
    setup = (role("chief", *ADMINISTRATING), put("ann", *texts, roles=roles), first)
    ways: list[SecurityCommand] = [
        DeletePrincipal("ann", (0, 2), asked()),
        put("ann", "topic:*=*", before=(0, 2)),
        put("ann", before=(0, 2), roles=("operator",)),
        revoke(first),
    ]
    if by_role == "chief":
        ways.append(role("chief", before=(0, 1)))
    _, outcomes = folded(*setup, *ways)
    assert outcomes == ["done"] * 3 + ["last-administrator"] * len(ways)
    for way in ways:
        another = put("bob", roles=("admin",))
        assert folded(*setup, another, way)[1][-1] == "last-administrator"  # bob has no token
        state, outcomes = folded(*setup, another, second, way)
        assert outcomes == ["done"] * 6
        assert [item.name for item in state.administrators() if item.has_live_token(1_000)] == ["bob"]


def test_administrators_without_tokens_are_counted_too() -> None:
    """They come with certificates: the last of them stays, and another may go."""
    state, outcomes = folded(
        put("ann", *ADMINISTRATING), put("bob", *ADMINISTRATING),
        DeletePrincipal("ann", (0, 1), asked()), DeletePrincipal("bob", (0, 2), asked()),
    )  # fmt: skip
    assert outcomes == ["done", "done", "done", "last-administrator"]
    assert not state.is_settled


def test_an_expired_token_is_none() -> None:
    """By the time of the command: the administrator whose token has ended is not the one who stays."""
    state, outcomes = folded(
        put("ann", *ADMINISTRATING), token("ann", 1, 2_000),
        put("bob", *ADMINISTRATING), token("bob", 2, 9_000),
        revoke(token("bob", 2), at_ms=2_000),
        revoke(token("bob", 2), at_ms=1_999),
    )  # fmt: skip
    assert outcomes == ["done"] * 4 + ["last-administrator", "done"]
    assert state.is_settled


def test_the_first_token_counts_until_there_is_an_administrator_and_never_again() -> None:
    """One with a token, or one who has shown itself by a change with another proof."""
    state, _ = folded(put("bob"), token("bob", 1), put("ann", *ADMINISTRATING))
    assert not state.is_settled  # else nobody could make ann's token
    state, _ = folded(token("ann", 2, 2_000), state=state)
    assert state.is_settled
    state, _ = folded(put("eve", by=asked(9_000)), state=state)
    assert state.is_settled, "never again, though ann's token has expired"

    for proof, settled in (("certificate", True), ("open", False), ("agent", False), ("none", False)):
        state, _ = folded(put("ann", *ADMINISTRATING), put("bob", by=asked(1_000, "ann", proof)))
        assert state.is_settled is settled


# ---- bounds and names --------------------------------------------------------------------------------------


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of principals, roles and bytes; deletions make room."""
    monkeypatch.setattr(module, "PRINCIPALS_MAX", 3)
    monkeypatch.setattr(module, "ROLES_MAX", 2)
    state, outcomes = folded(
        *(put(f"p{number}") for number in range(4)), *(role(f"r{number}") for number in range(3)),
        DeletePrincipal("p0", (0, 1), asked()), put("p3"), DeleteRole("r0", (0, 5), asked()), role("r2"),
    )  # fmt: skip
    assert outcomes == [
        "done", "done", "done", "too-many-principals", "done", "done", "too-many-roles", "done", "done",
        "done", "done",
    ]  # fmt: skip
    monkeypatch.setattr(module, "MAX_SECURITY_COST", state.cost)
    longer = [f"topic:topic-{number}=read" for number in range(9)]
    state, outcomes = folded(
        put("p3", *longer, before=(0, 9)), role("r2", *longer, before=(0, 11)), token("p3", 1),
        DeletePrincipal("p1", (0, 2), asked()), put("p1"), state=state,
    )  # fmt: skip
    assert outcomes == ["full", "full", "full", "done", "done"]


def test_names_that_cannot_be() -> None:
    """Of a principal and of its roles."""
    check_principal("ann@example.org", ["viewer", "producer:orders*", "clerk"])
    for name in ("auth0|5f7c", "spiffe://example.com/orders", "a" * 256):
        check_principal(name, [])
    for name in ("", "a b", "/a", "..", ":a", "a" * 257, BOOTSTRAP, "a\n", "a%2F", "ä", "a\x00", "a*", "a,b"):
        with pytest.raises(PrincipalError):
            check_principal(name, [])
    with pytest.raises(PrincipalError, match="at most 16"):
        check_principal("ann", [f"r{number}" for number in range(ROLES_OF_ONE_MAX + 1)])
    for wrong in ("", "producer:", "producer:a*b", "a/b", "producer", "clerk:x"):
        with pytest.raises(RuleError):
            check_principal("ann", [wrong])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("principals", None), ("principals", [1]), ("roles", {}), ("settled", 1), ("changed", [0]),
        ("changed", [0, -1]), ("changed", [True, 1]), ("name", "a b"), ("name", 7), ("rules", ["topic"]),
        ("rules", "topic:a=read"), ("rules", [7]), ("roles_of", ["x y"]), ("version", None),
        ("tokens", [[1]]), ("tokens", "x"), ("token", [1, "0" * 64, None, "a", 1]),
        ("token", ["aaaaaaaa", "0", None, "a", 1]),
        ("token", ["aaaaaaaa", "0" * 64, "x", "a", 1]), ("token", ["aaaaaaaa", "0" * 64, None, 1, 1]),
        ("twice", None),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused(field: str, value: object) -> None:
    """With ValueError, and nothing else."""
    state, _ = folded(put("ann", "topic:a=read", roles=("viewer",)), token("ann", 1), role("clerk"))
    document = json.loads(json.dumps(state_document(state)))
    ann = document["principals"][0]
    match field:
        case "name" | "rules" | "version" | "tokens":
            ann[field] = value
        case "roles_of":
            ann["roles"] = value
        case "token":
            ann["tokens"] = [value]
        case "twice":
            document["principals"] *= 2
        case _:
            document[field] = value
    with pytest.raises(ValueError, match=r"^\S"):
        state_from(document)


def test_no_repr_shows_a_hash() -> None:
    """Of a state, a command, an entry."""
    made = token("ann", 0xABCDEF)
    state, _ = folded(put("ann"), made)
    for shown in (repr(state), repr(made), repr(state.principals["ann"]), str(state.token(made.hash))):
        assert repr(made.hash)[2:-1] not in shown
        assert made.hash.hex() not in shown
