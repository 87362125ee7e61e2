"""An agent whose replica of the catalog is beyond repair: it serves what it can, and says what is wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shoal.agent import agent as module
from tests.agent.agents import agents_in, eventually

pytestmark = pytest.mark.slow


def damage(data: Path) -> None:
    """Flip one byte inside the first entry of the catalog's log."""
    (segment,) = data.glob("topics/" + "0" * 32 + "/0/*.arrows")
    content = bytearray(segment.read_bytes())
    content[900] ^= 0xFF
    segment.write_bytes(content)


async def test_a_damaged_catalog_is_named_and_the_rest_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """readyz and the log say which replica failed and how; records are appended and read as before."""
    monkeypatch.setattr(module, "UNREADY_SAID_MS", 100)
    async with agents_in(tmp_path) as agents:
        first = await agents.alone("a")
        assert (await first.call("POST", "/v1/topics/t/records", b"one"))[0] == 200
        await first.leave()
        damage(tmp_path / "a")

        again = agents.start("a")

        async def explained() -> bool:
            if not hasattr(again.agent, "broker"):
                return False
            return "its replica here is failed" in again.agent.broker.readiness()[1]["catalog"]

        await eventually(explained)
        status, problem = await again.call("GET", "/readyz", verbose="")
        assert status == 503
        assert "checksum" in problem["checks"]["catalog"]
        assert (await again.call("POST", "/v1/topics/t/records", b"two"))[0] == 200
        status, document = await again.call("GET", "/v1/topics/t/partitions/0/records")
        assert [record["value"] for record in document["records"]] == ["one", "two"]

        async def told() -> bool:
            return any(
                record.levelno == logging.WARNING and "not ready yet: catalog" in record.getMessage()
                for record in caplog.records
            )

        await eventually(told)
