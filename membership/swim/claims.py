"""The list of nodes as SWIM sees it, and which claim about a node supersedes which.

Law of this file: records, the order in which they are probed, and three judgements as
plain functions (alive, suspect, dead). It sends nothing and starts no timer.

A claim wins by incarnation; at equal incarnation dead > suspect > alive (SWIM paper,
section 4.2). Only the node itself raises its incarnation.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from shoal.membership.wire.messages import Alive, Dead, Endpoint, NodeState, State, Suspect

DRAWS_PER_NODE = 4
"""Nodes drawn for each one that is wanted; if too few of them will do, all are looked at."""

FLOOD_SHARE, FLOOD_NODES = 2, 16
"""More nodes that never answered than so many for each one that did, and so many besides, are a flood of
invented ones, or a big pool that was just joined: those that did answer have half of the attention."""


@dataclass(slots=True)
class Node:
    """What is believed of one name. `changed_ms` is when `state` last changed, in the core's time."""

    name: str
    endpoint: Endpoint
    meta: bytes
    vsn: bytes
    incarnation: int
    state: State
    changed_ms: int
    answered: bool = False
    """Whether it has ever answered us at this endpoint: an invented node never does."""

    @property
    def gone(self) -> bool:
        return self.state in (State.DEAD, State.LEFT)

    @property
    def protocol_max(self) -> int:
        """PMax: 3 and above answer pings on a stream, 4 send nacks, 5 checksum gossip; 0 when not known."""
        return self.vsn[1] if self.vsn else 0

    def to_state(self) -> NodeState:
        return NodeState(self.name, self.endpoint, self.meta, self.incarnation, self.state, self.vsn)


class Verdict(Enum):
    """What a claim does to a record."""

    IGNORE = auto()
    ACCEPT = auto()
    REFUTE = auto()
    CONFIRM = auto()
    CONFLICT = auto()


def compatible(vsn: bytes) -> bool:
    """Whether a Serf agent could list the node: it refuses every push/pull in which somebody (dead or alive)
    does not cover what all others speak, memberlist's protocol 2 and Serf's 5 as we do. Absent: no news."""
    if not vsn:
        return True
    return vsn[0] > 0 and _covers(vsn[:3], 1, 2) and _covers(vsn[3:], 2, 5)


def _covers(versions: bytes, oldest: int, spoken: int) -> bool:
    """min, max and current of one layer: reaching what we speak, and speaking nothing older than `oldest`."""
    lowest, highest, current = versions
    return lowest <= spoken <= highest and max(lowest, oldest) <= current <= highest and current <= 5


def judge_alive(
    node: Node | None, claim: Alive, *, is_self: bool, leaving: bool, reclaim_ms: int, now_ms: int
) -> Verdict:
    """An alive claim from elsewhere. `reclaim_ms` 0 means that a dead name keeps its
    address until forgotten."""
    if (is_self and leaving) or not compatible(claim.vsn) or not claim.incarnation:
        return Verdict.IGNORE  # nodes begin with incarnation 1, even under a new address
    if node is None:
        # A node that no push/pull could list is not believed either: it would be told on without versions.
        return Verdict.ACCEPT if claim.vsn else Verdict.IGNORE
    moved = claim.endpoint != node.endpoint
    if moved and (is_self or not _may_move(node, reclaim_ms, now_ms)):
        return Verdict.CONFLICT
    if is_self:
        same = claim.meta == node.meta and claim.vsn == node.vsn
        if claim.incarnation < node.incarnation or (claim.incarnation == node.incarnation and same):
            return Verdict.IGNORE
        return Verdict.REFUTE
    if not moved and claim.incarnation <= node.incarnation:
        return Verdict.IGNORE
    return Verdict.ACCEPT


def _may_move(node: Node, reclaim_ms: int, now_ms: int) -> bool:
    """A name that left may come back anywhere; a dead one may once it has been dead for reclaim_ms."""
    if node.state == State.LEFT:
        return True
    return node.state == State.DEAD and 0 < reclaim_ms <= now_ms - node.changed_ms


def judge_suspect(node: Node | None, claim: Suspect, *, is_self: bool) -> Verdict:
    """CONFIRM: a suspicion already runs and this may be a further accuser of it."""
    if node is None or claim.incarnation < node.incarnation:
        return Verdict.IGNORE
    if node.state == State.SUSPECT:
        return Verdict.CONFIRM
    if node.state != State.ALIVE:
        return Verdict.IGNORE
    return Verdict.REFUTE if is_self else Verdict.ACCEPT


def judge_dead(node: Node | None, claim: Dead, *, is_self: bool, leaving: bool) -> Verdict:
    if node is None or claim.incarnation < node.incarnation or node.gone:
        return Verdict.IGNORE
    if is_self and not leaving:
        return Verdict.REFUTE
    return Verdict.ACCEPT


