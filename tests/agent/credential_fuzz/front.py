"""The HTTP front of an agent in this process, asked with hostile heads; each answer is judged by heads.py."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from unittest.mock import patch

from fake_broker import FakeCluster
from http_fixtures import running
from jwt_issuer import CONFIGURED, NOW_MS, key_set

from shoal.agent.http import witness
from shoal.agent.http.core import doorkeeper
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.judge import Judge
from shoal.agent.security.jwt import Verifier
from shoal.agent.security.jwt_keys import keys_from
from shoal.agent.security.principals import AskedBy, MakeToken, PutPrincipal, RevokeToken, Security
from shoal.agent.security.rules import rules_from_texts
from tests.agent.credential_fuzz import jwts, sessions
from tests.agent.credential_fuzz.cookies import may_be_let_in_with_cookies, with_cookie
from tests.agent.credential_fuzz.heads import (
    ANNS,
    BARE,
    BOBS,
    EXPIRED,
    FIRST,
    REVOKED,
    Case,
    fault_of_refusal,
    hostile,
    is_strict,
)
from tests.agent.credential_fuzz.texts import repeats

PATIENCE_S = 20.0
REQUESTS_PER_ADDRESS = 8
"""Then another one of 127.0.0.0/8: limits by address, such as that of failed logins, are another matter."""
RECORDS_MAX = 10**6


def principals() -> Security:
    """The state that heads.py describes."""
    state, by = Security(), AskedBy("bootstrap", "token", "127.0.0.1", NOW_MS, "r")
    rules = rules_from_texts(("topic:orders*=read,write,describe",))
    commands = [
        PutPrincipal("ann", None, ("admin",), (), by),
        PutPrincipal("bob", None, (), rules, by),
        PutPrincipal("bare", None, (), (), by),
        *(
            MakeToken(name, token.id, token.hash(), NOW_MS + change_ms, by)
            for name, token, change_ms in (
                ("ann", ANNS, 1), ("bob", BOBS, 1), ("bare", BARE, 1), ("bob", EXPIRED, 0), ("bare",
                REVOKED, 1),
            )
        ),
        RevokeToken(REVOKED.id, by),
    ]  # fmt: skip
    for place, command in enumerate(commands, 1):
        assert state.apply(command, (1, place)) == "done", command
    return state


def judge_of(state: Security) -> Judge:
    verifier = Verifier(CONFIGURED)
    verifier.use(keys_from(key_set(*jwts.PUBLISHED)))
    return Judge(lambda: state, FIRST.hash(), jwts=verifier)


class Lines(logging.Handler):
    """Whatever anybody logs, in full."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class Front:
    """A running one. `lines` and `trail` tell what it has said beside its answers."""

    def __init__(self, port: int, trail: AuditTrail, lines: Lines) -> None:
        self.certificate: PeerCertificate | None = None
        """Of the connection that is made next."""
        self._port = port
        self._trail = trail
        self._lines = lines
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._addresses = 0
        self._asked = 0
        self._before = ""
        self.served = 0
        self.refused = 0

    async def ask(self, case: Case) -> None:
        """AssertionError tells what is wrong, and shows the head."""
        may_go_on = is_strict(case)
        if (
            self._streams is None
            or case.certificate != self.certificate
            or self._asked >= REQUESTS_PER_ADDRESS
        ):
            await self._connect(case.certificate)
        assert self._streams is not None
        reader, writer = self._streams
        self._asked += 1
        # What has lost its end gets another one.
        writer.write(case.head + case.target.body + (b"" if may_go_on else b"\r\n\r\n"))
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, head, body = await _answer(reader)
                if not may_go_on or head.startswith("HTTP/1.0") or "\r\nConnection: close" in head:
                    self._close()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            raise AssertionError(
                f"{error!r} instead of an answer: {case.head!r}; before it {self._before}"
            ) from error
        self._before = f"{case.head[:300]!r}: {head!r}"
        self._judge(case, status, head, body, is_strict_head=may_go_on)

    def _judge(self, case: Case, status: int, head: str, body: bytes, *, is_strict_head: bool) -> None:
        where = f"{status} {body[:300]!r} for {case.certificate} {case.head[:1_200]!r}"
        is_allowed = may_be_let_in_with_cookies(case)
        is_served = status < 300 or (status == 404 and b'"unknown-route"' not in body)
        assert is_allowed or not is_served, f"let in: {where}"
        if is_served:
            self.served += 1
        else:
            self.refused += 1
            fault = fault_of_refusal(case, status, head, body)
            assert fault is None, f"{fault}: {where}"
            assert not (is_allowed and is_strict_head) or _is_refused_for_more(case), f"not let in: {where}"
        said = [head, body.decode("utf-8", "replace"), *self._lines.texts]
        said += [text.decode() for text in self._trail.take(NOW_MS + 2_000, RECORDS_MAX)]
        self._lines.texts.clear()
        for text in said:
            assert "this is a bug" not in text, f"{text} {where}"
            for secret in case.secrets:
                assert not repeats(text, secret), f"{text!r} repeats a secret: {where}"

    async def _connect(self, certificate: PeerCertificate | None) -> None:
        self._close()
        self._addresses += 1
        self._asked = 0
        self.certificate = certificate
        number = self._addresses
        address = f"127.{number >> 16 & 0x7F | 0x40}.{number >> 8 & 0xFF}.{number & 0xFF}"
        self._streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def close(self) -> None:
        self._close()


