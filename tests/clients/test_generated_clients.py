"""Clients that people generate from /openapi.json, by generators that are not ours, do what they promise."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import subprocess

import environment
import node_tools
import pytest
from agents import Running, agents_in

HERE = pathlib.Path(__file__).parent
TOOL_SECONDS = 100.0
DESCRIPTION = "openapi.json"
GENERATOR_MISSING = not environment.is_ready("clients")
NODE_MISSING = not node_tools.are_ready()
# The generator takes one kind of body a route; it says so of the others, and makes all else.
KNOWN_WARNINGS = {
    f"Unsupported content type {media}"
    for media in ("application/x-ndjson", "application/vnd.apache.arrow.stream", "text/plain")
}


async def run(*command: str, directory: pathlib.Path) -> str:
    """What it says; a test that fails with it otherwise."""
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(GENERATOR_MISSING, reason="openapi-python-client is not installed; scripts/test does it")
async def test_a_python_client_is_generated_and_used(tmp_path: pathlib.Path) -> None:
    """Topics made, changed and deleted, records appended and read, a refusal as a typed problem."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        await described(agent, tmp_path)
        generator = environment.command("openapi-python-client", "clients")
        said = await run(
            generator, "generate", "--path", DESCRIPTION, "--output-path", "made", directory=tmp_path
        )
        warnings = {
            line for line in said.splitlines() if line.startswith(("Unsupported", "Failure", "Attempted"))
        }
        assert warnings <= KNOWN_WARNINGS
        shutil.copy(HERE / "program.py", tmp_path / "made")
        python = environment.command("python", "clients")
        said = await run(python, "program.py", agent.agent.url, directory=tmp_path / "made")
        assert said == "used\n"


@pytest.mark.slow
@pytest.mark.skipif(
    NODE_MISSING, reason="openapi-typescript is not installed; scripts/test does it where npm is"
)
async def test_types_for_typescript_are_generated_and_checked(tmp_path: pathlib.Path) -> None:
    """A program against the types compiles with --strict, and the mistakes in it are found."""
    async with agents_in(tmp_path) as agents:
        await described(await agents.alone("a"), tmp_path)
    generator, compiler = node_tools.command("openapi-typescript"), node_tools.command("tsc")
    await run(generator, DESCRIPTION, "--output", "api.ts", directory=tmp_path)
    shutil.copy(HERE / "program.ts", tmp_path)
    flags = [
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--moduleResolution",
        "node10",
        "--module",
        "es2022",
    ]
    await run(compiler, *flags, "program.ts", directory=tmp_path)


async def described(agent: Running, directory: pathlib.Path) -> None:
    status, document = await agent.call("GET", "/openapi.json")
    assert status == 200
    (directory / DESCRIPTION).write_text(json.dumps(document))
