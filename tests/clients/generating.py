"""What the tests of generated clients share: a real agent's description, and others' tools run in time."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
from typing import Any

HERE = pathlib.Path(__file__).parent
DESCRIPTION = "openapi.json"
TOOL_SECONDS = 100.0


async def run(*command: str, directory: pathlib.Path) -> str:
    """What it says; a test that fails with it otherwise. Others' tools may read certificates, which our own
    processes are spared."""
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def described(agent: Any, directory: pathlib.Path) -> None:
    """Write the agent's description into the directory."""
    status, document = await agent.call("GET", "/openapi.json")
    assert status == 200
    (directory / DESCRIPTION).write_text(json.dumps(document))
