"""One seed: a cluster of real agents, its clients, its faults, and the verdict.

Law of this file: it puts the world together and leads through the phases: start, safety (faults), liveness
(they end), verdict. What goes wrong is faults.py's, what must hold invariants.py's and log_history.py's.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from log_clients import Connections, NoAnswer, Producer, Reader, Workload
from log_history import History
from memory_disk import DEFAULT_CAPACITY_BYTES

from cluster_sim.alterations import AGE, BORN, FACTOR, Alterations
from cluster_sim.births import Births
from cluster_sim.blocking import BlockingPool
from cluster_sim.clients import KeyedProducer, LibraryClient, SinkTask
from cluster_sim.crowd import Crowd
from cluster_sim.disaster import Disaster
from cluster_sim.disk import SimDisk
from cluster_sim.faults import Nemesis
from cluster_sim.group_invariants import GroupInvariants
from cluster_sim.impatient import Impatient
from cluster_sim.invariants import (
    InternalErrors,
    Invariants,
    InvariantViolation,
    last_place,
    listeners,
)
from cluster_sim.knobs import Knobs
from cluster_sim.limits_met import counted, to_text
from cluster_sim.loop import LIFE, WATCHED_ROUNDS, Life, SimLoop
from cluster_sim.network import Conditions, Network
from cluster_sim.node import Node
from cluster_sim.queues import Queues
from cluster_sim.secured import Secured
from cluster_sim.tables import Tables
from cluster_sim.timers import Timers
from cluster_sim.topics import TopicClient
from cluster_sim.upgrades import Upgrades
from cluster_sim.verdict import Verdict
from cluster_sim.visitor import Visitor
from cluster_sim.world import replaced, replacements
from shoal.agent.durable.paired_file import PairedFileError
from shoal.errors import ShoalError
from shoal.segment_store.errors import StoreError

START_LIMIT_S = 30.0
SERVED_LIMIT_S = 15.0
"""After the faults: until every partition has taken an append."""
CAUGHT_UP_LIMIT_S = 60.0
CLIENTS_END_S = 30.0
HEALTHY_DELAY_MS = 20
HEALTHY_SYNC_MS = 30
"""When the faults have ended: both far below an election timeout, or nobody could promise a leader."""
BUSY_BEFORE_S = 0.25
BUSY_AFTER_S = 0.4
"""Around each fault: what clients do in a calm cluster costs most of the time, and finds nothing."""
DRAIN_ATTEMPTS_MAX = 40
LOOK_S = 0.1
CLIENT_ADDRESS = "127.0.1.1"
TOPIC = "events"
ELAPSED_MS_MAX = 240_000
STEPS_MAX = 10_000_000
EXPECTED_ERRORS = (OSError, StoreError, PairedFileError, ShoalError)
"""What disks and peers that fail lead to, told with where it happened: no bug by itself."""
LOGGERS = ("shoal", "asyncio", "aiohttp")
IMPATIENT_PAUSE_S = 0.08
RAISED_LIMIT_S = 20.0
"""For the wait before the level rises, its commit, and one pull of the catalog."""
AnyTopicClient = KeyedProducer | LibraryClient | SinkTask | TopicClient | Visitor | Impatient | Alterations
FACTORS = (1, 2, 3, 4, 5, "all")
SAFE_FACTORS = (3, 4, 5, "all")
"""Where a disk rots: it may cost one copy of three."""


_KEPT: list[object] = []


class ClusterSimulation:
    """`run()` raises InvariantViolation, or whatever the product failed with. `print_line` gets the trace."""

    client_address = CLIENT_ADDRESS

    def __init__(
        self,
        seed: int,
        *,
        knobs: Knobs | None = None,
        print_line: Callable[[str], None] | None = None,
        patches: list[tuple[Any, str, Any]] | None = None,
    ) -> None:
        self.seed = seed
        self.knobs = knobs or Knobs.of_seed(seed)
        self.rng = random.Random(seed * 7_919 + 1)
        self.network = Network(random.Random(self.rng.getrandbits(64)))
        self.loop = SimLoop(self.network)
        self.network.loop = self.loop
        self.disks: dict[str, SimDisk] = {}
        self.nodes: list[Node] = []
        self.invariants = Invariants(lambda: self.nodes, self.loop)
        self.loop.on_round = self._after_round
        self.history = History()
        self.clients = Life("clients", CLIENT_ADDRESS)
        self.work = Workload(self.history, self._agents, random.Random(self.rng.getrandbits(64)))
        self.topics = TopicClient(self.work)
        factors = SAFE_FACTORS if self.knobs.rot else FACTORS
        self.alterations = Alterations(self.work, TOPIC, factors, self.invariants.may_be_lowered)
        self.pool = BlockingPool()
        self.crowd = Crowd(self.loop)
        self.upgrades = Upgrades(self)
        self.queues = Queues(self)
        self.timers = Timers(self)
        self.groups = GroupInvariants(self.invariants, self.loop)
        self.tables = Tables(self)
        self.secured = Secured(self)
        self.nemesis = Nemesis(self)
        self.verdict = Verdict(self)
        self.producers: list[Producer] = []
        self.limits_met: Counter[str] = Counter()
        self._drains: dict[str, asyncio.Task[None]] = {}
        self.disk_faults: set[str] = set()
        """Addresses of hosts whose disks failed. What that stopped, an operator starts again in the end, when
        it was judged how the others do without."""
        self._print_line = print_line
        self._patches = patches or []
        self._digest = hashlib.sha256()
        self._crc = 0

    # ---- the trace -------------------------------------------------------------------------------

    def trace(self, who: str, what: str) -> None:
        """One line; the digest of all of them is the same whenever the seed and the code are."""
        line = f"{self.loop.elapsed_ms:>7} {who} {what}"
        self._digest.update(line.encode(errors="replace"))
        self.secured.look_at_line(line)
        if self._print_line is not None:
            self._print_line(line)

    @property
    def trace_hash(self) -> str:
        """Of every line of the trace, and of the times of the loop's rounds."""
        self._digest.update(struct.pack("<Iqq", self._crc, self.loop.rounds, self.loop.handles_run))
        return self._digest.hexdigest()[:16]

    def _after_round(self) -> None:
        """The times of the rounds are hashed, at some of them: two runs that part never come to the same
        times again."""
        self.invariants.look()
        loop = self.loop
        if loop.rounds % WATCHED_ROUNDS:
            return
        self._crc = zlib.crc32(struct.pack("<dq", loop.time(), loop.handles_run), self._crc)
        if loop.elapsed_ms > ELAPSED_MS_MAX or loop.handles_run > STEPS_MAX:
            raise InvariantViolation("Progress", f"not over after {self.loop.handles_run} steps")

    def summary(self) -> str:
        """One line."""
        faults = sum(self.nemesis.counts.values())
        return (
            f"{self.loop.elapsed_ms} ms, {self.loop.handles_run} steps, {len(self.nodes)} agents, "
            f"{faults} faults, {self.history.acknowledged_records} records acknowledged, "
            f"{len(self.history.polls)} reads, "
            f"{self.invariants.checks} checks, {self.queues.summary()}{self.timers.summary()}"
            f"{self.tables.summary()}{self.secured.summary()}"
            f"limits met: {to_text(self.limits_met)}; "
            f"trace {self.trace_hash}"
        )

    # ---- life ------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Until this process ends: the coroutines of killed agents are then never closed, nor collected."""
        _KEPT.append(self)

    def run(self) -> None:
        """All phases. Raises what was found."""
        places = replacements(
            self.loop,
            self.network,
            self.disks.__getitem__,
            random.Random(self.rng.getrandbits(64)),
            pool=self.pool,
            small_segments=self.knobs.segment_bytes < 1 << 20 or self.knobs.retention_bytes is not None,
            few_places=self.knobs.crowd,
            few_producers=self.knobs.few_producers,
            little_memory=self.knobs.little_memory,
        )
        places += [*counted(self.limits_met), *self.upgrades.replacements()]
        places += self.secured.replacements()
        places += self.groups.listeners() if self.with_groups else []
        places += self.timers.replacements() if self.timers.is_on or self.tables.is_on else []
        collects = gc.isenabled()
        gc.disable()  # a coroutine collected at a moment of chance would run its `finally` then
        log = _Log(self)
        errors = InternalErrors(self.invariants, lambda error: isinstance(error, EXPECTED_ERRORS))
        try:
            with replaced([*places, *listeners(self.invariants), *self._patches]), _logging(log, errors):
                asyncio.set_event_loop(self.loop)
                self.loop.set_exception_handler(self._unhandled)
                self.loop.run_until_complete(self._phases())
        finally:
            asyncio.set_event_loop(None)
            if collects:
                gc.enable()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, EXPECTED_ERRORS):
            return
        place = last_place(error)
        # A request that arrives in the round in which aiohttp's server shuts its connection is its own race.
        if "aiohttp/web_protocol.py" not in place:
            text = f"{context.get('message')}: {type(error).__name__} {error}{place}"
            self.invariants.fail("NoInternalError", text)

    async def _phases(self) -> None:
        self.network.conditions = Conditions()  # a cluster begins in peace; what is harsh comes then
        for _ in range(self.knobs.nodes):
            node = self.add_node()
            node.disk.sync_ms_max = min(5, self.knobs.sync_ms_max)
            self.start(node)
        await self._until(
            lambda: all(node.is_ready for node in self.nodes), START_LIMIT_S, "Start", "not ready"
        )
        await self.secured.start()
        await self._as_client(self.topics.create(TOPIC, self.topic_body(self.knobs.partitions)))
        for queues in self.with_groups:
            await self._as_client(queues.start())
        if self.tables.is_on:
            await self._as_client(self.tables.start())
        self.upgrades.look()
        self.calm_weather()
        for node in self.nodes:
            self.calm_disk(node)
        running = self._start_clients()
        end_s = self.loop.time() + self.knobs.safety_ms / 1_000
        while self.loop.time() < end_s:
            await self._between_faults(self.rng.uniform(0, 2) * self.knobs.fault_interval_ms / 1_000)
            self.nemesis.strike()
        self.heal()
        verdict = self.verdict
        verdict.begin()
        await verdict.until_served_as_is(SERVED_LIMIT_S)
        self.work.is_calm = True
        await verdict.until_caught_up_as_is(CAUGHT_UP_LIMIT_S)
        self.work.is_calm = False
        await self.crowd.leave()
        self.restart_broken()
        self.upgrades.upgrade_all()
        verdict.begin()
        await verdict.until_served(SERVED_LIMIT_S)
        self.work.stopping = True
        await self._until(
            lambda: all(task.done() for task in running), CLIENTS_END_S, "Liveness", "clients hang"
        )
        for task in running:
            task.result()
        await verdict.until_caught_up(CAUGHT_UP_LIMIT_S)
        if self.nemesis.exchanged is None:  # an agent that never comes back keeps the level as it is
            said = "not all are at the level of the present version"
            await self._until(self.upgrades.is_over, RAISED_LIMIT_S, "Liveness", said)
        for queues in self.with_groups:
            await self._as_client(queues.drain())
            await verdict.until_caught_up(CAUGHT_UP_LIMIT_S)
        if self.with_groups:
            hosts = [node.host for node in self.nodes if node.host is not None]
            self.groups.check_counts(replica for host in hosts for replica in host.open_replicas())
        if self.timers.is_on:
            await self.timers.judge_views()
        await self._as_client(verdict.judge())
        if self.tables.is_on:
            await self._as_client(self.tables.judge())
        await self.secured.judge()
        if self.knobs.births:
            await Births(self).run()
        if self.knobs.disaster:
            await Disaster(self).run()

    async def _between_faults(self, pause_s: float) -> None:
        """Clients are busy when a fault strikes and while it is fresh; otherwise they only keep watch."""
        end_s = self.loop.time() + pause_s
        fresh_s = max(BUSY_AFTER_S, self.nemesis.fresh_until_s - self.loop.time())
        calm_s = pause_s - BUSY_BEFORE_S - fresh_s
        if calm_s > 0:
            await asyncio.sleep(fresh_s)
            self.work.is_calm = True
            await asyncio.sleep(calm_s)
            self.work.is_calm = False
        await asyncio.sleep(end_s - self.loop.time())

    async def _until(self, condition: Callable[[], bool], limit_s: float, name: str, what: str) -> None:
        end_s = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() > end_s:
                ends = [f"{node.name}: {node.ended}" for node in self.nodes if node.ended]
                raise InvariantViolation(name, f"{what} within {limit_s:g} s {ends or ''}")
            await asyncio.sleep(LOOK_S)

    async def _as_client(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await self.loop.spawn(self.clients, coroutine)

    @property
    def with_groups(self) -> list[Queues]:
        """The topics on which consumer groups work."""
        return [queues for queues in (self.queues, self.timers) if queues.is_on]

    def topic_body(self, partitions: int) -> dict[str, Any]:
        """What a topic of the simulation is made with."""
        knobs = self.knobs
        body: dict[str, Any] = {
            "partitions": partitions,
            "replication_factor": BORN[FACTOR],
            "segment": {"bytes": knobs.segment_bytes, "age": BORN[AGE]},
        }
        if knobs.retention_bytes is not None:
            body["retention"] = {"bytes": knobs.retention_bytes}
        return body

    def _start_clients(self) -> list[asyncio.Task[Any]]:
        clients = [*self._partition_clients(), *self._topic_clients()]
        clients += [client for queues in self.with_groups for client in queues.clients()]
        clients += self.tables.clients() if self.tables.is_on else []
        clients += self.secured.clients()
        return [self.loop.spawn(self.clients, client.run()) for client in clients]

    def _topic_clients(self) -> list[AnyTopicClient]:
        """Those whose records go to any partition."""
        knobs, pause_s = self.knobs, 2 * self.knobs.producer_pause_ms / 1_000
        found: list[AnyTopicClient] = []
        if knobs.keys:
            found.append(KeyedProducer(self.work, "keys", TOPIC, knobs.partitions, pause_s))
        if knobs.library:
            found.append(LibraryClient(self.work, "library", TOPIC, pause_s))
        if knobs.sink:
            found.append(SinkTask(self.work, "sink", TOPIC, knobs.partitions, self.pool, pause_s))
        if knobs.visitor or knobs.little_memory:  # its answers are long
            found.append(Visitor(self.work, TOPIC))
        if knobs.topics:
            found.append(self.topics)
        if self.alters:
            found.append(self.alterations)
        for node in self.nodes if knobs.impatient else ():
            at = partial(getattr, node, "http")
            name, count = f"impatient.{node.name}", knobs.partitions
            found.append(Impatient(self.work, name, at, TOPIC, count, pause_s=IMPATIENT_PAUSE_S))
        return found

    @property
    def alters(self) -> bool:
        """Not where a disk is lost: its replicas count until `replace_after`, and what is too many waits."""
        return self.knobs.alterations and not self.knobs.lost_disk

    @property
    def holds_level(self) -> bool:
        """The level is raised in the disaster, while one agent is away. A lost disk's agent forbids that."""
        return self.knobs.disaster and not (self.knobs.upgrades or self.alters or self.knobs.lost_disk)

    def _partition_clients(self) -> list[Producer | Reader]:
        knobs = self.knobs
        clients: list[Reader] = []
        for number in range(knobs.partitions):
            partition = (TOPIC, number)
            for producer in range(3):
                plain = producer == 2
                self.producers.append(
                    Producer(
                        self.work,
                        f"p{number}.{producer}",
                        partition,
                        producer_id=None if plain else f"{number * 16 + producer:032x}",
                        batch_max=knobs.batch_max,
                        pause_s=knobs.producer_pause_ms / 1_000,
                        padding=knobs.padding,
                        arrow=knobs.arrow and producer != 1,
                        leader_acks=0.5 if knobs.leader_acks else 0.0,
                    )
                )
            for local in (False, True):
                name = f"r{number}.{'local' if local else 'leader'}"
                clients.append(Reader(self.work, name, partition, local=local, pause_s=0.1))
        return [*clients, *self.producers]

    def _agents(self) -> list[tuple[str, int]]:
        return [node.http for node in self.nodes]

    # ---- what the nemesis asks for ---------------------------------------------------------------

    def add_node(self) -> Node:
        """A host with an empty disk."""
        index = len(self.nodes)
        address = f"127.0.0.{index + 1}" if self.knobs.loopback else f"10.0.0.{index + 1}"
        disk = self.disks[address] = SimDisk(random.Random(self.rng.getrandbits(64)), self.knobs.sync_ms_max)
        config: dict[str, object] = {
            "replace_after_ms": self.knobs.replace_after_ms,
            "expect": self.knobs.nodes,
            # One machine, where followers may wait for entries, or one for each agent.
            "failure_domain": f"host-{index}" if self.seed % 2 else "one",
            "hold_level": self.holds_level,
            **self.secured.config,
        }
        node = Node(
            index,
            address,
            loop=self.loop,
            network=self.network,
            disk=disk,
            rng=random.Random(self.rng.getrandbits(64)),
            config=config,
            levels=self.upgrades.first_version(),
            told=self.trace,
        )
        self.nodes.append(node)
        return node

    def start(self, node: Node) -> None:
        """Its seeds are everybody."""
        node.start([other.address for other in self.nodes])

    def tell_drain(self, node: Node, *, undo: bool) -> None:
        """An operator asks the agent there, as often as it takes, and nothing else before it is told."""
        earlier = self._drains.get(node.address)
        self._drains[node.address] = self.loop.spawn(self.clients, self._ask_drain(node, undo, earlier))

    async def _ask_drain(self, node: Node, undo: bool, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await earlier
        connections = Connections()
        for _ in range(DRAIN_ATTEMPTS_MAX):
            try:
                answer = await connections.request(node.http, "DELETE" if undo else "POST", "/v1/agent/drain")
            except NoAnswer:
                answer = None
            if answer is not None and answer.status == 200:
                self.trace(node.name, f"DRAIN {'undone' if undo else 'begun'}")
                break
            await asyncio.sleep(0.5)
        connections.close()

    def calm_weather(self) -> None:
        """The network as the seed has it."""
        knobs = self.knobs
        self.network.conditions = Conditions(
            knobs.delay_ms_max, knobs.loss, knobs.duplication, knobs.straggler, split=knobs.split
        )

    def calm_disk(self, node: Node) -> None:
        node.disk.sync_ms_max = self.knobs.sync_ms_max

    def free_disk(self, node: Node) -> None:
        node.disk.capacity_bytes = DEFAULT_CAPACITY_BYTES

    def heal(self) -> None:
        """All faults end, and what has stopped whole is started again, as by systemd; what goes on though a
        part of it has failed, goes on."""
        self.trace("HEAL", "")
        self.nemesis.stop()
        self.network.cuts.clear()
        self.network.lags.clear()
        self.network.conditions = Conditions(min(HEALTHY_DELAY_MS, self.knobs.delay_ms_max))
        for node in self.nodes:
            node.disk.stuck_until_s = 0.0
            node.disk.faults.clear()
            self.free_disk(node)
            node.disk.sync_ms_max = min(HEALTHY_SYNC_MS, self.knobs.sync_ms_max)
            node.resume()
            if node.is_running and node.has_left:
                node.kill()
            if not node.is_running:
                self.start(node)
            if node.address in self.nemesis.drained:
                self.tell_drain(node, undo=True)
        self.network.look_at_held()

    def restart_broken(self) -> None:
        """An operator starts the hosts again whose disks had failed."""
        for node in self.nodes:
            if node.is_running and node.address in self.disk_faults:
                node.kill()
                self.start(node)


class _Log(logging.Handler):
    """What the agents say stands in the trace."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get()
        if life is None or not life.is_dead:
            self._simulation.trace(life.name if life else "-", f"{record.levelname} {record.getMessage()}")


class _logging:  # noqa: N801 -- a context manager
    """Sends what is logged to these handlers alone."""

    def __init__(self, *handlers: logging.Handler) -> None:
        self._handlers = list(handlers)
        self._kept: list[tuple[logging.Logger, list[logging.Handler], int, bool]] = []

    def __enter__(self) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            self._kept.append((logger, logger.handlers, logger.level, logger.propagate))
            logger.handlers, logger.propagate = self._handlers, False
            logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        for logger, handlers, level, propagate in self._kept:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
