"""Hosts over real links whose disks are in memory: they fail, hang and flip bits as a test says."""

from __future__ import annotations

import errno
import random
from functools import partial
from typing import TypeVar

from memory_disk import Fault, MemoryDisk

from shoal.segment_store.config import LogConfig
from tests.agent.harness import Cluster

D = TypeVar("D", bound=MemoryDisk)

SMALL = LogConfig(segment_bytes=16_384, first_allocation_bytes=4096, max_allocation_step_bytes=8192)
"""A few dozen records fill several segments."""


def memory_cluster(
    count: int = 3, seed: int = 1, *, kind: type[D] = MemoryDisk, log_config: LogConfig = SMALL
) -> tuple[Cluster, dict[str, D]]:
    """Nodes that keep their disks over their lives, and those disks by the agents' ids."""
    cluster = Cluster("data", count, log_config=log_config)
    disks = {node.agent_id: kind(random.Random(seed), pause_max=2) for node in cluster.nodes}
    for node in cluster.nodes:
        node.make_disk = partial(disks.__getitem__, node.agent_id)  # type: ignore[method-assign]
    return cluster, disks


def refuse_writes(disk: MemoryDisk) -> None:
    """No log finds room, until the disk's faults are cleared."""
    disk.faults += [
        Fault(operation, errno.ENOSPC, "topics", times=10_000) for operation in ("write", "allocate")
    ]
