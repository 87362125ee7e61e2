"""Puts the simulated world under the product: sockets, disk, clocks and chance.

Law of this file: it replaces what the operating system gives, at the few places where the product asks for
it, and nothing else; every replacement is undone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import aiohttp.connector

import shoal.agent.agent as agent_module
import shoal.agent.cluster as cluster_module
import shoal.agent.directory as directory_module
import shoal.agent.host.peer_input
import shoal.agent.http.core.context
import shoal.agent.http.core.doorkeeper
import shoal.agent.http.core.problems
import shoal.agent.http.front
import shoal.agent.http.groups.operate
import shoal.agent.http.pending_append
import shoal.agent.http.produce.decode
import shoal.agent.http.produce.deliver
import shoal.agent.http.produce.fast_answer
import shoal.agent.node as node_module
import shoal.agent.partition.append_sender
import shoal.agent.partition.appender
import shoal.agent.partition.reader
import shoal.agent.process.clock
import shoal.agent.service.broker as broker_module
import shoal.agent.topics.settings
import shoal.client.http.connection
import shoal.client.http.requests
import shoal.client.produce.accumulator
import shoal.client.produce.lone_record
import shoal.client.produce.lone_socket
import shoal.client.produce.producer
import shoal.credentials
import shoal.membership.net.gossip as gossip_module
import shoal.spark.read.http
import shoal.spark.write.send
from cluster_sim.blocking import BlockingPool
from cluster_sim.crowd import HOARD_BYTES, PLACES
from cluster_sim.loop import LIFE, Life, SimLoop
from cluster_sim.network import Network
from cluster_sim.raw_socket import Sockets
from shoal.agent.host.config import HostConfig
from shoal.agent.http.core.request_quota import Meters
from shoal.agent.partition.state.idempotence import PRODUCER_BYTES, ProducerTable
from shoal.agent.partition.state.retention import Retention
from shoal.agent.topics import catalog_service as catalog_follow

EPOCH_S = 1_700_000_000
TIME_READERS = (
    shoal.agent.process.clock,
    gossip_module,
    shoal.agent.host.peer_input,
    shoal.agent.http.core.context,
    shoal.agent.http.core.doorkeeper,
    shoal.agent.http.core.problems,
    shoal.agent.http.front,
    shoal.agent.http.pending_append,
    shoal.agent.http.groups.operate,
    shoal.agent.http.produce.decode,
    shoal.agent.http.produce.deliver,
    shoal.agent.http.produce.fast_answer,
    shoal.agent.partition.append_sender,
    shoal.agent.partition.appender,
    shoal.agent.partition.reader,
    shoal.client.http.requests,
    shoal.client.produce.producer,
    shoal.client.produce.accumulator,
    shoal.client.produce.lone_record,
    shoal.client.produce.lone_socket,
    shoal.spark.write.send,
)
PROCESS_ID = 10_000
"""Of every simulated process: it stands in their files, whose size is in the trace where a disk is full."""
PROCESS = (
    (shoal.credentials, "_warn_of_the_open", lambda: None),  # said once in a process, not by each simulation
    (os, "getpid", lambda: PROCESS_ID),
)
SMALL_SEGMENT_BYTES = 16 * 1_024
CATALOG_BYTES = 8 * 1_024
"""A dozen commands: so much is kept, and more goes."""
RETENTION_INTERVAL_MS = 500
PRODUCERS = 8
"""More than begin at once; who comes later finds no room for the whole run."""
FEW_PLACES = {"connections": PLACES, "agent_connections": PLACES, "unread_connections": PLACES // 4}
LITTLE_MEMORY = {
    "requests": 6,
    "bytes_in_flight": 8 * HOARD_BYTES,
    "answer_bytes": 4 * HOARD_BYTES,
    "promised_bytes": 2 * HOARD_BYTES,
}
"""Less than a dozen clients ask for at once while a leader is away."""
GOSSIP_PORT = 7946
HTTP_PORT = 7070


class SimTime:
    """The `time` module of simulated processes: the wall clock may be wrong, the monotonic one never is."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def monotonic_ns(self) -> int:
        return int(self._loop._now * 1e9)

    def perf_counter(self) -> float:
        return self._loop.time()

    def thread_time(self) -> float:
        """Code takes no time here: what would be measured is the machine that simulates."""
        return 0.0

    def time_ns(self) -> int:
        life = LIFE.get()
        offset_us = 0 if life is None else life.clock_offset_us
        return EPOCH_S * 10**9 + int(self._loop.time() * 1e9) + offset_us * 1_000

    def time(self) -> float:
        return self.time_ns() / 1e9


