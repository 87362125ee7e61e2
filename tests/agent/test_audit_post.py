"""Audit records on their way into the topic: tried again until they stand there, and there once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.audit import post as audit_post
from shoal.agent.audit.post import AuditPost
from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.state.idempotence import ProducerTable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.peers.requests import PeerUnavailable
from shoal.agent.process.clock import SystemClock
from shoal.agent.security.access import AskedBy, Identity, Proof
from shoal.agent.security.audit import AUDIT_TOPIC, REFUSALS_PER_SECOND_MAX, AuditTrail, happening
from shoal.agent.security.principals import PutRole
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, LogIndex, Message, Offset, ProducerStamp, to_record_batch
from tests.agent.agents import Running, agents_in, eventually

FIRST = make_token(b"\5" * TOKEN_ID_BYTES, b"\6" * SECRET_BYTES)
ASKED = {"authentication": "on", "bootstrap_token_hash": FIRST.hash().hex()}
TOPIC_ID = b"a" * 16
EVENT = happening(Identity("ann", Proof.TOKEN), "10.0.0.7", "drain", "cluster", "done")


class Town:
    """Agents `a` and `b`, whose posts share the topic. `faults`: raised before anything is stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit_post, "RETRY_S", 0)
        self.topics: dict[str, Any] = {}
        self.catalog_leader: str | None = "a"
        self.leader: str | None = "a"
        self.faults: list[Exception] = []
        self.stored: list[bytes] = []
        self.lose_answers = 0
        self.known = ProducerTable()
        self.made = 0
        self.trails = {name: AuditTrail(name) for name in "ab"}
        self.posts = {name: self._post(name) for name in "ab"}

    def _post(self, name: str) -> AuditPost:
        catalog = SimpleNamespace(
            catalog=SimpleNamespace(level=audit_post.AUDIT_LEVEL, topics=self.topics),
            leader=lambda: self.catalog_leader,
        )
        peers = SimpleNamespace(agent_id=name, request=lambda *asked: self._request(name, *asked))
        host = SimpleNamespace(append=self._append)
        return AuditPost(
            self.trails[name], host, peers, catalog, lambda group: self.leader, self._make, SystemClock()
        )

    async def _request(self, by: str, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        assert kind == PeerMessage.AUDIT
        assert agent_id != by
        return await self.posts[agent_id].on_audit(by, payload)

    async def _make(self, timeout_ms: int) -> None:
        self.made += 1
        self.topics[AUDIT_TOPIC] = SimpleNamespace(topic_id=TOPIC_ID)

    async def _append(self, group: GroupId, submission: Submission) -> Appended:
        """As the table of sequences judges."""
        assert group == GroupId(TOPIC_ID, 0)
        if self.faults:
            raise self.faults.pop(0)
        assert submission.producer is not None
        assert not submission.consecutive
        (message,) = submission.records
        assert isinstance(message, Message)
        encoded = message.metadata, bytes(message.body)
        if self._is_known(submission.producer, len(_values(*encoded))):
            return Appended(Offset(0), 1)
        self.stored += _values(*encoded)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ShoalError("timeout", "committed, but nobody was told")
        return Appended(Offset(0), 1)

    def _is_known(self, producer: ProducerStamp, rows: int) -> bool:
        """As the partition's own table says."""
        if self.known.check(producer, rows=rows, elapsed_us=0, consecutive=False) is not None:
            return True
        index = LogIndex(len(self.stored) + 1)
        base = Offset(len(self.stored))
        self.known.record(producer, base_offset=base, count=rows, index=index, elapsed_us=0)
        return False

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(post.run()) for post in self.posts.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def all_told(self) -> bool:
        return not any(trail.changes for trail in self.trails.values())

    async def until_stored(self, count: int) -> list[dict[str, Any]]:
        async def is_stored() -> bool:
            return len(self.stored) >= count

        await eventually(is_stored)
        for _ in range(50):  # one too many would come now
            await asyncio.sleep(0)
        return [json.loads(value) for value in self.stored]


def _values(metadata: bytes, body: bytes) -> list[bytes]:
    from shoal.format.arrow_stream import CONTINUATION, PREFIX

    batch = to_record_batch(PREFIX.pack(CONTINUATION, len(metadata)) + metadata + body, DEFAULT_SCHEMA)
    values: list[bytes] = batch.column("value").to_pylist()
    return values


async def test_records_of_all_agents_come_to_the_topic_which_the_first_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the leader; faults and lost answers neither lose a record nor store it twice."""
    town = Town(monkeypatch)
    town.faults = [ShoalError("no-leader", "not yet"), PeerUnavailable("gone")]
    town.lose_answers = 3
    async with town.working():
        for _ in range(5):
            town.trails["a"].changed(EVENT, 1)
            town.trails["b"].changed(EVENT, 1)
        found = await town.until_stored(10)
        assert sorted(record["agent"] for record in found) == ["a"] * 5 + ["b"] * 5
        assert town.made == 1
        town.leader = None
        town.trails["b"].changed(EVENT, 1)
        await asyncio.sleep(0)
        town.leader = "a"
        assert len(await town.until_stored(11)) == 11


async def test_a_change_of_security_is_told_once_though_the_catalog_has_another_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All agents apply the command. The one that leads tells of it at once, and the others later on; the
    topic's table of sequences knows what stands there."""
    monkeypatch.setattr(audit_post, "CHANGES_LEFT_MS", 1e9)
    town = Town(monkeypatch)

    def commit(epoch: int, offset: int) -> None:
        for trail in town.trails.values():
            commit_at(trail, epoch, offset)

    async with town.working():
        commit(0, 3)
        commit(0, 7)
        assert len(await town.until_stored(2)) == 2
        assert len(town.trails["b"].changes) == 2
        town.catalog_leader = "b"
        commit(0, 9)
        found = await town.until_stored(3)
        assert [record["place"] for record in found] == ["0-3", "0-7", "0-9"]
        assert not town.trails["b"].changes
        assert town.trails["a"].changes
        monkeypatch.setattr(audit_post, "CHANGES_LEFT_MS", 0)
        await eventually(town.all_told)
        assert len(await town.until_stored(3)) == 3


async def test_a_change_that_a_new_leader_never_heard_of_is_told_behind_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that has just started, and has its state from a peer, leads and tells of its own. The one
    that knows of the earlier change never leads."""
    town = Town(monkeypatch)
    monkeypatch.setattr(audit_post, "CHANGES_LEFT_MS", 0)
    town.catalog_leader = "b"
    async with town.working():
        commit_at(town.trails["b"], 0, 5_000)
        assert len(await town.until_stored(1)) == 1
        commit_at(town.trails["a"], 0, 3)
        commit_at(town.trails["a"], 0, 5_000)
        found = await town.until_stored(2)
    assert [record["place"] for record in found] == ["0-1388", "0-3"]


def commit_at(trail: AuditTrail, epoch: int, offset: int) -> None:
    """A change of security, which this agent has applied."""
    by = AskedBy("ann", "token", "10.0.0.7", SystemClock().now_us() // 1_000, "r")
    trail.committed((epoch, offset), PutRole("clerk", None, (), by), SystemClock().now_ms())


async def test_a_graceful_stop_waits_for_what_was_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """How many refusals were left out, too; but not for ever, and it says how many records are lost."""
    town = Town(monkeypatch)
    now_ms = SystemClock().now_us() // 1_000
    async with town.working():
        await town.posts["a"].flush(30)
        for _ in range(REFUSALS_PER_SECOND_MAX + 7):
            town.trails["a"].refused(EVENT, now_ms)
        await asyncio.wait_for(town.posts["a"].flush(30), 60)
        found = [json.loads(value) for value in town.stored]
        assert len(found) == REFUSALS_PER_SECOND_MAX + 1
        assert (found[-1]["kind"], found[-1]["count"]) == ("left-out", 7)
        town.leader = None
        for _ in range(3):
            town.trails["a"].changed(EVENT, now_ms)
        await town.posts["a"].flush(0.05)
        assert "_audit: stopping without 3 records" in caplog.text


async def test_an_agent_takes_no_records_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a peer that errs."""
    town = Town(monkeypatch)
    for payload in (b"", b"x" * 32, bytes(64), b"p" * 80):
        with pytest.raises(PeerMessageError):
            await town.posts["a"].on_audit("b", payload)
    assert town.made == 0


async def call(agent: Running, token: str | None, method: str, path: str, body: object = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await agent.call(method, path, body, headers)


async def records_of(agent: Running, token: str) -> list[dict[str, Any]]:
    """What the topic has; nothing while there is none."""
    headers = {"Authorization": f"Bearer {token}"}
    path = "/v1/topics/_audit/partitions/0/records"
    status, found = await agent.call("GET", path, None, headers, offset="earliest", limit=1_000)
    return [json.loads(record["value"]) for record in found["records"]] if status == 200 else []


@pytest.mark.slow
async def test_two_agents_tell_who_did_what(tmp_path: Path) -> None:
    """One topic for both, of three replicas where there are three agents, kept 30 days; each change once,
    though both apply its command. No token and no hash is in it, and nobody writes into it."""
    async with agents_in(tmp_path) as agents:
        first, second = await agents.cluster(2, **ASKED)
        admin = FIRST.reveal()
        assert (await call(first, admin, "PUT", "/v1/principals/ann", {"roles": ["admin"]}))[0] == 201
        made = await call(second, admin, "POST", "/v1/principals/ann/tokens", {"expires_in": "1h"})
        assert made[0] == 201
        ann = made[1]["token"]
        assert (await call(second, None, "GET", "/v1/topics/orders"))[0] == 401

        async def is_known() -> bool:
            return (await call(first, ann, "PUT", "/v1/topics/orders"))[0] in (200, 201)

        await eventually(is_known)
        wanted = {
            ("change", "putPrincipal", "done"),
            ("change", "makeToken", "done"),
            ("refusal", "describeTopic", "unauthenticated"),
            ("change", "createTopic", "done"),
            ("login", "createTopic", "done"),
        }

        def kinds(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
            return [(record["kind"], record["operation"], record["outcome"]) for record in found]

        async def is_told() -> bool:
            return wanted <= set(kinds(await records_of(second, ann)))

        await eventually(is_told)
        found = await records_of(first, ann)
        assert kinds(found).count(("change", "putPrincipal", "done")) == 1
        assert kinds(found).count(("change", "makeToken", "done")) == 1
        refused = next(record for record in found if record["kind"] == "refusal")
        assert (refused["address"], refused["resource"]) == ("127.0.0.1", "topic:orders")
        settings = (await call(first, ann, "GET", "/v1/topics/_audit"))[1]
        assert settings["replication_factor"] == 3
        assert settings["retention"]["age"] == "30d"
        assert (await call(first, ann, "POST", "/v1/topics/_audit/records", {"records": []}))[0] == 403

        async def is_counted() -> bool:  # once the leader's answer is there, which comes behind the records
            written = (await first.agent.broker.metrics(partitions=False))["shoal_audit_records_total"]
            return isinstance(written, int) and written >= 2

        await eventually(is_counted)
        text = json.dumps(found)
        for token in (admin, ann):
            assert token.split("_")[2] not in text
        assert FIRST.hash().hex() not in text
