"""The client of the RPC against a real Serf agent: every command, every stream, what the agent refuses."""

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.membership.interface import KeyChange
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.ready import ReplyKind
from shoal.membership.serf_agent.rpc import Gap, RpcConnection, RpcError, RpcStream, SerfClient
from shoal.membership.serf_agent.rpc_wire import (
    AnswerRecord,
    MemberRecord,
    QueryRecord,
    Record,
)
from shoal.membership.wire.serf import UserEvent
from tests.serf.real_serf import SerfAgent

LIMIT_S = 90.0


@asynccontextmanager
async def connected(
    tmp_path: Path, *flags: str, key: str = ""
) -> AsyncIterator[tuple[SerfAgent, RpcConnection]]:
    """An agent "alpha" and a connection to it."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log", *flags)
    try:
        await agent.listens()
        connection = await RpcConnection.open("127.0.0.1", agent.rpc_port, key)
        try:
            yield agent, connection
        finally:
            await connection.close()
    finally:
        agent.kill()


async def until(stream: RpcStream, kind: type[Record]) -> Record:
    """The next record of a kind."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            record = await stream.read()
            assert record is not None, "the stream has ended"
            assert not isinstance(record, Gap)
            if isinstance(record, kind):
                return record


async def test_members_tags_and_statistics(tmp_path: Path) -> None:
    """Lists and tags; deletes come first; statistics."""
    async with connected(tmp_path, "-tag", "role=web", "-tag", "dc=east") as (agent, rpc):
        (alpha,) = await rpc.members()
        assert (alpha.name, alpha.address, alpha.port, alpha.status) == (
            "alpha",
            "127.0.0.1",
            agent.port,
            "alive",
        )
        assert alpha.tags == {"role": "web", "dc": "east"}
        await rpc.tags({"role": "db", "new": "über"}, delete=["dc", "role"])
        assert (await rpc.members())[0].tags == {"role": "db", "new": "über"}
        with pytest.raises(RpcError, match="exceeds limit of 512 bytes"):
            await rpc.tags({"long": "x" * 600})
        stats = await rpc.stats()
        assert stats["agent"]["name"] == "alpha"
        assert stats["serf"]["members"] == "1"


async def test_events_and_queries_come_over_one_connection(tmp_path: Path) -> None:
    """Two streams and calls interleave; queries of others are answered, ours end with `done`."""
    async with connected(tmp_path) as (agent, rpc):
        everything, deploys = await rpc.stream("*"), await rpc.stream("user:deploy,query:load")
        await rpc.event("other", b"")
        await rpc.event("deploy", b"\x00\xff")
        for stream, wanted in ((everything, ["other", "deploy"]), (deploys, ["deploy"])):
            heard = [await until(stream, UserEvent) for _ in wanted]
            assert [record.name for record in heard if isinstance(record, UserEvent)] == wanted
        assert isinstance(heard[-1], UserEvent)
        assert heard[-1].payload == b"\x00\xff"

        for timeout_ms in (700, 5_000, 25_000):  # each takes its whole time
            answers = await rpc.query(QueryRequest("load", b"?", want_acks=True, timeout_ms=timeout_ms))
            question = await until(deploys, QueryRecord)
            assert isinstance(question, QueryRecord)
            assert (question.name, question.payload) == ("load", b"?")
            with contextlib.suppress(RpcError):  # its time was up before it was answered
                await rpc.respond(question.id, b"0.5")
            *heard_back, done = [answer async for answer in answers]
            if len(heard_back) == 2:
                break
        assert set(heard_back) == {
            AnswerRecord(ReplyKind.ACK, "alpha", b""),
            AnswerRecord(ReplyKind.ANSWER, "alpha", b"0.5"),
        }
        assert done == AnswerRecord(ReplyKind.DONE, "", b"")
        with pytest.raises(RpcError, match=r"No pending queries|response already sent"):
            await rpc.respond(question.id, b"late")

        await rpc.stop(deploys)
        await rpc.event("deploy", b"after the stop")
        await until(everything, UserEvent)
        assert await deploys.read() is None
        assert agent.process.poll() is None


