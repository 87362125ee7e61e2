"""Three agents on loopback that are changed from version to version, one after the other, under clients.

Law of this file: it does what docs/operations/upgrade.md tells operators to do, and writes down what the
clients saw. Which changes come in which order is its caller's choice. The verdict about records is
log_history.py's.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pathlib
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

import cluster as local
from log_clients import Producer, Reader, Workload, now_s, read_all
from log_history import Checker, FinalLog, History, Partition
from real_agents import is_ready, leaders, wait_until
from upgrade_report import Change, Notes, Pause, copied_wrongly, silent, trouble_in
from versions import Version

TOPIC, COPY = "events", "copied"
PARTITIONS = 3
BATCH_MAX = 20
PRODUCER_PAUSE_SECONDS = 0.03
READER_PAUSES = 3
"""A reader's pause is as long as so many of a producer."""
LIMIT_SECONDS = 120.0
"""For any one step. It takes some seconds where nothing hangs."""
LOOK_SECONDS = 0.05
GOSSIP_PORT = 7946
BEFORE_LEVELS = (1, 1)
"""Of a version that knows of no levels: its cluster is at the first."""
LIBRARY_CLIENTS = pathlib.Path(__file__).with_name("library_clients.py")
STREAM = pathlib.Path(__file__).parent.parent / "spark" / "stream_program.py"


