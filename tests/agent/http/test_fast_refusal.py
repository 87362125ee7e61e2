"""Refusals on the spot: answer, count and audit as the ordinary way has them, of each fast request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from http_access import Reply, Wire
from http_audit import AGENT, World, world

from shoal.agent.http.fast_refusal import FastRefusals
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

    def noted(self: FastRefusals, *arguments: Any) -> bool:
        found.append(refuse(self, *arguments))
        return found[-1]

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
        assert refused == [False, False]
        assert [record["kind"] for record in told(found)][-3:] == ["login", "login", "refusal"]
        assert (await asked(found, WRITES, (bare,), b"v")).status == 403
        assert refused == [False, False, True]
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
