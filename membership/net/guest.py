"""Asking a gossip pool who is in it, without becoming a member: one state exchange with nothing to say.

Law of this file: a shell over one TCP stream. The meaning of the answer is the caller's business.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import NamedTuple

from shoal.membership.net.streams import StreamBudget, StreamFault, exchange_state
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import Keyring, parse_key
from shoal.membership.wire.messages import PushPull, State, host_text
from shoal.membership.wire.serf import decode_tags

TIMEOUT_SECONDS = 3.0
"""For the whole exchange: a member answers at once, or is not there."""


class PoolMember(NamedTuple):
    """A member that the asked one holds for alive."""

    name: str
    tags: dict[str, str]
    address: str


class NobodyAnswered(Exception):
    """No member of a pool answered at that address; the text says what happened."""


async def ask_pool(host: str, port: int, *, key: str | None = None, label: str = "") -> list[PoolMember]:
    """The living members that the agent at this gossip address knows. Nobody learns of us by it.

    `key`: one of the pool's keys in base64, if it is sealed. Raises NobodyAnswered, and KeyringError for what
    is no key.
    """
    keyring = None if key is None else Keyring([parse_key(key)])
    envelope = Envelope(label=label, keyring=lambda: keyring, random_bytes=secrets.token_bytes)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = await exchange_state(host, port, PushPull(False, (), b""), envelope, StreamBudget())
        living = [node for node in answer.nodes if node.state in (State.ALIVE, State.SUSPECT)]
        return [
            PoolMember(node.name, decode_tags(node.meta), host_text(node.endpoint.address)) for node in living
        ]
    except TimeoutError:
        raise NobodyAnswered(f"{host}:{port} did not answer within {TIMEOUT_SECONDS:g} s") from None
    except (OSError, StreamFault, WireError) as fault:
        raise NobodyAnswered(f"{host}:{port}: {fault or type(fault).__name__}") from fault
