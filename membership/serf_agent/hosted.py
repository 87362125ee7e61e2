"""Agents that stand behind a Serf agent instead of gossiping themselves: how their members are read.

Law of this file: pure translation between nodes of the pool and the agents they speak for. Both kinds of
gossip use it, so that agents of either kind see each other alike in one pool.

The node's name is the Serf agent's, so the agent's id travels in a tag. The Serf agent lives on when the
agent behind it ends: one that left says so in a tag, and one that died no longer answers ALIVE_QUERY.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from shoal.membership.interface import Member

TAG_AGENT = "id"
"""The agent's id, which is its name in every list."""

TAG_SINCE = "at"
"""When the agent took the node, in Unix milliseconds: of two nodes that speak for one agent the newer."""

TAG_LEFT = "gone"
"""Set when the agent has left gracefully."""

ALIVE_QUERY = "shoal-alive"
"""Answered by every agent behind a Serf agent with its id."""

LIVING = ("alive", "suspect")


def natural(text: str) -> int:
    """A whole number from a tag somebody else wrote; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def is_hosted(member: Member) -> bool:
    """Whether this node of the pool speaks for an agent behind it."""
    return bool(member.tags.get(TAG_AGENT))


def agent_name(member: Member) -> str:
    """The name of the agent a node speaks for: its own, unless it is hosted."""
    return member.tags.get(TAG_AGENT) or member.name


def as_agent(member: Member, silent: Collection[str] = ()) -> Member:
    """A node as the agent it speaks for. `silent`: agents that do not answer although their node lives."""
    if not is_hosted(member):
        return member
    name, status = agent_name(member), member.status
    if member.tags.get(TAG_LEFT) and status in (*LIVING, "leaving"):
        status = "left"
    elif name in silent and status in LIVING:
        status = "failed"
    return replace(member, name=name, status=status)


def as_agents(nodes: Iterable[Member], silent: Collection[str] = ()) -> tuple[Member, ...]:
    """All nodes as agents, by name. Where several nodes claim one name the one with the newest claim has it;
    the others are shown as the Serf agents they are, under their own names and without tags of ours."""
    holders: dict[str, Member] = {}
    others: list[Member] = []
    for node in nodes:
        name = agent_name(node)
        rival = holders.get(name)
        if rival is None:
            holders[name] = node
            continue
        winner, loser = (node, rival) if _claim(node) > _claim(rival) else (rival, node)
        holders[name] = winner
        others.append(loser)
    shown = [as_agent(node, silent) for node in holders.values()]
    shown += [replace(node, tags={}) for node in others if node.name not in holders]
    return tuple(sorted(shown, key=lambda member: member.name))


def _claim(node: Member) -> tuple[bool, int, str]:
    return (node.status in LIVING, natural(node.tags.get(TAG_SINCE, "")), node.name)


def living_agents(nodes: Iterable[Member]) -> frozenset[str]:
    """Hosted agents whose nodes live and that have not left."""
    living = [node for node in nodes if is_hosted(node) and node.status in LIVING]
    return frozenset(agent_name(node) for node in living if not node.tags.get(TAG_LEFT))


def node_names(nodes: Iterable[Member]) -> Mapping[str, str]:
    """Agent name to node name, for those that differ."""
    return {agent_name(node): node.name for node in nodes if is_hosted(node)}
