"""Sealed pools with real Serf agents: one keyring, rotated from either side, and strangers on either side."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.interface import JoinError, KeyChange, KeyReport
from shoal.membership.net.gossip import Membership
from shoal.membership.wire.keyring import Keyring, key_text
from tests.serf.real_serf import SerfAgent
from tests.serf.test_interop import LIMIT_S, answers, shows

KEY, OTHER = bytes(range(32)), bytes(range(16))
SILENT = "no answer"


@asynccontextmanager
async def sealed_pool(tmp_path: Path, *keys: bytes) -> AsyncIterator[tuple[list[SerfAgent], Membership]]:
    """Two agents with a keyring file, and one of ours that joined the first."""
    ring = Keyring(keys)
    agents = []
    for name in ("alpha", "beta"):
        file = tmp_path / f"{name}.keyring"
        file.write_text(ring.to_json())
        agents.append(SerfAgent(name, tmp_path / f"{name}.log", f"-keyring-file={file}"))
    member = Membership(
        GossipConfig.local(name="ours", keyring=ring), rng=random.Random(1), on_event=lambda _: None
    )
    try:
        await member.start()
        for agent in agents:
            await answers(lambda agent=agent: member.join([("127.0.0.1", agent.port)]))
        for agent in agents:
            for name in ("alpha", "beta", "ours"):
                await agent.shows(name, "alive")
        for name in ("alpha", "beta"):
            await shows(member, name, "alive")
        yield agents, member
    finally:
        await member.stop()
        for agent in agents:
            agent.kill()


async def test_one_sealed_pool(tmp_path: Path) -> None:
    """AES-192 (the other sizes are rotated below): lists, probes and reachability work; nothing of theirs is
    refused, nothing of ours."""
    async with sealed_pool(tmp_path, bytes(range(24))) as (agents, member):
        await says(agents[0], "Successfully contacted all live nodes", "reachability")
        await still_together(agents, member)
        assert member.traffic().faults == 0
        for agent in agents:
            assert b"Decrypt packet failed" not in (tmp_path / f"{agent.name}.log").read_bytes()


async def test_they_rotate_our_keys(tmp_path: Path) -> None:
    """`serf keys`: each step is counted on 3 of 3 members, and our keyring follows."""
    async with sealed_pool(tmp_path, KEY) as (agents, member):
        for flag, key, after in (
            ("-install", OTHER, (KEY, OTHER)),
            ("-use", OTHER, (OTHER, KEY)),
            ("-remove", KEY, (OTHER,)),
        ):
            await says(agents[0], "Successfully", "keys", flag, key_text(key))
            assert member._running().keyring == Keyring(after)
        listed = await says(agents[1], "[3/3]", "keys", "-list")
        assert key_text(OTHER) in listed
        assert key_text(KEY) not in listed
        await still_together(agents, member)


async def test_we_rotate_their_keys(tmp_path: Path) -> None:
    """Installed, used and removed on all three by our word; what a step may not do is told by their words."""
    async with sealed_pool(tmp_path, KEY) as (agents, member):
        assert (await of_all(member.keys)).keys == {KEY: 3}
        refused = await of_all(lambda: member.change_keys(KeyChange.USE, OTHER))
        assert refused.failures == dict.fromkeys(
            ("alpha", "beta", "ours"), "Requested key is not in the keyring"
        )
        for change, key in ((KeyChange.INSTALL, OTHER), (KeyChange.USE, OTHER), (KeyChange.REMOVE, KEY)):
            report = await of_all(lambda change=change, key=key: member.change_keys(change, key))  # type: ignore[misc]
            assert (report.members, report.failures) == (3, {}), change
        assert (await of_all(member.keys)).keys == {OTHER: 3}
        for agent in agents:
            file = tmp_path / f"{agent.name}.keyring"
            assert Keyring.from_json(file.read_text()) == Keyring((OTHER,))
        await still_together(agents, member)


async def says(agent: SerfAgent, words: str, *command: str) -> str:
    """What the command prints once it has these words. Its question has a second and a half for all answers,
    and it may be asked again: a key that is there is installed, one that is not there is removed."""
    output = ""
    async with asyncio.timeout(LIMIT_S):
        while words not in output:
            output = await agent.ask(*command)
    return output


async def of_all(ask: Callable[[], Awaitable[KeyReport]]) -> KeyReport:
    """The first report in which nobody is silent, for the same reason."""
    async with asyncio.timeout(LIMIT_S):
        while SILENT in (report := await ask()).failures.values():
            pass
    return report


async def still_together(agents: list[SerfAgent], member: Membership) -> None:
    """Three more probes are answered, by packets sealed with the key of now, and then nobody is missing for
    anybody. Who did not get to run may be suspected for a moment."""

    def answered() -> int:
        return member.statistics().probes - member.statistics().failed_probes

    async def everybody() -> list[dict[str, str]]:
        shown = [{name: one[0] for name, one in (await agent.members()).items()} for agent in agents]
        return [{other.name: other.status for other in member.members()}, *shown]

    before = answered()
    together = [dict.fromkeys(("alpha", "beta", "ours"), "alive")] * 3
    async with asyncio.timeout(LIMIT_S):
        while answered() < before + 3 or await everybody() != together:
            await asyncio.sleep(0.1)
    assert member.traffic().strangers == 0


@pytest.mark.parametrize("keys", [(), (OTHER,)], ids=["without a key", "with another key"])
async def test_strangers_get_in_nowhere(tmp_path: Path, keys: tuple[bytes, ...]) -> None:
    """Neither ours at a sealed agent, nor that agent at ours; a labelled node meets no Serf agent at all."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log", f"-encrypt={key_text(KEY)}")
    members = [
        Membership(
            GossipConfig.local(name=name, keyring=Keyring(keys) if keys else None, label=label),
            rng=random.Random(name),
            on_event=lambda _: None,
        )
        for name, label in (("ours", ""), ("labelled", "fish"))
    ]
    try:
        for member in members:
            await member.start()
        async with asyncio.timeout(LIMIT_S):
            while "alpha" not in await agent.members():
                await asyncio.sleep(0.1)
        for member in members:
            with pytest.raises(JoinError):
                await member.join([("127.0.0.1", agent.port)])
            await agent.ask("join", f"127.0.0.1:{member.port}")
        await asyncio.sleep(0.5)
        assert set(await agent.members()) == {"alpha"}
        for member in members:
            assert len(member.members()) == 1
            assert member.traffic().strangers > 0
        assert agent.process.poll() is None
    finally:
        for member in members:
            await member.stop()
        agent.kill()
