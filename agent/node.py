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

from shoal import __version__
from shoal.addresses import url_at
from shoal.agent.config import DEFAULT_HTTP_PORT, AgentConfig
from shoal.agent.directory import Directory
from shoal.agent.durable.data_directory import host_name
from shoal.agent.durable.endpoints_file import FILE_NAME as ENDPOINTS_FILE
from shoal.agent.durable.endpoints_file import remove_endpoints, save_endpoints
from shoal.agent.durable.gossip_snapshot import save_snapshot
from shoal.agent.durable.identity import AgentIdentity
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.http.admission.limits import limits_for
from shoal.agent.http.app import make_runner
from shoal.agent.issuer.key_source import KeySource, KeySourceError
from shoal.agent.levels import HOLD, LevelRange
from shoal.agent.log_lines.names import Names
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.members.contact import PoolContact
from shoal.agent.members.duplicate_identity import DuplicateIdentityWatch, Life
from shoal.agent.members.gossip_start import Entry, enter, start_discovery
from shoal.agent.members.own_address import NameWatch, settle_address
from shoal.agent.members.roster import Roster
from shoal.agent.members.tags import (
    TAG_BOOT_NONCE,
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_DOMAIN,
    TAG_DRAINED,
    TAG_HOST,
    TAG_LEVELS,
    TAG_NAME,
    TAG_URL,
    TAG_VERSION,
    TAG_WEIGHT,
    check_length,
    is_ours,
)
from shoal.agent.metrics.measures import Measures
from shoal.agent.peers.frames import NONCE_BYTES
from shoal.agent.peers.links import LinkConfig, Links
from shoal.agent.placement.drain import Draining
from shoal.agent.process.clock import SystemClock
from shoal.agent.process.errors import StartError
from shoal.agent.process.event_loop import expects_answers
from shoal.agent.process.ports import PortChoice, http_socket, is_own_address, listen
from shoal.agent.process.signals import open_files
from shoal.agent.process.unix_socket import listen_at, remove
from shoal.agent.security.access import Access, OpenAccess
from shoal.agent.security.agents_tls import OWN_TLS, AgentsTls, in_the_open
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.judge import Judge
from shoal.agent.security.jwt import Issuer, Verifier
from shoal.agent.service.broker import Broker
from shoal.agent.service.cluster_view import AgentFacts
from shoal.agent.service.event_sources import EventSources
from shoal.agent.tls.listener import TlsListener, waiting_places
from shoal.agent.tls.refusals import Refusals, teller
from shoal.agent.tls.reload import TlsState, follow, load_tls
from shoal.lookup import Lookup
from shoal.membership.interface import Gossip, MemberEvent
from shoal.membership.serf.snapshot import Snapshot

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


@dataclass(frozen=True, slots=True)
class Node:
    """An agent that serves, alone. `identity`: with the port of this run. `address`: where others reached
    this host when it started; `url` may have a name."""

    directory: Directory
    names: Names
    identity: AgentIdentity
    address: str
    url: str
    lookup: Lookup
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
    tls: TlsState | None
    issuer: KeySource | None

    @property
    def config(self) -> AgentConfig:
        """With the cluster's name settled, and as it was reloaded last."""
        return self.broker.config

    @property
    def agent_id(self) -> str:
        return self.identity.agent_id

    @property
    def agents_tls(self) -> AgentsTls:
        """For connections to other agents."""
        return in_the_open if self.tls is None else self.tls.agents

    @property
    def measures(self) -> Measures:
        """The numbers that this agent keeps."""
        return self.broker.facts.measures


@dataclass(frozen=True, slots=True)
class Pool:
    """A node in the gossip pool. `identity`: with both ports of this run."""

    membership: Gossip
    identity: AgentIdentity
    contact: PoolContact
    name_watch: NameWatch


