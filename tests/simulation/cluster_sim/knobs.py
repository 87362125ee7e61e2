"""What a seed decides before anything runs: sizes, speeds, and which faults there are.

Law of this file: one frozen value, drawn from the seed and printed first, so that a failure report is
complete. Each fault is absent in some seeds, since faults can hide one another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from group_operator import Deed

GROUPS = (("shared",), ("exclusive",), ("key-ordered",), ("shared", "exclusive", "key-ordered"))
SECURED = 0.75
"""Two seeds in three can be: principals need a level that some hold back. So half of all seeds are."""
DEEDS: tuple[tuple[Deed, ...], ...] = (("seek",), ("redrive",), ("seek", "redrive", "pause", "retention"))


@dataclass(frozen=True)
class Knobs:
    """Times in ms of virtual time; chances from 0 to 1."""

    nodes: int
    partitions: int
    safety_ms: int
    fault_interval_ms: int
    loopback: bool  # gossip as on one machine, or as on a network: it is slower to suspect
    delay_ms_max: float
    loss: float
    duplication: float
    straggler: float
    sync_ms_max: float
    producer_pause_ms: int
    batch_max: int
    padding: int
    segment_bytes: int
    retention_bytes: int | None
    replace_after_ms: int
    quick_restarts: bool
    kills: bool
    power: bool
    cuts: bool
    weather: bool
    pauses: bool
    slow_disks: bool
    disk_errors: bool
    clocks: bool
    leaving: bool
    joining: bool
    draining: bool
    topics: bool
    rot: bool
    lost_disk: bool
    arrow: bool  # some producers send Arrow streams, otherwise all send JSON
    leader_acks: bool  # some appends are answered when their leader has synced them
    keys: bool  # somebody appends by keys, to whichever partitions they belong to
    library: bool  # somebody uses the Python client
    sink: bool  # somebody writes as a task of Spark's sink does
    split: float  # the chance that bytes arrive in two parts
    years: bool  # clocks are wrong by years, too
    crowd: bool  # one agent has all the connections it takes, until the end
    births: bool  # in the end a topic is made while two of five agents have just died
    visitor: bool  # somebody tries whatever else there is
    few_producers: bool  # each partition has room for a handful of them
    disaster: bool  # when all is over, a majority is lost for good, and an operator forces what is left
    impatient: bool  # at each agent there is somebody who asks nobody else, and does not wait for long
    little_memory: bool  # agents take few requests and few bytes at once, and strangers fill one of them
    upgrades: bool  # hosts change to another version of Shoal, and back
    alterations: bool  # somebody changes the topic's replication factor and another setting
    groups: tuple[str, ...]  # modes of the groups whose consumers work on a topic
    letters: bool  # what their consumers give up goes to topics of dead letters
    operates: tuple[Deed, ...]  # what somebody does to the groups meanwhile
    timers: bool  # groups of all modes work on a topic whose messages fall due
    tables: bool  # somebody puts, compares, gets and watches the rows of a table
    secured: bool  # agents ask for tokens, and operators make and end principals, roles and tokens
    only: tuple[str, ...] = ()  # names of faults: no others then; never drawn

    @classmethod
    def draw(cls, rng: random.Random) -> Knobs:
        """At most one of bit rot and a lost disk: both are allowed to cost one copy, and there are three."""
        permanent = rng.choice(("", "", "rot", "rot", "lost_disk"))
        return cls(
            nodes=rng.choice((3, 3, 4, 5)),
            partitions=rng.choice((1, 2, 3)),
            safety_ms=rng.choice((8_000, 12_000, 20_000)),
            fault_interval_ms=rng.choice((400, 1_000, 2_500)),
            loopback=rng.random() < 0.7,
            delay_ms_max=rng.choice((0.5, 2, 20)),
            loss=rng.choice((0, 0, 0.02, 0.1)),
            duplication=rng.choice((0, 0.05)),
            straggler=rng.choice((0, 0, 0.01)),
            sync_ms_max=rng.choice((1, 5, 30)),
            producer_pause_ms=rng.choice((30, 90)),
            batch_max=rng.choice((1, 5, 20)),
            padding=rng.choice((0, 100)),
            segment_bytes=rng.choice((16_384, 65_536, 1 << 20)),
            retention_bytes=rng.choice((None, None, None, 65_536)),
            replace_after_ms=rng.choice((3_000, 10_000, 300_000)),
            quick_restarts=rng.random() < 0.25,
            kills=rng.random() < 0.8,
            power=rng.random() < 0.7,
            cuts=rng.random() < 0.8,
            weather=rng.random() < 0.5,
            pauses=rng.random() < 0.5,
            slow_disks=rng.random() < 0.5,
            disk_errors=rng.random() < 0.5,
            clocks=rng.random() < 0.5,
            leaving=rng.random() < 0.4,
            joining=rng.random() < 0.4,
            topics=rng.random() < 0.5,
            rot=permanent == "rot",
            lost_disk=permanent == "lost_disk",
            draining=rng.random() < 0.3,
            arrow=rng.random() < 0.6,
            leader_acks=rng.random() < 0.4,
            keys=rng.random() < 0.4,
            library=rng.random() < 0.4,
            sink=rng.random() < 0.25,
            split=rng.choice((0, 0, 0.05)),
            years=rng.random() < 0.3,
            crowd=rng.random() < 0.2,
            disaster=rng.random() < 0.2,
            few_producers=rng.random() < 0.3,
            visitor=rng.random() < 0.3,
            births=rng.random() < 0.15,
            impatient=rng.random() < 0.4,
            little_memory=rng.random() < 0.3,
            upgrades=rng.random() < 0.25,
            alterations=rng.random() < 0.3,
            groups=rng.choice(GROUPS) if rng.random() < 0.35 else (),
            letters=rng.random() < 0.5,
            operates=rng.choice(DEEDS) if rng.random() < 0.5 else (),
            timers=rng.random() < 0.25,
            tables=rng.random() < 0.25,
            secured=rng.random() < SECURED,
        )

    @classmethod
    def of_seed(cls, seed: int) -> Knobs:
        """The knobs that a simulation of this seed draws first."""
        return cls.draw(random.Random(seed))

    def __str__(self) -> str:
        shown = (item for item in fields(self) if item.name != "only" or self.only)
        return " ".join(f"{item.name}={getattr(self, item.name)}" for item in shown)
