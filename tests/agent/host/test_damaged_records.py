"""Any one of the files in which an agent keeps what it must not forget is damaged while it is down."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.agents import Running, agents_in, eventually

VALUES = [f"acknowledged {number}" for number in range(5)]
FILES = tuple(f"{name}.{copy}" for name in ("cluster", "hard-state", "identity", "replicas") for copy in "ab")
HARMS: dict[str, Callable[[bytearray, random.Random], bytes]] = {
    "bit": lambda data, rng: flipped(data, rng),
    "zeros": lambda data, rng: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "sector": lambda data, rng: rng.randbytes(min(512, len(data))) + data[512:],
    "truncate": lambda data, rng: data[: rng.randrange(len(data))],
    "rubbish": lambda data, rng: rng.randbytes(len(data)),
    "append": lambda data, rng: data + rng.randbytes(1_000),
    "empty": lambda data, rng: b"",
}


def flipped(data: bytearray, rng: random.Random) -> bytes:
    """One bit, in what is written."""
    used = len(data.rstrip(b"\0"))
    data[rng.randrange(used)] ^= 1 << rng.randrange(8)
    return data


async def serves(agent: Running, values: list[str]) -> None:
    """Exactly those, as soon as it leads."""

    async def are_read() -> bool:
        status, answer = await agent.call("GET", "/v1/topics/t/partitions/0/records", offset=0)
        return status == 200 and [item["value"] for item in answer["records"]] == values

    await eventually(are_read)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
async def test_one_damaged_file_of_two_heals(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every kind of damage, one after the other, each to what the start before has mended: the agent starts,
    serves every acknowledged record, and takes more."""
    rng = random.Random(name)
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        assert (await agent.call("PUT", "/v1/topics/t"))[0] == 201
        records = {"records": [{"value": value} for value in VALUES]}
        assert (await agent.call("POST", "/v1/topics/t/records", records))[0] == 200
        await agent.crash()
        path = tmp_path / "a" / name
        kept = list(VALUES)
        for harm in [*HARMS, "gone"]:
            if harm == "gone":
                path.unlink()
            else:
                path.write_bytes(HARMS[harm](bytearray(path.read_bytes()), rng))
            agent = await agents.alone("a")
            await serves(agent, kept)
            more = {"records": [{"value": harm}]}
            assert (await agent.call("POST", "/v1/topics/t/records", more))[0] == 200
            kept.append(harm)
            await agent.crash()
    assert "Traceback" not in caplog.text
    shutil.rmtree(tmp_path / "a")
