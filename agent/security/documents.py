"""The security state and its commands as JSON, in the catalog's log and in its copies.

Law of this file: pure. Each document is read as it was written; anything else raises ValueError, and nothing
else. Nothing of a token stands here but its hash. The keys of sessions do stand here. `quotas` and `sessions`
stand where there are some: level 6 has them from its beginning, and a document without them has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.agent.security.access import ASKED_CHARACTERS_MAX, AskedBy, Place
from shoal.agent.security.principals import (
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    Principal,
    PutPrincipal,
    PutRole,
    RevokeToken,
    RoleEntry,
    Security,
    SecurityCommand,
    TokenEntry,
    check_principal,
)
from shoal.agent.security.quota import NO_QUOTAS, Quotas, quotas_from
from shoal.agent.security.rules import Rule, check_role_name, rules_from_texts
from shoal.agent.security.sessions import (
    EndSession,
    MakeSessionKey,
    Sessions,
    command_fields,
    end_command_from,
    key_command_from,
    sessions_from,
)
from shoal.agent.security.tokens import TOKEN_ID, hash_from_text

MAX_NUMBER: Final = 1 << 63
"""Of times, epochs and offsets."""

OPERATIONS: Final[dict[type[Any], str]] = {
    PutPrincipal: "principal-put",
    DeletePrincipal: "principal-delete",
    PutRole: "role-put",
    DeleteRole: "role-delete",
    MakeToken: "token-make",
    RevokeToken: "token-revoke",
    MakeSessionKey: "session-key",
    EndSession: "session-end",
}
"""The names under `op` by type of command; levels.py has them too."""


def command_document(command: SecurityCommand) -> dict[str, Any]:
    """Of what is under `op` and `v` nothing."""
    by = command.by
    document: dict[str, Any] = {"by": [by.principal, by.proof, by.address, by.at_ms, by.request]}
    match command:
        case PutPrincipal(name, before, roles, rules, _, quotas):
            document |= {"name": name, "before": before, "roles": list(roles), "rules": _texts(rules)}
            document |= _of_quotas(quotas)
        case PutRole(name, before, rules, _, quotas):
            document |= {"name": name, "before": before, "rules": _texts(rules), **_of_quotas(quotas)}
        case DeletePrincipal(name, before) | DeleteRole(name, before):
            document |= {"name": name, "before": before}
        case MakeToken(principal, token_id, token_hash, expires_ms):
            hashed = {"id": token_id, "hash": token_hash.hex(), "expires_ms": expires_ms}
            document |= {"name": principal, **hashed}
        case RevokeToken(token_id):
            document |= {"id": token_id}
        case MakeSessionKey() | EndSession():
            document |= command_fields(command)
    return document


def command_from(operation: str, document: Mapping[str, Any]) -> SecurityCommand:
    """Raises ValueError, and nothing else."""
    by = _asked_by(document.get("by"))
    match operation:
        case "principal-put":
            name, roles, rules = _grants(document)
            return PutPrincipal(name, _before(document), roles, rules, by, _quotas(document))
        case "principal-delete":
            name = _text(document, "name")
            check_principal(name, ())
            return DeletePrincipal(name, _place(document.get("before")), by)
        case "role-put":
            role = _role_name(document)
            return PutRole(role, _before(document), _rules(document), by, _quotas(document))
        case "role-delete":
            return DeleteRole(_role_name(document), _place(document.get("before")), by)
        case "token-make":
            name = _text(document, "name")
            check_principal(name, ())
            token_hash = hash_from_text(_text(document, "hash"))
            expires_ms = _expiry(document.get("expires_ms"))
            return MakeToken(name, _token_id(document.get("id")), token_hash, expires_ms, by)
        case "token-revoke":
            return RevokeToken(_token_id(document.get("id")), by)
        case "session-key":
            return key_command_from(document, by)
        case "session-end":
            return end_command_from(document, by)
    raise ValueError("an unknown change of the security state")


def state_document(state: Security) -> dict[str, Any]:
    """The whole of it, in one order."""
    return {
        "changed": state.changed,
        "settled": state.is_settled,
        "roles": [
            {
                "name": role.name,
                "rules": _texts(role.rules),
                "version": role.version,
                **_of_quotas(role.quotas),
            }
            for _, role in sorted(state.roles.items())
        ],
        "principals": [
            {
                "name": entry.name,
                "roles": list(entry.roles),
                "rules": _texts(entry.rules),
                "version": entry.version,
                "tokens": [
                    [token.id, token.hash.hex(), token.expires_ms, token.made_by, token.made_ms]
                    for token in entry.tokens
                ],
                **_of_quotas(entry.quotas),
            }
            for _, entry in sorted(state.principals.items())
        ],
        **({} if state.sessions == Sessions() else {"sessions": state.sessions.document()}),
    }


def state_from(value: Any) -> Security:
    """Raises ValueError, and nothing else."""
    document = _mapping(value)
    is_settled = document.get("settled")
    if type(is_settled) is not bool:
        raise ValueError("settled is true or false")
    roles = [
        RoleEntry(_role_name(item), _rules(item), _place(item.get("version")), _quotas(item))
        for item in map(_mapping, _list(document, "roles"))
    ]
    principals = [
        Principal(
            *_grants(item),
            tuple(map(_token, _list(item, "tokens"))),
            _place(item.get("version")),
            _quotas(item),
        )
        for item in map(_mapping, _list(document, "principals"))
    ]
    state = Security.of(principals, roles, _place(document.get("changed")), is_settled=is_settled)
    if "sessions" in document:
        state.sessions = sessions_from(document["sessions"])
    return state


def _grants(document: Mapping[str, Any]) -> tuple[str, tuple[str, ...], tuple[Rule, ...]]:
    name, roles = _text(document, "name"), _texts_in(document, "roles")
    check_principal(name, roles)
    return name, tuple(dict.fromkeys(roles)), _rules(document)


def _of_quotas(quotas: Quotas) -> dict[str, Any]:
    return {} if quotas == NO_QUOTAS else {"quotas": quotas.document()}


def _quotas(document: Mapping[str, Any]) -> Quotas:
    value = document.get("quotas")
    return NO_QUOTAS if value is None else quotas_from(value)


def _role_name(document: Mapping[str, Any]) -> str:
    name = _text(document, "name")
    check_role_name(name)
    return name


def _rules(document: Mapping[str, Any]) -> tuple[Rule, ...]:
    return rules_from_texts(_texts_in(document, "rules"))


def _texts(rules: tuple[Rule, ...]) -> list[str]:
    return [str(rule) for rule in rules]


def _token(value: Any) -> TokenEntry:
    if not isinstance(value, list) or len(value) != 5:
        raise ValueError("a token is five values")
    token_id, token_hash, expires_ms, made_by, made_ms = value
    if not isinstance(token_hash, str) or not isinstance(made_by, str):
        raise ValueError("a token's hash and maker are texts")
    expiry = _expiry(expires_ms)
    return TokenEntry(_token_id(token_id), hash_from_text(token_hash), expiry, made_by, _number(made_ms))


def _token_id(value: Any) -> str:
    if not isinstance(value, str) or TOKEN_ID.fullmatch(value) is None:
        raise ValueError("a token's id is 8 of a to z and 2 to 7")
    return value


def _expiry(value: Any) -> int | None:
    return None if value is None else _number(value)


def _asked_by(value: Any) -> AskedBy:
    if not isinstance(value, list) or len(value) != 5:
        raise ValueError("the asker is five values")
    principal, proof, address, at_ms, request = value
    for text in (principal, proof, address, request):
        if not isinstance(text, str) or len(text) > ASKED_CHARACTERS_MAX:
            raise ValueError("the asker is told by short texts")
    return AskedBy(principal, proof, address, _number(at_ms), request)


def _before(document: Mapping[str, Any]) -> Place | None:
    value = document.get("before")
    return None if value is None else _place(value)


def _place(value: Any) -> Place:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a place is epoch and offset")
    return _number(value[0]), _number(value[1])


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise ValueError("a whole number is needed")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is a text")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is a list")
    return value


def _texts_in(document: Mapping[str, Any], name: str) -> list[str]:
    values = _list(document, name)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is a list of texts")
    return values


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    return value
