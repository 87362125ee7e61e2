"""A copied data directory: two live processes under one agent id (safety 2). The younger one ends.

Law of this file: it asks, over HTTP, who runs where this agent's id was seen besides here, and decides
which of two may stay. A former address of this agent is no twin: nobody answers there, or somebody else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, NamedTuple

import aiohttp

from shoal.addresses import host_of, plain_address
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.members.tags import TAG_BOOT_NONCE, TAG_URL
from shoal.agent.process.errors import StartError
from shoal.agent.security.agents_tls import OWN_TLS, context_for
from shoal.connector import EndingConnector
from shoal.membership.interface import Member, MemberEvent

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 * 1_024
MAX_WAITING = 4  # claims are told once a minute; more than one at a time is a coincidence
CONFLICT = "conflict"

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class Life(NamedTuple):
    """One process that runs under an agent id. `run`: its boot nonce; `started_at`: RFC 3339, its clock."""

    agent_id: str
    run: str
    started_at: str

    def yields_to(self, other: Life) -> bool:
        """The younger yields, and both come to the same answer. No clock decides more than who gives way."""
        return (self.started_at, self.run) > (other.started_at, other.run)


def parse_life(body: bytes) -> Life | None:
    """From the document of GET /v1/agent; None for anything else."""
    try:
        document: Any = json.loads(body)
        fields = [document[name] for name in ("id", "run", "started_at")]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Life(*fields) if all(isinstance(value, str) for value in fields) else None


async def agent_document(url: str) -> bytes:
    """GET /v1/agent. Raises aiohttp.ClientError, OSError, TimeoutError, ValueError."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    context = context_for(url, OWN_TLS.get())
    async with (
        aiohttp.ClientSession(connector=EndingConnector(), timeout=timeout, trust_env=False) as session,
        session.get(f"{url}/v1/agent", allow_redirects=False, ssl=context or True) as response,
    ):
        return await response.content.read(MAX_ANSWER_BYTES)


async def find_twin(url: str, own: Life) -> Life | None:
    """Another process under this agent's id that answers at `url` now."""
    try:
        life = parse_life(await agent_document(url))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        logger.debug("no answer from %s: %s", url, error)
        return None
    if life is None or life.agent_id != own.agent_id or life.run == own.run:
        return None
    return life


def _tell_of(peer: Member) -> None:
    """Of two processes of one peer the younger ends by itself, and says so."""
    logger.info(
        "%s speaks at %s, gossip port %d, too: that address counts once nobody answers at its former one",
        agent_name(peer.name),
        peer.address,
        peer.port,
        extra=about("another-address", members=(agent_name(peer.name),), total=1),
    )


class DuplicateIdentityWatch:
    """run() for the agent's life; raises StartError when this process is the one to end."""

    def __init__(self, own: Life, data: str) -> None:
        self._own = own
        self._data = data
        self._urls: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)

    def on_event(self, event: MemberEvent) -> None:
        """Membership has heard another address claim a name."""
        if event.kind != CONFLICT:
            return
        if event.member.name != self._own.agent_id:
            _tell_of(event.member)
            return
        if self._urls.full():
            return
        tags = event.member.tags
        url = tags.get(TAG_URL, "")
        if host_of(url) == plain_address(event.member.address) and tags.get(TAG_BOOT_NONCE) != self._own.run:
            self._urls.put_nowait(url)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.check(await self._urls.get())

    async def check(self, url: str) -> None:
        """Raises StartError when an older process runs under this id at `url`."""
        twin = await find_twin(url, self._own)
        if twin is None:
            seldom.info(
                "gossip names %s for this agent too, and nobody answers there as it: a former address",
                url,
                extra=about("former-address"),
            )
            return
        if self._own.yields_to(twin):
            raise StartError(
                f"{url} runs under the id of this agent already: {self._data} is a copy of its directory;"
                " give this agent an empty --data"
            )
        logger.error("the agent at %s has the id of this one: its data directory is a copy; stop it", url)
