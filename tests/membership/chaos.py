"""One seed, one pool, everything that can happen to it: the search for faults in the membership core.

Law of this file: it chooses faults and says what must hold; the network is pool.py, the numbers bounds.py.

A run: members meet; a nemesis cuts, slows, stops, kills and restarts for a while; then everything heals,
and within the bound every living member must show every living member as alive, and all must say the same of
those who are gone. The cores' own invariants are checked on the way.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from shoal.membership.config import GossipConfig
from shoal.membership.serf.ready import EventKind
from tests.membership.bounds import healed_bound_ms
from tests.membership.pool import Pool, endpoint_of

CHECK_EVERY = 25
FAULTS = (
    "kill",
    "restart",
    "move",
    "leave",
    "pause",
    "freeze",
    "jump",
    "halves",
    "isolate",
    "bridge",
    "ring",
    "mute",
    "deaf",
    "pair",
    "lossy",
    "heal",
)


@dataclass(frozen=True)
class Knobs:
    """What differs from seed to seed. Some kinds of fault are absent in each: faults hide one another."""

    members: int
    profile: str
    loss: float
    duplication: float
    delay_ms: tuple[int, int]
    rounds: int
    faults: tuple[str, ...]

    @classmethod
    def of_seed(cls, seed: int, members: int | None = None) -> "Knobs":
        """The knobs of one seed; `members` overrides how many there are."""
        rng = random.Random(seed)
        profile = rng.choice(("local", "lan"))
        chosen = rng.choice((3, 3, 4, 5, 6, 8, 12, 20, 32))
        return cls(
            members=chosen if members is None else members,
            profile=profile,
            loss=rng.choice((0.0, 0.0, 0.02, 0.05, 0.1)),
            duplication=rng.choice((0.0, 0.0, 0.2)),
            # Delays up to three quarters of the probe timeout: packets overtake each other all the time.
            delay_ms=(1, rng.choice((5, 20, 150 if profile == "local" else 370))),
            rounds=rng.randrange(4, 12),
            faults=tuple(sorted(rng.sample(FAULTS, rng.randrange(5, len(FAULTS))))),
        )


class ChaosFailure(AssertionError):
    """A seed at which something does not hold."""


class Chaos:
    """One run. `trace` gets a line for every packet, fault and change."""

    def __init__(
        self, seed: int, trace: Callable[[str], None] | None = None, members: int | None = None
    ) -> None:
        self.knobs = Knobs.of_seed(seed, members)
        self._rng = random.Random(seed ^ 0x5EED)
        self.faults = 0
        profile = getattr(GossipConfig, self.knobs.profile)
        self.config: GossipConfig = profile(name="n")
        self.pool = Pool(
            self.knobs.members,
            seed,
            loss=self.knobs.loss,
            stream_loss=1 - (1 - self.knobs.loss) ** 2,
            duplication=self.knobs.duplication,
            delay_ms=self.knobs.delay_ms,
            profile=profile,
            check_every=CHECK_EVERY,
            trace=trace,
        )
        self._moved = 0
        self._gone: set[str] = set()

    def run(self) -> None:
        """Raises AssertionError with what everybody believed."""
        pool = self.pool
        pool.run_for(5_000)
        for _ in range(self.knobs.rounds):
            self._fault(self._rng.choice(self.knobs.faults))
            pool.run_for(self._rng.choice((50, 1_000, 8_000, 40_000)))
        self._heal()
        pool.run_until(self._agreed, healed_bound_ms(self.config, self.knobs.members))
        pool.run_for(30_000)  # and it stays so
        if not self._agreed():
            raise ChaosFailure("the lists disagree again:\n" + pool.story())

    def summary(self) -> str:
        """What happened, in a line."""
        pool = self.pool
        failed, suspected = pool.count(EventKind.FAILED), pool.count(EventKind.SUSPECTED)
        return (
            f"{self.knobs.members} members, {pool.now_ms // 1000} s, {pool.packets} packets, "
            f"{self.faults} faults, {suspected} suspicions, {failed} failures shown"
        )

    # What happens

    def _fault(self, kind: str) -> None:
        living = [process.name for process in self.pool.alive()]
        victim = self._rng.choice([name for name in self.pool.processes if name != "n0"])
        self.faults += 1
        if victim in living:
            self._strike(kind, victim, living)
        elif kind in ("restart", "move") and victim not in self._gone:
            self._restart(kind, victim)

    def _restart(self, kind: str, victim: str) -> None:
        self._moved += 1
        self.pool.restart(victim, endpoint_of(256 + self._moved) if kind == "move" else None)
        self._join_until_known(victim)

    def _join_until_known(self, name: str) -> None:
        """As the agent does: a seed is asked until somebody is there."""
        process = self.pool.processes[name]
        if process.alive and len(process.core.members()) == 1:
            if not process.paused:
                self.pool.join(name, "n0")
            self.pool.at(2_000, lambda: self._join_until_known(name))

    def _strike(self, kind: str, victim: str, living: list[str]) -> None:
        pool, rng = self.pool, self._rng
        others = [name for name in living if name != victim]
        match kind:
            case "kill":
                pool.kill(victim)
            case "restart" | "move":
                self._restart(kind, victim)
            case "leave":
                if not pool.processes[victim].paused:
                    self._gone.add(victim)
                    pool.leave(victim)
            case "pause":
                pool.pause(victim, rng.choice((300, 2_000, 9_000, 45_000)))
            case "freeze":
                pool.freeze(victim, rng.choice((2_000, 9_000, 45_000)))
            case "jump":
                pool.jump(victim, rng.choice((500, 5_000, 60_000, 3_600_000)))
            case "pair":
                other = rng.choice(others)
                pool.cut(victim, other)
                if rng.random() < 0.5:
                    pool.cut(other, victim)
            case "lossy":
                pool.lossy[victim] = (rng.choice((0.0, 0.3, 0.7)), rng.choice((0.0, 0.3, 0.7)))
            case "heal":
                pool.heal()
            case _:
                self._cut(kind, victim, living, others)

    def _cut(self, kind: str, victim: str, living: list[str], others: list[str]) -> None:
        pool = self.pool
        self._rng.shuffle(living)
        half = len(living) // 2
        match kind:
            case "halves":
                pool.partition(living[:half], living[half:])
            case "isolate":
                pool.partition([victim], others)
            case "bridge":  # only the victim sees both sides
                self._rng.shuffle(others)
                pool.partition(others[: len(others) // 2], others[len(others) // 2 :])
            case "ring":
                for place, one in enumerate(living):
                    near = {living[place - 1], one, living[(place + 1) % len(living)]}
                    for other in living:
                        if other not in near:
                            pool.cut(one, other)
            case "mute":
                for other in others:
                    pool.cut(victim, other)
            case "deaf":
                for other in others:
                    pool.cut(other, victim)

    def _heal(self) -> None:
        pool = self.pool
        pool.heal()
        pool.loss = pool.stream_loss = 0.0
        for process in pool.alive():
            if process.paused:
                pool._resume(process)

    # What must hold

    def _agreed(self) -> bool:
        """Every living member shows every living one as alive and nobody else, and of those who are gone
        all say the same, whoever knows them: one that came later hears nothing of long past deaths, as in
        Serf."""
        living = {process.name for process in self.pool.alive() if process.name not in self._gone}
        said: dict[str, set[str]] = {}
        for name in living:
            view = self.pool.view(name)
            if {other for other, status in view.items() if status == "alive"} != living:
                return False
            for other, status in view.items():
                said.setdefault(other, set()).add(status)
        return all(len(statuses) == 1 for statuses in said.values())


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(f"seed {number} {Knobs.of_seed(number)}")
        chaos = Chaos(number, trace=print)
        chaos.run()
        print(f"seed {number} ok: {chaos.summary()} {chaos.pool.fingerprint()[:16]}")
