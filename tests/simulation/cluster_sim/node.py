"""One host: an address, a disk, and the agent that runs there, or does not.

Law of this file: starts, kills, freezes and restarts one real agent. What is done to which host is for the
nemesis to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from cluster_sim.disk import SimDisk
from cluster_sim.loop import Life, SimLoop
from cluster_sim.network import Network
from cluster_sim.world import GOSSIP_PORT, HTTP_PORT
from shoal.agent.agent import Agent, Outcome, StopRequest
from shoal.agent.config import AgentConfig
from shoal.agent.host.host import Host
from shoal.agent.levels import LevelRange

DATA = "/data"
EXPECT_ALWAYS_MORE = 99
"""More agents than a simulation ever has."""


class Node:
    """See the head of this file. `told` is called with one line for the trace."""

    def __init__(
        self,
        index: int,
        address: str,
        *,
        loop: SimLoop,
        network: Network,
        disk: SimDisk,
        rng: random.Random,
        config: dict[str, object],
        levels: LevelRange,
        told: Callable[[str, str], None],
    ) -> None:
        self.name = f"n{index}"
        self.index = index
        self.address = address
        self.disk = disk
        self.levels = levels
        """Those that the version of Shoal understands which is installed there."""
        self.life: Life | None = None
        self.agent: Agent | None = None
        self.clock_offset_us = 0
        self.lives = 0
        self.is_ready = False
        self.has_left = False
        self.ended: str | None = None
        """How the last life ended by itself."""
        self._loop = loop
        self._network = network
        self._rng = rng
        self._config = config
        self._told = told
        self._stop: StopRequest | None = None

    @property
    def http(self) -> tuple[str, int]:
        return self.address, HTTP_PORT

    @property
    def is_running(self) -> bool:
        return self.life is not None and not self.life.is_dead

    @property
    def host(self) -> Host | None:
        return self.agent.host if self.is_running and self.agent is not None else None

    def never_founds(self) -> None:
        """Who comes when the cluster is there may be alone with others such while all its agents are down."""
        self._config = self._config | {"expect": EXPECT_ALWAYS_MORE}

    def start(self, seeds: list[str]) -> None:
        """A new process on the disk as it is. `seeds`: addresses of others."""
        assert not self.is_running
        self.lives += 1
        self.life = Life(f"{self.name}.{self.lives}", self.address)
        self.life.clock_offset_us = self.clock_offset_us
        self.is_ready = False
        self.has_left = False
        self.ended = None
        self._network.powerless.discard(self.address)
        self._network.look_at_held()
        join = [f"{address}:{GOSSIP_PORT}" for address in seeds if address != self.address]
        flags: dict[str, object] = {
            "data": DATA,
            "bind": self.address,
            "insecure": not self.address.startswith("127."),
            "http_port": HTTP_PORT,
            "gossip_port": GOSSIP_PORT,
            "mdns": False,
            "name": self.name,
            "cluster": "sim",
            "join": join,
        }
        config = AgentConfig.from_sources(flags | self._config)
        self._loop.spawn(self.life, self._run(self.life, config, self.levels))
        self._told(self.name, "START")

    async def _run(self, life: Life, config: AgentConfig, levels: LevelRange) -> None:
        stop = self._stop = StopRequest()
        try:
            while True:
                rng = random.Random(self._rng.getrandbits(64))
                self.agent = Agent(config, rng=rng, levels=levels)
                if await self.agent.run(stop, self._ready) is not Outcome.DISSOLVED:
                    break
                self._told(self.name, "DISSOLVED, starts again")
            self.ended = "stopped"
        except Exception as error:  # noqa: BLE001 -- told to the simulation, which judges it
            self.ended = f"{type(error).__name__}: {_reasons(error)}"
        self._told(self.name, f"ENDED {self.ended}")
        self._end(life, power=False)

    def _ready(self, _: Agent) -> None:
        self.is_ready = True
        self._told(self.name, "READY")

    def _end(self, life: Life, *, power: bool) -> None:
        life.is_dead = True
        self._network.process_ended(life, power=power)

    def kill(self) -> None:
        """kill -9: the page cache stays."""
        assert self.life is not None
        self._told(self.name, "KILL")
        self._end(self.life, power=False)

    def lose_power(self) -> None:
        """What was not synced may be gone, in any order."""
        assert self.life is not None
        self._told(self.name, "POWER LOSS")
        self._end(self.life, power=True)
        self.disk.crash(self._rng)
        self.disk.stuck_until_s = 0.0

    def pause(self) -> None:
        assert self.life is not None
        self._told(self.name, "PAUSE")
        self.life.is_paused = True

    def resume(self) -> None:
        if self.is_running and self.life is not None and self.life.is_paused:
            self._told(self.name, "RESUME")
            self._loop.resume(self.life)

    def leave(self) -> None:
        """SIGTERM."""
        if self.is_running and self._stop is not None and self.life is not None:
            self._told(self.name, "SIGTERM")
            self.has_left = True
            self._loop.call_soon(self._stop.ask, context=self.life.context.copy())

    def set_clock(self, offset_us: int) -> None:
        self._told(self.name, f"CLOCK {offset_us / 1e6:+.1f} s")
        self.clock_offset_us = offset_us
        if self.life is not None:
            self.life.clock_offset_us = offset_us


def _reasons(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reasons(inner) for inner in error.exceptions)
    return f"{type(error).__name__} {error}"
