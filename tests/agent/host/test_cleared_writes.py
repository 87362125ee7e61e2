"""The newest write of a killed process, found incomplete: said aloud where no power failure explains it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from command_line import run

from shoal.agent import directory as module
from tests.agent.agents import Running, agents_in, eventually

SECTOR = 512


def zero_a_sector(data: Path, mark: bytes) -> None:
    """In the middle of the record's batch, as a disk that lost one."""
    (path,) = [file for file in data.glob("topics/*/0/*.arrows") if mark in file.read_bytes()]
    stored = bytearray(path.read_bytes())
    at = (stored.find(mark) + 3_000) // SECTOR * SECTOR
    stored[at : at + SECTOR] = bytes(SECTOR)
    path.write_bytes(stored)


async def put(agent: Running, value: str) -> None:
    path = "/v1/topics/t/records"
    assert (await agent.served("POST", path, {"records": [{"value": value}]}))[0] == 200


async def is_served(agent: Running) -> bool:
    """It opens its topics a moment after it is ready."""
    return bool((await agent.call("GET", "/v1/topics/t/offsets"))[0] == 200)


@pytest.mark.slow
@pytest.mark.parametrize("power_failed", [False, True])
async def test_what_no_power_failure_tore_is_not_cleared_in_silence(
    power_failed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning with topic and partition, a number in the metrics, a line of `shoal status`; nothing of it
    where the machine was started anew in between, for there it is how writes end."""
    boots = iter(["boot-1", "boot-2" if power_failed else "boot-1"])
    monkeypatch.setattr(module, "machine_boot_id", lambda: next(boots))
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        await agent.call("PUT", "/v1/topics/t", {"replication_factor": 1})
        for number in range(5):
            await put(agent, f"{number}" + "v" * 500)
        await put(agent, "ACKNOWLEDGED " + "w" * 6_000)
        stored = tmp_path / "a"
        shutil.copytree(stored, tmp_path / "killed")  # as kill -9 would have left it
        await agent.crash()
        shutil.rmtree(stored)
        (tmp_path / "killed").rename(stored)
        zero_a_sector(stored, b"ACKNOWLEDGED")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            agent = await agents.alone("a")
            await eventually(lambda: is_served(agent))
        read = (await agent.call("GET", "/v1/topics/t/partitions/0/records", offset=0))[1]
        assert len(read["records"]) == 5
        warned = [one for one in caplog.records if one.message.startswith("t/0: the newest write")]
        cleared = (await agent.call("GET", "/v1/agent"))[1]["cleared_writes"]
        status = await run("status", agent=agent.agent.url)
        if power_failed:
            assert (warned, cleared, "cleared" in status.stdout) == ([], [], False)
            return
        assert len(warned) == 1
        assert [(item["topic"], item["partition"]) for item in cleared] == [("t", 0)]
        assert status.code == 1
        assert "cleared-writes: t/0" in status.stdout
        numbers = await agent.agent.broker.metrics(partitions=False)
        assert numbers["shoal_cleared_writes_total"] == 1
