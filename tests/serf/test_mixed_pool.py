"""A pool of three Serf agents and three of ours: under load, through losses and returns, and against peers
that mean harm."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

from shoal.membership.config import GossipConfig
from shoal.membership.net.gossip import Membership
from shoal.membership.wire.dialect import pack
from tests.serf.mixed_pool import OURS, SERFS, join_patiently, lose_and_find, mixed_pool
from tests.serf.real_serf import SerfAgent

LOAD_SECONDS = 4.0


async def test_three_and_three_under_load(tmp_path: Path) -> None:
    """Nobody is suspected falsely, by ours or by Serf's; then one of each kind dies, returns and leaves, and
    all six agree each time. (Minutes of it: scripts/campaign serf.)"""
    async with mixed_pool(tmp_path, 1) as pool:
        await pool.load(LOAD_SECONDS)
        pool.look_at_logs()
        assert pool.report.falsely_accused() == []
        await pool.all_show({})
        assert len(pool.report.done) >= 10, pool.report.done  # every kind of load, and answers either way
        await lose_and_find(pool)
        pool.look_at_logs()
        assert {accused for _, accused in pool.report.falsely_accused()} <= {OURS[2], SERFS[2]}


VERSIONS = [
    *(bytes((1, 5, 2, 2, 5, 5))[:length] for length in range(6)),
    bytes(6),
    bytes((1, 5, 2, 2, 4, 4)),
    bytes((1, 5, 2, 2, 6, 6)),
    bytes((1, 5, 2, 0, 1, 1)),
    bytes((3, 5, 4, 2, 5, 5)),
    bytes((1, 1, 1, 2, 5, 5)),
]


async def test_we_never_hand_on_what_breaks_a_serf_agent(tmp_path: Path) -> None:
    """A version of one to five bytes ends a Serf agent, and one it does not know makes it refuse every
    exchange with whoever lists it. We hear such claims, list none of them, and tell none: the agents live on,
    and new ones join through us."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log")
    member = Membership(
        GossipConfig.local(name="ours", push_pull_interval_ms=200),
        rng=random.Random(1),
        on_event=lambda _: None,
    )
    await member.start()
    later = None
    try:
        await agent.listens()
        await join_patiently(member, ("127.0.0.1", agent.port))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            for number, version in enumerate(VERSIONS):
                attacker.sendto(alive(f"evil-{number}", version), ("127.0.0.1", member.port))
        await asyncio.sleep(1.0)  # rounds of gossip, and five push/pulls
        assert [one.name for one in member.members()] == ["alpha", "ours"]
        later = SerfAgent("beta", tmp_path / "beta.log", join=member.port)
        for one in (agent, later):
            await one.listens()
            for name in ("alpha", "beta", "ours"):
                await one.shows(name, "alive")
            assert not [name for name in await one.members() if name.startswith("evil")]
            log = (tmp_path / f"{one.name}.log").read_text()
            assert "panic" not in log
            assert "incompatible" not in log
    finally:
        await member.stop()
        agent.kill()
        if later is not None:
            later.kill()


def alive(name: str, version: bytes) -> bytes:
    """A packet as nobody of ours would send it."""
    body = {
        "Addr": bytes((127, 0, 0, 9)),
        "Incarnation": 1,
        "Meta": b"\xff\x80",
        "Node": name,
        "Port": 7946,
        "Vsn": version,
    }
    return b"\x04" + pack(body)


async def test_what_a_serf_agent_itself_does_not_survive(tmp_path: Path) -> None:
    """So that the test above is known to bite: told to the agent itself, three bytes end it."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log")
    try:
        await agent.listens()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            attacker.sendto(alive("evil", bytes((1, 5, 2))), ("127.0.0.1", agent.port))
        async with asyncio.timeout(90):
            while agent.process.poll() is None:
                await asyncio.sleep(0.05)
        assert "panic" in (tmp_path / "alpha.log").read_text()
    finally:
        agent.kill()
