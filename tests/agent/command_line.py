"""Runs `shoal` as a user's script does: a process of its own, no terminal, bounded in time."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import NamedTuple

COMMAND_SECONDS = 120.0


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


async def start(*arguments: str, agent: str | None = None, **environment: str) -> Process:
    """Start a command; the caller ends it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    clean.update(
        {"XDG_CONFIG_HOME": os.devnull, **environment}, COLUMNS="200"
    )  # not the contexts of somebody
    if agent is not None:
        clean["SHOAL_AGENT"] = agent
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shoal.agent", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=clean
    )


async def run(
    *arguments: str,
    agent: str | None = None,
    stdin: bytes = b"",
    seconds: float = COMMAND_SECONDS,
    **environment: str,
) -> Ran:
    """Run a command to its end, which may take so long."""
    process = await start(*arguments, agent=agent, **environment)
    out, err = await finish(process, stdin, seconds)
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def finish(
    process: Process, stdin: bytes | None = None, seconds: float = COMMAND_SECONDS
) -> tuple[bytes, bytes]:
    """What it writes until it ends; it is killed when that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            return await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def assert_one_line(ran: Ran, *words: str) -> None:
    """A failure is one line on stderr that holds these words, nothing on stdout, and no traceback."""
    assert ran.code != 0
    assert ran.stdout == ""
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    assert ran.stderr.startswith("shoal: ")
    for word in words:
        assert word in ran.stderr
