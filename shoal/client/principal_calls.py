"""Requests about principals, roles and tokens, for the administrators of a cluster.

Law of this file: HTTP and JSON only, as async_admin.py, whose client has these methods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from shoal.client.http.requests import Call, Cluster


class PrincipalCalls:
    """Part of AdminClient. Raises ShoalError unauthenticated, forbidden, level-too-low in all of these."""

    _cluster: Cluster

    async def principals(self) -> list[dict[str, Any]]:
        """GET /v1/principals: with roles, rules, and what may be shown of tokens."""
        answer = await self._cluster.anywhere(Call("GET", "/v1/principals"))
        principals: list[dict[str, Any]] = answer.document()["principals"]
        return principals

    async def principal(self, name: str) -> dict[str, Any]:
        """GET /v1/principals/{principal}."""
        return (await self._cluster.anywhere(Call("GET", _path("principals", name)))).document()

    async def put_principal(
        self,
        name: str,
        roles: Sequence[str] = (),
        rules: Sequence[str] = (),
        if_version: str | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/principals/{principal}: it has these roles, rules and quotas and no others; True if it was
        made. With `if_version` only if it is of that `version`: else settings-changed. `quotas`: bytes_in,
        bytes_out, requests, each a second; connections, waits, streams at once; on each agent."""
        body = {"roles": list(roles), "rules": list(rules), **_quotas(quotas)}
        return await self._put("principals", name, body, if_version)

    async def delete_principal(self, name: str) -> None:
        """DELETE /v1/principals/{principal}: with its tokens."""
        await self._cluster.anywhere(Call("DELETE", _path("principals", name)))

    async def roles(self) -> list[dict[str, Any]]:
        """GET /v1/roles: those that are built in, and the others."""
        roles: list[dict[str, Any]] = (await self._cluster.anywhere(Call("GET", "/v1/roles"))).document()[
            "roles"
        ]
        return roles

    async def role(self, name: str) -> dict[str, Any]:
        """GET /v1/roles/{role}."""
        return (await self._cluster.anywhere(Call("GET", _path("roles", name)))).document()

    async def put_role(
        self,
        name: str,
        rules: Sequence[str],
        if_version: str | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/roles/{role}: as put_principal."""
        return await self._put("roles", name, {"rules": list(rules), **_quotas(quotas)}, if_version)

    async def delete_role(self, name: str) -> None:
        """DELETE /v1/roles/{role}: one that no principal has."""
        await self._cluster.anywhere(Call("DELETE", _path("roles", name)))

    async def make_token(self, principal: str, expires_in: str | None = None) -> dict[str, Any]:
        """POST /v1/principals/{principal}/tokens: the token is `token` of the answer, and told there alone.
        `expires_in`: "30d", or "never"; 90 days otherwise. A second request would make another one."""
        body = {} if expires_in is None else {"expires_in": expires_in}
        call = _json_call("POST", f"{_path('principals', principal)}/tokens", body)
        return (await self._cluster.anywhere(call, only_once=True)).document()

    async def revoke_token(self, token_id: str) -> None:
        """DELETE /v1/tokens/{token}: by its id."""
        await self._cluster.anywhere(Call("DELETE", _path("tokens", token_id)))

    async def _put(
        self, kind: str, name: str, body: Mapping[str, Any], if_version: str | None
    ) -> tuple[bool, dict[str, Any]]:
        params = {} if if_version is None else {"if_version": if_version}
        call = _json_call("PUT", _path(kind, name), body)._replace(params=params)
        answer = await self._cluster.anywhere(call, retry=True)
        return answer.status == 201, answer.document()


def _path(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"


def _json_call(method: str, path: str, body: Mapping[str, Any]) -> Call:
    return Call(method, path, headers={"Content-Type": "application/json"}, body=json.dumps(body).encode())


def _quotas(quotas: Mapping[str, int] | None) -> dict[str, Any]:
    return {"quotas": dict(quotas)} if quotas else {}
