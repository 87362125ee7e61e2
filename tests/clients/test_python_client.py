"""A client that openapi-python-client makes of /openapi.json does what it promises, against a real agent."""

from __future__ import annotations

import pathlib
import shutil

import environment
import pytest

from tests.agent.agents import agents_in
from tests.clients.generating import DESCRIPTION, HERE, described, run

# The generator does not know these kinds of bodies; it says so, and makes all else.
KNOWN_WARNINGS = {
    f"Unsupported content type {media}"
    for media in ("application/x-ndjson", "application/vnd.apache.arrow.stream", "text/plain")
}


@pytest.mark.slow
async def test_a_python_client_is_generated_and_used(tmp_path: pathlib.Path) -> None:
    """Topics made, changed and deleted, records appended and read, a refusal as a typed problem."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        await described(agent, tmp_path)
        generator = environment.command("openapi-python-client", "clients")
        command = (generator, "generate", "--path", DESCRIPTION, "--output-path", "made")
        said = await run(*command, directory=tmp_path)
        told = ("Unsupported", "Failure", "Attempted")
        assert {line for line in said.splitlines() if line.startswith(told)} <= KNOWN_WARNINGS
        shutil.copy(HERE / "program.py", tmp_path / "made")
        python = environment.command("python", "clients")
        assert await run(python, "program.py", agent.agent.url, directory=tmp_path / "made") == "used\n"
