"""Three real Serf agents and three of our members in one pool, under load: who suspects whom, and who dies.

Law of this file: it runs the pool and reports; what is allowed is for the test and the campaign to say. The
load is chatter of every kind from both sides: user events, queries, changing tags, joins, and packets of
noise at our own ports. Membership must not mind any of it.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.membership.config import GossipConfig
from shoal.membership.interface import JoinError, MemberEvent, PoolQuery, QueryError
from shoal.membership.net.gossip import Membership
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent.rpc import RpcConnection, RpcError
from tests.serf.real_serf import SerfAgent

SIZE = 3
OURS = tuple(f"ours-{number}" for number in range(SIZE))
SERFS = tuple(f"serf-{number}" for number in range(SIZE))
TURN_S = 0.05
QUERY_TIMEOUT_MS = 1_000
MEASURED_EACH_S = 0.02
STALL_MS = 700  # a whole probe of ours, from the ping to the suspicion: nobody here answers meanwhile
LIMIT_S = 90.0  # whoever missed a piece of gossip hears it by the next push/pull, after 15 s
ACCUSATION = re.compile(r"memberlist: (?:Suspect|Marking) (\S+) (?:has|as) failed")


@dataclass
class Report:
    """What happened: done counts kinds of load, heard the kinds of our members' events, accused says by whom
    and who was suspected. `longest_stall_ms`: this process, in which all of ours live, or one of Serf's did
    not get to run for so long; whoever pings it meanwhile gets no answer, and that is no false suspicion.
    """

    done: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    accused: list[tuple[str, str]] = field(default_factory=list)
    longest_stall_ms: int = 0

    def falsely_accused(self) -> list[tuple[str, str]]:
        """Accusations of members that could have answered."""
        return [] if self.longest_stall_ms >= STALL_MS else sorted(set(self.accused))


class MixedPool:
    """Made by `mixed_pool`; everybody is alive for everybody then."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self.report = Report()
        self.serfs: dict[str, SerfAgent] = {}
        self.ours: dict[str, Membership] = {}
        self.rpcs: dict[str, RpcConnection] = {}
        self._looked_to: dict[str, int] = {}

    # ---- its members --------------------------------------------------------------------------------------

    async def start_serf(self, name: str, port: int = 0) -> None:
        flags = ("-tag", "kind=serf", "-profile=lan")  # the local one tells each piece of news only twice
        self.serfs[name] = SerfAgent(name, self._log(name), *flags, port=port)
        await self.serfs[name].listens()
        self.rpcs[name] = await RpcConnection.open("127.0.0.1", self.serfs[name].rpc_port)

    async def start_ours(self, name: str, port: int = 0, **tags: str) -> None:
        def on_event(event: MemberEvent) -> None:
            self.report.heard[event.kind] += 1
            if event.kind in ("suspected", "failed"):
                self.report.accused.append((name, event.member.name))

        def on_query(query: PoolQuery) -> bytes:
            return query.payload

        config = GossipConfig.local(name=name, bind_port=port, tags={"kind": "ours"} | tags)
        rng = random.Random(self._rng.random())
        self.ours[name] = Membership(config, rng=rng, on_event=on_event, on_query=on_query)
        await self.ours[name].start()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    async def stop(self) -> None:
        for rpc in self.rpcs.values():
            await rpc.close()
        for member in self.ours.values():
            await member.stop()
        for agent in self.serfs.values():
            agent.kill()

    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", one.port) for one in (*self.serfs.values(), *self.ours.values())]

    # ---- what they show -----------------------------------------------------------------------------------

    async def statuses(self) -> dict[str, dict[str, str]]:
        """By viewer, by member."""
        seen = {
            name: {one.name: one.status for one in member.members()} for name, member in self.ours.items()
        }
        for name, rpc in self.rpcs.items():
            seen[name] = {one.name: one.status for one in await rpc.members()}
        return seen

    async def all_show(self, wanted: dict[str, str]) -> None:
        """Wait until every running member shows this of these, and all others as alive."""
        wanted = dict.fromkeys((*OURS, *SERFS), "alive") | wanted
        async with asyncio.timeout(LIMIT_S):
            while any(seen != wanted for seen in (await self.statuses()).values()):
                await asyncio.sleep(0.05)

    def look_at_logs(self) -> None:
        """Accusations that the Serf agents have written down since the last look."""
        for name in self.serfs:
            text = self._log(name).read_text(errors="replace")
            fresh = text[self._looked_to.get(name, 0) :]
            self._looked_to[name] = len(text)
            self.report.accused += [(name, accused) for accused in ACCUSATION.findall(fresh)]
            assert "panic" not in fresh, f"{name} has crashed: {fresh[-2_000:]}"

    # ---- load ---------------------------------------------------------------------------------------------

    async def load(self, seconds: float) -> None:
        """Everybody talks at once; the report says how much."""
        ends = asyncio.get_running_loop().time() + seconds
        work: list[Callable[[], Awaitable[None]]] = [
            self._event_of_ours, self._event_of_serf, self._query_of_ours, self._query_of_serf,
            self._tags_of_ours, self._tags_of_serf, self._join_again, self._noise,
        ]  # fmt: skip

        async def repeat(task: Callable[[], Awaitable[None]]) -> None:
            while asyncio.get_running_loop().time() < ends:
                await task()
                self.report.done[task.__name__.strip("_")] += 1
                await asyncio.sleep(TURN_S * self._rng.uniform(0.5, 1.5))

        await asyncio.gather(*(repeat(task) for task in work))

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """The report knows how long anybody stands still."""
        async with AsyncExitStack() as connections, asyncio.TaskGroup() as group:
            meters = [group.create_task(self._measure_this_process())]
            for agent in self.serfs.values():
                rpc = await RpcConnection.open("127.0.0.1", agent.rpc_port)
                connections.push_async_callback(rpc.close)
                meters.append(group.create_task(self._measure_serf(agent, rpc)))
            yield
            for meter in meters:
                meter.cancel()

    async def _measure_this_process(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(MEASURED_EACH_S)
            self._took(loop.time() - before_s - MEASURED_EACH_S)

    async def _measure_serf(self, agent: SerfAgent, rpc: RpcConnection) -> None:
        """By a connection on which nothing else is asked, until the agent ends."""
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            try:
                await rpc.stats()
            except (OSError, RpcError):
                if agent is self.serfs.get(agent.name):
                    raise
                return
            self._took(loop.time() - before_s)
            await asyncio.sleep(MEASURED_EACH_S)

    def _took(self, seconds: float) -> None:
        self.report.longest_stall_ms = max(self.report.longest_stall_ms, int(1_000 * seconds))

    def _any_ours(self) -> Membership:
        return self._rng.choice(list(self.ours.values()))

    def _any_rpc(self) -> RpcConnection:
        return self._rng.choice(list(self.rpcs.values()))

    async def _event_of_ours(self) -> None:
        self._any_ours().send_user_event("load", self._rng.randbytes(self._rng.randrange(400)))

    async def _event_of_serf(self) -> None:
        await self._any_rpc().event("load", self._rng.randbytes(self._rng.randrange(400)))

    async def _query_of_ours(self) -> None:
        request = QueryRequest("load", self._rng.randbytes(50), want_acks=True, timeout_ms=QUERY_TIMEOUT_MS)
        try:
            result = await self._any_ours().query(request, enough=OURS)
        except QueryError as error:
            raise AssertionError(f"no query can be asked: {error}") from None
        self.report.done["answers"] += len(result.answers)

    async def _query_of_serf(self) -> None:
        request = QueryRequest("load", self._rng.randbytes(50), tags={"kind": "o.*"}, timeout_ms=200)
        async for _ in await self._any_rpc().query(request):
            self.report.done["answers to serf"] += 1

    async def _tags_of_ours(self) -> None:
        self._any_ours().set_tags({"kind": "ours", "turn": str(self._rng.randrange(1_000))})

    async def _tags_of_serf(self) -> None:
        try:
            await self._any_rpc().tags({"turn": str(self._rng.randrange(1_000))})
        except RpcError as error:  # set all the same; under load Serf may not get its news told in 5 s
            if "timeout waiting for update broadcast" not in error.detail:
                raise

    async def _join_again(self) -> None:
        try:
            await self._any_ours().join([self._rng.choice(self.addresses())])
        except JoinError:  # a second for a whole exchange is little when both cores are busy
            self.report.done["joins without an answer"] += 1

    async def _noise(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for member in self.ours.values():
                sender.sendto(self._rng.randbytes(self._rng.randrange(1, 1_400)), ("127.0.0.1", member.port))


@asynccontextmanager
async def mixed_pool(directory: Path, seed: int) -> AsyncIterator[MixedPool]:
    pool = MixedPool(directory, seed)
    try:
        for name in SERFS:
            await pool.start_serf(name)
        for name in OURS:
            await pool.start_ours(name)
            for address in pool.addresses()[:SIZE]:
                await join_patiently(pool.ours[name], address)
        await pool.all_show({})
        async with pool.measured():
            yield pool
    finally:
        await pool.stop()


async def join_patiently(member: Membership, address: tuple[str, int]) -> None:
    """Again and again, as an agent calls its seeds: a second for an exchange is little on a busy machine."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await member.join([address])
            except JoinError:
                await asyncio.sleep(0.2)
            else:
                return


async def lose_and_find(pool: MixedPool) -> None:
    """One of each kind dies and is `failed` for everybody; both come back; both leave."""
    ours, serf = OURS[2], SERFS[2]
    ports = (pool.ours[ours].port, pool.serfs[serf].port)
    await pool.ours.pop(ours).stop()
    pool.serfs.pop(serf).kill()
    await pool.rpcs.pop(serf).close()
    await pool.all_show({ours: "failed", serf: "failed"})
    await pool.start_ours(ours, ports[0], life="2")
    await pool.start_serf(serf, ports[1])
    await join_patiently(pool.ours[ours], pool.addresses()[0])
    await pool.rpcs[serf].join([("127.0.0.1", pool.ours[OURS[0]].port)])
    await pool.all_show({})
    leaving, departing = pool.ours.pop(ours), pool.serfs.pop(serf)
    rpc = pool.rpcs.pop(serf)
    try:
        await asyncio.gather(leaving.leave(), rpc.leave())
        await pool.all_show({ours: "left", serf: "left"})
    finally:
        await rpc.close()
        await leaving.stop()
        departing.kill()