async def test_join_force_leave_and_leave(tmp_path: Path) -> None:
    """Another agent joins, dies and is forced to leave; a join of nobody is refused; leave ends the agent."""
    async with connected(tmp_path) as (agent, rpc):
        events = await rpc.stream("member-join,member-failed,member-leave")
        beta = SerfAgent("beta", tmp_path / "beta.log")
        try:
            await beta.listens()
            with pytest.raises(RpcError, match="refuses join"):
                await rpc.join([("127.0.0.1", 1)])
            assert await rpc.join([("127.0.0.1", 1), ("127.0.0.1", beta.port)]) == 1
            record = await until(events, MemberRecord)
            assert isinstance(record, MemberRecord)
            assert {member.name for member in record.members} <= {"alpha", "beta"}
            await rpc.force_leave("nobody")
        finally:
            beta.kill()
        await rpc.force_leave("beta")
        shown = {member.name: member.status for member in await rpc.members()}
        assert shown == {"alpha": "alive", "beta": "leaving"}
        await rpc.leave()
        async with asyncio.timeout(LIMIT_S):
            await rpc.closed.wait()
        assert agent.process.wait(LIMIT_S) == 0
        with pytest.raises(RpcError, match="closed"):
            await rpc.members()


async def test_keys(tmp_path: Path) -> None:
    """Listed, installed, used, removed; what the pool refuses is told, and no exception."""
    first, second = (base64.b64encode(bytes([number]) * 16).decode() for number in (1, 2))
    async with connected(tmp_path, f"-encrypt={first}") as (_, rpc):
        assert (await rpc.list_keys()).keys == {first: 1}
        assert (await rpc.change_keys(KeyChange.INSTALL, second)).error == ""
        assert (await rpc.list_keys()).keys == {first: 1, second: 1}
        refused = await rpc.change_keys(KeyChange.REMOVE, first)
        assert "1/1 nodes reported failure" in refused.error
        assert refused.messages == {"alpha": "Removing the primary key is not allowed"}
        await rpc.change_keys(KeyChange.USE, second)
        removed = await rpc.change_keys(KeyChange.REMOVE, first)
        assert (removed.error, removed.members, removed.failures, removed.answers) == ("", 1, 0, 1)
        assert (await rpc.list_keys()).keys == {second: 1}
        assert "illegal base64" in (await rpc.change_keys(KeyChange.INSTALL, "no key")).error


async def test_authentication(tmp_path: Path) -> None:
    """With the key in; without it, or with another, the reason is clear and nothing hangs."""
    configuration = tmp_path / "serf.json"
    configuration.write_text('{"rpc_auth": "let me in"}')
    async with connected(tmp_path, f"-config-file={configuration}", key="let me in") as (agent, rpc):
        assert len(await rpc.members()) == 1
        for key in ("", "wrong"):
            with pytest.raises(RpcError, match="Invalid authentication token"):
                await RpcConnection.open("127.0.0.1", agent.rpc_port, key)


async def test_what_the_agent_refuses(tmp_path: Path) -> None:
    """In its own words."""
    async with connected(tmp_path) as (_, rpc):
        for refused, words in (
            (rpc.event("e", bytes(600)), "exceeds configured limit of 512 bytes"),
            (rpc.query(QueryRequest("q", bytes(1_100))), "exceeds limit of 1024 bytes"),
            (rpc.query(QueryRequest("_serf_x")), "_serf_"),
            (rpc.stream("no-such-event"), "Invalid event filter"),
            (rpc.handshake(), "Handshake already performed"),
        ):
            with pytest.raises(RpcError, match=words) as caught:
                await refused
            assert caught.value.reason == "refused"


async def test_a_client_outlives_its_agent(tmp_path: Path) -> None:
    """kill -9 and another agent in its place: calls fail while it is away, then succeed by themselves."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log")
    await agent.listens()
    client = SerfClient("127.0.0.1", agent.rpc_port, rng=random.Random(1))
    try:
        await client.start()
        assert len(await client.members()) == 1
        stream = await (await client.connection()).stream("*")
        agent.kill()
        assert [record async for record in stream if not isinstance(record, MemberRecord)] == []
        assert not client.is_connected
        agent = SerfAgent("alpha", tmp_path / "again.log", rpc_port=agent.rpc_port)
        async with asyncio.timeout(LIMIT_S):
            await client.connection()
        assert len(await client.members()) == 1
    finally:
        await client.stop()
        agent.kill()
    with pytest.raises(RpcError, match="stopped"):
        await client.members()
