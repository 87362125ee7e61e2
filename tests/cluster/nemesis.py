"""Real agents under one kind of fault, with producers and readers that write their history down.

Law of this file: one run of one or some kinds of fault from one seed; its last line is a JSON object with
what was done and every anomaly. `python nemesis.py --fault kill-one --seconds 60 --directory D` puts itself
into namespaces of its own. The verdict is log_history.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from client_credentials import CREDENTIALS
from group_clients import GroupConsumer, KeyProducer
from group_operator import Deed, GroupOperator
from group_work import SETTINGS, GroupWork, NotInTime, settings_of
from log_clients import Connections, NoAnswer, Producer, Reader, Workload, now_s, read_all
from log_history import Checker, FinalLog, History, Partition
from nemesis_hosts import Host, Hosts, isolated
from nemesis_tokens import Guests
from table_work import TableClient, TableRun

TOPIC = "events"
TABLE = "rows"
PARTITIONS = 3
CALM_S = 1.0
"""Before the first fault, and between two."""
SERVED_LIMIT_S = 60.0
READY_LIMIT_S = 120.0
CLIENTS_END_S = 90.0
ENOUGH = {
    "acknowledged": 100, "reads": 10, "done": 50, "dead": 0, "rows": 50, "watched": 10, "revoked": 1,
    "refused": 10,
}  # fmt: skip
"""A verdict is worth something by more than so many: on a slow machine clients go on until they have them."""
ENOUGH_LIMIT_S = 120.0
CREATE_ATTEMPTS = 60
DRAIN_LIMIT_S = 120.0
CONSUMER_PAUSE_S = 0.03
ROW_CLIENTS = 6
DEEDS: tuple[Deed, ...] = ("redrive", "redrive", "redrive", "pause", "seek")
"""Seeks give most messages again: there are fewer of them."""
INSIDE = "SHOAL_NEMESIS_INSIDE"
Client = Producer | Reader | GroupConsumer | GroupOperator | TableClient | Guests
SEGMENT_HEADER_BYTES = 1_024
RESERVE_BYTES = 48 * 2**20
"""What a disk that is filled up has left."""
FILL_BYTES = 2**20
"""The piece in which it is filled: at most so much stays free beyond that."""


@dataclass
class Report:
    """What one run did. Messages of groups: `delivered` with repetitions, `done` by acts that name them.
    `rows`: requests about rows of the table whose outcome is known. `revoked`: tokens whose end was answered;
    `refused`: requests with one of them that were."""

    fault: str
    seed: int
    seconds: float = 0.0
    faults: int = 0
    acknowledged: int = 0
    reads: int = 0
    delivered: int = 0
    done: int = 0
    letters: int = 0
    rows: int = 0
    scans: int = 0
    watched: int = 0
    revoked: int = 0
    refused: int = 0
    served_after_s: float = 0.0
    anomalies: list[str] = field(default_factory=list)


class Faults:
    """Each method makes one fault, waits, and undoes it."""

    def __init__(self, hosts: Hosts, rng: random.Random) -> None:
        self._hosts = hosts
        self._rng = rng
        self._flipped: Host | None = None
        """Damage strikes one host: one copy of three."""

    def of(self, name: str) -> Callable[[], Awaitable[None]]:
        return getattr(self, name.replace("-", "_"))  # type: ignore[no-any-return]

    def _some(self, count: int) -> list[Host]:
        return self._rng.sample(self._hosts.all, count)

    async def _leader(self) -> Host:
        """Of some partition."""
        connections = Connections()
        try:
            for host in self._hosts.all:
                try:
                    answer = await connections.request(host.http, "GET", f"/v1/routes?topic={TOPIC}")
                except NoAnswer:
                    continue
                if answer.status == 200:
                    urls = [str(entry["leader_url"]) for entry in answer.body["topics"][TOPIC]["partitions"]]
                    led = [one for one in self._hosts.all if CREDENTIALS.get().url(one.http) in urls]
                    if led:
                        return self._rng.choice(led)
        finally:
            connections.close()
        return self._rng.choice(self._hosts.all)

    async def _kill(self, hosts: list[Host]) -> None:
        for host in hosts:
            host.kill()
        await asyncio.sleep(self._rng.choice((0.0, 0.5, 2.0)))
        for host in hosts:
            host.start()

    async def kill_one(self) -> None:
        await self._kill(self._some(1))

    async def kill_leader(self) -> None:
        await self._kill([await self._leader()])

    async def kill_majority(self) -> None:
        await self._kill(self._some(len(self._hosts.all) // 2 + 1))

    async def kill_all(self) -> None:
        await self._kill(self._hosts.all)

    async def _pause(self, hosts: list[Host], seconds: float) -> None:
        for host in hosts:
            host.pause()
        await asyncio.sleep(seconds)
        for host in hosts:
            host.resume()

    async def pause(self) -> None:
        hosts = [await self._leader()] if self._rng.random() < 0.5 else self._some(self._rng.choice((1, 2)))
        await self._pause(hosts, self._rng.choice((0.3, 1.0, 3.0, 8.0)))

    async def _cut(self, links: set[tuple[int, int]], seconds: float) -> None:
        self._hosts.cut(links)
        await asyncio.sleep(seconds)
        self._hosts.heal(links)

    def _numbers(self) -> list[int]:
        return self._rng.sample([host.number for host in self._hosts.all], len(self._hosts.all))

    async def partition_halves(self) -> None:
        """A majority and a minority; the leader is in the minority half of the time."""
        numbers = self._numbers()
        if self._rng.random() < 0.5:
            leader = (await self._leader()).number
            numbers = [leader, *(number for number in numbers if number != leader)]
        small = len(numbers) // 2
        links = {(a, b) for a in numbers[:small] for b in numbers[small:]}
        await self._cut(links | {(b, a) for a, b in links}, self._rng.choice((1.0, 3.0, 6.0)))

    async def partition_bridge(self) -> None:
        """One host alone sees the two others."""
        numbers = self._numbers()
        half = len(numbers) // 2
        links = {(a, b) for a in numbers[:half] for b in numbers[half + 1 :]}
        await self._cut(links | {(b, a) for a, b in links}, self._rng.choice((1.0, 3.0, 6.0)))

    async def partition_ring(self) -> None:
        """Everybody hears the host before it, and nobody else."""
        numbers = self._numbers()
        follows = {(a, numbers[(place + 1) % len(numbers)]) for place, a in enumerate(numbers)}
        links = {(a, b) for a in numbers for b in numbers if a != b} - follows
        await self._cut(links, self._rng.choice((1.0, 3.0)))

    async def partition_one_way(self) -> None:
        """One host, often the leader, is mute, or deaf."""
        one = (await self._leader()).number if self._rng.random() < 0.6 else self._numbers()[0]
        links = {(one, host.number) for host in self._hosts.all if host.number != one}
        if self._rng.random() < 0.5:
            links = {(b, a) for a, b in links}
        await self._cut(links, self._rng.choice((1.0, 3.0, 6.0)))

    async def partition_flapping(self) -> None:
        numbers = self._numbers()
        links = {(numbers[0], other) for other in numbers[1:]}
        links |= {(b, a) for a, b in links}
        for _ in range(10):
            await self._cut(links, 0.1)
            await asyncio.sleep(0.1)

    async def full_disk(self) -> None:
        """A disk of its own runs full while the agent writes."""
        [host] = self._some(1)
        filler = host.data / "filler"
        _fill(filler, self._rng.choice((0, RESERVE_BYTES)))
        await asyncio.sleep(self._rng.uniform(2, 4))
        filler.unlink()

    async def bit_flip(self) -> None:
        """While the agent is down a bit flips in an older part of one of its logs."""
        host = self._flipped or self._some(1)[0]
        self._flipped = host
        host.kill()
        paths = [path for path in host.data.glob("topics/*/*/*.arrows") if _used(path) > 2**16]
        if paths:
            path = self._rng.choice(paths)
            with open(path, "r+b") as file:
                file.seek(self._rng.randrange(SEGMENT_HEADER_BYTES, _used(path) // 2))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ (1 << self._rng.randrange(8))]))
        host.start()
        await asyncio.sleep(3)

    async def restart_storm(self) -> None:
        for _ in range(6):
            for host in self._some(1):
                host.kill()
                host.start()
            await asyncio.sleep(self._rng.uniform(0.1, 0.6))

    async def rolling_restart(self) -> None:
        """SIGTERM, one after the other, each when the one before serves again."""
        for host in self._hosts.all:
            host.signal(signal.SIGTERM)
            assert host.process is not None
            while host.process.poll() is None:
                await asyncio.sleep(0.05)
            host.start()
            while not await asyncio.to_thread(host.is_ready):
                await asyncio.sleep(0.1)


FAULTS = (
    "kill-one", "kill-leader", "kill-majority", "kill-all", "pause", "partition-halves", "partition-bridge",
    "partition-ring", "partition-one-way", "partition-flapping", "full-disk", "bit-flip", "restart-storm",
    "rolling-restart",
)  # fmt: skip


def _fill(filler: pathlib.Path, keep_bytes: int) -> None:
    """Take the disk but for `keep_bytes`, in pieces, since the agent writes beside it."""
    size = 0
    with open(filler, "wb") as file:
        while True:
            status = os.statvfs(filler)
            if status.f_bavail * status.f_frsize - FILL_BYTES < keep_bytes:
                return
            try:
                os.posix_fallocate(file.fileno(), size, FILL_BYTES)
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                return
            size += FILL_BYTES


def _used(path: pathlib.Path) -> int:
    """Bytes before the zeros that are preallocated."""
    return len(path.read_bytes().rstrip(b"\0"))


class Run:
    """One run."""

    def __init__(self, options: argparse.Namespace, hosts: Hosts) -> None:
        self._options = options
        self._hosts = hosts
        self._rng = random.Random(options.seed)
        self._history = History()
        self._work = Workload(self._history, lambda: [host.http for host in hosts.all], self._rng)
        self._faults = Faults(hosts, random.Random(options.seed + 1))
        self._groups: GroupWork | None = None
        self._table: TableRun | None = None
        self._guests: Guests | None = None
        if options.secured:
            self._guests = Guests(hosts, self._work, random.Random(options.seed + 2))
        if "tables" in options.workload:
            self._table = TableRun(self._work, TABLE, PARTITIONS, limit_s=DRAIN_LIMIT_S)
        if "groups" in options.workload:
            self._groups = GroupWork(
                self._work,
                TOPIC,
                settings_of(list(SETTINGS), letters=True),
                PARTITIONS,
                limit_s=DRAIN_LIMIT_S,
            )
        self.report = Report(options.fault[0] if len(options.fault) == 1 else "mixed", options.seed)

    async def run(self) -> None:
        """Clients and faults until the time is up, then peace, and the verdict."""
        if self._guests is not None:
            await self._guests.begin()
        await self._create(TOPIC, {})
        if self._table is not None:
            await self._create(TABLE, {"kind": "table"})
        if self._groups is not None:
            await self._groups.create()
        clients = [asyncio.create_task(client.run()) for client in self._clients()]
        started = time.monotonic()
        while time.monotonic() - started < self._options.seconds:
            await asyncio.sleep(CALM_S)
            await self._faults.of(self._rng.choice(self._options.fault))()
            self.report.faults += 1
            if time.monotonic() - started < self._options.seconds / 2 or self._options.wait_ready:
                await asyncio.to_thread(self._hosts.wait_ready, READY_LIMIT_S)
        self.report.seconds = round(time.monotonic() - started, 1)
        await asyncio.to_thread(self._hosts.wait_ready, READY_LIMIT_S)
        self.report.served_after_s = round(await self._until_served(), 2)
        await self._until_enough()
        self._work.stopping = True
        await asyncio.wait_for(asyncio.gather(*clients), CLIENTS_END_S)
        if self._guests is not None:
            await self._judge_guests(self._guests)
        if self._groups is not None:
            await self._groups.drain()
        await self._read_everything()
        if self._groups is not None:
            self._judge_groups(self._groups)
        if self._table is not None:
            await self._judge_table(self._table)
        self.report.acknowledged = self._history.acknowledged_records
        self.report.reads = len(self._history.polls)
        self.report.anomalies += [str(anomaly) for anomaly in Checker(self._history).anomalies()]

    def _judge_groups(self, groups: GroupWork) -> None:
        """By what the leaders have; that the others have the same is the log's checker's matter."""
        finals = {final.partition: final for final in self._history.finals}
        groups.read(list(finals.values()))
        self.report.anomalies += [str(anomaly) for anomaly in groups.anomalies()]
        self.report.delivered = sum(len(receive.messages) for receive in groups.history.answered())
        self.report.done = groups.history.acknowledged_messages
        self.report.letters = len(groups.history.letters)

    async def _judge_table(self, table: TableRun) -> None:
        found = await table.finish([host.http for host in self._hosts.all])
        self.report.anomalies += map(str, found)
        self.report.rows, self.report.scans = table.known_acts, len(table.history.scans)
        self.report.watched = sum(len(watch.changes) for watch in table.history.watches)

    async def _judge_guests(self, guests: Guests) -> None:
        await guests.finish()
        self.report.anomalies += guests.anomalies
        self.report.revoked, self.report.refused = len(guests.ended), guests.refused

    async def _create(self, topic: str, settings: dict[str, Any]) -> None:
        connections = Connections()
        for _ in range(CREATE_ATTEMPTS):
            try:
                body = {"partitions": PARTITIONS, "replication_factor": 3, "segment": {"bytes": 1 << 20}}
                answer = await connections.request(
                    self._work.some_agent(), "PUT", f"/v1/topics/{topic}", body | settings
                )
            except NoAnswer:
                await asyncio.sleep(0.5)
                continue
            if answer.status in (200, 201):
                connections.close()
                return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"the topic {topic} cannot be created")

    def _clients(self) -> list[Client]:
        clients: list[Client] = [] if self._guests is None else [self._guests]
        kind = Producer
        if self._table is not None:
            clients += self._table.clients(ROW_CLIENTS, self._options.pause_ms / 1_000)
        if self._groups is not None:
            kind = KeyProducer
            clients += self._groups.clients(DEEDS, CONSUMER_PAUSE_S)
        for number in range(PARTITIONS):
            partition = (TOPIC, number)
            for producer in range(2):
                identity = f"{number * 16 + producer:032x}" if producer == 0 else None
                clients.append(
                    kind(
                        self._work,
                        f"p{number}.{producer}",
                        partition,
                        producer_id=identity,
                        batch_max=self._options.batch,
                        pause_s=self._options.pause_ms / 1_000,
                    )
                )
            for local in (False, True):
                name = f"r{number}.{'local' if local else 'leader'}"
                clients.append(Reader(self._work, name, partition, local=local, pause_s=0.1))
        return clients

    async def _until_served(self) -> float:
        """Seconds from when all agents are ready until each partition took an append begun after that."""
        since_s = now_s()
        while True:
            served = {
                item.partition
                for item in self._history.appends
                if item.outcome == "ok" and item.invoked_at > since_s
            }
            if len(served) == PARTITIONS:
                return now_s() - since_s
            if now_s() - since_s > SERVED_LIMIT_S:
                words = "\n".join(f"{host.namespace}: {host.last_words()}" for host in self._hosts.all)
                raise RuntimeError(f"only {len(served)} partitions take appends after the faults\n{words}")
            await asyncio.sleep(0.05)

    async def _until_enough(self) -> None:
        """Or until the limit: then the report says what there was."""
        end_s = now_s() + ENOUGH_LIMIT_S
        while any(count <= ENOUGH[name] for name, count in self._counts()) and now_s() < end_s:
            await asyncio.sleep(0.5)

    def _counts(self) -> Iterator[tuple[str, int]]:
        """So far."""
        yield "acknowledged", self._history.acknowledged_records
        yield "reads", len(self._history.polls)
        if self._groups is not None:
            yield "done", self._groups.history.acknowledged_messages
            yield "dead", sum(act.verb == "reject" and act.is_done for act in self._groups.history.acts)
        if self._table is not None:
            yield "rows", self._table.known_acts
            yield "watched", sum(len(watch.changes) for watch in self._table.history.watches)
        if self._guests is not None:
            yield "revoked", len(self._guests.ended)
            yield "refused", self._guests.refused

    async def _read_everything(self) -> None:
        """Each partition at its leader, and at every replica."""
        for number in range(PARTITIONS):
            partition: Partition = (TOPIC, number)
            for host in self._hosts.all:
                for local in (False, True):
                    self._history.finals.append(await _final(host, partition, local=local))


async def _final(host: Host, partition: Partition, *, local: bool) -> FinalLog:
    """Raises RuntimeError when the host does not give it within the time of a repair."""
    end_s = now_s() + READY_LIMIT_S
    while True:
        try:
            return await read_all(host.http, partition, local=local)
        except (NoAnswer, AssertionError) as error:
            if now_s() > end_s:
                raise RuntimeError(f"final read at {host.namespace}: {error}") from None
            await asyncio.sleep(0.5)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="nemesis.py", description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, nargs="+", required=True)
    parser.add_argument("--workload", choices=("appends", "groups", "tables"), nargs="+", default=["appends"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--batch", type=int, default=20, help="records of a request at most")
    parser.add_argument("--pause-ms", type=float, default=20, help="between two requests of a producer")
    parser.add_argument("--secured", action="store_true", help="TLS, tokens and a gossip key")
    parser.add_argument("--wait-ready", action="store_true", help="begin each fault with all agents well")
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def main() -> int:
    """0 without an anomaly."""
    options = parse(sys.argv[1:])
    if os.environ.get(INSIDE) != "1":
        command = isolated([sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})
    options.directory.mkdir(parents=True, exist_ok=True)
    hosts = Hosts(
        options.directory, options.hosts, small_disks="full-disk" in options.fault, secured=options.secured
    )
    run = Run(options, hosts)
    try:
        hosts.start()
        asyncio.run(run.run())
    except (RuntimeError, TimeoutError, NotInTime) as error:
        run.report.anomalies.append(f"{type(error).__name__} {error}")
    finally:
        hosts.stop()
    print(json.dumps(_document(run.report)), flush=True)
    return 1 if run.report.anomalies else 0


def _document(report: Report) -> dict[str, Any]:
    return dict(vars(report))


if __name__ == "__main__":
    sys.exit(main())
