"""Refusals on the spot: answer, count and audit as the ordinary way has them, of each fast request."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from http_access import Reply, Wire
from http_audit import AGENT, World, world

from shoal.agent.http.core import doorkeeper
from shoal.agent.http.core.doorkeeper import Doorkeeper
from shoal.agent.http.fast_refusal import FastRefusals
from shoal.agent.http.front import REFUSED_AT_ONCE_MAX, Connection
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.failed_logins import FailedLogins

ORDINARY = ("X-Ordinary", "1")
"""No fast way knows this header."""
JSON = ("Content-Type", "application/json")
WRITES = "POST /v1/topics/orders/records"
RECEIVES = "POST /v1/topics/orders/partitions/0/groups/billing/receive"
FAST = {
    "append": (WRITES, (("Content-Type", "text/plain"),), b"v"),
    "append to a partition": (
        "POST /v1/topics/orders/partitions/0/records?timeout=5s",
        (JSON,),
        b'{"records":[]}',
    ),
    "receive": (RECEIVES, (JSON,), b'{"max":1}'),
    "row": ("GET /v1/tables/users/k", (), b""),
    "row that is put": ("PUT /v1/tables/users/k", (), b"v"),
}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that came to be refused: whether it was."""
    found: list[bool] = []
    refuse = FastRefusals.refuse

    def noted(self: FastRefusals, *arguments: Any) -> bytes | None:
        answer = refuse(self, *arguments)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(FastRefusals, "refuse", noted)
    return found


async def asked(found: World, line: str, headers: tuple[tuple[str, str], ...], body: bytes) -> Reply:
    wire = await Wire.open(found.agent.port)
    try:
        return await wire.ask(line, headers, body)
    finally:
        wire.close()


def told(found: World) -> list[dict[str, Any]]:
    records = found.told()
    for record in records:
        del record["time"]
    return records


def lines(reply: Reply) -> list[str]:
    return sorted(re.sub(r"^(Date: ).*", r"\1", line) for line in reply.head.split("\r\n"))


@pytest.mark.parametrize("shows", ["nothing", "a wrong one", "no credential", "one without rules"])
@pytest.mark.parametrize("kind", FAST)
async def test_both_ways_refuse_alike(kind: str, shows: str, refused: list[bool]) -> None:
    """Status, headers, document, audit and metrics."""
    line, headers, body = FAST[kind]
    async with world() as found:
        measures = found.agent.runner.context.measures
        credentials: dict[str, tuple[tuple[str, str], ...]] = {
            "nothing": (),
            "a wrong one": (("Authorization", "Bearer stolen-text"),),
            "no credential": (("Authorization", "Bearer a\tb"),),
            "one without rules": (("Authorization", found.access.give("bare")),),
        }
        shown = (*headers, *credentials[shows])
        first = await asked(found, line, (*shown, ORDINARY), body)  # whose login the audit knows from now on
        told(found)
        ordinary = await asked(found, line, (*shown, ORDINARY), body)
        by_ordinary = told(found)
        counted = {key: tally.count for key, tally in measures.requests.items()}
        assert refused == []
        fast = await asked(found, line, shown, body)
        assert refused == [True]
        assert (fast.status, lines(fast), fast.body) == (ordinary.status, lines(ordinary), ordinary.body)
        assert first.status == fast.status in (401, 403)
        assert told(found) == by_ordinary
        assert len(by_ordinary) == 1
        again = {key: tally.count - counted.get(key, 0) for key, tally in measures.requests.items()}
        (key,) = [key for key, count in again.items() if count]
        assert again[key] == 1
        assert counted[key] == 2


