"""The question of every door of an agent: whose request is it, and may it do this?

Law of this file: shapes only. The answer of an agent stands in judge.py; doors remember it with its version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from shoal.agent.security.needs import Need
from shoal.agent.security.quota import NO_QUOTAS, Quotas
from shoal.errors import ShoalError

ANONYMOUS: Final = "anonymous"
"""The principal of a request without credentials. It has no rules unless somebody grants it some."""


class Proof(StrEnum):
    """How an identity was proven."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 -- the name of a proof
    JWT = "jwt"
    SESSION = "session"
    CERTIFICATE = "certificate"
    AGENT = "agent"
    """Another agent of the cluster, by its certificate: it may say for whom it asks."""
    OPEN = "open"
    """Nobody has to prove anything here: authentication is off."""


class Identity(NamedTuple):
    """The asker. `expires_ms`: of the wall clock; None where the proof has no end. `roles`: beside those of
    the principal, from a JWT. `session`: the id of a browser's session, which is no secret."""

    principal: str
    proof: Proof
    expires_ms: int | None = None
    roles: tuple[str, ...] = ()
    session: str = ""


class PeerCertificate(NamedTuple):
    """The other end, as TLS has proven it. `name`: its principal, from its URI name or its subject.
    `expires_ms`: of the wall clock; None where nobody has said."""

    name: str
    is_agent: bool
    expires_ms: int | None = None


ASKED_CHARACTERS_MAX: Final = 256

Place = tuple[int, int]
"""Epoch and offset of a command of the catalog's log; of no two the same."""


class AskedBy(NamedTuple):
    """The asker of a change, for the audit. `address`: the other end of the connection. `at_ms`: wall clock
    of the agent that was asked. `request`: the id of the request."""

    principal: str
    proof: str
    address: str
    at_ms: int
    request: str


class Access(Protocol):
    """Of one agent."""

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked for credentials; else each identity is OPEN and may do everything."""
        ...

    @property
    def version(self) -> int:
        """Another number once any verdict may have become another one: roles, tokens, principals, settings.
        Verdicts remembered under an older version are void."""
        ...

    def identify(
        self, authorization: str | None, certificate: PeerCertificate | None, now_ms: int
    ) -> Identity:
        """`authorization`: the header's value. `now_ms`: wall clock. Raises ShoalError `unauthenticated` for
        credentials that are wrong, expired or revoked; without any the identity is ANONYMOUS."""
        ...

    def begin_session(self, authorization: str, session_id: str, now_ms: int) -> tuple[str, Identity] | None:
        """A sealed session of these credentials, and who has it: a secret. None where the cluster has no key
        to seal it by yet. Raises ShoalError unauthenticated, bad-request, as identify."""
        ...

    def may(self, identity: Identity, wanted: Need, resource: str) -> bool:
        """Whether its rules allow the action. `resource`: a topic's name, TOPIC/GROUP, or empty for the
        cluster."""
        ...

    def has_rules(self, identity: Identity) -> bool:
        """Whether it may do anything at all. One that may not is told nothing about the cluster."""
        ...

    def quotas_of(self, identity: Identity) -> Quotas:
        """Its limits a second; `version` is another one once they may be others."""
        ...


class OpenAccess:
    """Of an agent that asks nobody: on loopback, or where somebody said --insecure."""

    is_on = False
    version = 0

    def identify(
        self, authorization: str | None, certificate: PeerCertificate | None, now_ms: int
    ) -> Identity:
        return Identity(ANONYMOUS, Proof.OPEN)

    def begin_session(self, authorization: str, session_id: str, now_ms: int) -> tuple[str, Identity] | None:
        raise ShoalError("no-session", "this agent asks nobody for credentials: no session is needed")

    def may(self, identity: Identity, wanted: Need, resource: str) -> bool:
        return True

    def has_rules(self, identity: Identity) -> bool:
        return True

    def quotas_of(self, identity: Identity) -> Quotas:
        return NO_QUOTAS