async def start_node(
    directory: Directory,
    names: Names,
    parts: AsyncExitStack,
    rng: random.Random,
    request_stop: Callable[[], None],
    levels: LevelRange,
) -> Node:
    """`levels`: those that this agent understands. Raises PortError, and StartError where another process
    runs with this identity, or files of TLS do not fit."""
    config, identity = directory.config, directory.identity
    tls, lookup = await load_tls(config.tls, config.cluster, config.advertised_host), Lookup()
    agents_tls = in_the_open if tls is None else tls.agents
    OWN_TLS.set(agents_tls)  # of this task, and of those that it starts: an agent's life is one
    names.learn_agent(identity.agent_id, identity.name)
    names.own = identity.name
    address = await settle_address(config, lookup)
    listener, url = await _listen_http(config, identity, parts)
    identity = replace(identity, http_port=int(listener.getsockname()[1]))
    clock, boot_nonce = SystemClock(), os.urandom(NONCE_BYTES)
    watch, events = Watch(boot_nonce.hex()), EventFeed(boot_nonce.hex())
    links = _make_links(config, identity, clock, rng, boot_nonce, levels)
    links.dialler.lookup, links.dialler.tls = lookup, agents_tls
    links.dialler.own_address = address if is_own_address(address) else None
    roster = Roster(agent_id=identity.agent_id, cluster=config.cluster, links=links, watch=watch)
    parts.callback(roster.stop)
    draining = Draining(directory.disk, config.data, roster)
    await draining.load()
    measures = Measures()
    directory.disk.on_synced = measures.sync.observe
    follow(tls, measures, lambda renewal: links.renewal.begin(accepted=renewal.withdrawn))
    event_sources = EventSources(events, roster, watch, clock.now_ms)
    broker = Broker(
        _facts_of(directory, url, measures, levels),
        roster=roster,
        links=links,
        watch=watch,
        clock=clock,
        request_stop=request_stop,
        draining=draining,
        event_sources=event_sources,
    )
    life = Life(identity.agent_id, boot_nonce.hex(), broker.started_at)
    twins = DuplicateIdentityWatch(life, config.data)
    # A copy of a running agent's directory is mostly started beside that agent: its ports are taken there.
    if (kept_http_port := directory.identity.http_port) not in (0, identity.http_port):
        await twins.check(url_at(address, kept_http_port, config.scheme))
    node = Node(
        directory=directory,
        names=names,
        identity=identity,
        address=address,
        url=url,
        lookup=lookup,
        clock=clock,
        rng=rng,
        watch=watch,
        event_sources=event_sources,
        links=links,
        roster=roster,
        draining=draining,
        broker=broker,
        life=life,
        twins=twins,
        levels=levels,
        tls=tls,
        issuer=await _load_issuer(config),
    )
    await _serve_http(node, parts, listener)
    return node


async def _load_issuer(config: AgentConfig) -> KeySource | None:
    """None where no JWTs are taken. Raises StartError for a file of keys that cannot be used."""
    security = config.security
    if not (config.asks_for_credentials and security.takes_jwts):
        return None
    assert security.jwt_issuer is not None
    assert security.jwt_audience is not None
    assert security.jwt_keys is not None
    issuer = Issuer(
        security.jwt_issuer, security.jwt_audience, security.jwt_principal_claim, security.jwt_roles_claim
    )
    source = KeySource(security.jwt_keys, Verifier(issuer))
    try:
        await source.start()
    except KeySourceError as error:
        raise StartError(str(error)) from None
    return source


def _facts_of(directory: Directory, url: str, measures: Measures, levels: LevelRange) -> AgentFacts:
    return AgentFacts(
        directory.config,
        directory.identity.agent_id,
        directory.identity.name,
        url,
        __version__,
        directory.disk.kind,
        measures,
        levels,
        directory.exposure,
    )


async def _listen_http(
    config: AgentConfig, identity: AgentIdentity, parts: AsyncExitStack
) -> tuple[socket.socket, str]:
    choice = PortChoice("--http-port", config.http_port, identity.http_port or None, DEFAULT_HTTP_PORT)
    listener = await listen(choice, config.bind, lambda port: http_socket(config.bind, port))
    parts.callback(listener.close)
    port = int(listener.getsockname()[1])
    url = url_at(config.advertised_host, port, config.scheme)
    if choice.has_stepped(port):
        taken = choice.kept or choice.default
        logger.info("port %d is in use: HTTP listens on %d (--agent %s)", taken, port, url)
    return listener, url


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
    links.on_append_sent = expects_answers(asyncio.get_running_loop())
    return links


def _access(node: Node) -> Access:
    """The judge of this agent's requests. Nothing is judged by the file of the last run alone: a crash may
    have come before the last changes were saved."""
    config = node.config
    if not config.asks_for_credentials:
        return OpenAccess()

    def tell_first(token_id: str) -> None:
        seldom.warning(
            "the first administrator's token, %s, was used: it counts until another administrator has a token"
            " (`shoal secure principal put NAME --role admin`, `shoal secure token create NAME`)",
            token_id,
            extra=about("first-token-used"),
        )

    was_without_cluster = node.identity.cluster_id is None
    jwts = None if node.issuer is None else node.issuer.verifier

    def is_new() -> bool:
        return was_without_cluster and node.broker.is_alone

    return Judge(
        lambda: node.broker.security, config.security.first_token, tell_first, is_new=is_new, jwts=jwts
    )