async def test_what_is_not_plainly_refused_goes_the_ordinary_way(refused: list[bool]) -> None:
    """A login that the audit does not know yet, allowed or not; a body that has not come whole."""
    async with world() as found:
        assert (await asked(found, "PUT /v1/topics/orders", (found.admin,), b"")).status == 201
        writer = ("Authorization", found.access.give("writer", "topic:orders=write"))
        bare = ("Authorization", found.access.give("bare"))
        assert (await asked(found, WRITES, (writer,), b"v")).status == 200
        assert (await asked(found, WRITES, (bare,), b"v")).status == 403
        assert refused == [False]  # the other may: the front asks the audit
        assert [record["kind"] for record in told(found)][-3:] == ["login", "login", "refusal"]
        assert (await asked(found, WRITES, (bare,), b"v")).status == 403
        assert refused == [False, True]
        wire = await Wire.open(found.agent.port)
        await wire.send(WRITES, (bare, ("Content-Length", "2")), b"v")
        wire.send_more(b"w")
        assert (await wire.reply()).status == 403
        wire.close()


@pytest.mark.parametrize("certificate", [AGENT, PeerCertificate("shoal://fake/client/bob", is_agent=False)])
async def test_an_agents_certificate_is_judged_the_ordinary_way(
    certificate: PeerCertificate, refused: list[bool]
) -> None:
    """A client's is not, once it is known."""
    async with world(certificate) as found:
        statuses = [(await asked(found, WRITES, (), b"v")).status for _ in range(2)]
        assert statuses == ([200, 200] if certificate.is_agent else [403, 403])
        assert refused == ([False, False] if certificate.is_agent else [False, True])


async def test_failed_logins_are_counted(monkeypatch: pytest.MonkeyPatch, refused: list[bool]) -> None:
    """As everywhere, those of the fast ways among them."""
    seen: list[str] = []

    def failed(self: FailedLogins, address: str, now_ns: int) -> int:
        seen.append(address)
        return 1_500_000_000

    monkeypatch.setattr(FailedLogins, "failed", failed)
    async with world() as found:
        wrong = ("Authorization", "Bearer stolen-text")
        reply = await asked(found, WRITES, (wrong,), b"v")
        assert (await asked(found, WRITES, (), b"v")).status == 401  # nothing was tried
        assert refused == [True, True]
        assert reply.status == 429
        assert reply.document["code"] == "too-many-failed-logins"
        assert "Retry-After: 2" in reply.head.split("\r\n")
        assert seen == ["127.0.0.1"]
        assert [record["outcome"] for record in told(found)] == ["too-many-failed-logins", "unauthenticated"]


async def test_refusals_on_one_connection_keep_their_order(refused: list[bool]) -> None:
    """Pipelined, among requests that are allowed."""
    async with world() as found:
        assert (await asked(found, "PUT /v1/topics/orders", (found.admin,), b"")).status == 201
        wire = await Wire.open(found.agent.port)
        for headers in ((), (found.admin,), (), (found.admin, ORDINARY), ()):
            await wire.send(WRITES, (*headers, ("Content-Length", "1")), b"v")
        assert [(await wire.reply()).status for _ in range(5)] == [401, 200, 401, 200, 401]
        wire.close()
        assert refused.count(True) == 3


# ---- remembered


async def test_a_refusal_is_remembered_until_something_changes() -> None:
    """The same head is not asked about again, and its answer is the same; each is told to the audit and the
    metrics. Another rule or a revocation counts at once."""
    async with world() as found:
        assert (await asked(found, "PUT /v1/topics/orders", (found.admin,), b"")).status == 201
        await check_remembered(found)


async def check_remembered(found: World) -> None:
    header = ("Authorization", found.access.give("mine"))
    assert (await asked(found, WRITES, (header, ORDINARY), b"v")).status == 403  # the audit knows its login
    told(found)
    wire = await Wire.open(found.agent.port)
    try:
        await check_many(found, wire, header)
        for rule, status in (("topic:orders=write", 200), ("topic:others=write", 403)):
            found.access.change("mine", rule)
            assert (await wire.ask(WRITES, (header,), b"v")).status == status, "judged as before"
        found.access.revoke("mine")
        assert (await wire.ask(WRITES, (header,), b"v")).status == 401, "judged as before"
    finally:
        wire.close()


