"""Which agents hold which partition, and which of them leads it.

Law of this file: pure functions of the member list, without clock, load or history. Two agents that know the
same members decide the same. Leaders that move their replicas there, each for its own group, end in one
balanced whole.

A block of partitions is matched with the agents by deferred acceptance (Gale and Shapley, 1962), both sides
preferring by rendezvous hashing (Thaler and Ravishankar, 1998): every partition asks its best agents, in as
many failure domains as it can; an agent keeps as many as its share is, those it scores best. The outcome is
stable, and that makes it cheap to change: an agent that comes takes its share from the others, an agent that
goes leaves its own to them, and little else moves.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import floor
from typing import Final

from shoal.replication.errors import NotEnoughAgents

BLOCK_PARTITIONS: Final = 64
"""Partitions are balanced exactly within a block and by chance between blocks, so that one partition's
placement costs at most a block's work however many partitions a topic has."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that may hold replicas. weight: its share relative to others; 0 takes nothing (drained)."""

    agent_id: str
    failure_domain: str
    weight: int = 1


def birth_voters(
    topic_id: bytes, partition: int, partitions: int, candidates: Sequence[Candidate], factor: int
) -> tuple[str, ...]:
    """The voters with which a partition is born: where it belongs among these. Raises NotEnoughAgents."""
    able = sum(item.weight > 0 for item in candidates)
    if able < factor:
        raise NotEnoughAgents(f"{factor} replicas need {factor} agents, and there are {able}")
    return place(topic_id, partition, partitions, candidates, factor)


def place(
    topic_id: bytes, partition: int, partitions: int, candidates: Collection[Candidate], factor: int
) -> tuple[str, ...]:
    """Where the replicas of one of a topic's partitions belong; the first is the preferred leader.

    `factor` agents, fewer if there are no more. Replicas and leaders are spread by weight, within one of each
    other in every block. Failure domains come before balance, and never block (safety 5). The order of the
    candidates does not matter.
    """
    assert 0 <= partition < partitions
    agents = tuple(sorted((item for item in candidates if item.weight > 0), key=lambda item: item.agent_id))
    start = block_start(partition)
    count = min(BLOCK_PARTITIONS, partitions - start)
    return _place_block(topic_id, start, count, agents, factor)[partition - start]


def block_start(partition: int) -> int:
    """The first partition of its block."""
    return partition - partition % BLOCK_PARTITIONS


@lru_cache(maxsize=256)  # sixteen blocks of a large topic are asked for by each of their partitions in turn
def _place_block(
    topic_id: bytes, start: int, count: int, agents: tuple[Candidate, ...], factor: int
) -> tuple[tuple[str, ...], ...]:
    assert factor >= 1
    assert len({item.agent_id for item in agents}) == len(agents)
    factor = min(factor, len(agents))
    if factor == 0:
        return ((),) * count
    block = _Block(topic_id, range(start, start + count), agents, factor)
    block.match()
    block.fill()
    block.spread()
    return block.led()


