"""What the tests of generated clients share: a real agent's description, and others' tools run in time."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
from typing import Any

HERE = pathlib.Path(__file__).parent
DESCRIPTION = "openapi.json"
TOOL_SECONDS = 100.0


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


async def described(agent: Any, directory: pathlib.Path) -> None:
    """Write the agent's description into the directory."""
    status, document = await agent.call("GET", "/openapi.json")
    assert status == 200
    (directory / DESCRIPTION).write_text(json.dumps(document))
