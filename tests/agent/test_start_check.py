"""`shoal agent --check`: what a start would meet, and that nothing on the disk changes."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
from typing import Any

import pytest
from certificates import AGENT, CLUSTER, HOSTS, Authority, write_files
from command_line import run

from shoal.agent.config import AgentConfig
from shoal.agent.durable.identity import AgentIdentity, IdentityStore
from shoal.agent.host import free_space
from shoal.agent.levels import FIRST_LEVEL, SUPPORTED, Level
from shoal.agent.start_check import check_start
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.cluster_file import ClusterRecord, save_cluster
from shoal.segment_store.disk.lock import DirectoryLock
from shoal.segment_store.disk.threads import ThreadDisk

CLUSTER_ID = b"c" * 16


def config(data: pathlib.Path, **settings: Any) -> AgentConfig:
    return AgentConfig.from_sources({"data": str(data), "http_port": 0, "gossip_port": 0} | settings)


async def findings(wanted: AgentConfig) -> dict[str, tuple[bool, str]]:
    return {finding.what: (finding.is_good, finding.found) for finding in await check_start(wanted)}


def state(directory: pathlib.Path) -> dict[str, object]:
    """All that a change would touch."""
    found: dict[str, object] = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ctime_ns, status.st_size, content)
    return found


async def made(data: pathlib.Path, level: Level = FIRST_LEVEL) -> None:
    """A directory as an agent leaves it."""
    data.mkdir()
    disk = ThreadDisk()
    identities = await IdentityStore.open(disk, str(data))
    await identities.save(AgentIdentity("a" * 32, CLUSTER_ID, "cod"))
    await identities.close()
    record = ClusterRecord("fish", CLUSTER_ID, ("a" * 32,), Catalog(level=level).to_bytes())
    await save_cluster(disk, str(data), record)
    await disk.close()
    with DirectoryLock(str(data)):
        pass


async def test_a_new_directory_would_be_made_and_is_not(tmp_path: pathlib.Path) -> None:
    """All is well, and nothing is there afterwards."""
    before = state(tmp_path)
    found = await findings(config(tmp_path / "data"))
    assert all(is_good for is_good, _ in found.values()), found
    assert "would be made" in found["directory"][1]
    assert state(tmp_path) == before


async def test_a_cluster_that_nobody_named_is_the_directorys(tmp_path: pathlib.Path) -> None:
    """The default is not shown as if it counted."""
    await made(tmp_path / "data")
    unnamed = AgentConfig.from_sources({"data": str(tmp_path / "data"), "http_port": 0, "gossip_port": 0})
    found = await findings(unnamed)
    assert found["configuration"] == (True, "bind 127.0.0.1, cluster shoal unless the directory has one")
    assert found["directory"][1].endswith("agent cod of cluster fish")
    named = await findings(dataclasses.replace(unnamed, cluster="fish", cluster_is_explicit=True))
    assert named["configuration"] == (True, "bind 127.0.0.1, cluster fish")


@pytest.mark.parametrize("hosts", [HOSTS, ("10.0.0.9",)])
async def test_a_certificate_that_clients_will_refuse(tmp_path: pathlib.Path, hosts: tuple[str, ...]) -> None:
    """The agent starts all the same: other agents do not look at names of hosts."""
    authority = Authority()
    files = write_files(tmp_path / "tls", authority.issue(AGENT, hosts=hosts), authority.pem)
    names = {name: getattr(files, name) for name in ("tls_cert", "tls_key", "tls_ca")}
    is_good, said = (await findings(config(tmp_path / "data", cluster=CLUSTER, **names)))["TLS"]
    assert is_good
    assert ("does not name 127.0.0.1" in said) == (hosts != HOSTS)


async def test_a_key_that_cannot_be_read_is_found_without_a_directory_too(tmp_path: pathlib.Path) -> None:
    """A first start would end there."""
    path, key = tmp_path / "new", tmp_path / "gossip.key"
    findings = await check_start(config(path, gossip_key=f"@{key}"))
    (wrong,) = [finding for finding in findings if not finding.is_good]
    assert wrong.what == "directory"
    assert str(key) in wrong.found
    assert not path.exists()


async def test_an_agents_directory_is_read_and_left_as_it_is(tmp_path: pathlib.Path) -> None:
    """Even where a start would mend a copy, or close a keyring to others."""
    data = tmp_path / "data"
    await made(data)
    (data / "cluster.b").unlink()
    (data / "identity.b").write_bytes(b"")
    (data / "gossip-keyring.json").write_text('["MDEyMzQ1Njc4OWFiY2RlZg=="]')
    os.chmod(data / "gossip-keyring.json", 0o644)
    before = state(tmp_path)
    found = await findings(config(data))
    assert found["directory"] == (True, f"{data}: agent cod of cluster fish")
    assert state(tmp_path) == before


async def test_a_directory_that_a_start_would_refuse(tmp_path: pathlib.Path) -> None:
    """With the words of the start, and the name of the directory."""
    data = tmp_path / "data"
    await made(data)
    is_good, said = (await findings(config(data, cluster="birds")))["directory"]
    assert not is_good
    assert "fish" in said
    with DirectoryLock(str(data)):
        is_good, said = (await findings(config(data)))["directory"]
        assert not is_good
        assert str(os.getpid()) in said
    for copy in "ab":
        (data / f"identity.{copy}").write_bytes(b"x" * 512)
    is_good, said = (await findings(config(data)))["directory"]
    assert not is_good
    assert f"{data}/identity are damaged" in said
    await made(tmp_path / "newer", level=Level(SUPPORTED.highest + 1))
    is_good, said = (await findings(config(tmp_path / "newer")))["directory"]
    assert not is_good
    assert "install on its host the version of Shoal that the other members run" in said
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        is_good, said = (await findings(config(path)))["directory"]
        assert not is_good
        assert "give" in said


async def test_ports_in_use_and_addresses_of_others(tmp_path: pathlib.Path) -> None:
    """A port that was asked for has to be free, for gossip over UDP too; a default one steps up."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        ports = {"http_port": tcp.getsockname()[1], "gossip_port": udp.getsockname()[1]}
        found = await findings(config(tmp_path / "data", **ports))
        for what, port in zip(("HTTP port", "gossip port"), ports.values(), strict=True):
            assert not found[what][0]
            assert str(port) in found[what][1]
    assert not (await findings(config(tmp_path / "data", bind="192.0.2.1")))["HTTP port"][0]