async def _serve_http(node: Node, parts: AsyncExitStack, listener: socket.socket) -> None:
    """Raises PortError."""
    http, tls = node.config.http, node.tls
    if node.config.asks_for_credentials:
        node.broker.trail = AuditTrail(node.identity.name)
    in_the_open_too = []
    if http.http_socket is not None:
        in_the_open_too.append(listen_at(http.http_socket))
        parts.callback(remove, http.http_socket, in_the_open_too[-1])
    runner = make_runner(
        node.broker,
        limits_for(open_files()),
        http.allowed_hosts,
        cors_origins=http.cors_origins,
        hsts_ms=node.config.tls.hsts_ms,
        lookup=node.lookup,
        access=_access(node),
        trail=node.broker.trail,
        tls=node.agents_tls,
    )
    parts.push_async_callback(runner.cleanup)
    node.roster.on_moved = runner.context.forwarder.renew
    if tls is None:
        await runner.listen(listener)
    else:
        tls.listen(lambda _: runner.context.forwarder.renew())
        refusals = Refusals(node.measures.tls_refusals, teller(node.broker.trail))
        door = TlsListener(listener, tls.current, runner, refusals, waiting_places(open_files()))
        tls.listen(lambda renewal: door.withdrawn() if renewal.withdrawn else None)
        runner.enter(door)
        door.start()
    for one in in_the_open_too:
        await runner.listen(one)


async def enter_pool(node: Node, parts: AsyncExitStack) -> Pool:
    """Raises PortError, StartError."""
    directory, config, identity = node.directory, node.config, node.identity
    tags = {
        TAG_VERSION: __version__,
        TAG_NAME: identity.name,
        TAG_CLUSTER: config.cluster,
        TAG_CLUSTER_ID: "" if identity.cluster_id is None else identity.cluster_id.hex(),
        TAG_URL: url_at(node.address, identity.http_port, config.scheme),
        TAG_DOMAIN: config.failure_domain or host_name(socket.gethostname()),
        TAG_WEIGHT: str(config.weight),
        TAG_BOOT_NONCE: node.life.run,
        TAG_LEVELS: f"{node.levels}{HOLD if config.hold_level else ''}",
    }
    if config.advertised_name is not None:
        tags[TAG_HOST] = config.advertised_name
    if node.draining.wanted:
        tags[TAG_DRAINED] = "1"
    check_length(tags)

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
            address=node.address,
            tags=tags,
            kept_port=identity.gossip_port,
            keyring=directory.keyring,
            clocks=directory.snapshot.clocks,
            rng=node.rng,
            lookup=node.lookup,
            on_event=on_event,
            on_user_event=node.roster.on_pool_event,
        )
    )
    parts.push_async_callback(membership.stop)
    if not config.uses_serf:
        identity = replace(identity, gossip_port=membership.port)
    await directory.identities.save(identity)
    await _tell_endpoints(node, identity, parts)
    node.roster.attach(membership, tags)
    logger.info(
        "%s at %s, gossip port %d, cluster %s, data %s (%s)",
        identity.name,
        node.url,
        membership.port,
        config.cluster,
        config.data,
        directory.disk.kind,
        extra=about("listening"),
    )
    contact = await _start_meeting(node, membership, parts)
    return Pool(membership, identity, contact, NameWatch(config, node.address, node.lookup, _mover(node)))


def _mover(node: Node) -> Callable[[str], bool]:
    """Tells pool and links where this agent's name leads now."""

    def move(address: str) -> bool:
        if not node.roster.move(address, url_at(address, node.identity.http_port, node.config.scheme)):
            return False
        node.links.dialler.own_address = address if is_own_address(address) else None
        return True

    return move


async def _tell_endpoints(node: Node, identity: AgentIdentity, parts: AsyncExitStack) -> None:
    directory, config = node.directory, node.config
    path = config.http.http_socket
    endpoints = {
        "url": node.url,
        "http_port": identity.http_port,
        "http_socket": None if path is None else os.path.join(os.getcwd(), path),
        "gossip_port": None if config.uses_serf else identity.gossip_port,
    }
    try:
        await save_endpoints(directory.disk, config.data, endpoints)
    except OSError as error:  # a full disk keeps nobody from starting: topics may be deleted then
        logger.warning("cannot write %s to %s: %s", ENDPOINTS_FILE, config.data, error.strerror or error)
    parts.push_async_callback(remove_endpoints, directory.disk, config.data)


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
