"""Real Serf agents for tests: processes on 127.0.0.1, asked through their command line, ended by their ids.

The binary is the one named by SHOAL_SERF, else `serf` on PATH, else the one that scripts/test unpacked.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
from pathlib import Path

import serf_binary

SERF = serf_binary.find()

ANSWER_TIMEOUT_S = 60.0
"""A command of Serf's, and the wait for what its list should show: generous, as both cores may be busy."""


PORTS = range(20_000, 32_768)
"""Below those that Linux gives to whoever asks for any, or connects."""
PORT_TRIES_MAX = 100


class SerfAgent:
    """A real agent on 127.0.0.1, asked through its command line."""

    def __init__(
        self, name: str, log: Path, *flags: str, port: int = 0, rpc_port: int = 0, join: int = 0
    ) -> None:
        """`join`: the port of a member to join; tried again, since a busy one may not answer in a second."""
        self.name = name
        self.port, self.rpc_port = port or free_port(), rpc_port or free_port()
        self._log = log.open("ab")
        assert SERF is not None
        self.process = subprocess.Popen(
            [
                str(SERF),
                "agent",
                f"-node={name}",
                f"-bind=127.0.0.1:{self.port}",
                f"-rpc-addr=127.0.0.1:{self.rpc_port}",
                "-profile=local",
                *flags,
                *([f"-retry-join=127.0.0.1:{join}", "-retry-interval=1s"] if join else []),
            ],
            stdout=self._log,
            stderr=self._log,
        )

    async def ask(self, command: str, *arguments: str) -> str:
        """Run a serf command against this agent; its output."""
        assert SERF is not None
        process = await asyncio.create_subprocess_exec(
            str(SERF),
            command,
            f"-rpc-addr=127.0.0.1:{self.rpc_port}",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            output, _ = await process.communicate()
        return output.decode()

    async def listens(self) -> None:
        """Wait until its RPC answers."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.rpc_port)
                except OSError:
                    assert self.process.poll() is None, "the Serf agent has ended"
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    async def members(self) -> dict[str, tuple[str, str]]:
        """Name to status and tags, as `serf members` prints them."""
        lines = (line.split() for line in (await self.ask("members")).splitlines())
        return {line[0]: (line[2], line[3] if len(line) > 3 else "") for line in lines if len(line) >= 3}

    async def member_time(self) -> int:
        """Its Lamport clock of joins and leaves: the time that its next intent would carry."""
        lines = (line.split() for line in (await self.ask("info")).splitlines())
        return next((int(line[2]) for line in lines if line[:2] == ["member_time", "="]), 0)

    async def shows(self, name: str, status: str, tag: str = "") -> None:
        """Wait until it does."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                shown = (await self.members()).get(name, ("", ""))
                if shown[0] == status and tag in shown[1]:
                    return
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


def free_port() -> int:
    """A port that was free a moment ago, for UDP and TCP, of those that the kernel gives nobody by itself: it
    gives none of them to others before Serf has it."""
    chance = random.SystemRandom()
    for _ in range(PORT_TRIES_MAX):
        port = chance.choice(PORTS)
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"{PORT_TRIES_MAX} ports of {PORTS} are taken")