async def test_a_socket_and_a_name_are_looked_at_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of a start, and nothing in the socket's place changes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    found = await findings(config(tmp_path / "data"))
    assert {"HTTP socket", "name"}.isdisjoint(found)
    with socket.socket(socket.AF_UNIX) as taken, socket.socket(socket.AF_UNIX) as left:
        taken.bind("taken")
        taken.listen()
        left.bind("left")
        left.close()
        before = state(tmp_path)
        for path, words in (
            ("file", "else than a socket"),
            ("taken", "listens there"),
            ("no/s", "give a path"),
        ):
            is_good, said = (await findings(config(tmp_path / "data", http_socket=path)))["HTTP socket"]
            assert not is_good
            assert said.startswith(f"--http-socket {path}: ")
            assert words in said
        for path in ("free", "left"):
            assert (await findings(config(tmp_path / "data", http_socket=path)))["HTTP socket"] == (
                True,
                path,
            )
        assert state(tmp_path) == before

    def resolve(name: str, *_: object, **__: object) -> list[object]:
        if name == "no.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr("shoal.lookup.socket.getaddrinfo", resolve)
    for name, bind, expected in (
        ("localhost", "127.0.0.1", (True, "localhost leads to 127.0.0.1")),
        ("no.example", "0.0.0.0", (False, "has no address: Name or service not known: give a name")),
        ("localhost", "0.0.0.0", (False, "is loopback, which no other host reaches")),
    ):
        is_good, said = (await findings(config(tmp_path / "data", advertise=name, bind=bind)))["name"]
        assert is_good == expected[0]
        assert expected[1] in said


async def test_a_disk_without_room(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit at which appends are refused."""
    monkeypatch.setattr("shoal.agent.start_check.MIN_FREE_BYTES", 2**60)
    is_good, said = (await findings(config(tmp_path / "data")))["disk"]
    assert not is_good
    assert "make room" in said
    assert free_space.MIN_FREE_BYTES < 2**60


async def test_each_core_is_checked(tmp_path: pathlib.Path) -> None:
    """Each has a directory and ports of its own."""
    wanted = config(tmp_path / "data", cores=2, http_port=None, gossip_port=None)
    said = [finding.found for finding in await check_start(wanted) if finding.what == "directory"]
    assert [text.split()[0][-6:] for text in said] == ["core-0", "core-1"]


async def test_the_command_says_a_line_each_and_its_exit_code_counts(tmp_path: pathlib.Path) -> None:
    """0 where a start would work, 1 where it would not, 2 for a configuration that cannot work."""
    good = ("agent", "--check", "--data", str(tmp_path / "data"), "--http-port", "0", "--gossip-port", "0")
    ran = await run(*good)
    assert (ran.code, ran.stderr) == (0, "")
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["ok"] * 6
    assert not (tmp_path / "data").exists()
    (tmp_path / "file").write_text("")
    ran = await run(*good[:3], str(tmp_path / "file"), *good[4:])
    assert ran.code == 1
    assert [line.split()[0] for line in ran.stdout.splitlines()].count("FAILED") == 1
    ran = await run(*good, "--log-level", "loud")
    assert ran.code == 2
    assert "use one of debug, info, warning, error" in ran.stderr
    toml = tmp_path / "shoal.toml"
    toml.write_text("\nweight = 0\n")
    ran = await run(*good, "--config", str(toml))
    assert ran.code == 2
    assert f"{toml}, line 2, key weight" in ran.stderr
    toml.write_text("weight 0\n")
    ran = await run(*good, "--config", str(toml))
    assert ran.code == 2
    assert f"--config {toml}, line 1, key weight is not TOML" in ran.stderr
