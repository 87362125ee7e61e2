"""The doors tell the audit of refusals, logins and changes, over the real server; nothing secret is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_gossip_keys import KEY
from http_access import Wire
from http_audit import AGENT, FORWARDED, SECRET, World, world

from shoal.agent.http import witness
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.app import PARTS
from shoal.agent.http.core import doorkeeper, waits
from shoal.agent.http.docs.openapi import Description
from shoal.agent.http.witness import COMMANDED, is_change
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.audit import LOGIN_AGAIN_MS, REFUSALS_PER_SECOND_MAX
from shoal.errors import ShoalError
from shoal.membership.wire.keyring import fingerprint, key_text


async def ask(found: World, line: str, *headers: tuple[str, str], body: bytes = b"") -> int:
    wire = await Wire.open(found.agent.port)
    try:
        return (await wire.ask(line, headers, body)).status
    finally:
        wire.close()


def kinds(records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    told = [record for record in records if record["kind"] != "left-out"]
    return [(record["kind"], record["operation"], record["outcome"]) for record in told]


async def test_refusals_are_told_with_sender_address_thing_and_code() -> None:
    """One without credentials, one with a wrong token, and one whose token does not suffice."""
    async with world() as found:
        assert await ask(found, "GET /v1/topics/orders?x=1") == 401
        assert await ask(found, "GET /v1/topics/orders", ("Authorization", "Bearer stolen-text")) == 401
        bare = ("Authorization", found.access.give("bare"))
        assert await ask(found, "DELETE /v1/topics/orders/groups/billing", bare) == 403
        records = found.told()
    assert kinds(records) == [
        ("refusal", "describeTopic", "unauthenticated"),
        ("refusal", "describeTopic", "unauthenticated"),
        ("login", "deleteGroup", "done"),
        ("refusal", "deleteGroup", "forbidden"),
    ]
    assert {record["address"] for record in records} == {"127.0.0.1"}
    assert [record["principal"] for record in records] == ["anonymous", "anonymous", "of-bare", "of-bare"]
    assert records[3]["resource"] == "topic:orders group:billing"
    assert records[3]["proof"] == "token"


async def test_a_login_is_told_once_and_its_requests_are_not() -> None:
    """The first request of a fast way goes the ordinary way, which knows the address; then it is fast."""
    async with world() as found:
        assert await ask(found, "PUT /v1/topics/orders", found.admin) == 201
        for _ in range(3):
            assert await ask(found, "POST /v1/topics/orders/records", found.admin, body=b"v") == 200
        found.access.give("other", "topic:orders=write")
        other = ("Authorization", "Bearer other")
        for _ in range(3):
            assert await ask(found, "POST /v1/topics/orders/records", other, body=b"v") == 200
        records = found.told()
    assert kinds(records) == [
        ("login", "createTopic", "done"),
        ("change", "createTopic", "done"),
        ("login", "produce", "done"),
    ]
    assert records[2]["address"] == "127.0.0.1"
    assert records[2]["principal"] == "of-other"


@pytest.mark.parametrize("body", [b"v", b"{}"], ids=["append", "receive"])
async def test_a_login_from_another_address_is_another_one(body: bytes) -> None:
    """A stolen token shows itself by where it is used from, though its owner uses it all the time. So it does
    a quarter of an hour later, on a connection that is still open."""
    async with world() as found:
        found.agent.broker.cluster.create("orders")
        rules = ("topic:orders=write", "group:orders/billing=consume,manage")
        some = ("Authorization", found.access.give("some", *rules))
        line = "POST /v1/topics/orders/" + ("records" if body == b"v" else "groups/billing/receive")
        headers = [some, *([("Content-Type", "application/json")] if body == b"{}" else [])]
        wires = [await Wire.open(found.agent.port, source) for source in ("127.0.0.1", "127.0.0.2")]
        for wire in (*wires, *wires, *wires):
            assert (await wire.ask(line, headers, body)).status == 200
        logins = [record for record in found.told() if record["kind"] == "login"]
        assert [record["address"] for record in logins] == ["127.0.0.1", "127.0.0.2"]
        keeper = found.agent.runner.context.doorkeeper
        now_ms = keeper._now_ms + LOGIN_AGAIN_MS
        with pytest.MonkeyPatch.context() as patch:
            for place in (doorkeeper, witness):
                patch.setattr(place, "wall_ms", lambda: now_ms)
            for _ in range(3):
                assert (await wires[1].ask(line, headers, body)).status == 200
        assert [record["address"] for record in found.told()] == ["127.0.0.2"]
        for wire in wires:
            wire.close()


async def test_logins_of_browsers_are_told_each_time() -> None:
    """Without TLS the cookie has another name, and a proxy that speaks TLS makes it secure. No record has
    it."""
    async with world() as found:
        wire = await Wire.open(found.agent.port)
        for origin in ((), (("Origin", "https://127.0.0.1"),)):
            reply = await wire.ask("POST /v1/session", (found.admin, *origin))
            assert reply.status == 201
            assert f"Set-Cookie: shoal-session={SECRET.reveal()}; Path=/; Max-Age=" in reply.head
            assert ("SameSite=Strict; Secure" in reply.head) == bool(origin)
        cookie = ("Cookie", f"shoal-session={SECRET.reveal()}")
        for _ in range(2):
            assert (await wire.ask("GET /v1/session", [cookie])).status == 200
        assert (await wire.ask("POST /v1/session", [cookie])).status == 401
        assert (await wire.ask("DELETE /v1/session", [cookie])).status == 204
        assert (await wire.ask("GET /v1/session", [("Cookie", "shoal-session=planted")])).status == 401
        wire.close()
        records = found.told()
    assert kinds(records) == [
        ("login", "makeSession", "done"),
        ("login", "makeSession", "done"),
        ("login", "readSession", "done"),
        ("refusal", "makeSession", "unauthenticated"),
        ("refusal", "readSession", "unauthenticated"),
    ]
    assert [record["proof"] for record in records] == ["token", "token", "session", "none", "none"]
    assert SECRET.reveal() not in json.dumps(records)
    assert "planted" not in json.dumps(records)


async def test_changes_are_told_with_their_outcome_and_reads_are_not() -> None:
    """Also one that fails, and a topic that an append makes."""
    async with world() as found:
        assert await ask(found, "GET /v1/topics", found.admin) == 200
        assert await ask(found, "DELETE /v1/topics/nothing", found.admin) == 404
        assert await ask(found, "POST /v1/topics/fresh/records", found.admin, body=b"v") == 200
        assert await ask(found, "PUT /v1/topics/fresh/groups/billing", found.admin) == 201
        assert await ask(found, "DELETE /v1/topics/fresh", found.admin) == 204
        records = found.told()
    assert kinds(records)[1:] == [
        ("change", "deleteTopic", "unknown-topic"),
        ("change", "createTopic", "done"),
        ("change", "createGroup", "done"),
        ("change", "deleteTopic", "done"),
    ]
    assert records[2]["resource"] == "topic:fresh"


async def test_changes_of_principals_are_told_by_their_commands_alone() -> None:
    """The door tells of those that were not carried out."""
    async with world() as found:
        assert await ask(found, "PUT /v1/principals/bob", found.admin) == 201
        assert await ask(found, "DELETE /v1/principals/nobody", found.admin) == 404
        records = found.told()
    assert kinds(records)[1:] == [("change", "deletePrincipal", "unknown-principal")]


async def test_requests_of_other_pages_are_refusals() -> None:
    """By whatever credential. No operation is looked up for an Origin; for a session one is."""
    async with world() as found:
        page = ("Origin", "https://evil.example")
        assert await ask(found, "DELETE /v1/topics/orders", found.admin, page) == 403
        cookie = ("Cookie", f"shoal-session={SECRET.reveal()}")
        assert await ask(found, "GET /v1/topics", cookie, ("Sec-Fetch-Site", "cross-site")) == 403
        records = found.told()
    assert kinds(records) == [
        ("refusal", "none", "foreign-origin"),
        ("refusal", "listTopics", "foreign-origin"),
    ]
    assert {record["principal"] for record in records} == {"anonymous"}
    assert "evil" not in json.dumps(records)


@pytest.mark.parametrize(
    ("line", "body", "resource"),
    [
        ("POST /v1/agent/join", {"addresses": ["10.0.0.5:7946", "b:1"]}, "addresses:10.0.0.5:7946,b:1"),
        (
            "POST /v1/agent/recover",
            {"topic": "orders", "partition": 0, "accept_data_loss": True},
            "topic:orders partition:0",
        ),
        ("POST /v1/keys/install", {"key": key_text(KEY)}, f"key:{fingerprint(KEY)}"),
        ("POST /v1/keys/use", {"key": fingerprint(KEY).upper(), "force": True}, f"key:{fingerprint(KEY)}"),
    ],
)
async def test_a_change_says_what_it_is_of_where_its_body_names_that(
    line: str, body: dict[str, Any], resource: str
) -> None:
    """And no key."""
    async with world() as found:
        await ask(
            found, line, found.admin, ("Content-Type", "application/json"), body=json.dumps(body).encode()
        )
        (record,) = [record for record in found.told() if record["kind"] == "change"]
    assert record["resource"] == resource
    assert key_text(KEY) not in json.dumps(record)


async def test_the_agent_that_was_asked_tells_and_not_the_one_that_it_asks() -> None:
    """By its certificate. A client cannot hide by the header: it is refused, which is told."""
    async with world(AGENT) as found:
        assert await ask(found, "PUT /v1/topics/orders", FORWARDED, found.admin) == 201
        assert await ask(found, "PUT /v1/topics/other", FORWARDED) == 401
        assert found.told() == []
    client = PeerCertificate("of-nobody", is_agent=False)
    async with world(client) as found:
        assert await ask(found, "PUT /v1/topics/orders", FORWARDED, found.admin) == 403
        assert kinds(found.told())[-1] == ("refusal", "createTopic", "forbidden")


async def test_a_flood_of_refusals_is_counted_and_others_are_answered() -> None:
    """On one connection, faster than is written. Somebody else of the same address is let in meanwhile, and
    told."""
    async with world() as found:
        wire = await Wire.open(found.agent.port)
        for number in range(3 * REFUSALS_PER_SECOND_MAX):
            assert (await wire.ask("GET /v1/topics/orders")).status == 401
            if number == 2 * REFUSALS_PER_SECOND_MAX:
                assert await ask(found, "PUT /v1/topics/orders", found.admin) == 201
        wire.close()
        records = found.told()
    assert ("change", "createTopic", "done") in kinds(records)
    written = sum(record["kind"] == "refusal" for record in records)
    left_out = sum(record["count"] for record in records if record["kind"] == "left-out")
    assert written + left_out == 3 * REFUSALS_PER_SECOND_MAX


async def test_nobody_writes_into_the_audit() -> None:
    """Administrators neither; to read it they are let in."""
    async with world() as found:
        for line in ("POST /v1/topics/_audit/records", "POST /v1/topics/_audit/partitions/0/records"):
            assert await ask(found, line, found.admin, body=b"v") == 403
        for line in ("DELETE /v1/topics/_audit", "PATCH /v1/topics/_audit", "PUT /v1/topics/_audit"):
            assert await ask(found, line, found.admin, body=b"{}") == 403
        trim = "POST /v1/topics/_audit/partitions/0/trim"
        assert await ask(found, trim, found.admin, body=b'{"before": 1}') == 403
        assert await ask(found, "GET /v1/topics/_audit/offsets", found.admin) in (200, 404)
        some = ("Authorization", found.access.give("some", "topic:*=*", "group:*=*"))
        assert await ask(found, "GET /v1/topics/_audit/offsets", some) == 403


async def test_planted_secrets_are_in_no_record() -> None:
    """A token in the header, in the path and in the query; a record's value and key; a header's value."""
    planted = ("planted-key", "planted-value", "planted-query", "planted-header", SECRET.reveal())
    async with world() as found:
        header = ("X-Planted", "planted-header")
        await ask(found, "PUT /v1/topics/orders", found.admin, header)
        await ask(found, "POST /v1/topics/orders/records?key=planted-key", body=b"planted-value")
        await ask(found, f"DELETE /v1/tokens/{SECRET.reveal()}", found.admin)
        await ask(found, f"GET /v1/topics/orders/rows/{SECRET.reveal()}/planted-key", header)
        await ask(
            found, "GET /v1/topics/orders?key=planted-query", ("Authorization", "Bearer planted-header")
        )
        records = found.told()
        text = json.dumps(records) + repr(vars(found.trail))
    assert len(records) >= 5
    for secret in planted:
        assert secret not in text
    assert SECRET.reveal().split("_")[2] not in text
    assert f"shoal_{SECRET.id}" in text


def test_changes_are_those_operations_that_alter_more_than_records() -> None:
    """By hand, once more: a new one of another kind fails here."""
    routes = Description(route for part in PARTS for route in part.ROUTES).routes
    operations: list[Operation] = [route.operation for route in routes]
    assert {operation.name for operation in operations if is_change(operation)} == {
        "createGroup", "changeGroup", "deleteGroup", "beginGroup", "seekGroup", "seekGroupInPartition",
        "decideStopped", "redriveGroup", "redriveGroupInPartition", "createTopic", "changeTopic",
        "deleteTopic", "adoptTopic", "trimPartition", "forceLeave", "join", "leave", "drain", "undoDrain",
        "recover", "raiseLevel", "installKey", "useKey", "removeKey", *COMMANDED,
    }  # fmt: skip
    assert {
        "putPrincipal", "deletePrincipal", "putRole", "deleteRole", "makeToken", "revokeToken",
    } == COMMANDED  # fmt: skip


async def test_waits_and_streams_that_a_revocation_ends_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the principal that was let in, though its credential is nobody's by then."""
    monkeypatch.setattr(waits, "JUDGE_SECONDS", 0.05)
    async with world() as found:
        found.agent.broker.cluster.create("orders")
        reader = ("Authorization", found.access.give("reader", "topic:orders=read"))
        wires = [await Wire.open(found.agent.port) for _ in range(2)]
        path = "/v1/topics/orders/partitions/0/records"
        assert (await wires[0].ask(f"GET {path}", [("Accept", "text/event-stream"), reader])).status == 200
        waiting = asyncio.create_task(wires[1].ask(f"GET {path}?wait=60s", [reader]))
        async with asyncio.timeout(30):
            while found.agent.runner.context.gate.waits < 2:
                await asyncio.sleep(0.01)
        found.access.revoke("reader")
        assert (await asyncio.wait_for(waiting, 30)).status == 401
        told: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            while len(told) < 3:
                told += found.told()
                await asyncio.sleep(0.02)
        for wire in wires:
            wire.close()
    assert kinds(told[1:]) == [("refusal", told[1]["operation"], "unauthenticated")] * 2
    assert told[0]["kind"] == "login"
    assert [record["principal"] for record in told[1:]] == ["of-reader"] * 2


