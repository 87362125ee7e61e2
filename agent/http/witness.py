"""The audit's eyes at the doors: refusals, logins, and changes with their outcome.

Law of this file: it tells the trail and decides nothing; a request waits for nothing here. The agent that a
client asks tells of its request. One that is asked by another agent on its behalf does not. Changes of
principals, roles and tokens that are carried out are told by their commands (agent/security/audit.py).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from aiohttp import web

from shoal.agent.http.api import security_operations
from shoal.agent.http.api.operation import REST, Operation
from shoal.agent.http.api.session_operations import MAKE_SESSION
from shoal.agent.http.core.context import ADMITTED, CUT_OFF, THING
from shoal.agent.http.core.doorkeeper import Doorkeeper, wall_ms
from shoal.agent.http.core.forward import AUTHORIZATION, FORWARDED_BY
from shoal.agent.metrics.measures import NO_OPERATION
from shoal.agent.security.access import ANONYMOUS, Identity, PeerCertificate, Proof
from shoal.agent.security.audit import LOGIN_PROOFS, AuditTrail, happening, login_of
from shoal.agent.security.needs import Action
from shoal.errors import ShoalError

DONE: Final = "done"
UNKNOWN: Final = "unknown"
"""The outcome of a change whose client has gone, or that failed in a way that nobody foresaw."""
ROW_KEY: Final = REST[1:-1]
"""A part of a record, which the audit has none of."""
REFUSALS: Final = frozenset(("unauthenticated", "forbidden", "foreign-origin", "too-many-failed-logins"))
CHANGING: Final = frozenset(
    (Action.CREATE, Action.ALTER, Action.DELETE, Action.MANAGE, Action.OPERATE, Action.ADMIN)
)
"""Actions that change more than records and places in them."""
COMMANDED: Final = frozenset(
    operation.name
    for operation in vars(security_operations).values()
    if isinstance(operation, Operation) and operation.method != "GET"
)
"""Changes that the catalog's commands tell of."""


def is_change(operation: Operation) -> bool:
    """Whether it changes topics, groups, members, the agent, or who may what."""
    needs = operation.needs
    return operation.method != "GET" and isinstance(needs, tuple) and needs[0].action in CHANGING


class Witness:
    """One per server."""

    def __init__(self, doorkeeper: Doorkeeper, trail: AuditTrail) -> None:
        self._doorkeeper = doorkeeper
        self._trail = trail

    async def watch(
        self,
        request: web.BaseRequest,
        operation: Operation,
        arguments: tuple[str, ...],
        certificate: PeerCertificate | None,
        answer: Awaitable[web.StreamResponse],
    ) -> web.StreamResponse:
        """The answer, told where it belongs into the audit. Raises as it does."""
        if certificate is not None and certificate.is_agent and FORWARDED_BY in request.headers:
            return await answer
        logs_in = operation is MAKE_SESSION
        if not logs_in:
            self._note_login(request, operation, arguments, certificate)
        outcome = UNKNOWN
        try:
            response = await answer
            outcome = DONE if response.status < 400 else str(response.status)
            if CUT_OFF in request:
                outcome = request[CUT_OFF]
            return response
        except ShoalError as error:
            outcome = error.code
            raise
        finally:
            if logs_in and outcome == DONE:
                self._note_login(request, operation, arguments, certificate)
            is_told = is_change(operation) and not (outcome == DONE and operation.name in COMMANDED)
            if is_told or outcome in REFUSALS:
                self._note(request, operation, arguments, certificate, outcome)

    def note_foreign(self, request: web.BaseRequest, outcome: str) -> None:
        """One that no operation was looked up for: of another page, or under a name that is none of ours."""
        event = happening(
            Identity(ANONYMOUS, Proof.NONE), request.remote or "", NO_OPERATION, "cluster", outcome
        )
        self._trail.refused(event, int(wall_ms()))

    def _note(
        self,
        request: web.BaseRequest,
        operation: Operation,
        arguments: tuple[str, ...],
        certificate: PeerCertificate | None,
        outcome: str,
    ) -> None:
        identity = request.get(ADMITTED) or self._identity(request, certificate, operation)
        thing = request.get(THING) or thing_of(operation, arguments)
        event = happening(identity, request.remote or "", operation.name, thing, outcome)
        now_ms = int(wall_ms())
        if outcome in REFUSALS:
            self._trail.refused(event, now_ms)
        else:
            self._trail.changed(event, now_ms)

    def _note_login(
        self,
        request: web.BaseRequest,
        operation: Operation,
        arguments: tuple[str, ...],
        certificate: PeerCertificate | None,
    ) -> None:
        now_ms = int(wall_ms())
        name = None if certificate is None or certificate.is_agent else certificate.name
        logs_in = operation is MAKE_SESSION  # which is told each time, and has no session yet
        shown = request.headers.get(AUTHORIZATION) if logs_in else self._doorkeeper.presented(request.headers)
        login = login_of(shown, name, request.remote or "")
        if login is None or (self._trail.login_known_until_ms(login, now_ms) and not logs_in):
            return
        identity = self._identity(request, certificate, operation)
        if identity.proof in LOGIN_PROOFS:
            thing = thing_of(operation, arguments)
            event = happening(identity, request.remote or "", operation.name, thing, DONE)
            self._trail.logged_in(login, event, now_ms)

    def _identity(
        self, request: web.BaseRequest, certificate: PeerCertificate | None, operation: Operation
    ) -> Identity:
        """The sender as far as it has proven itself."""
        try:
            return self._doorkeeper.identity(
                request.headers, certificate, ignores_session=operation is MAKE_SESSION
            )
        except ShoalError:
            return Identity(ANONYMOUS, Proof.NONE)


def thing_of(operation: Operation, arguments: tuple[str, ...]) -> str:
    """The thing that a request acts on, such as `topic:orders` or `cluster`."""
    named = zip(operation.variables, arguments, strict=True)
    return " ".join(f"{name}:{value}" for name, value in named if name != ROW_KEY) or "cluster"
