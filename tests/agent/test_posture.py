"""An agent beyond loopback does not start without protection, and one that was told to says so everywhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from waiting import until

import shoal.agent.agent as agent_module
from shoal.agent.config import AgentConfig
from shoal.agent.process.errors import StartError
from shoal.agent.security.posture import Protection
from tests.agent.agents import agents_in


async def test_an_agent_that_others_reach_starts_only_if_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal leaves no cluster behind. With --insecure: the log again and again, the document, the
    metric. On loopback nothing is said."""
    caplog.set_level(logging.WARNING)
    async with agents_in(tmp_path) as agents:
        inside = await agents.alone("inside")
        assert (await inside.call("GET", "/v1/agent"))[1]["posture"] == "loopback"
        assert (await inside.agent.broker.metrics(partitions=False))["shoal_insecure"] == 0
        assert "INSECURE" not in caplog.text

        monkeypatch.setattr(AgentConfig, "is_loopback", property(lambda self: False))
        monkeypatch.setattr(agent_module, "SAID_AGAIN_S", 0.05)
        with pytest.raises(StartError, match=r"needs TLS and a gossip key.*secure init"):
            await agents.start("refused").until_ready()

        told = await agents.alone("told", insecure=True)
        document = (await told.call("GET", "/v1/agent"))[1]
        assert document["posture"] == "insecure"
        assert document["missing_protections"] == list(Protection)
        assert (await told.agent.broker.metrics(partitions=False))["shoal_insecure"] == 1
        await until(lambda: caplog.text.count("INSECURE: bound to 127.0.0.1 without TLS, ") > 1)
