"""/v1/keys: the gossip keys of all members, by fingerprint, and their rotation."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http import api
from shoal.agent.http.context import Call, Context
from shoal.agent.http.dispatch import Handler, Route
from shoal.agent.http.problems import json_response
from shoal.agent.http.topics import optional_object
from shoal.agent.key_service import key_text_of
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
