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
    for number in range(_block_start(partition), partition + 1):
        voters = _place(topic_id, number, agents, factor, held, led)
        held.update(voters)
        led[voters[0]] += 1
    return voters


def grown_voters(
    topic_id: bytes,
    partition: int,
    births: Sequence[tuple[str, ...]],
    candidates: Sequence[Candidate],
    factor: int,
) -> tuple[str, ...]:
    """Where the replicas of a partition belong among these agents, its birth voters staying where they are.

    births: of every partition of the topic, in order. At most `factor` agents, fewer if there are no more.
    Everybody computes the whole block alike, so that leaders who move partitions at the same time, each for
    itself, arrive at one balanced whole. Failure domains are preferred, never blocking.
    """
    agents = {item.agent_id: item for item in candidates if item.weight > 0}
    start = _block_start(partition)
    kept = [
        [voter for voter in birth if voter in agents][:factor]
        for birth in births[start : start + BLOCK_PARTITIONS]
    ]
    held = Counter(voter for voters in kept for voter in voters)
    for number, voters in enumerate(kept[: partition - start + 1], start):
        while len(voters) < min(factor, len(agents)):
            domains = Counter(agents[voter].failure_domain for voter in voters)
            best = min(
                (item for item in agents.values() if item.agent_id not in voters),
                key=lambda item: (
                    domains[item.failure_domain],
                    held[item.agent_id] / item.weight,
                    rendezvous(topic_id, number, item.agent_id),
                ),
            )
            voters.append(best.agent_id)
            held[best.agent_id] += 1
    return tuple(kept[partition - start])


def _block_start(partition: int) -> int:
    return partition - partition % BLOCK_PARTITIONS


def _place(
    topic_id: bytes,
    partition: int,
    agents: Sequence[Candidate],
    factor: int,
    held: Counter[str],
    led: Counter[str],
) -> tuple[str, ...]:
    """One partition, given what the agents hold and lead of the block already."""
    score = {item.agent_id: rendezvous(topic_id, partition, item.agent_id) for item in agents}
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


def rendezvous(topic_id: bytes, partition: int, agent_id: str) -> bytes:
    """Highest-random-weight hashing (Thaler and Ravishankar, 1998): a number nobody else's presence
    changes."""
    return blake2b(
        partition.to_bytes(8, "little") + agent_id.encode(), key=topic_id[:64], digest_size=8
    ).digest()
