"""Prometheus' own tool reads the metrics of a running agent and our alerts. Not collected without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.agent.agents import agents_in
from tests.operations.rules import ALERTS


def test_promtool_takes_the_alerts() -> None:
    """Syntax, expressions, templates."""
    found = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
async def test_promtool_has_nothing_to_say_of_the_metrics(tmp_path: Path) -> None:
    """Neither errors nor lint."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        url = f"{agent.agent.url}/metrics?partitions"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.read()
    found = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (found.returncode, found.stderr) == (0, b""), found.stderr.decode()
