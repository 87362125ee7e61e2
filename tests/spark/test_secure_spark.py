"""Spark at a real agent with TLS, by a token that may use one prefix: what it may works, what it may not is
told in a few lines, and nothing that Spark shows or leaves has the token.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
import ssl
import sys
from collections.abc import Mapping
from typing import Any

import pyspark
import pytest

from shoal.agent.cli.main import main
from shoal.agent.process.config_source import read_file
from shoal.spark import java
from tests.agent.agents import Running, agents_in

SECONDS_MAX = 900.0
LINES_MAX = 8  # of a message, without Spark's own account of a stream's query
JAVA_FRAMES = re.compile(r"\tat \S+\(\S+\)\n")
RECORDS = 5


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 60)
async def test_spark_uses_one_prefix_over_tls(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read, a write, a stream and a view, and each of them refused, in one session; the agent's
    configuration and certificates are those that `shoal secure init` makes."""
    monkeypatch.chdir(tmp_path)
    words = ["secure", "init", "--cluster", "fish", "--name", "a", "--address", "127.0.0.1"]
    assert main(words) == 0
    first = capsys.readouterr().out.strip()
    settings = dict(read_file(str(tmp_path / "secrets/hosts/a/shoal.toml")).settings)
    del settings["data"]
    settings |= {"http_port": 0, "gossip_port": 0}
    context = ssl.create_default_context(cafile="secrets/ca.crt")
    async with agents_in(tmp_path, context) as agents:
        agent = await agents.start(settings.pop("name"), **settings).until_ready()
        token = await prepared(agent, first)
        (tmp_path / "token").touch(mode=0o600)
        (tmp_path / "token").write_text(token + "\n")
        events = tmp_path / "events"
        events.mkdir()
        said, complaints = await run(
            tmp_path, agent.agent.url, str(tmp_path / "secrets/ca.crt"), str(tmp_path / "token"), str(events)
        )
        results = json.loads(next(line for line in reversed(said.splitlines()) if line.startswith('{"read"')))
        check(results)
        files = [path for path in events.rglob("*") if path.is_file()]
        assert [path.name for path in files if path.name.startswith("events_")]
        assert [path for path in files if token.encode() in path.read_bytes()] == []
        assert token not in said
        assert "INFO" in complaints
        assert [line for line in complaints.splitlines() if token in line] == []


async def prepared(agent: Running, first: str) -> str:
    """Five topics, records in one of them, and a token for three."""
    headers: Mapping[str, str] = {"Authorization": f"Bearer {first}"}
    for topic in ("shop-in", "shop-out", "shop-streamed", "shopping", "other"):
        assert (await agent.call("PUT", f"/v1/topics/{topic}", {"partitions": 1}, headers))[0] == 201
    records = {"records": [{"value": f"v{number}"} for number in range(RECORDS)]}
    assert (await agent.call("POST", "/v1/topics/shop-in/records", records, headers))[0] == 200
    rules = {"rules": ["topic:shop-*=describe,read,write"]}
    assert (await agent.call("PUT", "/v1/principals/spark", rules, headers))[0] == 201
    status, made = await agent.call("POST", "/v1/principals/spark/tokens", {"expires_in": "1h"}, headers)
    assert status == 201
    return str(made["token"])


async def run(directory: pathlib.Path, *arguments: str) -> tuple[str, str]:
    """Its output and its complaints."""
    program = pathlib.Path(__file__).with_name("secure_program.py")
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.find(directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PLANTED_TOKEN": "",
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), *arguments, env=environment, cwd=directory, stdout=pipe, stderr=pipe
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said, complaints = out.decode(), err.decode()
    assert process.returncode == 0, (said[-2_000:], complaints[-5_000:])
    return said, complaints


def check(results: dict[str, Any]) -> None:
    """What the token allows is there; each refusal names action and topic in a few lines."""
    assert results["read"] == [f"v{number}" for number in range(RECORDS)]
    assert [results[name] for name in ("written", "streamed", "view")] == [RECORDS] * 3
    for title, told in results["refused"].items():
        text = told.partition("=== Streaming Query ===")[0]
        if pyspark.__version__.startswith(("4.0.", "4.1.")):  # their message ends with frames of Spark's Java
            text = JAVA_FRAMES.sub("", text)
        assert len(text.splitlines()) <= LINES_MAX, text
        assert "Traceback" not in text, text
        assert "403 forbidden" in text, text
        topic = "shopping" if title == "a longer name" else "other"
        assert f"'spark' may not do this; describe of 'topic:{topic}' was asked" in text, text
    assert results["shown_in"] == []
    assert min(results["lengths"].values()) > 500, results["lengths"]
    # Where Spark shows the statement with its options, the token is blacked out.
    shown = [place for place in results["names"] if "sql?" in place]
    assert shown
    assert set(shown) <= set(results["redacted"])