def _is_refused_for_more(case: Case) -> bool:
    """What a good credential does not help: a foreign page, an upgrade that nobody knows, a head that is too
    large, a query that is not there."""
    lower = case.head.lower()
    words = (b"\norigin:", b"expect:", b"access_token", b"x-original", b"upgrade", b"shoal-principal:")
    return any(word in lower for word in words) or len(case.head) > 4_096


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
    """Status, head and body of the next answer."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status = int(head.split(" ")[1])
        if status >= 200:
            break
    found = {row.partition(": ")[0].lower(): row.partition(": ")[2] for row in head.split("\r\n")}
    if "content-length" in found:
        return status, head, await reader.readexactly(int(found["content-length"]))
    if found.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return status, head, body
    return status, head, b""


@asynccontextmanager
async def standing() -> AsyncIterator[Front]:
    """On 127.0.0.1, with the real judge and the time of the tests' issuer."""
    cluster, state, trail, lines = (
        FakeCluster(),
        sessions.with_sessions(principals()),
        AuditTrail("one"),
        Lines(),
    )
    front: Front | None = None
    broker = cluster.add("one")
    for topic in ("orders", "hidden"):
        cluster.create(topic)
    root = logging.getLogger()
    with ExitStack() as changes:
        for module in (doorkeeper, witness):
            changes.enter_context(patch.object(module, "wall_ms", lambda: float(NOW_MS)))
        changes.callback(root.removeHandler, lines)
        changes.callback(root.setLevel, root.level)
        changes.callback(logging.disable, root.manager.disable)
        logging.disable(logging.NOTSET)  # a campaign wants no lines on its terminal
        root.addHandler(lines)
        root.setLevel(logging.DEBUG)
        async with running(
            broker,
            access=judge_of(state),
            certificate=lambda: None if front is None else front.certificate,
            trail=trail,
        ) as agent:
            front = Front(agent.port, trail, lines)
            try:
                yield front
            finally:
                await front.close()


async def ask(seed: int, count: int) -> tuple[int, int]:
    """So many heads; how many were served and refused."""
    rng = random.Random(seed)
    async with standing() as front:
        for number in range(count):
            try:
                await front.ask(with_cookie(rng, hostile(rng)))
            except AssertionError as error:
                error.add_note(f"head {number} of seed {seed}")
                raise
        return front.served, front.refused
