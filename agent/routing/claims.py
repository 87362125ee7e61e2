"""What this agent says about a replica it holds, from what the host knows of it.

Law of this file: pure translation between the host's words (replica ids, Raft roles) and the routing
table's (agent ids, roles that clients understand).
"""

from __future__ import annotations

from shoal.agent.partition.status import ReplicaStatus
from shoal.agent.routing.table import Claim
from shoal.replication.roles.transitions import Role


def claim_of(agent_id: str, status: ReplicaStatus) -> Claim | None:
    """None for a replica that is lost: it holds nothing that anybody should come for.

    A candidate is a follower that knows no leader: an election is nobody's business but the replicas'.
    """
    if status.configuration is None:
        return None
    voters, learners = status.configuration.voting_agents, status.configuration.learning_agents
    role = "learner" if agent_id in learners else "follower"
    return Claim(
        group=status.group,
        role="leader" if status.role is Role.LEADER else role,
        term=status.term,
        configuration_index=status.configuration.index,
        leader=status.leader_agent_id,
        voters=voters,
        learners=learners,
        log_start_offset=status.log_start_offset,
        high_watermark=status.high_watermark,
        log_end_offset=status.log_end_offset,
        size_bytes=status.size_bytes,
    )