async def check_many(found: World, wire: Wire, header: tuple[str, str]) -> None:
    found.access.asked = 0
    for _ in range(50):
        await wire.send(WRITES, (header, ("Content-Length", "1")), b"v")
    replies = [await wire.reply() for _ in range(50)]
    assert {reply.status for reply in replies} == {403}
    assert len({reply.body for reply in replies}) == 1
    assert found.access.asked <= 4, "identity and rules, once in each of two seconds at most"
    assert found.agent.runner.context.measures.requests["produce", 403].count == 51
    assert [record["outcome"] for record in told(found)] == ["forbidden"] * 50


async def test_a_refusal_remembered_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails for a doorkeeper that forgets with another version only whom it has let in."""
    monkeypatch.setattr(Doorkeeper, "_forget", lambda self: self._allowed.clear())
    async with world() as found:
        assert (await asked(found, "PUT /v1/topics/orders", (found.admin,), b"")).status == 201
        at_ms = doorkeeper.wall_ms() + 60_000  # no second ends it either
        monkeypatch.setattr(doorkeeper, "wall_ms", lambda: at_ms)
        with pytest.raises(AssertionError, match="judged as before"):
            await check_remembered(found)


async def test_the_reason_changes_when_the_credential_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a second later."""
    now_ms = [1_060_000.0]
    monkeypatch.setattr(doorkeeper, "wall_ms", lambda: now_ms[0])
    async with world() as found:
        header = ("Authorization", found.access.give("short", expires_ms=1_060_500))
        statuses = []
        for now_ms[0] in (1_060_000, 1_060_000, 1_060_499, 1_060_500, 1_060_500):
            statuses.append((await asked(found, WRITES, (header,), b"v")).status)
        assert statuses == [403, 403, 403, 401, 401]


async def test_a_clock_that_goes_back_keeps_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are judged by the latest time seen, which stands still then. The second of a refusal is the
    wall clock's, which goes on."""
    now_ms = [1_060_000.0]
    monkeypatch.setattr(doorkeeper, "wall_ms", lambda: now_ms[0])
    async with world() as found:
        wrong = ("Authorization", "Bearer stolen-text")
        asked_about = []
        for now_ms[0] in (1_060_000, 1_060_999, 460_000, 460_999, 461_000):
            found.access.asked = 0
            assert (await asked(found, WRITES, (wrong,), b"v")).status == 401
            asked_about.append(found.access.asked > 0)
        assert asked_about == [True, False, True, False, True]


# ---- many at once


class Recorder(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000)})
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        """Nobody is there."""


def came(front: Connection, data: bytes) -> None:
    front.get_buffer(-1)[: len(data)] = data
    front.buffer_updated(len(data))


def request(line: str, body: bytes, *headers: tuple[str, str]) -> bytes:
    shown = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_those_that_come_together_are_answered_together() -> None:
    """In one write, but not more than a bound in one turn. The head behind them waits for its rest."""
    async with world() as found:
        front, transport = found.agent.runner.admit(None), Recorder()
        front.connection_made(transport)
        last = request(WRITES, b"v")
        came(front, request(WRITES, b"v") * (2 * REFUSED_AT_ONCE_MAX + 5) + last[:30])
        assert [data.count(b"HTTP/1.1 401 ") for data in transport.written] == [REFUSED_AT_ONCE_MAX]
        for _ in range(2):
            await asyncio.sleep(0)
        counts = [REFUSED_AT_ONCE_MAX, REFUSED_AT_ONCE_MAX, 5]
        assert [data.count(b"HTTP/1.1 401 ") for data in transport.written] == counts
        came(front, last[30:])
        assert [data.count(b"HTTP/1.1 401 ") for data in transport.written] == [*counts, 1]
        front.connection_lost(None)


async def test_one_verdict_has_the_answer_of_each_door() -> None:
    """Over TLS browsers are told more (RFC 6797); in the open they must not be."""
    async with world() as found:
        front, transport = found.agent.runner.admit(None), Recorder()
        front.connection_made(transport)
        for _ in range(2):
            came(front, request(WRITES, b"v"))
            reply = await asked(found, WRITES, (), b"v")
            assert "Strict-Transport-Security" not in reply.head
        assert len(transport.written) == 2
        assert all(b"\r\nStrict-Transport-Security: " in data for data in transport.written)
        front.connection_lost(None)