class NodeTable:
    """All records by name, and the shuffled round in which they are probed.

    A new node enters the round at a random place, so that the time to its first probe is
    bounded by one round and its expectation is half of one (SWIM paper, section 4.3).
    """

    def __init__(self, local: Node) -> None:
        self.local = local
        self._nodes: dict[str, Node] = {local.name: local}
        self._round: list[str] = []
        self._next = 0
        self._proven_round: list[str] = []
        self._proven_turn = False

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def add(self, node: Node, rng: random.Random) -> None:
        assert node.name not in self._nodes
        self._nodes[node.name] = node
        place = rng.randint(0, len(self._round))
        self._round.insert(place, node.name)
        if place < self._next:
            self._next += (
                1  # nobody is visited twice, and a flood of newcomers does not keep the round from ending
            )

    def unproven(self, rng: random.Random) -> Node | None:
        """One of those that never answered, gone ones first; None when all did."""
        found = [node for node in self if not node.answered and node is not self.local]
        gone = [node for node in found if node.gone]
        return rng.choice(gone or found) if found else None

    def remove(self, node: Node) -> None:
        """Forget it. Its place in the round goes with it."""
        assert node is not self.local
        del self._nodes[node.name]
        place = self._round.index(node.name)
        del self._round[place]
        self._next -= place < self._next

    def make_room(self) -> None:
        """Forget who is gone and never answered."""
        for node in [node for node in self if node.gone and not node.answered and node is not self.local]:
            del self._nodes[node.name]
        passed = sum(name in self._nodes for name in self._round[: self._next])
        self._round = [name for name in self._round if name in self._nodes]
        self._next = passed

    def _is_flooded(self) -> bool:
        if len(self._nodes) <= FLOOD_NODES:
            return False
        nodes, dead, left = self._nodes.values(), State.DEAD, State.LEFT  # asked at each gossip, of all
        living = [node.answered for node in nodes if (state := node.state) is not dead and state is not left]
        proven = sum(living)
        return len(living) - 1 - proven > FLOOD_SHARE * proven + FLOOD_NODES

    def probe_target(self, rng: random.Random, forget: Callable[[Node], bool]) -> Node | None:
        """The next node of the round that is not gone; at its end the long dead are forgotten and it is
        reshuffled. In a flood every second one is of those that answered before, in rounds of their own."""
        self._proven_turn = not self._proven_turn and self._is_flooded()
        if self._proven_turn and (proven := self._next_proven(rng)) is not None:
            return proven
        for _ in range(2):
            while self._next < len(self._round):
                node = self._nodes[self._round[self._next]]
                self._next += 1
                if not node.gone:
                    return node
            for name in [node.name for node in self if node is not self.local and forget(node)]:
                del self._nodes[name]
            self._round = [name for name in self._round if name in self._nodes]
            rng.shuffle(self._round)
            self._next = 0
        return None

    def _next_proven(self, rng: random.Random) -> Node | None:
        for _ in range(2):
            while self._proven_round:
                node = self._nodes.get(self._proven_round.pop())
                if node is not None and not node.gone:
                    return node
            self._proven_round = [node.name for node in self if node.answered and node is not self.local]
            rng.shuffle(self._proven_round)
        return None

    def sample(self, rng: random.Random, count: int, eligible: Callable[[Node], bool]) -> list[Node]:
        """Up to `count` distinct random nodes other than the local one.

        Drawn first, looked at then: in a big pool nearly everybody is eligible, and looking at all of
        them five times a second would cost more than the gossip itself. In a flood all but one of several
        are of those that answered before, and one alone is so every second time.
        """
        known: list[Node] = []
        if self._is_flooded():
            wanted = count - 1 if count > 1 else rng.randrange(2)
            proven = [node for node in self if node.answered and node is not self.local and eligible(node)]
            known = rng.sample(proven, min(wanted, len(proven)))
        others = self._sample(
            rng, count - len(known), lambda node: all(node is not one for one in known) and eligible(node)
        )
        return known + others

    def _sample(self, rng: random.Random, count: int, eligible: Callable[[Node], bool]) -> list[Node]:
        if len(self._round) > DRAWS_PER_NODE * count:
            drawn = (self._nodes[name] for name in rng.sample(self._round, DRAWS_PER_NODE * count))
            found = [node for node in drawn if eligible(node)][:count]
            if len(found) == count:
                return found
        chosen = [node for node in self if node is not self.local and eligible(node)]
        return rng.sample(chosen, min(count, len(chosen)))

    def check_invariants(self) -> None:
        assert sorted(self._round) == sorted(name for name in self._nodes if name != self.local.name)
        assert self._nodes[self.local.name] is self.local
        for name, node in self._nodes.items():
            assert name == node.name
            assert node.incarnation > 0
