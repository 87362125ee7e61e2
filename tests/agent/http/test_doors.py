"""Every operation against every kind of credential, over the real server: the table of permissions.

The rows are made from the operations that the router has. NEEDS says again, by hand, what each needs: a new
route without a row fails, and so does one whose need was changed by mistake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import pytest
from fake_broker import FakeCluster
from http_access import MemoryAccess, Reply, Wire
from http_fixtures import Agent, running

from shoal.agent.http.admission.cookies import SECURE_COOKIE
from shoal.agent.http.api.needs import OtherNeed, told
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.app import PARTS
from shoal.agent.http.core import doorkeeper
from shoal.agent.http.docs.openapi import Description
from shoal.agent.security.access import PeerCertificate

NEEDS = {
    "produce": "topic:write", "produceToPartition": "topic:write", "readPartition": "topic:read",
    "readMerged": "topic:read", "receive": "group:consume", "receiveFromPartition": "group:consume",
    "ackMessages": "group:consume", "nackMessages": "group:consume", "releaseMessages": "group:consume",
    "rejectMessages": "group:consume", "extendMessages": "group:consume",
    "ackMessagesOfPartition": "group:consume", "nackMessagesOfPartition": "group:consume",
    "releaseMessagesOfPartition": "group:consume", "rejectMessagesOfPartition": "group:consume",
    "extendMessagesOfPartition": "group:consume", "awaitMessages": "group:consume",
    "listGroups": "topic:describe", "createGroup": "group:manage", "describeGroup": "topic:describe",
    "changeGroup": "group:manage", "deleteGroup": "group:manage", "beginGroup": "group:manage",
    "seekGroup": "group:manage", "seekGroupInPartition": "group:manage", "decideStopped": "group:manage",
    "consumerPresent": "group:consume", "consumerLeaves": "group:consume", "redriveGroup": "group:manage",
    "redriveGroupInPartition": "group:manage", "scanTable": "topic:read", "readRow": "topic:read",
    "putRow": "topic:write", "deleteRow": "topic:write", "putRowByBytes": "topic:write",
    "deleteRowByBytes": "topic:write", "listTopics": "credentials", "createTopic": "topic:create",
    "describeTopic": "topic:describe", "readSettings": "topic:describe", "changeTopic": "topic:alter",
    "deleteTopic": "topic:delete", "listKeptTopics": "cluster:describe", "adoptTopic": "cluster:operate",
    "readOffsets": "topic:describe", "trimPartition": "topic:delete", "listMembers": "credentials",
    "readMember": "cluster:describe", "forceLeave": "cluster:operate", "readRoutes": "credentials",
    "readAgent": "cluster:describe", "join": "cluster:operate", "leave": "cluster:operate",
    "readDrain": "cluster:describe", "drain": "cluster:operate", "undoDrain": "cluster:operate",
    "previewRecovery": "cluster:operate", "recover": "cluster:operate", "peer": "agent",
    "readLevel": "cluster:describe", "raiseLevel": "cluster:operate", "followEvents": "credentials",
    "listKeys": "cluster:operate", "installKey": "cluster:operate", "useKey": "cluster:operate",
    "removeKey": "cluster:operate", "livez": "nothing", "readyz": "nothing", "metrics": "cluster:describe",
    "listPrincipals": "cluster:admin", "readPrincipal": "cluster:admin", "putPrincipal": "cluster:admin",
    "deletePrincipal": "cluster:admin", "listRoles": "cluster:admin", "readRole": "cluster:admin",
    "putRole": "cluster:admin", "deleteRole": "cluster:admin", "makeToken": "cluster:admin",
    "revokeToken": "cluster:admin", "makeSession": "credentials", "readSession": "credentials",
    "endSession": "credentials",
    "index": "nothing", "indexOfApi": "nothing", "openapi": "nothing", "docs": "nothing",
}  # fmt: skip
ALSO = {"createGroup": "group:consume", "beginGroup": "group:consume", "readOffsets": "topic:read"}
"""Operations that a second permission suffices for."""
ARGUMENTS = {"topic": "orders", "group": "billing", "partition": "0", "member": "one", "kept": "old",
             "consumer": "worker-1", "key": "users/ann", "principal": "ann", "role": "clerk",
             "token": "abcdefgh"}  # fmt: skip
PLAIN = {"produce": b"v", "produceToPartition": b"v", "putRow": b"v", "putRowByBytes": b"v"}
"""Bodies of any type."""
BODIES = {"seekGroup": b'{"to": "latest"}', "seekGroupInPartition": b'{"to": "latest"}',
          "receive": b"{}", "receiveFromPartition": b"{}"}  # fmt: skip
"""Another place needs a look at the topic as well, and nobody waits for messages here."""
QUERIES = {"previewRecovery": "?topic=orders&partition=0", "deleteRowByBytes": "?key_base64=YQ==",
           "putRowByBytes": "?key_base64=YQ=="}  # fmt: skip
FAST = ("produce", "produceToPartition", "receive", "receiveFromPartition", "readRow", "putRow")
ORDINARY = ("X-Ordinary", "1")
"""No fast way knows this header."""
EXPIRED_MS = 1_000_000_000_000
AGENT = PeerCertificate("shoal://fake/agent", is_agent=True)
CLIENT = PeerCertificate("of-right", is_agent=False)
REFUSED = (401, 403)


class Kind(NamedTuple):
    """A kind of credential: headers, the connection's certificate, and what becomes of requests that need
    something of a topic or a group, of the cluster, and of lists. 0: let in."""

    headers: tuple[tuple[str, str], ...]
    of_topics: int
    of_cluster: int
    of_lists: int
    certificate: PeerCertificate | None = None


def bearer(*tokens: str) -> tuple[tuple[str, str], ...]:
    return tuple(("Authorization", f"Bearer {token}") for token in tokens)


def cookie(value: str) -> tuple[tuple[str, str], ...]:
    return (("Cookie", f"{SECURE_COOKIE}={value}"),)


def forwarded(*named: str) -> tuple[tuple[str, str], ...]:
    return ("Shoal-Forwarded-By", "0" * 32), *(("Shoal-Principal", name) for name in named)


KINDS = {
    "none": Kind((), 401, 401, 401),
    "another scheme": Kind((("Authorization", "Basic cmlnaHQ6"),), 401, 401, 401),
    "malformed": Kind((("Authorization", "Bearer"),), 401, 401, 401),
    "of control characters": Kind(bearer("ri\tght"), 401, 401, 401),
    "of other letters": Kind(bearer("r\xefght"), 401, 401, 401),
    "of 5 KB": Kind(bearer("x" * 5_000), 401, 401, 401),
    "two": Kind(bearer("right", "right"), 401, 401, 401),
    "unknown": Kind(bearer("nobodys"), 401, 401, 401),
    "expired": Kind(bearer("expired"), 401, 401, 401),
    "revoked": Kind(bearer("revoked"), 401, 401, 401),
    "right": Kind(bearer("right"), 0, 0, 0),
    "without any rule": Kind(bearer("bare"), 403, 403, 0),
    "another topic's": Kind(bearer("other"), 403, 403, 0),
    "a longer name's": Kind(bearer("longer"), 403, 403, 0),
    "a shorter name's": Kind(bearer("shorter"), 403, 403, 0),
    "prefix inside": Kind(bearer("inside"), 0, 403, 0),
    "prefix of the whole name": Kind(bearer("whole"), 0, 403, 0),
    "prefix beyond": Kind(bearer("beyond"), 403, 403, 0),
    "with a principal of its own": Kind((*bearer("bare"), ("Shoal-Principal", "of-right")), 403, 403, 403),
    "only a principal": Kind((("Shoal-Principal", "of-right"),), 403, 403, 403),
    "forwarded by a client": Kind((*bearer("right"), *forwarded()), 403, 403, 403),
    "client's certificate": Kind((), 0, 0, 0, CLIENT),
    "client's that forwards": Kind(forwarded("of-right"), 403, 403, 403, CLIENT),
    "agent's": Kind((), 0, 0, 0, AGENT),
    "agent's for nobody": Kind(forwarded(), 401, 401, 401, AGENT),
    "agent's for anonymous": Kind(forwarded("anonymous"), 401, 401, 401, AGENT),
    "agent's for a client": Kind(forwarded("of-right"), 0, 0, 0, AGENT),
    "agent's for a bare client": Kind(forwarded("of-bare"), 403, 403, 0, AGENT),
    "agent's for a token": Kind((*bearer("right"), *forwarded()), 0, 0, 0, AGENT),
    "session": Kind(cookie("right"), 0, 0, 0),
    "session among other cookies": Kind(
        (("Cookie", f"a=b; {SECURE_COOKIE}=right; c={SECURE_COOKIE}"),), 0, 0, 0
    ),
    "session under its name without TLS": Kind((("Cookie", "shoal-session=right"),), 401, 401, 401),
    "session of the own page": Kind((*cookie("right"), ("Sec-Fetch-Site", "same-origin")), 0, 0, 0),
    "session without any rule": Kind(cookie("bare"), 403, 403, 0),
    "expired session": Kind(cookie("expired"), 401, 401, 401),
    "ended session": Kind(cookie("revoked"), 401, 401, 401),
    "two sessions": Kind((*cookie("right"), *cookie("right")), 401, 401, 401),
    "two in one header": Kind((("Cookie", f"{SECURE_COOKIE}=right; {SECURE_COOKIE}=right"),), 401, 401, 401),
    "session beside a token": Kind((*cookie("right"), *bearer("right")), 401, 401, 401),
    "session of an agent's client": Kind((("Authorization", "Session right"), *forwarded()), 0, 0, 0, AGENT),
    "agent's for an expired token": Kind((*bearer("expired"), *forwarded()), 401, 401, 401, AGENT),
}


def operations() -> dict[str, Operation]:
    found = Description(route for part in PARTS for route in part.ROUTES).routes
    return {route.operation.name: route.operation for route in found}


def rules_for(need: str) -> dict[str, tuple[str, ...]]:
    """By token: the rules that make it what its name says, for one need."""
    kind, _, action = need.partition(":")
    if kind not in ("topic", "group"):
        return {"right": (f"cluster={action}",) if action else ()}
    tail = "/billing" if kind == "group" else ""
    return {
        "right": (f"{kind}:orders{tail}={action}",),
        "other": (f"{kind}:others{tail}={action}", "cluster=*"),
        "longer": (f"{kind}:orders-2{tail}={action}", f"{kind}:orders{tail}x={action}"),
        "shorter": (f"{kind}:order{tail}={action}",),
        "inside": (f"{kind}:ord*={action}",),
        "whole": (f"{kind}:orders{tail}*={action}",),
        "beyond": (f"{kind}:orders{tail}x*={action}", f"{kind}:order{tail}=*"),
    }


class Stand:
    """An agent whose door is tried."""

    def __init__(self, cluster: FakeCluster, agent: Agent, access: MemoryAccess) -> None:
        self.cluster = cluster
        self.agent = agent
        self.access = access
        self.certificate: PeerCertificate | None = None
        """Of connections that are made from now on."""

    def prepare(self, operation: Operation, need: str) -> None:
        """The thing is there, and tokens have their rules."""
        kind = "table" if operation.path.startswith("/v1/tables") else "log"
        if "orders" not in self.cluster.topics or self.cluster.topics["orders"].kind != kind:
            self.cluster.create("orders", kind=kind)
        self.access.tokens.clear()
        for token in ("right", "bare", "other", "longer", "shorter", "inside", "whole", "beyond"):
            self.access.give(token, *rules_for(need).get(token, ()))
        self.access.give("expired", "topic:*=*", "group:*=*", "cluster=*", expires_ms=EXPIRED_MS)
        self.access.version += 1

    async def ask(self, operation: Operation, kind: Kind, *more: tuple[str, str]) -> Reply:
        """One request over a connection of its own."""
        self.certificate = kind.certificate
        wire = await Wire.open(self.agent.port)
        try:
            return await wire.ask(*request(operation, (*kind.headers, *more)))
        finally:
            wire.close()

    def state(self) -> object:
        """Whatever a request may have changed."""
        cluster, broker = self.cluster, self.agent.broker
        return (
            cluster.stored(), sorted(cluster.topics), sorted(cluster.groups), cluster.level, broker.draining,
            tuple(broker.left), tuple(broker.joined), tuple(broker.recovered), len(broker.kept),
            len(broker.peer_terms),
        )  # fmt: skip


def request(
    operation: Operation, headers: tuple[tuple[str, str], ...]
) -> tuple[str, list[tuple[str, str]], bytes]:
    """Line, headers and body of a request that is as it should be."""
    path = "/".join(
        ARGUMENTS[part[1:-1]] if part.startswith("{") else part for part in operation.path.split("/")
    )
    body = PLAIN.get(operation.name) or BODIES.get(operation.name, b"")
    if not body and operation.body is not None and operation.body.example is not None:
        body = operation.body.example.encode()
    media = [] if not body or operation.name in PLAIN else [("Content-Type", "application/json")]
    return f"{operation.method} {path}{QUERIES.get(operation.name, '')}", [*media, *headers], body


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    cluster, access = FakeCluster(), MemoryAccess()
    stand: Stand | None = None
    async with running(
        cluster.add("one"), None, access, lambda: None if stand is None else stand.certificate
    ) as agent:
        stand = Stand(cluster, agent, access)
        yield stand


def expected_of(operation: Operation, need: str, kind: Kind) -> int:
    """As expected(); but where sessions are made the cookie of a former one counts nothing."""
    if operation.name == "makeSession" and "Cookie" in dict(kind.headers):
        return 0 if "Authorization" in dict(kind.headers) else 401
    return expected(need, kind)


def expected(need: str, kind: Kind) -> int:
    """The refusal that a request has to meet; 0 for none."""
    is_agent = kind.certificate is AGENT
    if need == "nothing":
        return 403 if not is_agent and "Shoal-Forwarded-By" in dict(kind.headers) else 0
    if need == "agent":  # whoever it asks for
        return (401 if kind.headers[:1] == bearer("expired") else 0) if is_agent else 403
    if need == "credentials":
        return kind.of_lists
    return kind.of_cluster if need.startswith("cluster") else kind.of_topics


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as found:
        yield found


def test_each_operation_has_its_row() -> None:
    """A route that is new here needs a word about who may."""
    found = operations()
    assert set(found) == set(NEEDS)
    for name, operation in found.items():
        wanted = f"{NEEDS[name]} or {ALSO[name]}" if name in ALSO else NEEDS[name]
        assert (told(operation.needs) or "nothing") == wanted, name


@pytest.mark.parametrize("name", NEEDS)
async def test_each_operation_against_each_kind_of_credential(name: str, stand: Stand) -> None:
    """Let in, or refused with the action and the resource: the same on each way, and whether there is such a
    topic or none. The refused have changed nothing."""
    await check_table(stand, operations()[name], NEEDS[name])


async def check_table(stand: Stand, operation: Operation, need: str) -> None:
    """All kinds of credentials."""
    stand.prepare(operation, need)
    before, refusals = stand.state(), {}
    for title, kind in KINDS.items():
        wanted = expected_of(operation, need, kind)
        if not wanted:
            continue
        reply = await stand.ask(operation, kind)
        check_refusal(reply, wanted, need, title)
        refusals[title] = reply.document
        if operation.name in FAST:
            assert (await stand.ask(operation, kind, ORDINARY)).document == reply.document, title
    assert stand.state() == before, "a refused request changed something"
    del stand.cluster.topics["orders"]
    for title, document in refusals.items():
        assert (await stand.ask(operation, KINDS[title])).document == document, title
    for title, kind in KINDS.items():
        if not expected_of(operation, need, kind):
            stand.prepare(operation, need)
            reply = await stand.ask(operation, kind)
            assert reply.status not in REFUSED, (title, reply)
            if operation.name in FAST:
                again = await stand.ask(operation, kind, ORDINARY)
                assert again.status == reply.status, title


def check_refusal(reply: Reply, status: int, need: str, title: str) -> None:
    assert reply.status == status, (title, reply)
    document = reply.document
    assert document["code"] == {401: "unauthenticated", 403: "forbidden"}[status]
    assert document["definite"] is True
    assert document["retriable"] is False
    assert ("WWW-Authenticate: Bearer" in reply.head) == (status == 401)
    kind, _, action = need.partition(":")
    things = {"topic": "topic:orders", "group": "group:orders/billing", "agent": "cluster"}
    assert document["resource"] == things.get(kind, "cluster"), title
    assert document["action"] == (action or {"agent": "link"}.get(need, "list")), title
    for secret in ("nobodys", "expired", "revoked", "x" * 20):
        assert secret not in document["detail"].replace("has expired", "")


ELSEWHERE = (
    ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Site", "x"),
    ("Origin", "https://elsewhere.example.com"), ("Origin", "http://127.0.0.1:1"), ("Origin", "null"),
    ("Origin", "http://127.0.0.1"),  # its own address, in the open
)  # fmt: skip


@pytest.mark.parametrize("header", ELSEWHERE)
async def test_a_session_is_refused_from_another_page(header: tuple[str, str], stand: Stand) -> None:
    """Whatever it may; nothing has changed. Its token may be sent, since no browser adds it by itself; but
    no page of another site logs anybody in."""
    found = operations()
    stand.prepare(found["produce"], "topic:write")
    before = stand.state()
    for name in ("produce", "readSession", "endSession", "listTopics"):
        reply = await stand.ask(found[name], Kind(cookie("right"), 0, 0, 0), header)
        assert (reply.status, reply.document["code"]) == (403, "foreign-origin"), name
    reply = await stand.ask(found["makeSession"], Kind(bearer("right"), 0, 0, 0), header)
    assert (reply.status, reply.document["code"]) == (403, "foreign-origin")
    assert stand.state() == before


async def test_reading_changes_nothing(stand: Stand) -> None:
    """Of each operation by GET, asked by one who may."""
    answered = 0
    for name, operation in operations().items():
        if operation.method != "GET":
            continue
        stand.prepare(operation, NEEDS[name])
        before = stand.state()
        for kind in ("right", "client's certificate"):
            answered += (await stand.ask(operation, KINDS[kind])).status < 300
        assert stand.state() == before, name
    assert answered > 20


async def test_a_session_is_made_shown_and_ended(stand: Stand) -> None:
    """The cookie is for this host, this page and HTTP alone, and no cache keeps it; over TLS it has a name
    that only this host can set."""
    found = operations()
    stand.prepare(found["makeSession"], "credentials")
    reply = await stand.ask(found["makeSession"], KINDS["right"])
    assert reply.status == 201
    assert reply.document["principal"] == "of-right"
    assert reply.document["proof"] == "session"
    assert "right" not in reply.body.decode().replace("of-right", "")
    rest = "; Path=/; Max-Age=3600; HttpOnly; SameSite=Strict; Secure\r\n"
    assert f"Set-Cookie: __Host-shoal-session=right{rest}" in reply.head.replace("=3599", "=3600")
    assert "Cache-Control: no-store" in reply.head
    for kind, proof in (("session", "session"), ("right", "token"), ("client's certificate", "certificate")):
        document = (await stand.ask(found["readSession"], KINDS[kind])).document
        assert (document["principal"], document["proof"]) == ("of-right", proof)
    ended = await stand.ask(found["endSession"], KINDS["session"])
    assert ended.status == 204
    assert "Set-Cookie: __Host-shoal-session=; Path=/; Max-Age=0;" in ended.head
    assert stand.cluster.security.catalog.security.sessions.has_ended("s" * 16, "of-right", (0, 0))
    for name, kind in (("makeSession", "client's certificate"), ("endSession", "right")):
        assert (await stand.ask(found[name], KINDS[kind])).document["code"] == "no-session"


@pytest.mark.parametrize(("name", "rule"), [("createGroup", "group:orders/*=consume"),
                                            ("beginGroup", "group:orders/*=consume"),
                                            ("readOffsets", "topic:orders=read")])  # fmt: skip
async def test_a_second_permission_suffices_for_some(name: str, rule: str, stand: Stand) -> None:
    """Consumers make their group by receiving, and readers find their place."""
    assert name in ALSO
    stand.prepare(operations()[name], NEEDS[name])
    stand.access.change("bare", rule)
    assert (await stand.ask(operations()[name], KINDS["without any rule"])).status not in REFUSED


@pytest.mark.parametrize(
    "path", ["/v1/topics/_catalog", "/v1/topics/_catalog/records", "/v1/topics/_x/groups"]
)
async def test_topics_of_the_system_are_for_administrators(path: str, stand: Stand) -> None:
    """Rules for all topics are none for them."""
    headers = [("Authorization", stand.access.give("all", "topic:*=*", "group:*=*", "cluster=operate"))]
    admin = [("Authorization", stand.access.give("admin", "cluster=admin"))]
    wire = await Wire.open(stand.agent.port)
    reply = await wire.ask(f"GET {path}", headers)
    assert (reply.status, reply.document["action"], reply.document["resource"]) == (403, "admin", "cluster")
    assert (await wire.ask(f"GET {path}", admin)).status not in REFUSED
    wire.close()


async def test_kept_topics_are_shown_to_those_who_may_describe_them(stand: Stand) -> None:
    """One without a name is shown to those who may describe all; `shoal status` asks for them."""
    stand.agent.broker.kept = [
        {"id": str(number) * 32, "name": name, "partitions": 1, "adoptable": True, "held": []}
        for number, name in enumerate(("orders-eu", "secret", None))
    ]
    shown = {("topic:orders*=describe", "cluster=describe"): ["orders-eu"],
             ("topic:*=describe", "cluster=describe"): ["orders-eu", "secret", None],
             ("cluster=describe",): []}  # fmt: skip
    wire = await Wire.open(stand.agent.port)
    for number, (rules, names) in enumerate(shown.items()):
        header = ("Authorization", stand.access.give(f"token-{number}", *rules))
        reply = await wire.ask("GET /v1/kept-topics", [header])
        assert [topic["name"] for topic in reply.document["topics"]] == names
    wire.close()


# ---- mutants: faults that the table has to find


def without_need() -> Iterator[pytest.MonkeyPatch]:
    """One route asks for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(operations()["trimPartition"].__dict__, "needs", OtherNeed.NOTHING)
        yield patch


