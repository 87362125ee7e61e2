"""What consumers of a group saw: receives, acts, seeks and letters, with their times and outcomes.

Law of this file: values only, and pure. group_checker.py judges them. Times are seconds of one clock. A
delivery's number says its place in the partition's log, so that deliveries are ordered without any clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from log_history import NEVER, Outcome, Partition

Mode = Literal["shared", "exclusive", "key-ordered"]
Verb = Literal["ack", "nack", "release", "reject", "extend"]
RETURNING: frozenset[Verb] = frozenset({"nack", "release", "reject"})
"""The acts after which a message may come again, or die."""


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """A group's settings, as far as they bind what consumers see. `session_s`: of exclusive consumers."""

    mode: Mode = "shared"
    max_attempts: int | None = 5
    dead: Literal["letter", "drop", "stop"] = "letter"
    session_s: float = NEVER


@dataclass(frozen=True, slots=True)
class Given:
    """A message of an answer. `due_us`: 0 where messages are due at once."""

    offset: int
    attempt: int
    receipt: str
    value: str | None = None
    due_us: int = 0


@dataclass(frozen=True, slots=True)
class Receive:
    """One sending of a receive; a repetition is another one with the same `request`. `outcome`: "info" where
    messages may have been delivered that nobody saw. `generation`: of the group there. `reason`: why there is
    no message. `partition`: the one that was asked, or that gave messages; None: all were asked, and gave
    none."""

    group: str
    consumer: str
    request: str
    limit: int
    lease_s: float
    invoked_at: float
    completed_at: float
    outcome: Outcome
    partition: Partition | None = None
    delivery: int = 0
    generation: int = 1
    messages: tuple[Given, ...] = ()
    delivered_at_us: int = 0
    reason: str = ""

    @property
    def place(self) -> tuple[str, Partition]:
        """Where the messages are of."""
        assert self.partition is not None
        return self.group, self.partition

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(given.offset for given in self.messages)


@dataclass(frozen=True, slots=True)
class Act:
    """What a consumer said of messages of one delivery, by one receipt. `is_whole`: that of the whole answer,
    which speaks of those that are still in flight. `code`: why it was refused. `lease_s`: of an extend."""

    group: str
    consumer: str
    verb: Verb
    partition: Partition
    delivery: int
    offsets: tuple[int, ...]
    invoked_at: float
    completed_at: float
    outcome: Outcome
    code: str | None = None
    is_whole: bool = False
    generation: int = 1
    lease_s: float = NEVER

    @property
    def place(self) -> tuple[str, Partition]:
        return self.group, self.partition

    @property
    def is_done(self) -> bool:
        """It was answered, and nothing was refused."""
        return self.outcome == "ok" and self.code is None

    @property
    def may_count(self) -> bool:
        """It happened, or nobody knows."""
        return self.outcome == "info" or self.is_done


@dataclass(frozen=True, slots=True)
class Change:
    """An operator's word: messages come again. `kind`: of a seek those from some offset on, of a redrive
    those that were letters, of a decision those that were stopped. A seek to the end is known between `least`
    and `offset`, any other one has one of them. `generation`: that a seek began; 0 where nobody knows."""

    kind: Literal["seek", "redrive", "decide"]
    group: str
    partition: Partition
    invoked_at: float
    completed_at: float
    outcome: Outcome
    offset: int = 0
    least: int = 0
    generation: int = 0

    @property
    def place(self) -> tuple[str, Partition]:
        return self.group, self.partition


@dataclass(frozen=True, slots=True)
class Presence:
    """A consumer of an exclusive group told that it is there. `heard`: the partitions whose leaders answered.
    A receive says the same to the partition that it asks."""

    group: str
    consumer: str
    invoked_at: float
    completed_at: float
    outcome: Outcome
    heard: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """A consumer said that it goes. `heard`: as in Presence."""

    group: str
    consumer: str
    invoked_at: float
    completed_at: float = NEVER
    heard: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead-letter topic, by its headers. `ordinal`: its number among those of the partition, 0
    where it is not known; `first_us`, `last_us`: when its message was delivered, 0 likewise."""

    group: str
    partition: Partition
    offset: int
    attempts: int
    reason: str = ""
    ordinal: int = 0
    first_us: int = 0
    last_us: int = 0
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """A group at the end, when nothing more was to be had: what its document said. `begin`: the first message
    that it was to have, before anybody sought."""

    group: str
    partition: Partition
    position: int
    log_start_offset: int = 0
    begin: int = 0
    skipped: int = 0
    dropped: int = 0
    generation: int = 1
    until_us: int | None = None
    """Of a topic with due times: what is due later is still there."""

    @property
    def place(self) -> tuple[str, Partition]:
        return self.group, self.partition


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of the log, at the end. `due_us`: as in Given."""

    value: str
    key: str | None = None
    due_us: int = 0


@dataclass
class GroupHistory:
    """Everything that consumers did. `logs`: what each partition holds in the end, by offset. `led`: when
    leaders of a partition began, None where nobody knows. `settled_at`: when no request was under way that
    was never answered."""

    terms: dict[str, GroupTerms] = field(default_factory=dict)
    receives: list[Receive] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    presences: list[Presence] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    drained: list[Drained] = field(default_factory=list)
    logs: dict[Partition, dict[int, Logged]] = field(default_factory=dict)
    led: dict[Partition, list[float]] | None = None
    settled_at: float = NEVER

    def answered(self) -> Iterator[Receive]:
        """The receives that brought messages."""
        return (item for item in self.receives if item.outcome == "ok" and item.messages)

    @property
    def acknowledged_messages(self) -> int:
        """By acts that name each of them."""
        return sum(len(act.offsets) for act in self.acts if act.verb == "ack" and act.is_done)
