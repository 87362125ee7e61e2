"""The second stage of an agent: it listens, answers over HTTP, and is a member of the gossip pool.

Law of this file: it builds the parts that an agent has without a cluster, in the order in which they need
each other. Each part is closed by the stack that it was given.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from shoal import __version__
from shoal.agent.config import DEFAULT_HTTP_PORT, AgentConfig
from shoal.agent.directory import Directory
from shoal.agent.durable.data_directory import host_name
from shoal.agent.durable.gossip_snapshot import save_snapshot
from shoal.agent.durable.identity import AgentIdentity
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.http.admission.limits import limits_for
from shoal.agent.http.app import make_runner
from shoal.agent.levels import HOLD, LevelRange
from shoal.agent.log_lines.names import Names
from shoal.agent.members.contact import PoolContact
from shoal.agent.members.duplicate_identity import DuplicateIdentityWatch, Life
from shoal.agent.members.gossip_start import Entry, enter, start_discovery
from shoal.agent.members.roster import Roster
from shoal.agent.members.tags import (
    TAG_BOOT_NONCE,
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_DOMAIN,
    TAG_DRAINED,
    TAG_LEVELS,
    TAG_NAME,
    TAG_URL,
    TAG_VERSION,
    TAG_WEIGHT,
    is_ours,
)
from shoal.agent.peers.frames import NONCE_BYTES
from shoal.agent.peers.links import LinkConfig, Links
from shoal.agent.placement.drain import Draining
from shoal.agent.process.clock import SystemClock
from shoal.agent.process.event_loop import expects_answers
from shoal.agent.process.ports import PortChoice, http_socket, is_own_address, listen
from shoal.agent.process.signals import open_files
from shoal.agent.service.broker import Broker
from shoal.agent.service.cluster_view import AgentFacts
from shoal.agent.service.event_sources import EventSources
from shoal.membership.interface import Gossip, MemberEvent
from shoal.membership.serf.snapshot import Snapshot

logger = logging.getLogger("shoal.agent")


@dataclass(frozen=True, slots=True)
class Node:
    """An agent that serves, alone. `identity`: with the port of this run."""

    directory: Directory
    names: Names
    identity: AgentIdentity
    url: str
    clock: SystemClock
    rng: random.Random
    watch: Watch
    event_sources: EventSources
    links: Links
    roster: Roster
    draining: Draining
    broker: Broker
    life: Life
    twins: DuplicateIdentityWatch
    levels: LevelRange

    @property
    def config(self) -> AgentConfig:
        """With the cluster's name settled."""
        return self.directory.config

    @property
    def agent_id(self) -> str:
        return self.identity.agent_id


@dataclass(frozen=True, slots=True)
class Pool:
    """A node in the gossip pool. `identity`: with both ports of this run."""

    membership: Gossip
    identity: AgentIdentity
    contact: PoolContact


async def start_node(
    directory: Directory,
    names: Names,
    parts: AsyncExitStack,
    rng: random.Random,
    request_stop: Callable[[], None],
    levels: LevelRange,
) -> Node:
    """`levels`: those that this agent understands. Raises PortError, and StartError where another process
    runs with this identity."""
    config, identity = directory.config, directory.identity
    names.learn_agent(identity.agent_id, identity.name)
    listener, url = await _listen_http(config, identity, parts)
    kept_http_port = identity.http_port
    identity = replace(identity, http_port=int(listener.getsockname()[1]))
    clock, boot_nonce = SystemClock(), os.urandom(NONCE_BYTES)
    watch, events = Watch(boot_nonce.hex()), EventFeed(boot_nonce.hex())
    links = _make_links(config, identity, clock, rng, boot_nonce, levels)
    roster = Roster(agent_id=identity.agent_id, cluster=config.cluster, links=links, watch=watch)
    parts.callback(roster.stop)
    draining = Draining(directory.disk, config.data, roster)
    await draining.load()
    broker = Broker(
        AgentFacts(config, identity.agent_id, identity.name, url, __version__, directory.disk.kind),
        roster=roster,
        links=links,
        watch=watch,
        clock=clock,
        request_stop=request_stop,
        draining=draining,
        events=events,
    )
    life = Life(identity.agent_id, boot_nonce.hex(), broker.started_at)
    twins = DuplicateIdentityWatch(life, config.data)
    # A copy of a running agent's directory is mostly started beside that agent: its ports are taken there.
    if kept_http_port not in (0, identity.http_port):
        await twins.check(_url_at(config, kept_http_port))
    node = Node(
        directory=directory,
        names=names,
        identity=identity,
        url=url,
        clock=clock,
        rng=rng,
        watch=watch,
        event_sources=EventSources(events, roster, watch, clock.now_ms),
        links=links,
        roster=roster,
        draining=draining,
        broker=broker,
        life=life,
        twins=twins,
        levels=levels,
    )
    await _serve_http(node, parts, listener)
    return node


