"""Principals with their roles, rules and tokens: a state, its commands, and the fold of them.

Law of this file: pure. A command carries everything that it needs, times too. The outcome is a function of
state and command alone, so the same place in the log gives the same verdicts on every agent. A refusal is an
outcome. The state is a part of the catalog (topics/catalog.py); its form as JSON stands in documents.py.

Rules kept here: a change names the version that it was made for, so that of two made at once none undoes the
other. While there is an administrator, and one with a token, no command takes the last of them away. The
first token of a cluster's configuration counts until there is an administrator, and never again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from shoal.agent.security.access import ANONYMOUS, AskedBy, Place, Proof
from shoal.agent.security.quota import NO_QUOTAS, Quotas, joined
from shoal.agent.security.rules import ADMINISTER, Rule, RuleError, allowed, built_in_role, check_role_name
from shoal.agent.security.sessions import EndSession, MakeSessionKey, Sessions

PRINCIPALS_MAX: Final = 10_000
ROLES_MAX: Final = 1_000
TOKENS_MAX: Final = 2
"""Live ones of one principal: the old and the new while it changes over."""
ROLES_OF_ONE_MAX: Final = 16
MAX_SECURITY_COST: Final = 8 << 20
"""Of the whole state, which is a part of the catalog's file, beside what topics may take there."""
BOOTSTRAP: Final = "bootstrap"
"""The principal of the first token, which stands in the configuration of the agents."""
PRINCIPAL_NAME: Final = re.compile(r"(?![./|:])[a-zA-Z0-9._@+:/|-]{1,256}")
"""Also as issuers and certificates call their own: `auth0|5f7c`, `spiffe://example.com/orders`."""
_PRINCIPAL_COST = 128  # beside its names: the fields of the document, and its version
_TOKEN_COST = 160
_NAME_COST = 3  # quotes and a comma


class PrincipalError(ValueError):
    """A name or number of roles that cannot be. Its words say what can."""


class TokenEntry(NamedTuple):
    """A token as the cluster keeps it. Times are unix milliseconds; it never expires where there is none."""

    id: str
    hash: bytes
    expires_ms: int | None
    made_by: str
    made_ms: int

    def __repr__(self) -> str:
        return f"TokenEntry({self.id} expires_ms={self.expires_ms})"

    def is_live(self, now_ms: int) -> bool:
        return self.expires_ms is None or now_ms < self.expires_ms

    def cost(self) -> int:
        return _TOKEN_COST + len(json.dumps(self.made_by))


@dataclass(frozen=True, slots=True)
class Principal:
    """`version`: the place of the command that gave it these roles, rules and quotas."""

    name: str
    roles: tuple[str, ...]
    rules: tuple[Rule, ...]
    tokens: tuple[TokenEntry, ...]
    version: Place
    quotas: Quotas = NO_QUOTAS

    def has_live_token(self, now_ms: int) -> bool:
        return any(token.is_live(now_ms) for token in self.tokens)

    def cost(self) -> int:
        """At least its bytes in a state."""
        names = len(self.name) + sum(len(role) + _NAME_COST for role in self.roles)
        own = _PRINCIPAL_COST + names + _rules_cost(self.rules) + self.quotas.cost()
        return own + sum(item.cost() for item in self.tokens)


@dataclass(frozen=True, slots=True)
class RoleEntry:
    """A named list of rules, and quotas of those who have it. `version`: as that of a principal."""

    name: str
    rules: tuple[Rule, ...]
    version: Place
    quotas: Quotas = NO_QUOTAS

    def cost(self) -> int:
        return _PRINCIPAL_COST + len(self.name) + _rules_cost(self.rules) + self.quotas.cost()


def _rules_cost(rules: Iterable[Rule]) -> int:
    return sum(len(str(rule)) + _NAME_COST for rule in rules)


# ---- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutPrincipal:
    """Takes effect only on a principal of version `before`; None: on none of that name. Tokens stay."""

    name: str
    before: Place | None
    roles: tuple[str, ...]
    rules: tuple[Rule, ...]
    by: AskedBy
    quotas: Quotas = NO_QUOTAS


@dataclass(frozen=True, slots=True)
class DeletePrincipal:
    """With its tokens. By version, so that a late retry never deletes a namesake."""

    name: str
    before: Place
    by: AskedBy