def believing() -> Iterator[pytest.MonkeyPatch]:
    """The word of a forwarder is believed from anybody."""

    def credentials(headers: doorkeeper.Headers, *_: object) -> doorkeeper.ShownCredentials:
        return doorkeeper.ShownCredentials(headers.get("Authorization"), None, headers.get("Shoal-Principal"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doorkeeper, "shown_credentials", credentials)
        yield patch


def lending() -> Iterator[pytest.MonkeyPatch]:
    """A forwarded request without a name counts as its forwarder's own."""
    known = doorkeeper.shown_credentials

    def credentials(headers: doorkeeper.Headers, certificate: PeerCertificate | None, needs: doorkeeper.Needs,
                    resource: str) -> doorkeeper.ShownCredentials:  # fmt: skip
        found = known(headers, certificate, needs, resource)
        return found._replace(principal=None, certificate=certificate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doorkeeper, "shown_credentials", credentials)
        yield patch


def by_prefix() -> Iterator[pytest.MonkeyPatch]:
    """A rule of `orders` allows `orders-2` as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryAccess, "may", lambda self, identity, wanted, resource: any(
            f"{wanted.kind}:{resource}".startswith(rule.partition("=")[0].rstrip("*x"))
            for rule in self.rules.get(identity.principal, ())
        ))  # fmt: skip
        yield patch


@pytest.mark.parametrize("mutant", [without_need, believing, lending, by_prefix])
async def test_the_table_finds_faults(mutant: object, stand: Stand) -> None:
    """Each fails on the route where it shows."""
    with contextmanager(mutant)(), pytest.raises(AssertionError):  # type: ignore[arg-type]
        await check_table(stand, operations()["trimPartition"], NEEDS["trimPartition"])
