"""The routes of principals, roles and tokens, as operations.py has the others."""

from __future__ import annotations

from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.needs import CLUSTER_ADMIN
from shoal.agent.http.api.operation import Answer, Body, Operation, Parameter
from shoal.agent.http.api.operations import FORWARD, TIMEOUT, VERSION_CHARACTERS_MAX
from shoal.agent.http.api.security_schemas import reference

_CHANGES = (TIMEOUT, FORWARD)
_PUTS = (
    Parameter(
        "if_version",
        "The `version` that was read: 409 if it is another one now.",
        {"type": "string", "minLength": 1, "maxLength": VERSION_CHARACTERS_MAX},
    ),
    *_CHANGES,
)


def _ok(name: str, description: str) -> dict[int, Answer]:
    return {200: Answer(description, {JSON_TYPE: reference(name)})}


def _put(name: str) -> dict[int, Answer]:
    return {**_ok(name, "It was there, and is so now."), 201: Answer("Made.", {JSON_TYPE: reference(name)})}


LIST_PRINCIPALS = Operation(
    "listPrincipals",
    "GET /v1/principals",
    "The principals, with their roles, rules and tokens.",
    _ok("PrincipalList", "By name."),
    needs=CLUSTER_ADMIN,
)
READ_PRINCIPAL = Operation(
    "readPrincipal",
    "GET /v1/principals/{principal}",
    "One principal.",
    _ok("Principal", "The principal."),
    needs=CLUSTER_ADMIN,
)
PUT_PRINCIPAL = Operation(
    "putPrincipal",
    "PUT /v1/principals/{principal}",
    "Give a principal these roles and rules, and no others; it is made if there is none. Its tokens stay.",
    _put("Principal"),
    _PUTS,
    body=Body(
        {JSON_TYPE: reference("PutPrincipal")},
        required=False,
        example='{"roles": ["consumer:orders*"], "rules": ["topic:returns=describe,write"]}',
    ),
    needs=CLUSTER_ADMIN,
)
DELETE_PRINCIPAL = Operation(
    "deletePrincipal",
    "DELETE /v1/principals/{principal}",
    "End a principal, with its tokens.",
    {204: Answer("Gone, durably.")},
    _CHANGES,
    needs=CLUSTER_ADMIN,
)
LIST_ROLES = Operation(
    "listRoles",
    "GET /v1/roles",
    "The roles: those that are built in, then the others by name.",
    _ok("RoleList", "Without `producer:TOPICS` and `consumer:TOPICS`, of which there is one for any topics."),
    needs=CLUSTER_ADMIN,
)
READ_ROLE = Operation(
    "readRole", "GET /v1/roles/{role}", "One role.", _ok("Role", "The role."), needs=CLUSTER_ADMIN
)
PUT_ROLE = Operation(
    "putRole",
    "PUT /v1/roles/{role}",
    "Give a role these rules, and no others; it is made if there is none.",
    _put("Role"),
    _PUTS,
    body=Body(
        {JSON_TYPE: reference("PutRole")},
        required=False,
        example='{"rules": ["topic:orders*=describe,read", "group:orders*=consume"]}',
    ),
    needs=CLUSTER_ADMIN,
)
DELETE_ROLE = Operation(
    "deleteRole",
    "DELETE /v1/roles/{role}",
    "End a role that no principal has.",
    {204: Answer("Gone, durably.")},
    _CHANGES,
    needs=CLUSTER_ADMIN,
)
MAKE_TOKEN = Operation(
    "makeToken",
    "POST /v1/principals/{principal}/tokens",
    "Make a token of a principal, which may have two; it is told in this answer alone.",
    {201: Answer("Made.", {JSON_TYPE: reference("Token")})},
    _CHANGES,
    body=Body({JSON_TYPE: reference("MakeToken")}, required=False, example='{"expires_in": "30d"}'),
    needs=CLUSTER_ADMIN,
)
REVOKE_TOKEN = Operation(
    "revokeToken",
    "DELETE /v1/tokens/{token}",
    "Revoke a token, by its id.",
    {204: Answer("Revoked, durably: every agent that is heard refuses it within 5 s.")},
    _CHANGES,
    needs=CLUSTER_ADMIN,
)
