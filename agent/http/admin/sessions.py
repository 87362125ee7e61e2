"""Sessions of browsers: made by any agent, ended at the catalog's leader, which it asks."""

from __future__ import annotations

import base64
import os
from typing import Final

from aiohttp import web

from shoal.agent.http.admin.principals import asked_by, of_client
from shoal.agent.http.admin.topics import exchange
from shoal.agent.http.admission.cookies import SECURE_COOKIE, cookie
from shoal.agent.http.api import session_operations as api
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.doorkeeper import wall_ms
from shoal.agent.http.core.leader import at_leader, catalog_of
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Json, Leader
from shoal.agent.security.access import Identity, Proof
from shoal.agent.security.sessions import SESSION_ID_BYTES
from shoal.errors import ShoalError
from shoal.format.timestamps import format_time

KEY_PAUSE_SECONDS: Final = 0.02
"""Between two looks whether the key that the leader has made is known here."""


async def make(call: Call) -> web.Response:
    """201 with the cookie. The first login of a cluster, and each a week later, has a key made first."""
    access, authorization = call.context.doorkeeper.access, call.asker.authorization
    if authorization is None and call.asker.identity.proof is not Proof.OPEN:
        raise ShoalError("no-session", "a session is made of a token or a JWT; a certificate needs none")
    session_id = base64.b32encode(os.urandom(SESSION_ID_BYTES)).decode().lower()
    deadline, is_asked_for = Deadline(call.timeout_ms()), False
    while (made := access.begin_session(authorization or "", session_id, int(wall_ms()))) is None:
        if not is_asked_for:
            await _make_key(call, deadline)
            is_asked_for = True
        elif not await deadline.pause(KEY_PAUSE_SECONDS):
            text = "the key of sessions has not come here in time: ask again"
            raise ShoalError("timeout", text, definite=True)
    sealed, identity = made
    assert identity.expires_ms is not None
    response = json_response(session_document(identity), status=201)
    _tell_cookie(call, response, sealed, max(0, identity.expires_ms - int(wall_ms())) // 1_000)
    return response


async def _make_key(call: Call, deadline: Deadline) -> None:
    async def here() -> None:
        await call.context.broker.make_session_key(asked_by(call), deadline.remaining_ms())

    async def there(leader: Leader) -> None:
        left_ms, path = deadline.remaining_ms(), api.MAKE_SESSION.path
        await exchange(call, leader.url, "POST", path, None, left_ms, None, of_client(call))

    await at_leader(call, catalog_of(call), here, there, deadline)


async def read(call: Call) -> web.Response:
    """The asker."""
    response = json_response(session_document(call.asker.identity))
    response.headers["Cache-Control"] = "no-store"
    return response


async def end(call: Call) -> web.Response:
    """204 once it is durable; the browser forgets the cookie."""
    identity, deadline = call.asker.identity, Deadline(call.timeout_ms())
    if not identity.session:
        raise ShoalError("no-session", "there is no session to end: none was in the request's cookies")
    assert identity.expires_ms is not None
    session_id, principal, expires_ms = identity.session, identity.principal, identity.expires_ms

    async def here() -> None:
        left_ms, by = deadline.remaining_ms(), asked_by(call)
        await call.context.broker.end_session(session_id, principal, expires_ms, by, left_ms)

    async def there(leader: Leader) -> None:
        left_ms, path = deadline.remaining_ms(), api.END_SESSION.path
        await exchange(call, leader.url, "DELETE", path, None, left_ms, None, of_client(call))

    await at_leader(call, catalog_of(call), here, there, deadline)
    response = web.Response(status=204)
    _tell_cookie(call, response, "", 0)
    return response


def session_document(identity: Identity) -> Json:
    """As GET /v1/session shows the asker."""
    expires_ms = identity.expires_ms
    return {
        "principal": identity.principal,
        "proof": identity.proof.value,
        "roles": list(identity.roles),
        "expires_at": None if expires_ms is None else format_time(expires_ms * 1_000),
        "session": identity.session or None,
    }


def _tell_cookie(call: Call, response: web.Response, value: str, lifetime_s: int) -> None:
    name = call.context.doorkeeper.cookie
    secure = name == SECURE_COOKIE or call.headers.get("Origin", "").startswith("https://")
    response.headers["Set-Cookie"] = cookie(name, value, lifetime_s, secure=secure)
    response.headers["Cache-Control"] = "no-store"


ROUTES = (Route(api.MAKE_SESSION, make), Route(api.READ_SESSION, read), Route(api.END_SESSION, end))
