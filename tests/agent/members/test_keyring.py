"""Gossip keys of real agents: where they come from, where they are kept, and a rotation that loses nobody."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import Agents, agents_in, eventually

from shoal.agent.cli.main import main
from shoal.agent.config import AgentConfig, ConfigError, PoolSettings
from shoal.agent.durable.data_directory import wipe
from shoal.agent.durable.keyring_file import KeyringFile, settle_keyring
from shoal.agent.process.errors import StartError
from shoal.membership.wire.keyring import Keyring, fingerprint, key_text, parse_key

KEY, OTHER = bytes(32), bytes(range(16))


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as running:
        yield running


def settle(data: Path, key: str | None = None) -> Keyring | None:
    return settle_keyring(
        AgentConfig(data=str(data), pool=PoolSettings(gossip_key=key)), KeyringFile(str(data))
    )


def test_the_first_key_is_kept_and_the_file_decides_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No key, no file; with a key a file for its owner alone; later another key is not taken, but told."""
    assert settle(tmp_path) is None
    assert os.listdir(tmp_path) == []
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text(key_text(KEY) + "\n")
    assert settle(tmp_path, f"@{tmp_path}/key") == Keyring((KEY,))
    file = KeyringFile(str(tmp_path))
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600
    assert settle(tmp_path) == Keyring((KEY,))
    assert caplog.records == []
    file.save(Keyring((OTHER,)))
    assert settle(tmp_path, key_text(KEY)) == Keyring((OTHER,))
    assert "remove that file" in caplog.text
    assert key_text(KEY) not in caplog.text


def test_the_file_is_written_whole_and_for_its_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over whatever a crash has left; one that others could read is closed, and that is said."""
    file = KeyringFile(str(tmp_path))
    leftover = tmp_path / "gossip-keyring.json.new"
    leftover.write_text("half")
    leftover.chmod(0o644)
    file.save(Keyring((KEY, OTHER)))
    assert not leftover.exists()
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600
    os.chmod(file.path, 0o644)
    assert file.load() == Keyring((KEY, OTHER))
    assert "could be read by others" in caplog.text
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'["AAAA"]', b"\xff", b"[" * 5000])
def test_a_broken_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """Beginning without keys would tell everything to everybody."""
    (tmp_path / "gossip-keyring.json").write_bytes(content)
    with pytest.raises(StartError, match="is no keyring"):
        settle(tmp_path, key_text(KEY))


def test_a_bad_key_is_refused_and_never_shown(tmp_path: Path) -> None:
    """On the command line, in a file, in a file that is not there."""
    for text in ("", "secret", key_text(KEY)[:-2], "@"):
        with pytest.raises(ConfigError, match="shoal keygen") as refusal:
            AgentConfig.from_sources({"data": "d"}, {"SHOAL_GOSSIP_KEY": text or " "})
        assert "secret" not in str(refusal.value)
    (tmp_path / "key").write_text(key_text(KEY))
    (tmp_path / "key").chmod(0o604)
    with pytest.raises(StartError, match=r"every user may read the gossip key in .*: `chmod o= "):
        settle(tmp_path, f"@{tmp_path}/key")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").write_text("secret")
    with pytest.raises(StartError, match="shoal keygen") as stopped:
        settle(tmp_path, f"@{tmp_path}/key")
    assert "secret" not in str(stopped.value)
    with pytest.raises(StartError, match="No such file"):
        settle(tmp_path, "@/nowhere/key")
    config = AgentConfig.from_sources({"data": "d", "gossip_key": key_text(KEY)})
    assert key_text(KEY) not in repr(config)
    assert key_text(KEY) not in str(config.as_document())
    assert AgentConfig.from_sources({}, config.as_environment()) == config


def test_giving_up_an_empty_cluster_keeps_the_keys(tmp_path: Path) -> None:
    """Without them no cluster would let the agent in."""
    (tmp_path / "identity.a").write_text("x")
    KeyringFile(str(tmp_path)).save(Keyring((KEY,)))
    wipe(str(tmp_path))
    assert os.listdir(tmp_path) == ["gossip-keyring.json"]


async def test_three_agents_rotate_their_keys_and_lose_nobody(
    agents: Agents, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands of the page on operations; then one restarts, and comes back with the kept key."""
    new = key_text(OTHER)
    (tmp_path / "new.key").write_text(f"{new}\n")
    cluster = await agents.cluster(3, gossip_key=key_text(KEY), gossip_label="fish")
    url = cluster[0].agent.url
    old = fingerprint(KEY)

    async def together() -> bool:
        _, document = await cluster[1].call("GET", "/v1/members")
        return [member["status"] for member in document["members"]] == ["alive"] * 3

    async def keys(*arguments: str) -> str:
        code = await asyncio.to_thread(main, ["keys", *arguments, "--agent", url])
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), out
        assert await together()
        return out

    assert old in await keys("list")
    status, problem = await cluster[1].call("POST", "/v1/keys/use", {"key": new})
    assert (status, problem["code"], "install it first" in problem["detail"]) == (409, "keys-differ", True)
    await keys("install", f"@{tmp_path}/new.key")
    await keys("use", f"@{tmp_path}/new.key")
    listed = await keys("remove", old)
    assert old not in listed
    assert "3/3" in listed
    assert new not in listed
    for running in cluster:
        file = KeyringFile(running.agent.config.data)
        assert [key_text(key) for key in (file.load() or Keyring((KEY,))).keys] == [new]
    await cluster[2].crash()
    again = agents.start(
        "a2", gossip_key=key_text(KEY), gossip_label="fish", join=[await cluster[0].gossip_address()]
    )
    await again.until_ready()
    await eventually(together)


@pytest.mark.parametrize("flags", [{}, {"gossip_key": key_text(OTHER)}, {"gossip_label": "fowl"}])
async def test_an_agent_of_another_key_or_label_gets_in_nowhere(
    agents: Agents, flags: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on calling, as one with seeds does, and waits; the cluster never sees it, and its log names it
    once."""
    caplog.set_level(logging.WARNING, "shoal.membership.net.gossip")
    ours = await agents.alone("a", gossip_key=key_text(KEY), gossip_label="fish")
    wrong = {"gossip_key": key_text(KEY), "gossip_label": "fish"} | flags if flags else {}
    stranger = agents.start("z", expect=2, join=[await ours.gossip_address()], **wrong)
    await stranger.gossip_address()
    await eventually(lambda: _refused_thrice(ours))
    await asyncio.sleep(0)
    assert not stranger.ready.is_set()
    _, document = await ours.call("GET", "/v1/members")
    assert [member["name"] for member in document["members"]] == ["a"]
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("refused a stream from 127.0.0.1") for line in lines) == 1


async def _refused_thrice(running: object) -> bool:
    return running.agent.pool.membership.traffic().strangers >= 3  # type: ignore[attr-defined, no-any-return]


def test_keygen(capsys: pytest.CaptureFixture[str]) -> None:
    """A new key each time, of the length asked for, and nothing else."""
    assert [main(["keygen"]), main(["keygen"]), main(["keygen", "--bytes", "16"])] == [0, 0, 0]
    first, second, short = (parse_key(line) for line in capsys.readouterr().out.splitlines())
    assert (len(first), len(second), len(short)) == (32, 32, 16)
    assert first != second
    assert main(["keygen", "--bytes", "20"]) == 2
    assert "16, 24 or 32" in capsys.readouterr().err
