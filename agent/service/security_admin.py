"""Principals, roles and tokens: shown by any agent; made and ended by the one that leads the catalog.

Law of this file: as topic_admin.py: it decides on proposals and turns outcomes into answers. A token is told
in the answer of the request that makes it, and nowhere else.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Any, Final, TypeVar

from shoal.agent.security.access import ANONYMOUS, AskedBy, Place
from shoal.agent.security.principals import (
    PRINCIPALS_MAX,
    ROLES_MAX,
    TOKENS_MAX,
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    Principal,
    PrincipalError,
    PutPrincipal,
    PutRole,
    RevokeToken,
    RoleEntry,
    SecurityCommand,
    TokenEntry,
    check_principal,
)
from shoal.agent.security.quota import NO_QUOTAS, QuotaError, Quotas, quotas_from
from shoal.agent.security.rules import (
    BUILT_IN,
    RuleError,
    built_in_role,
    check_role_name,
    rules_from_texts,
)
from shoal.agent.security.sessions import KEY_BYTES, KEY_ID_BYTES, EndSession, MakeSessionKey
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token
from shoal.agent.service.topic_admin import ALTER_ATTEMPTS_MAX, TopicService
from shoal.agent.topics.catalog import Outcome
from shoal.agent.topics.catalog_service import CatalogService
from shoal.errors import ErrorCode, ShoalError, shown
from shoal.format.timestamps import format_time, parse_duration_ms

DEFAULT_EXPIRY_MS: Final = 90 * 86_400_000
EXPIRY_MAX_MS: Final = 3_653 * 86_400_000
NEVER: Final = "never"
QUOTAS: Final = "quotas"
REQUEST_ID_BYTES = 8

Json = dict[str, Any]
Found = TypeVar("Found", Principal, RoleEntry)


class SecurityAdmin(TopicService):
    """Part of the broker."""

    # ---- as this agent's catalog knows them ------------------------------------------------------

    def principals(self, after: str = "", limit: int = PRINCIPALS_MAX) -> list[Json]:
        """By name: so many behind that one."""
        known = self._parts().topics.security.principals
        names = nsmallest(limit, (name for name in known if name > after))
        return [principal_document(known[name]) for name in names]

    def principal(self, name: str) -> Json:
        """ShoalError unknown-principal."""
        entry = self._parts().topics.security.principals.get(name)
        if entry is None:
            raise ShoalError("unknown-principal", f"there is no principal {shown(name)}")
        return principal_document(entry)

    def roles(self, after: str | None = None, limit: int = ROLES_MAX) -> list[Json]:
        """Those that are built in, without the ones of topics; then the others by name: so many behind that
        one."""
        known = self._parts().topics.security.roles
        names = nsmallest(limit, (name for name in known if name > (after or "")))
        built_in = [*map(_built_in_document, BUILT_IN)] if after is None else []
        return [*built_in, *(role_document(known[name]) for name in names)]

    def role(self, name: str) -> Json:
        """ShoalError unknown-role, bad-request for topics of a built-in one that cannot be."""
        if (entry := self._parts().topics.security.roles.get(name)) is not None:
            return role_document(entry)
        try:
            if built_in_role(name) is None:
                raise ShoalError("unknown-role", f"there is no role {shown(name)}")
        except RuleError as error:
            raise ShoalError("bad-request", str(error)) from None
        return _built_in_document(name)

    # ---- at the catalog's leader -----------------------------------------------------------------

    async def put_principal(
        self, name: str, body: Mapping[str, Any] | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]:
        """PUT: True when this call made it. It has the roles, rules and quotas of the body, and no
        others.

        ShoalError bad-request, settings-changed, unknown-role, last-administrator, catalog-full,
        level-too-low, not-leader, no-leader, timeout.
        """
        quotas, body = _quotas_in(body)
        roles, texts = _lists_in(body, "roles", "rules")
        try:
            check_principal(name, roles)
            rules = rules_from_texts(texts)
        except (PrincipalError, RuleError) as error:
            raise ShoalError("bad-request", str(error)) from None
        roles = list(dict.fromkeys(roles))

        def change(known: Principal | None, by: AskedBy) -> SecurityCommand | None:
            present = known and (list(known.roles), known.rules, known.quotas)
            if present == (roles, rules, quotas):
                return None
            version = None if known is None else known.version
            return PutPrincipal(name, version, tuple(roles), rules, by, quotas)

        service = await self._current_catalog(timeout_ms)
        made = await self._changed(service, _principals, name, change, by, timeout_ms, if_version)
        return made, self.principal(name)

    async def delete_principal(self, name: str, by: AskedBy, timeout_ms: int) -> None:
        """DELETE: with its tokens. ShoalError unknown-principal, and as put_principal."""
        service = await self._current_catalog(timeout_ms)

        def change(known: Principal | None, by: AskedBy) -> SecurityCommand:
            if known is None:
                raise ShoalError("unknown-principal", f"there is no principal {shown(name)}")
            return DeletePrincipal(name, known.version, by)

        await self._changed(service, _principals, name, change, by, timeout_ms)

    async def put_role(
        self, name: str, body: Mapping[str, Any] | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]:
        """PUT: as put_principal; role-built-in."""
        quotas, body = _quotas_in(body)
        (texts,) = _lists_in(body, "rules")
        _require_own(name)
        try:
            check_role_name(name)
            rules = rules_from_texts(texts)
        except RuleError as error:
            raise ShoalError("bad-request", str(error)) from None

        def change(known: RoleEntry | None, by: AskedBy) -> SecurityCommand | None:
            if known is not None and (known.rules, known.quotas) == (rules, quotas):
                return None
            return PutRole(name, None if known is None else known.version, rules, by, quotas)

        service = await self._current_catalog(timeout_ms)
        made = await self._changed(service, _roles, name, change, by, timeout_ms, if_version)
        return made, self.role(name)

    async def delete_role(self, name: str, by: AskedBy, timeout_ms: int) -> None:
        """DELETE: ShoalError unknown-role, role-in-use, role-built-in, and as put_principal."""
        _require_own(name)
        service = await self._current_catalog(timeout_ms)

        def change(known: RoleEntry | None, by: AskedBy) -> SecurityCommand:
            if known is None:
                raise ShoalError("unknown-role", f"there is no role {shown(name)} that could be deleted")
            return DeleteRole(name, known.version, by)

        await self._changed(service, _roles, name, change, by, timeout_ms)

    async def make_token(
        self, principal: str, body: Mapping[str, Any] | None, by: AskedBy, timeout_ms: int
    ) -> Json:
        """POST: the token itself, once, and what its list shows of it.

        ShoalError bad-request, unknown-principal, too-many-tokens, catalog-full, level-too-low, not-leader,
        no-leader, timeout.
        """
        lifetime_ms = _lifetime_ms(body)
        service = await self._current_catalog(timeout_ms)
        if principal == ANONYMOUS:
            raise ShoalError("bad-request", f"{ANONYMOUS} is whoever shows no token")
        by = self._completed(by)
        token = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES))
        expires_ms = None if lifetime_ms is None else by.at_ms + lifetime_ms
        command = MakeToken(principal, token.id, token.hash(), expires_ms, by)
        await self._proposed(service, command, principal, timeout_ms)
        entry = TokenEntry(token.id, token.hash(), expires_ms, by.principal, by.at_ms)
        return {"token": token.reveal(), "principal": principal, **token_document(entry)}

    async def revoke_token(self, token_id: str, by: AskedBy, timeout_ms: int) -> None:
        """DELETE: ShoalError unknown-token, last-administrator, and as make_token."""
        service = await self._current_catalog(timeout_ms)
        if service.catalog.security.owner(token_id) is None:
            raise ShoalError("unknown-token", f"there is no token {shown(token_id)}")
        await self._proposed(service, RevokeToken(token_id, self._completed(by)), token_id, timeout_ms)

    async def make_session_key(self, by: AskedBy, timeout_ms: int) -> None:
        """The key that seals sessions of browsers, where there is none, or only an old one. ShoalError as
        make_token."""
        service = await self._current_catalog(timeout_ms)
        for _ in range(ALTER_ATTEMPTS_MAX):
            by, sessions = self._completed(by), service.catalog.security.sessions
            if sessions.sealing_key(by.at_ms) is not None:
                return
            key_id = base64.b32encode(os.urandom(KEY_ID_BYTES)).decode().lower()
            before = sessions.keys[0].id if sessions.keys else None
            command = MakeSessionKey(key_id, os.urandom(KEY_BYTES), before, by)
            if await self._proposed(service, command, key_id, timeout_ms):
                return
        raise ShoalError("overloaded", "others make keys of sessions at the same time: ask again")

    async def end_session(
        self, session_id: str, principal: str, expires_ms: int, by: AskedBy, timeout_ms: int
    ) -> None:
        """DELETE: of a session that has not ended. ShoalError as make_token."""
        service = await self._current_catalog(timeout_ms)
        command = EndSession(session_id, principal, expires_ms, self._completed(by))
        await self._proposed(service, command, session_id, timeout_ms)

    async def _changed(
        self,
        service: CatalogService,
        known: Callable[[CatalogService], Mapping[str, Found]],
        name: str,
        change: Callable[[Found | None, AskedBy], SecurityCommand | None],
        by: AskedBy,
        timeout_ms: int,
        if_version: str | None = None,
    ) -> bool:
        """Propose what `change` says of the present value, again where another change came first. Whether it
        was made now."""
        end_ms = self._clock.now_ms() + timeout_ms
        by = self._completed(by)
        for _ in range(ALTER_ATTEMPTS_MAX):
            present = known(service).get(name)
            if if_version is not None and if_version != (present and version_text(present.version)):
                break
            command = change(present, by)
            if command is None:
                return False
            left_ms = max(1, end_ms - self._clock.now_ms())
            if await self._proposed(service, command, name, left_ms):
                return present is None
        raise ShoalError(
            "settings-changed", f"somebody else has changed {name} since you read it: nothing was changed"
        )

    async def _proposed(
        self, service: CatalogService, command: SecurityCommand, name: str, timeout_ms: int
    ) -> bool:
        """Durable, told to the live members, and saved in the file that a crash leaves, once this returns.
        False: another change came first."""
        await self._let_level_rise(service, command, "a change of principals, roles and tokens")
        outcome = (await service.propose(command, timeout_ms)).outcome
        if outcome in ("other-version", "name-taken"):
            return False
        if outcome not in ("done", "session-ended"):
            code, text = REFUSALS[outcome]
            raise ShoalError(code, text.format(name))
        await service.exchange.tell_peers()
        await service.saved_security(timeout_ms)
        return True

    def _completed(self, by: AskedBy) -> AskedBy:
        return by._replace(at_ms=self._clock.now_us() // 1_000, request=os.urandom(REQUEST_ID_BYTES).hex())


def _principals(service: CatalogService) -> Mapping[str, Principal]:
    return service.catalog.security.principals


def _roles(service: CatalogService) -> Mapping[str, RoleEntry]:
    return service.catalog.security.roles


REFUSALS: Final[dict[Outcome, tuple[ErrorCode, str]]] = {
    "unknown-principal": ("unknown-principal", "there is no principal {}"),
    "unknown-role": ("unknown-role", "a role of {} does not exist: make it first"),
    "unknown-token": ("unknown-token", "there is no token {}"),
    "role-in-use": ("role-in-use", "there are principals with the role {}: take it from them first"),
    "last-administrator": (
        "last-administrator",
        "without {} nobody with a token could administer the cluster: make another, and its token, first",
    ),
    "too-many-tokens": (
        "too-many-tokens",
        "{} has " + str(TOKENS_MAX) + " tokens that have not expired: revoke one first",
    ),
    "token-taken": ("overloaded", "the token of {} got an id that another one has: ask again"),
    "too-many-principals": ("catalog-full", "no room for {}: there are " + f"{PRINCIPALS_MAX:,} principals"),
    "too-many-roles": ("catalog-full", "no room for {}: there are " + f"{ROLES_MAX:,} roles"),
    "full": ("catalog-full", "no room for {}: principals, roles and tokens fill their part of the catalog"),
}
"""Codes, and sentences about the thing that was asked for."""


# ---- bodies and documents --------------------------------------------------------------------------------


def _quotas_in(body: Mapping[str, Any] | None) -> tuple[Quotas, dict[str, Any]]:
    """The quotas of a body, and the rest of it. ShoalError bad-request."""
    rest = dict(body or {})
    if QUOTAS not in rest:
        return NO_QUOTAS, rest
    try:
        return quotas_from(rest.pop(QUOTAS)), rest
    except QuotaError as error:
        raise ShoalError("bad-request", str(error)) from None


def _lists_in(body: Mapping[str, Any] | None, *names: str) -> list[list[str]]:
    """ShoalError bad-request."""
    body = body or {}
    for name, value in body.items():
        if name not in names:
            raise ShoalError(
                "bad-request", f"{shown(name)} is unknown here: there are {', '.join((*names, QUOTAS))}"
            )
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ShoalError("bad-request", f"{name} has to be a list of texts")
    return [body.get(name, []) for name in names]


def _lifetime_ms(body: Mapping[str, Any] | None) -> int | None:
    """None: it never expires. ShoalError bad-request."""
    body = body or {}
    if set(body) - {"expires_in"}:
        raise ShoalError("bad-request", 'nothing, or {"expires_in": "90d"}, is wanted')
    asked = body.get("expires_in")
    if asked is None:
        return DEFAULT_EXPIRY_MS
    if asked == NEVER:
        return None
    try:
        lifetime_ms = parse_duration_ms(asked) if isinstance(asked, str) else 0
    except ValueError:
        lifetime_ms = 0
    if not 1_000 <= lifetime_ms <= EXPIRY_MAX_MS:
        raise ShoalError("bad-request", f'expires_in {shown(str(asked))}: say 1s to 3653d, or "{NEVER}"')
    return lifetime_ms


def version_text(version: Place) -> str:
    """Opaque for clients."""
    epoch, offset = version
    return f"{epoch:x}-{offset:x}"


def principal_document(entry: Principal) -> Json:
    """As GET /v1/principals/{principal} shows it."""
    return {
        "name": entry.name,
        "roles": list(entry.roles),
        "rules": [str(rule) for rule in entry.rules],
        QUOTAS: entry.quotas.document(),
        "version": version_text(entry.version),
        "tokens": [token_document(token) for token in entry.tokens],
    }


def token_document(token: TokenEntry) -> Json:
    """Of a token all but itself and its hash."""
    expires_at = None if token.expires_ms is None else format_time(token.expires_ms * 1_000)
    made_at = format_time(token.made_ms * 1_000)
    return {"id": token.id, "expires_at": expires_at, "made_by": token.made_by, "made_at": made_at}


def role_document(entry: RoleEntry) -> Json:
    """As GET /v1/roles/{role} shows it."""
    rules = [str(rule) for rule in entry.rules]
    quotas, version = entry.quotas.document(), version_text(entry.version)
    return {"name": entry.name, "rules": rules, QUOTAS: quotas, "built_in": False, "version": version}


def _built_in_document(name: str) -> Json:
    rules = built_in_role(name) or ()
    texts = [str(rule) for rule in rules]
    return {"name": name, "rules": texts, QUOTAS: {}, "built_in": True, "version": None}


def _require_own(role: str) -> None:
    """ShoalError role-built-in, and bad-request for topics of a built-in role that cannot be."""
    try:
        if built_in_role(role) is None:
            return
    except RuleError as error:
        raise ShoalError("bad-request", str(error)) from None
    raise ShoalError("role-built-in", f"role {shown(role)} is built in: choose another name")
