"""A server that asks for credentials and tells an audit, for tests of both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from fake_broker import FakeCluster
from http_access import MemoryAccess
from http_fixtures import Agent, running

from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

SECRET = make_token(b"\3" * TOKEN_ID_BYTES, b"\4" * SECRET_BYTES)
LATER_MS = 10**14
EVERYTHING = ("topic:*=*", "group:*=*", "cluster=admin,operate,describe")
AGENT = PeerCertificate("shoal://fake/agent", is_agent=True)
FORWARDED = ("Shoal-Forwarded-By", "0" * 32)


class World(NamedTuple):
    """A server that asks for credentials, with its audit."""

    agent: Agent
    access: MemoryAccess
    trail: AuditTrail
    admin: tuple[str, str]
    """A header."""

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.trail.take(LATER_MS, 10**6)]


@asynccontextmanager
async def world(certificate: PeerCertificate | None = None) -> AsyncIterator[World]:
    access, trail = MemoryAccess(), AuditTrail("one")
    admin = ("Authorization", access.give(SECRET.reveal(), *EVERYTHING))
    shown = None if certificate is None else (lambda: certificate)
    async with running(FakeCluster().add("one"), access=access, certificate=shown, trail=trail) as agent:
        yield World(agent, access, trail, admin)
