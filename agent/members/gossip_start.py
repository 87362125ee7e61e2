"""Into the gossip pool: by the agent's own gossip, or through a Serf agent that already runs.

Law of this file: it turns the configuration into a started Gossip, or says why it cannot. The pool's members
are the roster's business.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import NamedTuple

from shoal.addresses import plain_address
from shoal.agent.config import DEFAULT_GOSSIP_PORT, AgentConfig
from shoal.agent.durable.keyring_file import KeyringFile
from shoal.agent.members.contact import PoolContact
from shoal.agent.members.duplicate_identity import Life, find_twin
from shoal.agent.members.tags import TAG_URL, TAGS
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import PortChoice, listen
from shoal.lookup import Lookup
from shoal.membership.config import GossipConfig
from shoal.membership.interface import Gossip, MemberEvent, PoolEvent
from shoal.membership.net.gossip import Membership
from shoal.membership.net.mdns import LOOPBACK, Discovery
from shoal.membership.serf.snapshot import Clocks
from shoal.membership.serf_agent.hosted import TAG_AGENT
from shoal.membership.serf_agent.membership import SerfMembership, SerfSettings
from shoal.membership.serf_agent.rpc import RpcError
from shoal.membership.wire.keyring import Keyring

logger = logging.getLogger("shoal.agent")


class Entry(NamedTuple):
    """The node that enters the pool, and its tags. `kept_port` is the gossip port of the last run, 0 for
    none. `address`: where others reach this host; the pool is told it."""

    config: AgentConfig
    own: Life
    address: str
    tags: dict[str, str]
    kept_port: int
    keyring: Keyring | None
    clocks: Clocks
    rng: random.Random
    lookup: Lookup
    on_event: Callable[[MemberEvent], None]
    on_user_event: Callable[[PoolEvent], None]


async def enter(entry: Entry) -> Gossip:
    """Raises PortError, StartError."""
    return await (_through_serf(entry) if entry.config.uses_serf else _by_itself(entry))


async def _by_itself(entry: Entry) -> Gossip:
    config = entry.config
    choice = PortChoice("--gossip-port", config.gossip_port, entry.kept_port or None, DEFAULT_GOSSIP_PORT)

    async def gossip_on(port: int) -> Membership:
        profile = GossipConfig.local if config.is_loopback else GossipConfig.lan
        membership = Membership(
            profile(
                name=entry.own.agent_id,
                bind_address=config.bind,
                bind_port=port,
                advertise_address=entry.address,
                tags=entry.tags,
                label=config.pool.gossip_label or "",
                keyring=entry.keyring,
                verify_incoming=config.pool.gossip_verify_incoming,
                verify_outgoing=config.pool.gossip_verify_outgoing,
            ),
            rng=entry.rng,
            on_event=entry.on_event,
            on_user_event=entry.on_user_event,
            keep_keyring=KeyringFile(config.data).save,
            clocks=entry.clocks,
            lookup=entry.lookup.addresses,
        )
        await membership.start()
        return membership

    membership = await listen(choice, config.bind, gossip_on)
    if choice.has_stepped(membership.port):
        logger.info("port %d is in use: gossip listens on %d", choice.kept or choice.default, membership.port)
    return membership


async def _through_serf(entry: Entry) -> Gossip:
    host, port = entry.config.serf_address
    settings = SerfSettings(
        name=entry.own.agent_id,
        tags=entry.tags,
        host=host,
        port=port,
        auth_key=entry.config.pool.serf_auth_key or "",
        owned_tags=TAGS,
    )
    membership = SerfMembership(
        settings, rng=entry.rng, on_event=entry.on_event, on_user_event=entry.on_user_event
    )
    try:
        await membership.start()
    except RpcError as error:
        raise StartError(f"{error.detail}: give --serf-rpc HOST:PORT and --serf-auth-key") from None
    try:
        await _look_for_occupant(membership, entry.own)
        await membership.take()
    except RpcError as error:
        raise StartError(f"cannot speak through the Serf agent {membership.node}: {error.detail}") from None
    finally:
        if not membership.is_in:
            await membership.stop()
    logger.info("in the pool by way of the Serf agent %s at %s:%d", membership.node, host, port)
    own = entry.address
    if plain_address(own) != plain_address(membership.address):
        logger.warning(
            "the Serf agent %s is at %s and this agent at %s, so other agents do not accept it as a member:"
            " start it with --advertise %s",
            membership.node,
            membership.address,
            own,
            membership.address,
        )
    return membership


async def _look_for_occupant(membership: SerfMembership, own: Life) -> None:
    """A node speaks for one agent. A dead predecessor's tags may still be there; a living one has it."""
    occupant = membership.occupant
    if occupant is None:
        return
    agent_id, url = occupant.tags[TAG_AGENT], occupant.tags.get(TAG_URL, "")
    living = await find_twin(url, Life(agent_id, own.run, "")) if url else None
    if living is not None:
        raise StartError(
            f"the Serf agent {membership.node} speaks for the agent at {url} already: each agent needs a Serf"
            " agent of its own"
        )


async def start_discovery(gossip: Gossip, config: AgentConfig, contact: PoolContact) -> Discovery | None:
    """mDNS: announce where our gossip listens, and hear of others. None, and said, where there is none."""
    discovery = Discovery(
        cluster=config.cluster,
        agent_id=gossip.local_name,
        address=gossip.address,
        gossip_port=gossip.port,
        on_found=contact.on_found,
        interfaces=[LOOPBACK if config.is_loopback else gossip.address],
    )
    try:
        await discovery.start()
    except OSError as error:
        logger.warning("mDNS is not available (%s): use --join HOST:PORT to meet other agents", error)
        return None
    contact.heard = discovery.found
    return discovery
