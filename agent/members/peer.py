"""Another agent of our cluster name, as whoever looks for a cluster sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """One live member of our cluster name, as gossip shows it. `cluster_id` None: still empty."""

    agent_id: str
    cluster_id: bytes | None
    url: str
