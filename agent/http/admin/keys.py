"""/v1/keys: the gossip keys of all members, by fingerprint, and their rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Context
from shoal.agent.http.core.dispatch import Handler, Route
from shoal.agent.http.core.problems import json_response
from shoal.errors import ShoalError
from shoal.membership.interface import KeyChange


class KeyHandlers:
    """/v1/keys and /v1/keys/install, use, remove."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The routes."""
        changes = [Route(api.CHANGE_KEYS[change], self._changing(change)) for change in KeyChange]
        return [Route(api.KEYS, self.listing), *changes]

    async def listing(self, call: Call) -> web.Response:
        """Which key is held and used by how many members; never a key itself."""
        return json_response(await self._context.broker.keys.listing())

    def _changing(self, change: KeyChange) -> Handler:
        async def handle(call: Call) -> web.StreamResponse:
            text, force = key_text_of(await optional_object(call))
            return json_response(await self._context.broker.keys.change(change, text, force=force))

        return handle


def key_text_of(body: Mapping[str, Any] | None) -> tuple[str, bool]:
    """The body of POST /v1/keys/...: {"key": TEXT, "force": BOOL}. Raises ShoalError bad-request."""
    body = body or {}
    key, force = body.get("key"), body.get("force", False)
    unknown = sorted(set(body) - {"key", "force"})
    if not isinstance(key, str) or not isinstance(force, bool) or unknown:
        raise ShoalError(
            "bad-request", '{"key": "BASE64 OR FINGERPRINT"} is wanted, and perhaps "force": true'
        )
    return key, force