class _Chance:
    """The `random` module of a client: what it makes of itself is decided by the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def Random(self) -> random.Random:  # noqa: N802 -- the module's name for it
        return random.Random(self._rng.getrandbits(64))


class _NoLock:
    def release(self) -> None:
        return None


def _life() -> Life:
    life = LIFE.get()
    assert life is not None
    return life


def replacements(
    loop: SimLoop,
    network: Network,
    disk_of: Callable[[str], Any],
    rng: random.Random,
    *,
    pool: BlockingPool,
    small_segments: bool,
    few_places: bool,
    few_producers: bool,
    little_memory: bool,
) -> list[tuple[Any, str, Any]]:
    """(where, name, what) of everything that is replaced. `disk_of(address)`: the disk of a host."""

    def claim_directory(path: str) -> _NoLock:
        disk_of(_life().address).add_directory(path)
        return _NoLock()

    def wipe(path: str) -> None:
        disk_of(_life().address).wipe()
        disk_of(_life().address).add_directory(path)

    async def open_disk(_prefer: str) -> Any:
        return disk_of(_life().address).opened()

    async def http_socket(_address: str, port: int) -> Any:
        return network.listen(port)

    def open_listener(_address: str, port: int) -> Any:
        return network.listen(port), network.open_datagrams(port)

    async def start_connection(addr_infos: Any, **_: Any) -> Any:
        return network.unconnected(addr_infos[0][4][:2])

    def now_ms(_: Any) -> int:
        return int(loop._now * 1e9) // 1_000_000

    time = SimTime(loop)
    places: list[tuple[Any, str, Any]] = [*PROCESS, *((module, "time", time) for module in TIME_READERS)]
    places += [
        (shoal.agent.process.clock.SystemClock, "now_ms", now_ms),
        (broker_module, "process_statistics", lambda: None),
        (os, "urandom", rng.randbytes),
        (shoal.client.http.requests, "random", _Chance(rng)),
        (shoal.client.http.connection, "socket", Sockets(loop)),
        (shoal.spark.read.http, "POOL", pool),
        (shoal.spark.write.send, "_ROUTES", {}),
        (directory_module, "claim_directory", claim_directory),
        (agent_module, "wipe", wipe),
        (directory_module, "open_disk", open_disk),
        (node_module, "http_socket", http_socket),
        (gossip_module, "open_listener", open_listener),
        (aiohttp.connector.aiohappyeyeballs, "start_connection", start_connection),
        (aiohttp.connector, "monotonic", time.monotonic),  # how long a kept connection has been idle
    ]
    places.append((Meters.__init__, "__defaults__", (time.monotonic_ns,)))
    if few_producers:
        room = {**(ProducerTable.__init__.__kwdefaults__ or {}), "max_bytes": PRODUCERS * PRODUCER_BYTES}
        places.append((ProducerTable.__init__, "__kwdefaults__", room))
    few = (FEW_PLACES if few_places else {}) | (LITTLE_MEMORY if little_memory else {})
    if few:
        limits_for = node_module.limits_for
        places.append((node_module, "limits_for", lambda files: replace(limits_for(files), **few)))
    if small_segments:
        places.append((shoal.agent.topics.settings, "MIN_SEGMENT_BYTES", SMALL_SEGMENT_BYTES))
        often = functools.partial(HostConfig, retention_interval_ms=RETENTION_INTERVAL_MS)
        places.append((cluster_module, "HostConfig", often))
        places.append((catalog_follow, "CATALOG_SEGMENT_BYTES", CATALOG_BYTES))
        places.append((catalog_follow, "CATALOG_RETENTION", Retention(size_bytes=CATALOG_BYTES)))
    return places


@contextlib.contextmanager
def replaced(places: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """While the simulation runs."""
    kept = [(where, name, getattr(where, name)) for where, name, _ in places]
    for where, name, what in places:
        setattr(where, name, what)
    try:
        yield
    finally:
        for where, name, what in kept:
            setattr(where, name, what)
