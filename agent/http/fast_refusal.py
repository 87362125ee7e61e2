"""Refuses what a fast way may not take, in the words of the ordinary way and for a fraction of its work.

Law of this file: refusals for want of credentials or permission, of requests whose head a fast way
understands and whose body has come whole. Nothing is let in here: whatever is not plainly refused goes the
ordinary way. It tells whom that would tell: the measures, the count of failed logins, and the audit. A
client that is refused a thousand times a second is to cost others little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.agent.http.core.context import Context
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.doorkeeper import FastAsking, wall_ms
from shoal.agent.http.core.handed_over import address_of
from shoal.agent.http.core.problems import problem_bytes
from shoal.agent.http.witness import thing_of
from shoal.agent.security.access import Identity, Proof
from shoal.agent.security.audit import happening
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

    def refuse(self, front: Connection, refused: Unpermitted, head: bytes, here: int) -> bytes | None:
        """The answer, of which all have been told. None: it is for the ordinary way, and nothing has
        happened. `here`: so much of the body has come."""
        request, doorkeeper = refused.request, self._context.doorkeeper
        if front.transport is None or here != refused.body_bytes:
            return None
        why = doorkeeper.refusals.told.get(
            (request.authorization, front.certificate, request.operation, request.resource)
        )
        if why is None or (why.identity.proof is not Proof.NONE and not front.is_told(request)):
            return None  # the ordinary way tells of a login first
        address = address_of(front.transport)
        error = doorkeeper.login_failed(
            why.error, front.certificate, address, shows_login=request.authorization is not None
        )
        self._tell(why.identity, error, head, address)
        front.measures.answered(request.operation, error.status)
        if error is not why.error:
            return problem_bytes(error, front.guard)
        answer = why.answers.get(front.guard)
        if answer is None:
            answer = why.answers[front.guard] = problem_bytes(error, front.guard)
        return answer

    def _tell(self, identity: Identity, error: ShoalError, head: bytes, address: str) -> None:
        trail, now_ms = self._context.doorkeeper.trail, int(wall_ms())
        if trail is None or trail.only_counted(address, now_ms):
            return
        method, target, _ = head.split(b" ", 2)
        route, arguments = self._table.resolve(method.decode(), target.partition(b"?")[0].decode())
        operation = route.operation
        event = happening(identity, address, operation.name, thing_of(operation, arguments), error.code)
        trail.refused(event, now_ms)