class _Block:
    """The matching of one block while it is made. A partition holds at most `factor` agents, an agent at most
    its share of partitions."""

    def __init__(
        self, topic_id: bytes, partitions: Sequence[int], agents: Sequence[Candidate], factor: int
    ) -> None:
        self._topic_id = topic_id
        self._partitions = partitions
        self._factor = factor
        self._domain = {item.agent_id: item.failure_domain for item in agents}
        self._score = {
            (partition, item.agent_id): rendezvous(topic_id, partition, item.agent_id)
            for partition in partitions
            for item in agents
        }
        self._ranked = {
            partition: sorted(self._domain, key=lambda agent_id: self._score[partition, agent_id])
            for partition in partitions
        }
        self._share = self._shares(agents)
        self._agents: dict[int, set[str]] = {partition: set() for partition in partitions}
        self._held: dict[str, set[int]] = {item.agent_id: set() for item in agents}
        self._refused: dict[int, set[str]] = {partition: set() for partition in partitions}

    def match(self) -> None:
        """Deferred acceptance. The choice of a partition only ever widens as it is refused (substitutes), so
        the outcome does not depend on the order of asking."""
        asking = list(self._partitions)
        while asking:
            partition = asking.pop()
            for agent_id in self._choice(partition, self._refused[partition]):
                if agent_id in self._agents[partition]:
                    continue
                self._take(partition, agent_id)
                if len(self._held[agent_id]) > self._share[agent_id]:
                    worst = max(self._held[agent_id], key=lambda number: self._score[number, agent_id])
                    self._give_up(worst, agent_id)
                    self._refused[worst].add(agent_id)
                    asking.append(worst)

    def fill(self) -> None:
        """Give the missing replicas their places. A partition found none where the only agents left hold it
        already: another partition goes there and makes room. No partition stays short."""
        for partition in self._partitions:
            while len(self._agents[partition]) < self._factor:
                self._exchange(partition)

    def _exchange(self, short: int) -> None:
        others = [agent_id for agent_id in self._ranked[short] if agent_id not in self._agents[short]]
        least = min(self._crowd(short, agent_id, None) for agent_id in others)
        fitting = [agent_id for agent_id in others if self._crowd(short, agent_id, None) == least]
        roomy = [agent_id for agent_id in self._held if len(self._held[agent_id]) < self._share[agent_id]]
        for agent_id in fitting:
            if agent_id in roomy:
                self._take(short, agent_id)
                return
        for target in roomy:
            for agent_id in fitting:
                if (moved := self._movable(agent_id, target)) is not None:
                    self._give_up(moved, agent_id)
                    self._take(moved, target)
                    self._take(short, agent_id)
                    return
        self._take(short, min(fitting, key=lambda agent_id: len(self._held[agent_id])))

    def spread(self) -> None:
        """Where others had filled a domain first, a partition may hold more than it should in another. It
        exchanges a replica with a partition that loses nothing by it, or else goes over an agent's share."""
        for partition in self._partitions:
            while (crowded := self._crowded(partition)) is not None:
                self._leave(partition, crowded)

    def _crowded(self, partition: int) -> str | None:
        holders = sorted(self._agents[partition], key=lambda agent_id: self._score[partition, agent_id])
        crowded = [item for item in holders if self._crowd(partition, item, None) >= self._level]
        return crowded[-1] if crowded else None

    def _leave(self, partition: int, crowded: str) -> None:
        free = [
            agent_id
            for agent_id in self._ranked[partition]
            if agent_id not in self._agents[partition]
            and self._crowd(partition, agent_id, crowded) < self._level
        ]
        self._give_up(partition, crowded)
        for agent_id in free:
            if (moved := self._movable(agent_id, crowded)) is not None:
                self._give_up(moved, agent_id)
                self._take(moved, crowded)
                self._take(partition, agent_id)
                return
        self._take(partition, min(free, key=lambda agent_id: len(self._held[agent_id])))

    def _movable(self, source: str, target: str) -> int | None:
        """A partition that may go from source to target without losing a failure domain."""
        fitting = [
            number
            for number in self._held[source]
            if target not in self._agents[number]
            and self._crowd(number, target, source) <= self._crowd(number, source, source)
        ]
        return min(fitting, key=lambda number: self._score[number, target], default=None)

    def _crowd(self, partition: int, agent_id: str, without: str | None) -> int:
        """How many of the partition's other replicas share the agent's failure domain."""
        return sum(
            self._domain[holder] == self._domain[agent_id]
            for holder in self._agents[partition]
            if holder not in (agent_id, without)
        )

    def _take(self, partition: int, agent_id: str) -> None:
        self._agents[partition].add(agent_id)
        self._held[agent_id].add(partition)

    def _give_up(self, partition: int, agent_id: str) -> None:
        self._agents[partition].discard(agent_id)
        self._held[agent_id].discard(partition)

    def _choice(self, partition: int, refused: Collection[str]) -> list[str]:
        """The best agents that have not refused it: the best of each domain, then the second best, ..."""
        level: Counter[str] = Counter()
        found: list[tuple[int, int, str]] = []
        for rank, agent_id in enumerate(self._ranked[partition]):
            if agent_id not in refused:
                domain = self._domain[agent_id]
                found.append((level[domain], rank, agent_id))
                level[domain] += 1
        return [agent_id for _, _, agent_id in sorted(found)[: self._factor]]

    def led(self) -> tuple[tuple[str, ...], ...]:
        """Each partition's agents, its preferred leader first: as many led by each as its part of what is
        held there."""
        share = self._whole_shares(
            {agent_id: len(held) / self._factor for agent_id, held in self._held.items()}
        )
        leads: dict[str, set[int]] = {agent_id: set() for agent_id in self._held}
        leader: dict[int, str] = {}
        asking = list(self._partitions)
        refused: dict[int, set[str]] = {partition: set() for partition in asking}
        while asking:
            partition = asking.pop()
            able = [
                agent_id
                for agent_id in self._ranked[partition]
                if agent_id in self._agents[partition] and agent_id not in refused[partition]
            ]
            if not able:
                continue
            agent_id = leader[partition] = able[0]
            leads[agent_id].add(partition)
            if len(leads[agent_id]) > share[agent_id]:
                worst = max(leads[agent_id], key=lambda number: self._score[number, agent_id])
                leads[agent_id].discard(worst)
                del leader[worst]
                refused[worst].add(agent_id)
                asking.append(worst)
        for partition in self._partitions:
            if partition not in leader:
                self._find_leader(partition, leader, leads, share)
        return tuple(self._with_leader(partition, leader[partition]) for partition in self._partitions)

    def _find_leader(
        self,
        partition: int,
        leader: dict[int, str],
        leads: Mapping[str, set[int]],
        share: Mapping[str, int],
    ) -> None:
        """A holder of the partition hands the lead of another one on, along the shortest chain that ends
        where there is room."""
        reached: dict[str, tuple[str, int] | None] = dict.fromkeys(
            agent_id for agent_id in self._ranked[partition] if agent_id in self._agents[partition]
        )
        queue = list(reached)
        end = queue[0]
        for agent_id in queue:
            if len(leads[agent_id]) < share[agent_id]:
                end = agent_id
                break
            for number in sorted(leads[agent_id]):
                for holder in sorted(self._agents[number] - reached.keys()):
                    reached[holder] = (agent_id, number)
                    queue.append(holder)
        while (step := reached[end]) is not None:
            source, number = step
            leads[source].discard(number)
            leads[end].add(number)
            leader[number] = end
            end = source
        leads[end].add(partition)
        leader[partition] = end

    def _with_leader(self, partition: int, leader: str) -> tuple[str, ...]:
        others = [
            agent_id
            for agent_id in self._ranked[partition]
            if agent_id in self._agents[partition] and agent_id != leader
        ]
        return (leader, *others)

    def _shares(self, agents: Sequence[Candidate]) -> dict[str, int]:
        """How many of the partitions each agent should hold: of its domain's share its part by weight. No
        agent holds a partition twice."""
        domains: dict[str, list[Candidate]] = {}
        for item in agents:
            domains.setdefault(item.failure_domain, []).append(item)
        self._level = _level(domains, self._factor)
        partitions = len(self._partitions)
        per_domain = self._whole_shares(_domain_shares(domains, partitions, self._factor))
        shares: dict[str, int] = {}
        for name, items in domains.items():
            vessels = {item.agent_id: (item.weight, partitions) for item in items}
            shares |= self._whole_shares(_pour(vessels, per_domain[name]))
        return shares

    def _whole_shares(self, shares: Mapping[str, float]) -> dict[str, int]:
        """Whole numbers with the same sum; the block's hash of an agent settles which are rounded up."""
        whole = {agent_id: floor(share + _ROUNDING) for agent_id, share in shares.items()}
        left = round(sum(shares.values())) - sum(whole.values())
        by_remainder = sorted(
            shares,
            key=lambda agent_id: (
                -round(shares[agent_id] - whole[agent_id], 6),
                rendezvous(self._topic_id, -1 - self._partitions[0], agent_id),
            ),
        )
        for agent_id in by_remainder[:left]:
            whole[agent_id] += 1
        return whole


