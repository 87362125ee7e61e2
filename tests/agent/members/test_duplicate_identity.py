"""Two processes from one data directory: the younger one ends and says why; a former address is no twin."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from shoal.agent.log_lines.names import Names
from shoal.agent.log_lines.schema import event_of
from shoal.agent.members.duplicate_identity import DuplicateIdentityWatch, Life, find_twin, parse_life
from shoal.agent.process.errors import StartError
from shoal.format.timestamps import format_time
from shoal.membership.interface import Member, MemberEvent
from tests.agent.agents import agents_in

OWN = Life("a" * 32, "run1", "2026-01-01T00:00:01.000000Z")
OLDER = Life("a" * 32, "run2", "2026-01-01T00:00:00.000000Z")
YOUNGER = Life("a" * 32, "run3", "2026-01-01T00:00:02.000000Z")


@asynccontextmanager
async def answering(life: Life) -> AsyncIterator[str]:
    """Somebody who says so at GET /v1/agent."""

    async def agent(_request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"id": life.agent_id, "run": life.run, "started_at": life.started_at})

    runner = web.ServerRunner(web.Server(agent))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def claim(url: str, run: str, kind: str = "conflict") -> MemberEvent:
    return MemberEvent(
        kind, Member(OWN.agent_id, "127.0.0.1", 7946, {"url": url, "boot": run}, "alive", 1, 0)
    )


async def verdict(event: MemberEvent, within_s: float = 0.5) -> str | None:
    """What the watch ends with in this time; None when it goes on."""
    watch = DuplicateIdentityWatch(OWN, "data")
    watch.on_event(event)
    try:
        await asyncio.wait_for(watch.run(), within_s)
    except TimeoutError:
        return None
    except StartError as error:
        return str(error)
    raise AssertionError("it ended by itself")


async def test_the_younger_of_two_ends() -> None:
    """Whoever finds an older process under its id gives way; nobody else does."""
    async with answering(OLDER) as url:
        assert "data is a copy" in (await verdict(claim(url, OLDER.run), within_s=40) or "")
        assert await verdict(claim(url, OLDER.run, kind="joined")) is None
        assert await verdict(claim(url, OWN.run)) is None
        assert await verdict(claim(url.replace("127.0.0.1", "localhost"), OLDER.run)) is None
        assert await verdict(claim(url + "/v1", OLDER.run)) is None, "nobody else chooses what is asked"
    assert await verdict(claim(url, OLDER.run)) is None  # a former address: nobody is there any more
    for harmless in (YOUNGER, OWN, Life("b" * 32, "run4", OLDER.started_at)):
        async with answering(harmless) as url:
            assert await verdict(claim(url, harmless.run + "?")) is None


async def test_when_an_agent_started_is_told_by_the_wall_clock(tmp_path: Path) -> None:
    """Not by a clock that begins with the host: two hosts' would say nothing about who is younger."""
    before = format_time(time.time_ns() // 1_000)
    async with agents_in(tmp_path) as agents:
        alone = await agents.alone("a")
        _, document = await alone.call("GET", "/v1/agent")
        assert before <= document["started_at"] <= format_time(time.time_ns() // 1_000)
        assert document["uptime_seconds"] < 3_600
        own = Life(alone.agent.agent_id, "another run", document["started_at"])
        assert await find_twin(alone.agent.url, own) == Life(own.agent_id, document["run"], own.started_at)


async def test_a_former_address_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """After a crash the others still know the former address for seconds, and tell it."""
    caplog.set_level(logging.INFO)
    async with answering(OLDER) as url:
        pass
    await DuplicateIdentityWatch(OWN, "data").check(url)
    (record,) = caplog.records
    assert (record.levelname, event_of(record)) == ("INFO", "former-address")
    assert vars(record)["repeats"], "once a minute"
    assert url in record.getMessage()


def test_another_address_of_a_peer_is_told_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Who has come back elsewhere, or runs twice, as people call it."""
    caplog.set_level(logging.INFO)
    peer, names = "c" * 32, Names()
    names.learn_agent(peer, "herring")
    with names.in_use():
        DuplicateIdentityWatch(OWN, "data").on_event(
            MemberEvent(
                "conflict", Member(peer, "10.0.0.9", 7946, {"url": "http://10.0.0.9:1"}, "alive", 1, 0)
            )
        )
    (record,) = caplog.records
    assert (record.levelname, event_of(record)) == ("INFO", "another-address")
    assert "herring" in record.getMessage()
    assert "10.0.0.9, gossip port 7946" in record.getMessage()
    assert peer not in record.getMessage()


def test_both_come_to_the_same_answer() -> None:
    """Of two lives one yields, also when they began in the same instant."""
    twin = Life(OWN.agent_id, "run0", OWN.started_at)
    for one, other in ((OWN, OLDER), (OWN, YOUNGER), (OWN, twin)):
        assert one.yields_to(other) is not other.yields_to(one)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b'{"id":1,"run":"r","started_at":"t"}', b"[" * 100_000]
)
def test_what_is_no_agent_is_no_twin(body: bytes) -> None:
    """Any bytes may come from a port that is somebody else's now."""
    assert parse_life(body) is None


def test_an_agent_is_recognised() -> None:
    """By three fields of its document."""
    document = {"id": OWN.agent_id, "run": OWN.run, "started_at": OWN.started_at, "pid": 1}
    assert parse_life(json.dumps(document).encode()) == OWN


@pytest.mark.slow
async def test_a_copied_directory_is_refused_beside_the_agent_it_was_copied_from(tmp_path: Path) -> None:
    """The copy kept the port at which the original answers; the original is not disturbed."""
    async with agents_in(tmp_path) as agents:
        original = await agents.alone("a")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        copy = agents.start("b")
        with pytest.raises(StartError, match="is a copy of its directory"):
            await copy.until_ready()
        assert (await original.call("POST", "/v1/topics/t/records", b"v"))[0] == 200
