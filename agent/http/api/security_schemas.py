"""The JSON documents about principals, roles and tokens, beside those of schemas.py.

Pure values. They join SCHEMAS here, so that references find them.
"""

from __future__ import annotations

from shoal.agent.http.api import patterns
from shoal.agent.http.api.operation import Schema
from shoal.agent.http.api.schemas import (
    BOOLEAN,
    SCHEMAS,
    TEXT,
    TIME,
    closed,
    described,
    list_of,
    members_of,
    or_null,
    reference,
)
from shoal.agent.security.quota import QUOTA_MAX

PRINCIPAL_NAME: Schema = {"type": "string", "pattern": patterns.PRINCIPAL}
ROLE_NAME: Schema = {"type": "string", "pattern": patterns.ROLE}
TOKEN_ID: Schema = {"type": "string", "pattern": patterns.TOKEN_ID}
_RULES: Schema = {**list_of({"type": "string", "pattern": patterns.RULE, "maxLength": 512}), "maxItems": 64}
_LIFETIMES = patterns.durations(1_000, 3_653 * 86_400_000)[1:-1]
_EXPIRY: Schema = {
    "type": "string",
    "pattern": f"^(never|{_LIFETIMES})$",
    "examples": ["1h", "90d", "never"],
}
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": QUOTA_MAX}
_QUOTAS: Schema = closed(
    {
        "bytes_in": described(_LIMIT, "Bytes of bodies, a second."),
        "bytes_out": described(_LIMIT, "Bytes of answers to requests that do not write, a second."),
        "requests": described(_LIMIT, "Requests a second."),
        "connections": described(_LIMIT, "Connections over which the principal has asked, at once."),
        "waits": described(_LIMIT, "Requests that wait for news, at once."),
        "streams": described(_LIMIT, "Streams of events, at once."),
    }
)
_VERSION = described(TEXT, "Another one with each change of roles, rules and quotas.")
_MADE: dict[str, Schema] = {
    "id": TOKEN_ID,
    "expires_at": or_null(TIME),
    "made_by": described(TEXT, "The principal that asked for it."),
    "made_at": TIME,
}

SECURITY_SCHEMAS: dict[str, Schema] = {
    "Principal": members_of(
        name=TEXT,
        roles=list_of(TEXT),
        rules=list_of(TEXT),
        quotas=_QUOTAS,
        version=_VERSION,
        tokens=list_of({"$ref": "#/components/schemas/TokenEntry"}),
    ),
    "PrincipalList": members_of(principals=list_of({"$ref": "#/components/schemas/Principal"})),
    "PutPrincipal": closed(
        {"roles": {**list_of(ROLE_NAME), "maxItems": 16}, "rules": _RULES, "quotas": _QUOTAS}
    ),
    "Role": members_of(
        name=TEXT,
        rules=list_of(TEXT),
        quotas=_QUOTAS,
        built_in=BOOLEAN,
        version=or_null(_VERSION),
    ),
    "RoleList": members_of(roles=list_of({"$ref": "#/components/schemas/Role"})),
    "PutRole": closed({"rules": _RULES, "quotas": _QUOTAS}),
    "TokenEntry": members_of(**_MADE),
    "MakeToken": closed({"expires_in": described(_EXPIRY, "90d unless it is said.")}),
    "Session": members_of(
        principal=TEXT,
        proof=described(TEXT, "`session`, `token`, `jwt`, `certificate`, `agent`; `open`: nobody is asked."),
        roles=described(list_of(TEXT), "Of a JWT, beside those that the principal has."),
        expires_at=described(or_null(TIME), "null: with no end."),
        session=or_null(described(TEXT, "The id of a session, which is no secret.")),
    ),
    "Token": members_of(
        token=described(TEXT, "The token itself, which is told here and never again."),
        principal=TEXT,
        **_MADE,
    ),
}
SCHEMAS.update(SECURITY_SCHEMAS)

__all__ = ["SECURITY_SCHEMAS", "reference"]
