"""The types that openapi-typescript makes of /openapi.json are those that a program needs."""

from __future__ import annotations

import pathlib
import shutil

import node_tools
import pytest

from tests.agent.agents import agents_in
from tests.clients.generating import DESCRIPTION, HERE, described, run


@pytest.mark.slow
async def test_types_for_typescript_are_generated_and_checked(tmp_path: pathlib.Path) -> None:
    """A program against the types compiles with --strict, and the mistakes in it are found."""
    async with agents_in(tmp_path) as agents:
        await described(await agents.alone("a"), tmp_path)
    await run(node_tools.command("openapi-typescript"), DESCRIPTION, "--output", "api.ts", directory=tmp_path)
    shutil.copy(HERE / "program.ts", tmp_path)
    flags = (
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--module",
        "es2022",
        "--moduleResolution",
        "node10",
    )
    await run(node_tools.command("tsc"), *flags, "program.ts", directory=tmp_path)
