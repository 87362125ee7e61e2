"""An Access in memory, and a client that sends heads as a test wrote them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from shoal.agent.security.access import ANONYMOUS, Identity, PeerCertificate, Proof
from shoal.agent.security.needs import Need
from shoal.agent.security.quota import NO_QUOTAS, Quotas
from shoal.agent.security.rules import allowed, rules_from_texts
from shoal.errors import ShoalError

NEVER_MS = 10**15


class MemoryAccess:
    """Principals by their tokens, with rules as operators write them. Tests change it and raise `version`."""

    is_on = True

    def __init__(self) -> None:
        self.version = 1
        self.rules: dict[str, tuple[str, ...]] = {}
        """By principal."""
        self.tokens: dict[str, tuple[str, int]] = {}
        """By token: whose it is, and when it expires."""
        self.quotas: dict[str, Quotas] = {}
        """By principal."""
        self.asked = 0
        """Questions of any kind."""

    def give(self, token: str, *rules: str, expires_ms: int = NEVER_MS) -> str:
        """A token of a principal of its own; the header's value."""
        self.rules[f"of-{token}"] = rules
        self.tokens[token] = (f"of-{token}", expires_ms)
        return f"Bearer {token}"

    def change(self, token: str, *rules: str) -> None:
        """Other rules, known at once."""
        self.rules[f"of-{token}"] = rules
        self.version += 1

    def revoke(self, token: str) -> None:
        """Known at once."""
        del self.tokens[token]
        self.version += 1

    def identify(
        self, authorization: str | None, certificate: PeerCertificate | None, now_ms: int
    ) -> Identity:
        self.asked += 1
        if authorization is None and certificate is None:
            return Identity(ANONYMOUS, Proof.NONE)
        if authorization is None:
            assert certificate is not None
            return Identity(certificate.name, Proof.AGENT if certificate.is_agent else Proof.CERTIFICATE)
        scheme, _, token = authorization.partition(" ")
        principal, expires_ms = self.tokens.get(token, ("", 0))
        if scheme not in ("Bearer", "Session") or now_ms >= expires_ms:
            raise ShoalError("unauthenticated", "the token is not known, or has expired")
        if scheme == "Session":
            return Identity(principal, Proof.SESSION, expires_ms, (), "s" * 16)
        return Identity(principal, Proof.TOKEN, None if expires_ms == NEVER_MS else expires_ms)

    def begin_session(self, authorization: str, session_id: str, now_ms: int) -> tuple[str, Identity] | None:
        """Sealed by the token itself."""
        identity = self.identify(authorization, None, now_ms)
        sealed = authorization.partition(" ")[2]
        return sealed, Identity(identity.principal, Proof.SESSION, now_ms + 3_600_000, (), session_id)

    def may(self, identity: Identity, wanted: Need, resource: str) -> bool:
        self.asked += 1
        if identity.proof is Proof.AGENT:
            return True
        return allowed(rules_from_texts(self.rules.get(identity.principal, ())), wanted, resource)

    def has_rules(self, identity: Identity) -> bool:
        return identity.proof is Proof.AGENT or bool(self.rules.get(identity.principal, ()))

    def quotas_of(self, identity: Identity) -> Quotas:
        return self.quotas.get(identity.principal, NO_QUOTAS)


class Reply(NamedTuple):
    """The head of an answer, and its body where it has a length."""

    status: int
    head: str
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection; requests are sent byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, source: str = "127.0.0.1") -> Wire:
        """`source`: the address that it comes from, of this host."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))

    async def ask(self, line: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> Reply:
        """The answer to one request; without its body where that has no end."""
        await self.send(line, [*headers, *([("Content-Length", str(len(body)))] if body else [])], body)
        return await self.reply()

    async def send(self, line: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """A request whose headers say how long it is."""
        lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
        self._writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)

    def send_more(self, data: bytes) -> None:
        """Of a body."""
        self._writer.write(data)

    async def reply(self) -> Reply:
        """As ask has it."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        found = [
            row.partition(": ")[2] for row in head.split("\r\n") if row.lower().startswith("content-length")
        ]
        told = await self._reader.readexactly(int(found[0])) if found else b""
        return Reply(int(head.split(" ")[1]), head, told)

    async def read(self) -> bytes:
        """What comes next of a stream."""
        return await self._reader.read(65_536)

    def close(self) -> None:
        self._writer.close()
