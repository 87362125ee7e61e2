"""Refuses what a fast way may not take, in the words of the ordinary way and for a fraction of its work.

Law of this file: refusals for want of credentials or permission, of requests whose head a fast way
understands and whose body has come whole. Nothing is let in here: whatever is not plainly refused goes the
ordinary way. It tells whom that would tell: the measures, the count of failed logins, and the audit. A
client that is refused a thousand times a second is to cost others little.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from shoal.agent.http.core.context import Context
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.doorkeeper import (
    FastAsking,
    ShownCredentials,
    check,
    identified,
    wall_ms,
)
from shoal.agent.http.core.problems import problem_bytes
from shoal.agent.http.witness import REFUSALS, thing_of
from shoal.agent.security.access import ANONYMOUS, Identity, Proof
from shoal.agent.security.audit import happening, login_of
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.agent.http.front import Connection


class Unpermitted(NamedTuple):
    """A request that a fast way understands and may not take; most are refused."""

    request: FastAsking
    body_bytes: int


class FastRefusals:
    """One per server."""

    def __init__(self, context: Context, table: RouteTable) -> None:
        self._context = context
        self._table = table

    def refuse(self, front: Connection, refused: Unpermitted, head: bytes, here: int) -> bool:
        """Answer it. False: it is for the ordinary way, and nothing has happened."""
        if front.transport is None or here != refused.body_bytes:
            return False
        found = self._judged(front, refused.request)
        if found is None:
            return False
        identity, error = found
        address = address_of(front.transport)
        error = self._context.doorkeeper.login_failed(
            error, front.certificate, address, shows_login=refused.request.authorization is not None
        )
        self._tell(identity, error, head, address)
        front.measures.answered(refused.request.operation, error.status)
        front.transport.write(problem_bytes(error, front.guard))
        front.answer_ended()
        return True

    def _judged(self, front: Connection, request: FastAsking) -> tuple[Identity, ShoalError] | None:
        """The sender as far as it has proven itself, and why it may not. None: it may, is an agent, or nobody
        can tell. A login that is new to the audit is told by the ordinary way."""
        doorkeeper, certificate = self._context.doorkeeper, front.certificate
        if certificate is not None and certificate.is_agent:
            return None
        access, needs, resource = doorkeeper.access, request.needs, request.resource
        identity = Identity(ANONYMOUS, Proof.NONE)
        try:
            credentials = ShownCredentials(request.authorization, certificate)
            identity = identified(access, credentials, needs, resource)
            check(access, identity, needs, resource)
        except ShoalError as error:
            if error.code not in REFUSALS:
                return None
            login = login_of(request.authorization, None if certificate is None else certificate.name)
            is_new = (
                doorkeeper.trail is not None
                and identity.proof is not Proof.NONE
                and login is not None
                and not doorkeeper.trail.knows_login(login, int(wall_ms()))
            )
            return None if is_new else (identity, error)
        return None

    def _tell(self, identity: Identity, error: ShoalError, head: bytes, address: str) -> None:
        trail = self._context.doorkeeper.trail
        if trail is None:
            return
        method, target, _ = head.split(b" ", 2)
        route, arguments = self._table.resolve(method.decode(), target.partition(b"?")[0].decode())
        operation = route.operation
        event = happening(identity, address, operation.name, thing_of(operation, arguments), error.code)
        trail.refused(event, int(wall_ms()))


def address_of(transport: asyncio.Transport | None) -> str:
    """The other end of a connection, as aiohttp names it; empty for a unix socket."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