def _level(domains: Mapping[str, Sequence[Candidate]], factor: int) -> int:
    """How many replicas of one partition a failure domain must take at least, where they are spread best."""
    level = 1
    while sum(min(level, len(items)) for items in domains.values()) < factor:
        level += 1
    return level


def _domain_shares(
    domains: Mapping[str, Sequence[Candidate]], partitions: int, factor: int
) -> dict[str, float]:
    """How many replicas of the partitions each failure domain should hold: by weight, but none takes more of
    one partition than it must."""
    level = _level(domains, factor)
    return _pour(
        {
            name: (sum(item.weight for item in items), partitions * min(level, len(items)))
            for name, items in domains.items()
        },
        partitions * factor,
    )


def _pour(vessels: Mapping[str, tuple[int, int]], amount: float) -> dict[str, float]:
    """The amount spread over vessels by (weight, capacity): what would overflow one goes to the others."""
    result: dict[str, float] = {}
    rest = dict(vessels)
    while rest:
        weight = sum(item[0] for item in rest.values())
        full = [name for name, (part, room) in rest.items() if amount * part / weight >= room]
        if not full:
            return result | {name: amount * part / weight for name, (part, _) in rest.items()}
        for name in full:
            result[name] = float(rest.pop(name)[1])
        amount -= sum(result[name] for name in full)
    return result


def rendezvous(topic_id: bytes, partition: int, agent_id: str) -> bytes:
    """Highest-random-weight hashing (Thaler and Ravishankar, 1998): a number nobody else's presence
    changes."""
    return blake2b(
        partition.to_bytes(8, "little", signed=True) + agent_id.encode(), key=topic_id[:64], digest_size=8
    ).digest()