async def _listen_http(
    config: AgentConfig, identity: AgentIdentity, parts: AsyncExitStack
) -> tuple[socket.socket, str]:
    choice = PortChoice("--http-port", config.http_port, identity.http_port or None, DEFAULT_HTTP_PORT)
    listener = await listen(choice, config.bind, lambda port: http_socket(config.bind, port))
    parts.callback(listener.close)
    port = int(listener.getsockname()[1])
    url = _url_at(config, port)
    if choice.has_stepped(port):
        taken = choice.kept or choice.default
        logger.info("port %d is in use: HTTP listens on %d (--agent %s)", taken, port, url)
    return listener, url


def _url_at(config: AgentConfig, port: int) -> str:
    address = config.advertised_address
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _make_links(
    config: AgentConfig,
    identity: AgentIdentity,
    clock: SystemClock,
    rng: random.Random,
    boot_nonce: bytes,
    levels: LevelRange,
) -> Links:
    interval_ms = config.heartbeat_interval_ms
    links = Links(
        agent_id=identity.agent_id,
        boot_nonce=boot_nonce,
        cluster_id=identity.cluster_id,
        clock=clock,
        rng=rng,
        config=LinkConfig(
            heartbeat_interval_ms=interval_ms,
            silence_after_loss_ms=2 * interval_ms,
            silence_after_ms=max(config.election_timeout_ms, 2 * interval_ms),
        ),
        levels=levels,
    )
    if is_own_address(config.advertised_address):
        links.dialler.own_address = config.advertised_address
    links.on_append_sent = expects_answers(asyncio.get_running_loop())
    return links


async def _serve_http(node: Node, parts: AsyncExitStack, listener: Any) -> None:
    runner = make_runner(node.broker, limits_for(open_files()))
    parts.push_async_callback(runner.cleanup)
    await runner.listen(listener)


async def enter_pool(node: Node, parts: AsyncExitStack) -> Pool:
    """Raises PortError, StartError."""
    directory, config, identity = node.directory, node.config, node.identity
    tags = {
        TAG_VERSION: __version__,
        TAG_NAME: identity.name,
        TAG_CLUSTER: config.cluster,
        TAG_CLUSTER_ID: "" if identity.cluster_id is None else identity.cluster_id.hex(),
        TAG_URL: node.url,
        TAG_DOMAIN: config.failure_domain or host_name(socket.gethostname()),
        TAG_WEIGHT: str(config.weight),
        TAG_BOOT_NONCE: node.life.run,
        TAG_LEVELS: f"{node.levels}{HOLD if config.hold_level else ''}",
    }
    if node.draining.wanted:
        tags[TAG_DRAINED] = "1"

    def on_event(event: MemberEvent) -> None:
        if is_ours(event.member, node.roster.cluster, node.roster.cluster_id):
            node.names.learn_agent(event.member.name, event.member.tags.get(TAG_NAME))
        node.twins.on_event(event)
        node.event_sources.on_member_event(event)
        node.roster.changed()

    membership = await enter(
        Entry(
            config=config,
            own=node.life,
            tags=tags,
            kept_port=identity.gossip_port,
            keyring=directory.keyring,
            clocks=directory.snapshot.clocks,
            rng=node.rng,
            on_event=on_event,
            on_user_event=node.roster.on_pool_event,
        )
    )
    parts.push_async_callback(membership.stop)
    if not config.uses_serf:
        identity = replace(identity, gossip_port=membership.port)
        node.broker.gossip_is_open = directory.keyring is None and not config.is_loopback
    await directory.identities.save(identity)
    node.roster.attach(membership, tags)
    logger.info(
        "%s at %s, gossip port %d, cluster %s, data %s (%s)",
        identity.name,
        node.url,
        membership.port,
        config.cluster,
        config.data,
        directory.disk.kind,
    )
    return Pool(membership, identity, await _start_meeting(node, membership, parts))


async def _start_meeting(node: Node, membership: Gossip, parts: AsyncExitStack) -> PoolContact:
    directory, config = node.directory, node.config

    async def remember(snapshot: Snapshot) -> None:
        await save_snapshot(directory.disk, config.data, snapshot)

    contact = PoolContact(
        agent_id=node.agent_id,
        cluster=config.cluster,
        seeds=config.seeds,
        remembered=directory.snapshot.peers,
        roster=node.roster,
        rng=node.rng,
        join=membership.join,
        clocks=lambda: membership.clocks,
        remember=remember,
    )
    if config.uses_mdns:
        discovery = await start_discovery(membership, config, contact)
        if discovery is not None:
            parts.push_async_callback(discovery.stop)
    return contact
