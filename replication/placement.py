"""Which agents hold which partition.

Law of this file: pure functions of the member list. Nobody's clock, load or opinion enters, so that two
agents that know the same members decide the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from shoal.replication.errors import NotEnoughAgents

# Partitions are balanced exactly within a block and by chance between blocks, so that one partition's
# placement costs at most a block's work however many partitions a topic has.
BLOCK_PARTITIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that may hold replicas. weight: its share relative to others; 0 takes nothing (drained)."""

    agent_id: str
    failure_domain: str
    weight: int = 1


def birth_voters(
    topic_id: bytes, partition: int, candidates: Sequence[Candidate], factor: int
) -> tuple[str, ...]:
    """The voters with which a partition is born; the first is the preferred leader.

    Replicas and preferred leaders are spread over the agents by weight, within one of each other in every
    block of partitions; ties are broken by rendezvous hashing, so that topics differ. Failure domains are
    preferred, never blocking (safety 5). Raises NotEnoughAgents.
    """
    assert factor >= 1
    agents = sorted((item for item in candidates if item.weight > 0), key=lambda item: item.agent_id)
    assert len({item.agent_id for item in agents}) == len(agents)
    if len(agents) < factor:
        raise NotEnoughAgents(f"{factor} replicas need {factor} agents, and there are {len(agents)}")
    held: Counter[str] = Counter()
    led: Counter[str] = Counter()
    voters: tuple[str, ...] = ()
    for number in range(partition - partition % BLOCK_PARTITIONS, partition + 1):
        voters = _place(topic_id, number, agents, factor, held, led)
        held.update(voters)
        led[voters[0]] += 1
    return voters


def _place(
    topic_id: bytes,
    partition: int,
    agents: Sequence[Candidate],
    factor: int,
    held: Counter[str],
    led: Counter[str],
) -> tuple[str, ...]:
    """One partition, given what the agents hold and lead of the block already."""
    score = {item.agent_id: _rendezvous(topic_id, partition, item.agent_id) for item in agents}
    domains: Counter[str] = Counter()
    chosen: list[Candidate] = []
    for _ in range(factor):
        best = min(
            (item for item in agents if item not in chosen),
            key=lambda item: (
                domains[item.failure_domain],
                held[item.agent_id] / item.weight,
                score[item.agent_id],
            ),
        )
        chosen.append(best)
        domains[best.failure_domain] += 1
    leader = min(chosen, key=lambda item: (led[item.agent_id] / item.weight, score[item.agent_id]))
    others = [item.agent_id for item in chosen if item is not leader]
    return (leader.agent_id, *others)


def _rendezvous(topic_id: bytes, partition: int, agent_id: str) -> bytes:
    """Highest-random-weight hashing (Thaler and Ravishankar, 1998): a number nobody else's presence
    changes."""
    return blake2b(
        partition.to_bytes(8, "little") + agent_id.encode(), key=topic_id[:64], digest_size=8
    ).digest()