@dataclass(frozen=True, slots=True)
class PutRole:
    """As PutPrincipal."""

    name: str
    before: Place | None
    rules: tuple[Rule, ...]
    by: AskedBy
    quotas: Quotas = NO_QUOTAS


@dataclass(frozen=True, slots=True)
class DeleteRole:
    """A role that no principal has."""

    name: str
    before: Place
    by: AskedBy


@dataclass(frozen=True, slots=True)
class MakeToken:
    """Another token of a principal. Its expired ones go."""

    principal: str
    id: str
    hash: bytes
    expires_ms: int | None
    by: AskedBy

    def __repr__(self) -> str:
        return f"MakeToken({self.principal} {self.id} by={self.by})"


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """By id, which is never used again."""

    id: str
    by: AskedBy


SecurityCommand = (
    PutPrincipal
    | DeletePrincipal
    | PutRole
    | DeleteRole
    | MakeToken
    | RevokeToken
    | MakeSessionKey
    | EndSession
)
SecurityOutcome = Literal[
    "done",
    "name-taken",
    "other-version",
    "unknown-principal",
    "unknown-role",
    "unknown-token",
    "role-in-use",
    "token-taken",
    "too-many-principals",
    "too-many-roles",
    "too-many-tokens",
    "last-administrator",
    "full",
    "session-ended",
]


def check_principal(name: str, roles: Collection[str]) -> None:
    """Of a principal that somebody makes. Raises PrincipalError, RuleError."""
    if PRINCIPAL_NAME.fullmatch(name) is None:
        raise PrincipalError(
            f"{name[:80]!r} is no name of a principal: use 1 to 256 of letters, digits, . _ @ + : / | -, and"
            " begin with none of . : / |"
        )
    if name == BOOTSTRAP:
        raise PrincipalError(f"{BOOTSTRAP} is the principal of the first token: choose another name")
    if len(roles) > ROLES_OF_ONE_MAX:
        raise PrincipalError(f"{len(roles)} roles: a principal has at most {ROLES_OF_ONE_MAX}")
    for role in roles:
        if built_in_role(role) is None:
            check_role_name(role)


