"""Agents that speak TLS: a cluster of them, strangers who try, and certificates exchanged under load."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import fields

import pytest
from agents import Agents, Running, agents_in, eventually
from certificates import CLUSTER, Authority, Issued, write_files

from shoal.agent.peers import connection as link_connection
from shoal.agent.peers import renewal
from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.links import Links
from shoal.agent.process.errors import StartError
from shoal.agent.tls import reload
from shoal.agent.tls.contexts import Contexts

OLD = Authority("old")
NEW = Authority("new")
BOTH = OLD.pem + NEW.pem
PATIENCE_S = 60.0
AUTHORITIES = {"old": OLD.pem, "both": BOTH, "new": NEW.pem}


@pytest.fixture
def context() -> ssl.SSLContext:
    """Of a client that believes both."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=BOTH.decode())
    return context


@pytest.fixture
async def agents(tmp_path: pathlib.Path, context: ssl.SSLContext) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path, context) as started:
        yield started


def flags(directory: pathlib.Path, issued: Issued, ca: bytes = OLD.pem) -> dict[str, object]:
    """For an agent with such files."""
    settings = write_files(directory, issued, ca)
    given = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {"cluster": CLUSTER, **{name: value for name, value in given.items() if value is not None}}


async def cluster_of_three(agents: Agents, directory: pathlib.Path) -> list[Running]:
    """Each with a certificate of its own."""
    first = agents.start("a0", expect=3, **flags(directory / "tls0", OLD.agent()))
    join = [await first.gossip_address()]
    others = [
        agents.start(f"a{n}", expect=3, join=join, **flags(directory / f"tls{n}", OLD.agent()))
        for n in (1, 2)
    ]
    return [await each.until_ready() for each in (first, *others)]


def contexts_of(agent: Running) -> Contexts:
    """As they are now."""
    node = agent.agent.node
    assert node is not None
    assert node.tls is not None
    return node.tls.contexts


def links_of(agent: Running) -> Links:
    node = agent.agent.node
    assert node is not None
    return node.links


def connections_of(agent: Running) -> set[PeerConnection]:
    """Of all its links, without those that are leaving."""
    return {one for peer in links_of(agent)._peers.values() for one in peer.connections.values()}


def leaving(agent: Running) -> bool:
    """Whether former connections are there still."""
    return any(peer.leaving for peer in links_of(agent)._peers.values())


def issuers(agent: Running) -> list[str]:
    """The authorities of the peers at the other ends of its links."""
    connections = connections_of(agent)
    certificates = [one._transport.get_extra_info("peercert") for one in connections if one._transport]
    return [certificate["issuer"][0][0][1] for certificate in certificates]


class Kept:
    """One connection that a client keeps; any end of it is an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, agent: Running, context: ssl.SSLContext) -> Kept:
        """By TLS."""
        port = int(agent.agent.url.rpartition(":")[2])
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    async def append(self, partition: int) -> None:
        """One record, acknowledged by a majority."""
        head = f"POST /v1/topics/t/partitions/{partition}/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        self.writer.write(f"{head}Content-Length: 1\r\n\r\nx".encode())
        answer = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        length = re.search(rb"(?i)content-length: ([0-9]+)", answer)
        assert length is not None, answer
        body = await asyncio.wait_for(self.reader.readexactly(int(length[1])), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 200 "), answer + body


async def load(connections: list[Kept], stop: asyncio.Event) -> int:
    """Records to every partition by way of each agent, one after the other, until told."""
    sent = 0
    while not stop.is_set():
        await connections[sent % 3].append(sent // 3 % 3)
        sent += 1
    return sent


async def truth(value: bool) -> bool:
    return value


async def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Looks and renewals within a moment; the log."""
    monkeypatch.setattr(reload, "LOOK_S", 0.05)
    monkeypatch.setattr(reload, "SECOND_LOOK_S", 0.05)
    monkeypatch.setattr(renewal, "RENEWED_WITHIN_S", 1.5)  # handshakes of a busy machine take some tenths
    monkeypatch.setattr(link_connection, "LEAVE_S", 2.0)
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.slow
async def test_certificates_and_authorities_are_exchanged_under_load(
    agents: Agents, context: ssl.SSLContext, tmp_path: pathlib.Path, quick: pytest.LogCaptureFixture
) -> None:
    """First both authorities are believed, then each agent gets a certificate of the new one, then the old
    one is withdrawn. No request fails, and no connection of a client ends. A pair that does not fit changes
    nothing. In the end all links are between certificates of the new authority, and an agent with one of
    the old authority is let in nowhere."""
    running = await cluster_of_three(agents, tmp_path)
    assert all(each.agent.url.startswith("https://") for each in running)
    created = await running[0].call("PUT", "/v1/topics/t", {"partitions": 3, "replication_factor": 3})
    assert created[0] == 201, created
    stop = asyncio.Event()
    connections = [await Kept.to(each, context) for each in running]
    under_load = asyncio.create_task(load(connections, stop))
    pairs = [OLD.agent() for _ in running]
    for believed, authority in (("both", OLD), ("both", NEW), ("new", NEW)):
        former = [contexts_of(each) for each in running]
        for number in range(3):
            if (believed, authority) == ("both", NEW):
                pairs[number] = NEW.agent()
            write_files(tmp_path / f"tls{number}", pairs[number], AUTHORITIES[believed])
        await eventually(lambda former=former: truth(not set(former) & set(map(contexts_of, running))))
    good = contexts_of(running[0])
    write_files(tmp_path / "tls0", Issued(NEW.agent().cert, NEW.agent().key), NEW.pem)
    await eventually(lambda: said(quick, "not exchanged, the former ones stay: tls_cert"))
    assert contexts_of(running[0]) is good
    await eventually(lambda: truth(all(issuers(each) == ["authority new"] * 4 for each in running)))
    stop.set()
    assert await under_load > 0
    for connection in connections:
        connection.writer.close()
    assert (await running[1].call("GET", "/v1/members"))[0] == 200
    join = [await running[0].gossip_address()]
    late = agents.start("late", expect=3, join=join, **flags(tmp_path / "late", OLD.agent(), BOTH))
    await eventually(lambda: said(quick, "its certificate is of another authority"))
    assert not late.ready.is_set()


