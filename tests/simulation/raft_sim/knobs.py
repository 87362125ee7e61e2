"""What a seed decides before anything runs: sizes, speeds, and how often things go wrong.

Law of this file: one frozen value, drawn from the seed and printed first, so that a failure report is
complete.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from shoal.replication.config import RaftConfig


@dataclass(frozen=True)
class Knobs:
    """Times in ms of virtual time; chances from 0 to 1."""

    voters: int
    safety_ms: int  # how long faults are made
    loss: float
    duplication: float
    delay_ms_max: int
    straggler: float  # chance of a message that is late by up to straggler_ms_max, and so out of order
    straggler_ms_max: int
    sync_ms_max: int
    fault_interval_ms: int
    proposal_interval_ms: int
    read_interval_ms: int
    late_drain: float  # chance that the driver turns several inputs into one ready
    shorten: float  # chance that the driver cuts an append
    max_entries_per_append: int
    max_inflight_appends: int
    commit_notice_ms: int
    quiet_after_ms: int | None
    idle: float  # chance that clients pause for a while, so that groups may go quiet
    pre_vote: bool
    crashes: bool
    partitions: bool
    pauses: bool
    membership: bool
    transfers: bool
    retention: bool
    rot: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Knobs:
        """The knobs of a seed: each fault is absent in some seeds, since faults can hide one another."""
        entries_max = rng.choice((1, 2, 5, 256))
        appends_max = rng.choice((1, 2, 64))
        # What one round trip carries must be more than clients bring, or only patience would be tested.
        proposal_intervals_ms = (10, 30, 80) if entries_max * appends_max > 256 else (100,)
        return cls(
            voters=rng.choice((3, 3, 5)),
            safety_ms=rng.choice((6000, 10000, 15000)),
            loss=rng.choice((0, 0, 0.01, 0.05, 0.15)),
            duplication=rng.choice((0, 0.02, 0.1)),
            delay_ms_max=rng.choice((2, 5, 20)),
            straggler=rng.choice((0, 0.01, 0.05)),
            straggler_ms_max=rng.choice((100, 1000, 3000)),
            sync_ms_max=rng.choice((1, 5, 30, 150)),
            fault_interval_ms=rng.choice((300, 300, 700, 1500)),
            proposal_interval_ms=rng.choice(proposal_intervals_ms),
            read_interval_ms=rng.choice((50, 200)),
            late_drain=rng.choice((0, 0.3)),
            shorten=rng.choice((0, 0.1)),
            max_entries_per_append=entries_max,
            max_inflight_appends=appends_max,
            commit_notice_ms=rng.choice((0, 10, 100)),
            quiet_after_ms=rng.choice((None, 600, 600)),
            idle=rng.choice((0, 0, 0.02)),
            pre_vote=rng.random() < 0.85,
            crashes=rng.random() < 0.85,
            partitions=rng.random() < 0.8,
            pauses=rng.random() < 0.5,
            membership=rng.random() < 0.5,
            transfers=rng.random() < 0.5,
            retention=rng.random() < 0.4,
            rot=_looked_ahead(rng) < 0.4,
        )

    @classmethod
    def of_seed(cls, seed: int) -> Knobs:
        """The knobs that a simulation of this seed draws first."""
        return cls.draw(random.Random(seed))

    def raft_config(self) -> RaftConfig:
        """The product's defaults, but for what the seed varies."""
        return RaftConfig(
            max_entries_per_append=self.max_entries_per_append,
            max_inflight_appends=self.max_inflight_appends,
            max_inflight_entries=max(self.max_entries_per_append, 8 * self.max_inflight_appends),
            commit_notice_ms=self.commit_notice_ms,
            spare_delay_ms=self.spare_delay_ms,
            quiet_after_ms=self.quiet_after_ms,
            pre_vote=self.pre_vote,
        )

    @property
    def spare_delay_ms(self) -> int:
        """From the other knobs, so that seeds keep what they were known for otherwise."""
        return random.Random(str(self)).choice((0, 5, 50))

    @property
    def leads_from_birth(self) -> bool:
        """Whether the group's first voter leads before the others are born; likewise."""
        return random.Random(f"birth {self}").random() < 0.4

    def __str__(self) -> str:
        return " ".join(f"{item.name}={getattr(self, item.name)}" for item in fields(self))


def _looked_ahead(rng: random.Random) -> float:
    """A number that is drawn from a copy, so that seeds without that fault go on as they always did."""
    ahead = random.Random()
    ahead.setstate(rng.getstate())
    return ahead.random()