class Library:
    """library_clients.py in a process of its own, with the library of a version."""

    def __init__(self, version: Version, directory: pathlib.Path, notes: Notes, pause_seconds: float) -> None:
        self.version = version
        self._pause_seconds = pause_seconds
        self.notes = notes
        self.name = f"library-{version.name}".replace(" ", "-")
        self.producers = [f"{self.name}.{partition}" for partition in range(PARTITIONS)]
        self._said = directory / f"{self.name}.jsonl"
        self._log = directory / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._offset = 0

    def start(self, urls: list[str]) -> None:
        command = [sys.executable, "-P", str(LIBRARY_CLIENTS), ",".join(urls), TOPIC, str(PARTITIONS)]
        command += [self.name, str(self._pause_seconds)]
        environment = {**os.environ, **self.version.variables}
        with open(self._said, "wb") as said, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=log, env=environment
            )

    def read(self) -> None:
        """Take over the whole lines that have come since."""
        with open(self._said, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].decode().splitlines():
            self.notes.add(line)

    def stop(self) -> int:
        """Its exit code, once what was under way is known. Raises TimeoutExpired."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(LIMIT_SECONDS)
        finally:
            self.read()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Rehearsal:
    """`async with` starts agents of the first version, clients over HTTP, and one process with the library
    of each of `libraries`; at its end everything is stopped. `stream`: the version whose library a Spark
    stream uses; None: there is none. `pause_seconds`: of each producer between two appends, on average.
    `anomalies`: everything that should not have been."""

    def __init__(
        self,
        directory: pathlib.Path,
        first: Version,
        libraries: list[Version],
        *,
        seed: int = 0,
        stream: Version | None = None,
        pause_seconds: float = PRODUCER_PAUSE_SECONDS,
    ) -> None:
        self.directory = directory
        self.first = first
        self.agents = local.LocalCluster(directory / "agents")
        self.running: dict[str, Version] = {}
        self.anomalies: list[str] = []
        self.changes: list[Change] = []
        self.stalls: list[Pause] = []
        """Of this process, which only wants to look at the clock: what the machine adds to each pause."""
        self.history = History()
        self.cluster = f"upgrade-{secrets.token_hex(4)}"
        self._network = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}"
        self.stream_version = stream
        self._pause_seconds = pause_seconds
        self._rng = random.Random(seed)
        self._work = Workload(self.history, self._addresses, self._rng)
        self._libraries = [
            Library(version, directory, Notes(self.history, TOPIC), pause_seconds) for version in libraries
        ]
        self._clients: list[Producer | Reader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._clock: asyncio.Task[None] | None = None
        self._stream: Any = None
        self._over = threading.Event()
        """Whoever waits in a thread gives up."""
        self._starting = threading.Lock()
        """Held while agents are started: they are stopped once they are known."""

    @property
    def urls(self) -> list[str]:
        return [agent.url for agent in self.agents.agents]

    @property
    def producers(self) -> list[str]:
        """Of all kinds, by name."""
        own = [client.name for client in self._clients if isinstance(client, Producer)]
        return own + [name for library in self._libraries for name in library.producers]

    def _addresses(self) -> list[tuple[str, int]]:
        parts = [urlsplit(url) for url in self.urls]
        return [(part.hostname or "", part.port or 0) for part in parts]

    # ---- beginning and end -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._start_agents)
            self._clients = self._make_clients()
            self._tasks = [asyncio.create_task(client.run()) for client in self._clients]
            self._clock = asyncio.create_task(self._watch_clock())
            for library in self._libraries:
                library.start(self.urls)
            await self.until_served()
            if self.stream_version is not None:
                await asyncio.to_thread(self._start_stream, self.stream_version)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        tasks = self._tasks if self._clock is None else [*self._tasks, self._clock]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for library in self._libraries:
            library.kill()
        if self._stream is not None:
            self._stream.kill()
        self._over.set()
        await asyncio.to_thread(self._stop_agents)

    async def _watch_clock(self) -> None:
        while True:
            due_s = now_s() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.stalls.append(Pause(now_s() - due_s, "this process", due_s))

    def _stop_agents(self) -> None:
        with self._starting:
            self.agents.stop()

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Its first true value. For threads: RuntimeError ends them when the rehearsal is over."""

        def looked() -> Any:
            if self._over.is_set():
                raise RuntimeError(f"given up: {what}")
            return condition()

        return wait_until(looked, what, LIMIT_SECONDS)

    def _start_agents(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in local.NAMES:
            self.install(name, self.first, hold=False)
        with self._starting:
            self.agents.start("shoal", self.cluster)
        self.wait(self.are_ready, "all agents are ready")
        if self.first.levels != BEFORE_LEVELS:
            self.wait_level(local.NAMES[0], self.first.levels[1])
        for topic in (TOPIC, COPY):
            made = self.first.run(
                *("topic", "create", topic, "--agent", self.urls[0]),
                *("--partitions", str(PARTITIONS), "--replication-factor", str(len(self.urls))),
            )
            assert made.returncode == 0, made.stderr
            self.wait(lambda of=topic: len(leaders(self.urls[0], of)) == PARTITIONS, f"{topic} is led")

    def _make_clients(self) -> list[Producer | Reader]:
        clients: list[Producer | Reader] = []
        for number in range(PARTITIONS):
            partition: Partition = (TOPIC, number)
            producer = Producer(
                self._work,
                f"http.{number}",
                partition,
                producer_id=f"{number + 1:032x}",
                batch_max=BATCH_MAX,
                pause_s=self._pause_seconds,
                arrow=number == 0,
            )
            clients.append(producer)
            for nearby in (False, True):
                name = f"reader.{number}.{'local' if nearby else 'leader'}"
                pause_s = READER_PAUSES * self._pause_seconds
                clients.append(Reader(self._work, name, partition, local=nearby, pause_s=pause_s))
        return clients

    def _start_stream(self, version: Version) -> None:
        """Returns when its first micro-batch is complete."""
        kills = importlib.import_module("spark_kills")
        checkpoint = self.directory / "checkpoint"
        arguments = [",".join(self.urls), TOPIC, COPY, str(checkpoint), str(self.directory / "stream-ends")]
        log = self.directory / "stream.log"
        self._stream = kills.Driver(STREAM, arguments, log, version.variables)
        self._stream.start()
        self._stream.reach(checkpoint, 0)
        library = log.read_text("utf-8", "replace").split("\n", 1)[0]
        assert str(version.checkout.resolve()) in library, f"the stream uses {library}"

    # ---- the steps of an upgrade -----------------------------------------------------------------

    def install(self, name: str, version: Version, *, hold: bool) -> None:
        """What the agent of that name is started with from now on. Versions of before levels pass over the
        variable that holds them."""
        variables = {**version.variables, "SHOAL_HOLD_LEVEL": str(hold).lower()}
        variables |= self.place(local.NAMES.index(name))
        self.agents.install(name, version.program, variables)
        self.running[name] = version

    def place(self, number: int) -> dict[str, str]:
        """Variables of agent `number`: an address of its own, where no other agent takes its ports while it
        restarts, and nobody to meet but the first three."""
        seeds = [f"{self._network}.{place + 1}:{GOSSIP_PORT}" for place in range(len(local.NAMES))]
        return {
            "SHOAL_BIND": f"{self._network}.{number + 1}",
            "SHOAL_JOIN": ",".join(seeds),
            "SHOAL_EXPECT": str(len(seeds)),
            "SHOAL_MDNS": "false",
            "SHOAL_INSECURE": "true",
        }

    async def roll(self, version: Version, *, hold: bool = True) -> None:
        """Change every agent to that version, one after the other, in an order of chance."""
        names = [agent.name for agent in self.agents.agents]
        for name in self._rng.sample(names, len(names)):
            await self.change(name, version, hold=hold)

    async def change(self, name: str, version: Version, *, hold: bool = True) -> None:
        """SIGTERM, then the other version on the same data; returns when the cluster is healthy and each
        producer has been served again."""
        began_s = now_s()
        stop_seconds = await asyncio.to_thread(self.stop_agent, name)
        self.install(name, version, hold=hold)
        await asyncio.to_thread(self.start_agent, name)
        change = Change(name, version.name, began_s, now_s(), stop_seconds)
        await self.until_served()
        self._check_stream()
        self.changes.append(change._replace(ended_s=now_s()))

    def agent(self, name: str) -> local.AgentProcess:
        return next(agent for agent in self.agents.agents if agent.name == name)

    def stop_agent(self, name: str) -> float:
        """As a service manager does; the seconds until the process had ended."""
        agent = self.agent(name)
        began = time.monotonic()
        agent.signal(signal.SIGTERM)
        self.wait(lambda: not agent.is_alive() and agent.exit_code is not None, f"{name} ends")
        if agent.exit_code != 0:
            self.anomalies.append(f"{name} ended with {agent.exit_code}: {agent.last_words()}")
        log = pathlib.Path(agent.log)
        log.rename(log.with_suffix(f".{len(list(log.parent.glob(f'{name}.*.log')))}.log"))
        return time.monotonic() - began

    def start_agent(self, name: str) -> None:
        """Returns when `shoal status --wait` of its version does, with all members there."""
        with self._starting:
            if not self._over.is_set():
                self.agents.restart(self.agent(name))
        self.wait(self.are_ready, f"all agents are ready after {name} started")
        waited = self.running[name].run(
            *("status", "--wait", "--timeout", f"{LIMIT_SECONDS / 2:g}", "--agent", self.agent(name).url)
        )
        if waited.returncode:
            self.anomalies.append(f"the cluster is not healthy after {name} started: {waited.stdout}")

    def are_ready(self) -> bool:
        return all(is_ready(url, len(self.urls)) for url in self.urls)

    async def until_served(self) -> None:
        """Until every producer has had an append acknowledged that began after this call. Raises
        RuntimeError."""
        since_s, mark = now_s(), len(self.history.appends)
        while waiting := silent(self.history.appends[mark:], self.producers, since_s):
            for library in self._libraries:
                library.read()
                if library.notes.errors:
                    raise RuntimeError(f"{library.name}: {'; '.join(library.notes.errors)}")
            if now_s() - since_s > LIMIT_SECONDS:
                raise RuntimeError(f"not served for {LIMIT_SECONDS:.0f} s: {', '.join(waiting)}")
            await asyncio.sleep(LOOK_SECONDS)

    def _check_stream(self) -> None:
        if self._stream is None:
            return
        try:
            ended = self._stream.has_ended()
        except importlib.import_module("spark_kills").DriverFailedError as error:
            raise RuntimeError(f"the Spark stream failed: {error}") from None
        if ended:
            raise RuntimeError("the Spark stream ended before it was told to")

    # ---- levels ----------------------------------------------------------------------------------

    def level(self, name: str) -> dict[str, Any]:
        """GET /v1/cluster/level at an agent."""
        document: dict[str, Any] = local.get(self.agent(name).url, "/v1/cluster/level")
        return document

    def wait_level(self, name: str, level: int) -> dict[str, Any]:
        """The same, once that agent knows the cluster to be at this level and each member to understand what
        its version does."""
        expected = {agent: version.levels for agent, version in self.running.items()}

        def told() -> dict[str, Any]:
            document = self.level(name)
            found = {item["name"]: (item["lowest"], item["highest"]) for item in document["members"]}
            if document["level"] != level or found != expected:
                raise local.ClusterProblem(f"{name} says {document}")
            return document

        found: dict[str, Any] = self.wait(told, f"{name} says level {level} of {expected}")
        return found

    # ---- the verdict -----------------------------------------------------------------------------

    async def judge(self) -> None:
        """Stop the clients, read everything, and note each anomaly."""
        self._work.stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), LIMIT_SECONDS)
        for library in self._libraries:
            code = await asyncio.to_thread(library.stop)
            errors = library.notes.errors or ([f"exit code {code}"] if code else [])
            self.anomalies += [f"{library.name}: {error}" for error in errors]
            if str(library.version.checkout.resolve()) not in (library.notes.library or ""):
                self.anomalies.append(f"{library.name} used {library.notes.library}")
        self.anomalies += self._work.final_refusals
        if self._stream is not None:
            (self.directory / "stream-ends").touch()
            await asyncio.to_thread(self._stream.finish)
        copies = await self._read_everything(COPY)
        self.history.finals += await self._read_everything(TOPIC)
        self.anomalies += [str(anomaly) for anomaly in Checker(self.history).anomalies()]
        if self._stream is not None:
            self.anomalies += copied_wrongly(self.history.finals, copies[:: 2 * len(self.urls)])
        self._read_logs()

    async def _read_everything(self, topic: str) -> list[FinalLog]:
        """Each partition at its leader by way of each agent, and at each replica."""
        return [
            await read_all(address, (topic, number), local=nearby)
            for number in range(PARTITIONS)
            for address in self._addresses()
            for nearby in (False, True)
        ]

    def _read_logs(self) -> None:
        for log in sorted(self.agents.directory.glob("*.log")):
            lines = trouble_in(log.read_text(errors="replace"))
            self.anomalies += [f"{log.name}: {line}" for line in lines]