@pytest.mark.slow
async def test_an_authority_is_withdrawn_by_the_side_that_does_not_dial(
    agents: Agents, context: ssl.SSLContext, tmp_path: pathlib.Path, quick: pytest.LogCaptureFixture
) -> None:
    """Only the agent that others dial believes the new authority alone, long after all have its certificates.
    Its links are dialled anew before the old ones end: no request fails, no frame is dropped, and no group
    gets another leader."""
    running = await cluster_of_three(agents, tmp_path)
    created = await running[0].call("PUT", "/v1/topics/t", {"partitions": 3, "replication_factor": 3})
    assert created[0] == 201, created
    pairs = [NEW.agent() for _ in running]
    for issued in ([OLD.agent() for _ in running], pairs):
        former = [contexts_of(each) for each in running]
        for number in range(3):
            write_files(tmp_path / f"tls{number}", issued[number], BOTH)
        await eventually(lambda former=former: truth(not set(former) & set(map(contexts_of, running))))
    last = max(running, key=lambda each: links_of(each).agent_id)
    assert not any(one.was_dialled for one in connections_of(last))
    await eventually(lambda: truth(all(not leaving(each) for each in running)))
    stop = asyncio.Event()
    kept = [await Kept.to(each, context) for each in running]
    under_load = asyncio.create_task(load(kept, stop))
    before = connections_of(last), [links_of(each).dropped_frames for each in running]
    number = running.index(last)
    write_files(tmp_path / f"tls{number}", pairs[number], NEW.pem)
    await eventually(lambda: truth(not before[0] & connections_of(last) and len(connections_of(last)) == 4))
    assert issuers(last) == ["authority new"] * 4
    await eventually(lambda: truth(not leaving(last)))
    assert [links_of(each).dropped_frames for each in running] == before[1]
    assert "was lost" not in quick.text
    stop.set()
    assert await under_load > 0
    for connection in kept:
        connection.writer.close()


@pytest.mark.slow
async def test_an_agent_in_the_open_does_not_join_agents_of_tls(
    agents: Agents, tmp_path: pathlib.Path, quick: pytest.LogCaptureFixture
) -> None:
    """It says why it waits."""
    first = await agents.alone("secured", **flags(tmp_path / "tls", OLD.agent()))
    join = [await first.gossip_address()]
    late = agents.start("open", expect=2, join=join, cluster=CLUSTER)
    await eventually(lambda: said(quick, "it speaks TLS and this agent does not"))
    assert not late.ready.is_set()


@pytest.mark.slow
async def test_an_agent_does_not_start_with_files_that_do_not_fit(
    agents: Agents, tmp_path: pathlib.Path
) -> None:
    """It says which, before it listens anywhere."""
    late = agents.start("a", **flags(tmp_path / "tls", OLD.issue("shoal://fish/agent", days=(-2, -1))))
    with pytest.raises(StartError, match=r"tls_cert .*agent\.crt has expired"):
        await late.until_ready()


@pytest.mark.slow
async def test_the_end_of_certificates_is_a_metric(agents: Agents, tmp_path: pathlib.Path) -> None:
    """By the setting that names the file."""
    agent = await agents.alone("a", **flags(tmp_path / "tls", OLD.agent()))
    async with agents._session.get(f"{agent.agent.url}/metrics") as answer:
        text = await answer.text()
    for setting in ("tls_cert", "tls_ca"):
        found = re.search(rf'shoal_tls_certificate_expires_seconds{{file="{setting}"}} ([0-9.]+)', text)
        assert found is not None
        assert 29 * 86_400 < float(found[1]) <= 30 * 86_400


async def test_a_page_that_came_in_the_open_is_another_page(agents: Agents, tmp_path: pathlib.Path) -> None:
    """Somebody on the way can make one of the agent's own address. A browser would send its certificate with
    that page's requests, as with all to that address."""
    agent = await agents.alone("a", **flags(tmp_path / "tls", OLD.agent()))
    url = agent.agent.url
    assert (await agent.call("PUT", "/v1/topics/t"))[0] == 201
    for origin, status in ((url.replace("https:", "http:"), 403), (url, 200)):
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        path = f"{url}/v1/topics/t/partitions/0/records"
        async with agents._session.post(path, data=b"x", headers=headers) as answer:
            assert answer.status == status, await answer.text()
