"""An agent beyond loopback does not start without protection, and one that was told to says so everywhere."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
from waiting import until

import shoal.agent.agent as agent_module
from shoal.agent.cli.main import main
from shoal.agent.config import AgentConfig
from shoal.agent.process.config_source import read_file
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


async def test_a_host_as_shoal_secure_made_it_lets_nobody_in_without_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configuration that init wrote, its certificates, and the token that it showed fit each other."""
    monkeypatch.chdir(tmp_path)
    words = ["secure", "init", "--cluster", "fish", "--name", "a", "--address", "127.0.0.1"]
    assert main(words) == 0
    token = capsys.readouterr().out.strip()
    settings = dict(read_file(str(tmp_path / "secrets/hosts/a/shoal.toml")).settings)
    del settings["data"]
    settings |= {"http_port": 0, "gossip_port": 0}
    context = ssl.create_default_context(cafile="secrets/ca.crt")
    async with agents_in(tmp_path, context) as agents:
        secured = await agents.start(settings.pop("name"), **settings).until_ready()
        assert secured.agent.url.startswith("https://127.0.0.1:")
        status, refused = await secured.call("GET", "/v1/agent")
        assert (status, refused["code"]) == (401, "unauthenticated")
        shown = {"Authorization": f"Bearer {token}"}
        status, document = await secured.call("GET", "/v1/agent", more=shown)
        assert (status, document["posture"], document["missing_protections"]) == (200, "secured", [])
        assert token not in str(document)
        assert settings["bootstrap_token_hash"] not in str(document)
