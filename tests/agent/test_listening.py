"""Where an agent listens: a port that the system chose, a unix socket, a name that others use; who may."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import Agents, agents_in, eventually

from shoal.agent.cli.main import main
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.members import own_address
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import PortError
from shoal.client.async_client import AsyncClient


@pytest.fixture
async def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agents]:
    """With paths of sockets that are short enough for the system."""
    monkeypatch.chdir(tmp_path)
    async with agents_in(tmp_path) as running:
        yield running


async def test_a_chosen_port_stands_where_a_script_reads_it(agents: Agents, tmp_path: Path) -> None:
    """In the data directory, while the agent runs; it is also the one that the agent advertises."""
    running = await agents.alone("a", http_socket="http.sock")
    told = json.loads((tmp_path / "a" / "endpoints.json").read_text())
    port = told["http_port"]
    assert port > 0
    assert told == {
        "url": f"http://127.0.0.1:{port}",
        "http_port": port,
        "http_socket": str(tmp_path / "http.sock"),
        "gossip_port": running.agent.pool.membership.port,
        "pid": os.getpid(),
    }
    assert running.agent.url == told["url"]
    _, listed = await running.call("GET", "/v1/members")
    assert [member["url"] for member in listed["members"]] == [told["url"]]
    await running.leave()
    assert not (tmp_path / "a" / "endpoints.json").exists()
    assert not (tmp_path / "http.sock").exists()


async def test_an_agent_is_used_by_the_path_of_its_socket(
    agents: Agents, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By commands and clients, small records and large answers; it is for the agent's user and group."""
    await agents.alone("a", http_socket="http.sock")
    path = tmp_path / "http.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert await asyncio.to_thread(main, ["topic", "list", "--agent", f"unix://{path}", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"topics": []}
    values = [b"x" * 200_000 for _ in range(30)]
    async with AsyncClient(f"unix://{path}") as client:
        for value in values:
            await client.send("t", value)
        await client.flush()
        read = [found.batch["value"].to_pylist() async for found in client.consume("t")]
    assert [value for some in read for value in some] == values
    monkeypatch.setenv("SHOAL_AGENT", f"unix://{path}")
    assert await asyncio.to_thread(complete_topic, None, "") == ["t"]
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET /v1/topics/t/partitions/0/records HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert b" 403 " in await reader.readline()
    writer.close()


async def test_a_path_that_cannot_be_listened_at_keeps_the_agent_from_starting(
    agents: Agents, tmp_path: Path
) -> None:
    """In one line; and what is there stays, as does another agent's socket."""
    (tmp_path / "file").write_text("precious")
    for path, reason in (("missing/s", "give a path in a directory"), ("file", "something else than a sock")):
        with pytest.raises(PortError, match=reason):
            await agents.start("a", http_socket=path).until_ready()
    await agents.alone("b", http_socket="s")
    with pytest.raises(PortError, match="another process listens there"):
        await agents.start("a", http_socket="s").until_ready()
    assert (tmp_path / "file").read_text() == "precious"
    await agents.alone("a", http_socket="other")


async def test_agents_behind_names_link_forward_and_route_by_them(agents: Agents) -> None:
    """The pool is told addresses, which agents without names understand, and the name beside them; links,
    forwards, routes and the member list have the name."""
    first, second = await agents.cluster(2, advertise="localhost", bind="127.0.0.1")
    urls = sorted(running.agent.url for running in (first, second))
    assert all(url.startswith("http://localhost:") for url in urls)
    for running in (first, second):
        _, listed = await running.call("GET", "/v1/members")
        assert sorted(member["url"] for member in listed["members"]) == urls
        for member in listed["members"]:
            assert member["tags"]["host"] == "localhost"
            assert member["tags"]["url"] == member["url"].replace("localhost", "127.0.0.1")
            assert member["address"] == "127.0.0.1"
        peers = running.agent.node.links._peers
        assert [peer.url.rpartition(":")[0] for peer in peers.values()] == ["http://localhost"]
    for number in range(4):
        status, _ = await first.call("PUT", f"/v1/topics/t{number}", {"replication_factor": 2})
        assert status in (200, 201)

    async def is_stored_through(running: object, number: int) -> bool:
        status, _ = await running.call("POST", f"/v1/topics/t{number}/records", b"value")  # type: ignore[attr-defined]
        return bool(status == 200)

    for number in range(4):
        for running in (first, second):
            await eventually(lambda running=running, number=number: is_stored_through(running, number))
    _, routes = await first.call("GET", "/v1/routes")
    leaders = {entry["partitions"][0]["leader_url"] for entry in routes["topics"].values()}
    assert leaders <= set(urls)


async def test_a_name_without_an_address_keeps_the_agent_from_starting(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names it and says what to do."""
    monkeypatch.setattr(own_address, "START_PATIENCE_S", 0.0)

    def resolve(name: str, *_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("shoal.lookup.socket.getaddrinfo", resolve)
    with pytest.raises(
        StartError, match=r"--advertise no\.example: the name no\.example has no address: Name"
    ):
        await agents.start("a", advertise="no.example", bind="0.0.0.0", insecure=True).until_ready()


async def test_further_hosts_and_origins_are_the_agents_to_name(agents: Agents) -> None:
    """As the configuration says; all else is refused."""
    running = await agents.alone("a", allowed_hosts=["shoal.example"], cors_origins=["https://app.example"])
    cases = (
        ({"Host": "shoal.example"}, 200),
        ({"Host": "SHOAL.example:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://app.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
    )
    for headers, expected in cases:
        status, _ = await running.call("GET", "/v1/topics", more=headers)
        assert status == expected, headers
