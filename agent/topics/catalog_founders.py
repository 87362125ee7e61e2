"""The voters of the catalog, as this agent's own replica names them, for an agent whose cluster file is gone.

Law of this file: it reads. Every log begins with a checkpoint, the first with the configuration of the birth.
The checkpoint of a trimmed log is newer, which is harmless: the agents that it names took their replica ids
by committed entries, which count more than a birth; others hold nothing of the catalog (safety 1).
"""

from __future__ import annotations

import logging
import os

from shoal.agent.durable.identity import ReplicaRegistry, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, IdentityError
from shoal.agent.partition.state.checkpoint import Checkpoint, FoldError
from shoal.agent.topics.cluster_file import MAX_VOTERS
from shoal.format.batch import DEFAULT_SCHEMA, Kind, LogIdentity, control_payload
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.errors import StoreError
from shoal.segment_store.log.log import PartitionLog

CATALOG_SEGMENT_BYTES = 4 * 2**20
HEAD_BYTES = 2**20  # of a log's first frame, which is read whole in any case

logger = logging.getLogger("shoal.agent")


async def birth_from_log(disk: Disk, directory: str, cluster_id: bytes) -> tuple[str, ...] | None:
    """Agent ids of the voters, by ordinal where they are those of the birth. None: no replica of the catalog
    here can say. Ask only where a registry was made: a lost one must not be begun anew here."""
    try:
        registry = await ReplicaRegistry.open(disk, directory, was_made=True)
    except IdentityError:
        return None  # said again, and aloud, when the agent opens it
    record = registry.get(CATALOG_GROUP)
    await registry.close()
    path = os.path.join(directory, "topics", CATALOG_GROUP.topic_id.hex(), str(CATALOG_GROUP.partition))
    if record is None or record.state is not ReplicaState.ACTIVE or not await disk.exists(path):
        return None
    identity = LogIdentity(cluster_id, CATALOG_GROUP.topic_id, CATALOG_GROUP.partition)
    try:
        log = await PartitionLog.open(
            disk, path, identity, DEFAULT_SCHEMA, LogConfig(segment_bytes=CATALOG_SEGMENT_BYTES)
        )
    except StoreError as error:
        logger.warning("_catalog: cannot read the voters from the log here: %s", error)
        return None
    try:
        if log.last_index == 0:
            return None
        (head, *_) = await log.read(log.first_index, log.first_index, HEAD_BYTES)
        if head.stamp.kind != Kind.CHECKPOINT:
            return None
        configuration = Checkpoint.from_bytes(control_payload(head.data)).configuration
    except (StoreError, FoldError) as error:
        logger.warning("_catalog: cannot read the voters from the log here: %s", error)
        return None
    finally:
        await log.close()
    voters = sorted((item.id, item.agent_id) for item in configuration.replicas if not item.learner)
    return tuple(agent_id for _, agent_id in voters) if 1 <= len(voters) <= MAX_VOTERS else None