@pytest.mark.parametrize("query", ["", "?timeout=5s"], ids=["fast", "ordinary"])
async def test_receives_that_a_revocation_ends_are_told(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way they took."""
    monkeypatch.setattr(waits, "JUDGE_SECONDS", 0.05)
    async with world() as found:
        cluster = found.agent.broker.cluster
        cluster.create("orders")
        path = "/v1/topics/orders/groups/billing"
        assert await ask(found, f"PUT {path}", found.admin) == 201
        reader = ("Authorization", found.access.give("reader", "group:orders/billing=consume"))
        json_type = ("Content-Type", "application/json")
        line = f"POST {path}/receive{query}"
        assert await ask(found, line, reader, json_type, body=b"{}") == 200
        found.told()
        wire = await Wire.open(found.agent.port)
        waiting = asyncio.create_task(wire.ask(line, [reader, json_type], b'{"wait": "60s"}'))
        async with asyncio.timeout(30):
            while not found.agent.runner.context.gate.waits:
                await asyncio.sleep(0.01)
        found.access.revoke("reader")
        assert (await asyncio.wait_for(waiting, 30)).status == 401
        wire.close()
        told = found.told()
    assert kinds(told) == [("refusal", "receive", "unauthenticated")]
    assert (told[0]["principal"], told[0]["proof"]) == ("of-reader", "token")
    assert (told[0]["resource"], told[0]["address"]) == ("topic:orders group:billing", "127.0.0.1")


@pytest.mark.parametrize("outcome", ["done", "leadership-lost"])
async def test_a_change_is_told_with_the_principal_that_was_let_in(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its credential may be nobody's once it has ended."""
    async with world() as found:
        broker = found.agent.broker
        broker.cluster.create("orders")
        clerk = ("Authorization", found.access.give("clerk", "topic:orders=delete"))
        delete = broker.delete_topic

        async def ended_meanwhile(name: str, timeout_ms: int) -> None:
            await delete(name, timeout_ms)
            found.access.revoke("clerk")
            if outcome != "done":
                raise ShoalError("leadership-lost", "it may have happened")

        monkeypatch.setattr(broker, "delete_topic", ended_meanwhile)
        assert await ask(found, "DELETE /v1/topics/orders", clerk) == (204 if outcome == "done" else 504)
        login, change = found.told()
    assert kinds([change]) == [("change", "deleteTopic", outcome)]
    assert (change["principal"], change["proof"]) == (login["principal"], "token") == ("of-clerk", "token")
