"""How an agent without a cluster learns of one: it asks a member, over HTTP, who it is.

Law of this file: the links prove a cluster id, which an empty agent does not have; so this one question
goes to GET /v1/agent. The answer is hearsay until the links' handshake proves it: an agent that was told a
wrong id is refused by everybody of the right one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from shoal.agent.durable.ids import ID_BYTES
from shoal.agent.levels import FIRST_LEVEL, Level, level_in
from shoal.agent.members.duplicate_identity import agent_document

MAX_BIRTH_VOTERS = 7


class IntroductionError(Exception):
    """Nobody could say; the text says who was asked and what they answered."""


class Introduction(NamedTuple):
    """One member's words about itself and its cluster."""

    agent_id: str
    cluster: str
    cluster_id: bytes
    catalog_birth: tuple[str, ...]
    level: Level = FIRST_LEVEL


async def ask(urls: Sequence[str], cluster_id: bytes) -> Introduction:
    """The first member of that cluster that answers. Raises IntroductionError."""
    reasons = []
    for url in urls:
        try:
            introduction = parse_introduction(await agent_document(url))
            if introduction.cluster_id == cluster_id:
                return introduction
            reasons.append(f"{url} belongs to cluster {introduction.cluster_id.hex()}")
        except (aiohttp.ClientError, TimeoutError, IntroductionError, OSError) as error:
            reasons.append(f"{url}: {error or type(error).__name__}")
    raise IntroductionError("; ".join(reasons) or "nobody to ask")


def parse_introduction(body: bytes) -> Introduction:
    """From the document of GET /v1/agent. Raises IntroductionError, and nothing else."""
    try:
        document: Any = json.loads(body)
        birth = document["catalog"]["birth"]
        introduction = Introduction(
            _text(document["id"]),
            _text(document["cluster"]),
            bytes.fromhex(_text(document["cluster_id"])),
            tuple(_text(voter) for voter in birth),
            level_in(document["catalog"].get("level")) or FIRST_LEVEL,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntroductionError(f"not in a cluster yet ({type(error).__name__})") from None
    if len(introduction.cluster_id) != ID_BYTES:
        raise IntroductionError("its cluster id is none")
    if not 1 <= len(introduction.catalog_birth) <= MAX_BIRTH_VOTERS:
        raise IntroductionError("its catalog has no possible birth")
    return introduction


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        raise TypeError("a short text is needed")
    return value
