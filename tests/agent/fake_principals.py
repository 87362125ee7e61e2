"""Principals of the in-memory brokers: the real service over a catalog that applies each command at once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shoal.agent.interface import Json
from shoal.agent.levels import Level
from shoal.agent.process.clock import SystemClock
from shoal.agent.security.access import AskedBy
from shoal.agent.service.security_admin import SecurityAdmin
from shoal.agent.topics.catalog import Catalog, Command
from shoal.agent.topics.catalog_service import Applied

if TYPE_CHECKING:
    from fake_broker import FakeCluster


class InstantCatalog:
    """A catalog's service, as far as principals need it. `told`: how often peers were told of a change."""

    def __init__(self) -> None:
        self.catalog = Catalog(level=Level(6))
        self.told = 0
        self.proposed: list[Command] = []

    async def propose(self, command: Command, timeout_ms: int) -> Applied:
        self.proposed.append(command)
        return Applied(self.catalog.apply(self.catalog.offset, command), None)

    @property
    def exchange(self) -> InstantCatalog:
        return self

    async def tell_peers(self) -> None:
        self.told += 1

    async def saved_security(self, timeout_ms: int) -> None:
        """At once: there is no file."""


class InstantAdmin(SecurityAdmin):
    """The real service, beside nothing else of an agent."""

    def __init__(self, service: InstantCatalog) -> None:
        self._service: Any = service
        self._clock = SystemClock()

    def _parts(self) -> Any:
        return SimpleNamespace(topics=self._service.catalog)

    async def _current_catalog(self, timeout_ms: int) -> Any:
        return self._service


class FakePrincipalBroker:
    """Part of FakeBroker."""

    cluster: FakeCluster
    _check_catalog_leader: Callable[[], None]

    @property
    def _admin(self) -> InstantAdmin:
        return InstantAdmin(self.cluster.security)

    def principals(self, after: str = "", limit: int = 10_000) -> list[Json]:
        return self._admin.principals(after, limit)

    def principal(self, name: str) -> Json:
        return self._admin.principal(name)

    def roles(self, after: str | None = None, limit: int = 1_000) -> list[Json]:
        return self._admin.roles(after, limit)

    def role(self, name: str) -> Json:
        return self._admin.role(name)

    async def put_principal(
        self, name: str, body: Json | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]:
        self._check_catalog_leader()
        return await self._admin.put_principal(name, body, by, timeout_ms, if_version)

    async def delete_principal(self, name: str, by: AskedBy, timeout_ms: int) -> None:
        self._check_catalog_leader()
        await self._admin.delete_principal(name, by, timeout_ms)

    async def put_role(
        self, name: str, body: Json | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]:
        self._check_catalog_leader()
        return await self._admin.put_role(name, body, by, timeout_ms, if_version)

    async def delete_role(self, name: str, by: AskedBy, timeout_ms: int) -> None:
        self._check_catalog_leader()
        await self._admin.delete_role(name, by, timeout_ms)

    async def make_token(self, principal: str, body: Json | None, by: AskedBy, timeout_ms: int) -> Json:
        self._check_catalog_leader()
        return await self._admin.make_token(principal, body, by, timeout_ms)

    async def make_session_key(self, by: AskedBy, timeout_ms: int) -> None:
        self._check_catalog_leader()
        await self._admin.make_session_key(by, timeout_ms)

    async def end_session(
        self, session_id: str, principal: str, expires_ms: int, by: AskedBy, timeout_ms: int
    ) -> None:
        self._check_catalog_leader()
        await self._admin.end_session(session_id, principal, expires_ms, by, timeout_ms)

    async def revoke_token(self, token_id: str, by: AskedBy, timeout_ms: int) -> None:
        self._check_catalog_leader()
        await self._admin.revoke_token(token_id, by, timeout_ms)