# ---- the state ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Security:
    """`is_settled`: there is, or was, an administrator, so that the first token counts no more. `changed`:
    the place of the last command that had effect; equal places are equal states."""

    principals: dict[str, Principal] = field(default_factory=dict)
    roles: dict[str, RoleEntry] = field(default_factory=dict)
    is_settled: bool = False
    changed: Place = (0, 0)
    cost: int = 0
    """Of principals and roles."""
    sessions: Sessions = field(default_factory=Sessions)
    _by_hash: dict[bytes, tuple[str, TokenEntry]] = field(default_factory=dict)
    _by_id: dict[str, str] = field(default_factory=dict)
    """Principals of the tokens."""
    _administrators: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        count = f"principals={len(self.principals)} roles={len(self.roles)} tokens={len(self._by_id)}"
        return f"Security({count} changed={self.changed})"

    def token(self, token_hash: bytes) -> tuple[str, TokenEntry] | None:
        """Its principal, and the token; expired or not."""
        return self._by_hash.get(token_hash)

    def token_of(self, principal: str, token_id: str) -> TokenEntry | None:
        """By its id; expired or not."""
        entry = self.principals.get(principal)
        return None if entry is None else next((one for one in entry.tokens if one.id == token_id), None)

    def owner(self, token_id: str) -> str | None:
        """The principal of a token."""
        return self._by_id.get(token_id)

    def rules_of(self, principal: str, more_roles: Iterable[str] = ()) -> tuple[Rule, ...]:
        """All that it has by itself and by its roles. `more_roles`: beside those; unknown ones grant
        nothing."""
        entry = self.principals.get(principal)
        own = () if entry is None else entry.rules
        names = (*(() if entry is None else entry.roles), *more_roles)
        return (*own, *(rule for name in names for rule in self.rules_of_role(name) or ()))

    def quotas_of(self, principal: str, more_roles: Iterable[str] = ()) -> Quotas:
        """Its own, and those of its roles, of which the most generous counts."""
        entry = self.principals.get(principal)
        own = NO_QUOTAS if entry is None else entry.quotas
        names = (*(() if entry is None else entry.roles), *more_roles)
        roles = (self.roles.get(name) for name in names)
        return joined(own, (role.quotas for role in roles if role is not None))

    def rules_of_role(self, name: str) -> tuple[Rule, ...] | None:
        """None for a role that does not exist."""
        if (role := self.roles.get(name)) is not None:
            return role.rules
        try:
            return built_in_role(name)
        except RuleError:
            return None

    def administrators(self) -> list[Principal]:
        """Those who may make principals, by name."""
        return [self.principals[name] for name in sorted(self._administrators)]

    def apply(self, command: SecurityCommand, place: Place) -> SecurityOutcome:
        """Fold in the command that was committed at this place."""
        match command:
            case PutPrincipal():
                outcome = self._put_principal(command, place)
            case DeletePrincipal(name, before, by):
                outcome = self._delete_principal(name, before, by)
            case PutRole():
                outcome = self._put_role(command, place)
            case DeleteRole(name, before, _):
                outcome = self._delete_role(name, before)
            case MakeToken():
                outcome = self._make_token(command)
            case RevokeToken(token_id, by):
                outcome = self._revoke(token_id, by)
            case MakeSessionKey() | EndSession():
                outcome = self.sessions.apply(command, place)
        if outcome == "done":
            self.changed = place
            by, names = command.by, self._administrators
            # An administrator without a token has proven itself by other means if it asked for this change.
            asked = by.principal in names and by.proof not in (Proof.OPEN, Proof.NONE, Proof.AGENT)
            self.is_settled = (
                self.is_settled
                or asked
                or any(self.principals[name].has_live_token(by.at_ms) for name in names)
            )
        return outcome

    def _put_principal(self, command: PutPrincipal, place: Place) -> SecurityOutcome:
        former = self.principals.get(command.name)
        if (refused := _differs(former, command.before)) is not None:
            return refused
        if former is None and len(self.principals) >= PRINCIPALS_MAX:
            return "too-many-principals"
        if any(self.rules_of_role(role) is None for role in command.roles):
            return "unknown-role"
        tokens = () if former is None else former.tokens
        entry = Principal(command.name, command.roles, command.rules, tokens, place, command.quotas)
        if self._is_last(command.name, entry, command.by.at_ms):
            return "last-administrator"
        return self._put(entry)

    def _delete_principal(self, name: str, before: Place, by: AskedBy) -> SecurityOutcome:
        former = self.principals.get(name)
        if former is None:
            return "unknown-principal"
        if former.version != before:
            return "other-version"
        if self._is_last(name, None, by.at_ms):
            return "last-administrator"
        self._drop_tokens(former)
        del self.principals[name]
        self._administrators.discard(name)
        self.cost -= former.cost()
        return "done"

    def _put(self, entry: Principal) -> SecurityOutcome:
        """In the place of the one of its name, unless there is no room for it."""
        former = self.principals.get(entry.name)
        grown = entry.cost() - (0 if former is None else former.cost())
        if grown > 0 and self.cost + grown > MAX_SECURITY_COST:
            return "full"
        self.cost += grown
        if former is not None:
            self._drop_tokens(former)
        self._take(entry)
        return "done"

    def _take(self, entry: Principal) -> None:
        self.principals[entry.name] = entry
        for token in entry.tokens:
            self._by_hash[token.hash] = (entry.name, token)
            self._by_id[token.id] = entry.name
        if self._administers(entry):
            self._administrators.add(entry.name)
        else:
            self._administrators.discard(entry.name)

    def _drop_tokens(self, entry: Principal) -> None:
        for token in entry.tokens:
            del self._by_hash[token.hash], self._by_id[token.id]

    def _administers(self, entry: Principal) -> bool:
        rules = (*entry.rules, *(rule for name in entry.roles for rule in self.rules_of_role(name) or ()))
        return entry.name != ANONYMOUS and allowed(rules, ADMINISTER, "")

    def _is_last(self, name: str, after: Principal | None, at_ms: int) -> bool:
        """Whether `after` in the place of the principal would leave no administrator, or none with a
        token."""
        if name not in self._administrators:
            return False
        before = self.administrators()
        others = [entry for entry in before if entry.name != name]
        stays = [] if after is None or not self._administers(after) else [after]
        return _locks_out(before, [*others, *stays], at_ms)

    def _put_role(self, command: PutRole, place: Place) -> SecurityOutcome:
        former = self.roles.get(command.name)
        if (refused := _differs(former, command.before)) is not None:
            return refused
        if former is None and len(self.roles) >= ROLES_MAX:
            return "too-many-roles"
        role = RoleEntry(command.name, command.rules, place, command.quotas)
        grown = role.cost() - (0 if former is None else former.cost())
        if grown > 0 and self.cost + grown > MAX_SECURITY_COST:
            return "full"
        before = self.administrators()
        self.roles[role.name] = role
        if former is not None and _administering(former) != _administering(role):
            self._administrators = {
                name for name, entry in self.principals.items() if self._administers(entry)
            }
            if _locks_out(before, self.administrators(), command.by.at_ms):
                self.roles[role.name] = former
                self._administrators = {entry.name for entry in before}
                return "last-administrator"
        self.cost += grown
        return "done"

    def _delete_role(self, name: str, before: Place) -> SecurityOutcome:
        former = self.roles.get(name)
        if former is None:
            return "unknown-role"
        if former.version != before:
            return "other-version"
        if any(name in entry.roles for entry in self.principals.values()):
            return "role-in-use"
        del self.roles[name]
        self.cost -= former.cost()
        return "done"

    def _make_token(self, command: MakeToken) -> SecurityOutcome:
        entry = self.principals.get(command.principal)
        if entry is None or entry.name == ANONYMOUS:
            return "unknown-principal"
        if command.id in self._by_id or command.hash in self._by_hash:
            return "token-taken"
        live = tuple(token for token in entry.tokens if token.is_live(command.by.at_ms))
        if len(live) >= TOKENS_MAX:
            return "too-many-tokens"
        by = command.by
        made = TokenEntry(command.id, command.hash, command.expires_ms, by.principal, by.at_ms)
        return self._put(replace(entry, tokens=(*live, made)))

    def _revoke(self, token_id: str, by: AskedBy) -> SecurityOutcome:
        owner = self._by_id.get(token_id)
        if owner is None:
            return "unknown-token"
        entry = self.principals[owner]
        after = replace(entry, tokens=tuple(token for token in entry.tokens if token.id != token_id))
        if self._is_last(owner, after, by.at_ms):
            return "last-administrator"
        return self._put(after)

    @classmethod
    def of(
        cls, principals: Iterable[Principal], roles: Iterable[RoleEntry], changed: Place, *, is_settled: bool
    ) -> Security:
        """A state as it was stored. Raises PrincipalError for one that cannot be."""
        state = cls(is_settled=is_settled, changed=changed)
        for role in roles:
            if role.name in state.roles:
                raise PrincipalError("a role stands twice in the state")
            state.roles[role.name] = role
            state.cost += role.cost()
        for entry in principals:
            known = [
                token for token in entry.tokens if token.id in state._by_id or token.hash in state._by_hash
            ]
            if entry.name in state.principals or known:
                raise PrincipalError("a principal or token stands twice in the state")
            state._take(entry)
            state.cost += entry.cost()
        return state

    def check_invariants(self) -> None:
        """Asserts; called by tests after every command."""
        assert len(self.principals) <= PRINCIPALS_MAX
        assert len(self.roles) <= ROLES_MAX
        tokens = [(entry.name, token) for entry in self.principals.values() for token in entry.tokens]
        assert self._by_id == {token.id: name for name, token in tokens}
        assert self._by_hash == {token.hash: (name, token) for name, token in tokens}
        assert len(tokens) == len(self._by_id) == len(self._by_hash)
        assert all(name == entry.name for name, entry in self.principals.items())
        administrators = {name for name, entry in self.principals.items() if self._administers(entry)}
        assert self._administrators == administrators
        roles = sum(role.cost() for role in self.roles.values())
        assert self.cost == roles + sum(entry.cost() for entry in self.principals.values())
        assert self.cost <= MAX_SECURITY_COST
        self.sessions.check_invariants()


def _differs(former: Principal | RoleEntry | None, before: Place | None) -> SecurityOutcome | None:
    if former is None:
        return None if before is None else "other-version"
    if before is None:
        return "name-taken"
    return None if former.version == before else "other-version"


def _administering(role: RoleEntry) -> bool:
    return allowed(role.rules, ADMINISTER, "")


def _locks_out(before: Collection[Principal], after: Collection[Principal], at_ms: int) -> bool:
    if not after:
        return bool(before)
    had = any(entry.has_live_token(at_ms) for entry in before)
    return had and not any(entry.has_live_token(at_ms) for entry in after)
