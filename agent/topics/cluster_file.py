"""An agent's record of its cluster: the birth of the catalog, and the last state of the catalog that it knew.

Law of this file: two copies, each replaced whole and synced. A copy that is damaged, missing or older is made
anew from the other. The birth is needed to open the catalog's group after a restart. The state was committed,
so that an agent can open its replicas before it has reached anybody; it may be old. The files are written
before the identity names the cluster: an identity with a cluster id has them (safety 2, 6).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import crc32c

from shoal.agent.config import DEFAULT_CLUSTER, AgentConfig
from shoal.agent.durable.ids import ID_BYTES
from shoal.agent.durable.whole_file import read_whole, replace_whole
from shoal.agent.levels import FIRST_LEVEL, Level, level_in
from shoal.agent.process.errors import StartError
from shoal.agent.topics.catalog import MAX_READ_BYTES, Catalog, CatalogError
from shoal.agent.topics.entries import HigherLevel
from shoal.agent.topics.kept import FormerTopic, remembered_document, remembered_from
from shoal.segment_store.disk.disk import Disk

FILE_NAMES = ("cluster.a", "cluster.b")
SINGLE_FILE_NAME = "cluster"  # the only copy, as it was before there were two; read until these are there
_MAGIC = b"shoal-cluster-1"
MAX_VOTERS = 7
MAX_FILE_BYTES = 2 * MAX_READ_BYTES  # with what is kept beside it; a larger file is damaged

logger = logging.getLogger("shoal.agent")


class ClusterFileError(Exception):
    """The file is damaged or was written by a newer version. The text says what to do."""


class ClusterOutgrown(ClusterFileError):
    """The cluster has taken a level that this agent does not understand."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """`catalog_birth`: agent ids of the catalog's birth voters, by ordinal. `kept`: topics held here that an
    earlier catalog knew and this one does not, by id. `level`: the highest that the cluster is known to have
    had. A recovery by force may have begun below it, and what is stored here may be of it. Records of before
    have none."""

    cluster: str
    cluster_id: bytes
    catalog_birth: tuple[str, ...]
    catalog: bytes  # Catalog.to_bytes()
    kept: Mapping[bytes, FormerTopic] = field(default_factory=dict)
    level: Level = FIRST_LEVEL

    def to_bytes(self) -> bytes:
        """A line with magic and checksum, a line of JSON, then the catalog's own bytes."""
        document: dict[str, Any] = {
            "cluster": self.cluster,
            "id": self.cluster_id.hex(),
            "birth": list(self.catalog_birth),
        }
        if self.kept:
            document["kept"] = remembered_document(self.kept)
        if self.level > FIRST_LEVEL:
            document["level"] = self.level
        head = json.dumps(document, separators=(",", ":")).encode()
        body = head + b"\n" + self.catalog
        return b"%s %08x\n" % (_MAGIC, crc32c.crc32c(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterRecord:
        """Raises ClusterFileError, and nothing else."""
        try:
            first, body = data.split(b"\n", 1)
            magic, checksum = first.split(b" ")
            if magic != _MAGIC or int(checksum, 16) != crc32c.crc32c(body):
                raise ValueError("the checksum does not match")
            head, catalog = body.split(b"\n", 1)
            document = json.loads(head)
            level = level_in(document.get("level", FIRST_LEVEL))
            if level is None:
                raise ValueError("a level that is none")
            record = cls(
                str(document["cluster"]),
                bytes.fromhex(document["id"]),
                tuple(str(voter) for voter in document["birth"]),
                catalog,
                remembered_from(document.get("kept", [])),
            )
            if len(record.cluster_id) != ID_BYTES or not 1 <= len(record.catalog_birth) <= MAX_VOTERS:
                raise ValueError("an id or a birth that cannot be")
            record = replace(record, level=max(level, Catalog.from_bytes(catalog).level))
        except HigherLevel as error:
            raise ClusterOutgrown(f"cluster {record.cluster}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CatalogError) as error:
            raise ClusterFileError(str(error)) from None
        return record


def newest_copy(copies: Sequence[bytes | None]) -> ClusterRecord | None:
    """The newest record of these copies; a copy that is not there is None. Raises ClusterOutgrown for one of
    a higher level: another, older copy is no way back. ClusterFileError when none can be read. The highest
    level of them counts, also where it is the older one's."""
    records, fault = [], None
    for data in dict.fromkeys(data for data in copies if data is not None):
        try:
            record = ClusterRecord.from_bytes(data)
        except ClusterOutgrown:
            raise
        except ClusterFileError as error:
            fault = error
        else:
            records.append((Catalog.from_bytes(record.catalog).version, record))
    if not records and fault is not None:
        raise fault
    if not records:
        return None
    _, newest = max(records, key=lambda item: item[0])
    return replace(newest, level=max(record.level for _, record in records))


async def load_cluster(disk: Disk, directory: str) -> ClusterRecord | None:
    """None when the agent never belonged to a cluster. Mends what one copy lacks. Raises ClusterFileError."""

    async def read(name: str) -> bytes | None:
        return await read_whole(disk, os.path.join(directory, name), MAX_FILE_BYTES)

    copies = [await read(name) for name in FILE_NAMES]
    if copies == [None, None]:
        copies = [await read(SINGLE_FILE_NAME)]
    try:
        record = newest_copy(copies)
    except ClusterOutgrown:
        raise
    except ClusterFileError as error:
        raise ClusterFileError(
            f"no copy of {directory}/cluster (.a, .b) can be read ({error}): move them away, and this agent"
            " will learn what they said from its peers, or from its own log of the catalog"
        ) from None
    if record is not None and (len(copies) == 1 or copies[0] != copies[1]):
        logger.warning("%s/cluster: one of two copies is damaged or missing: writing it again", directory)
        try:
            await save_cluster(disk, directory, record)
        except OSError as error:
            logger.warning("%s/cluster: cannot write it before the next change: %s", directory, error)
    return record


async def save_cluster(disk: Disk, directory: str, record: ClusterRecord) -> None:
    """Durable on return: a crash leaves the old or the new in each copy."""
    data = record.to_bytes()
    await asyncio.gather(*(replace_whole(disk, os.path.join(directory, name), data) for name in FILE_NAMES))
    await disk.sync_directory(directory)
    single = os.path.join(directory, SINGLE_FILE_NAME)
    if await disk.exists(single):
        await disk.unlink(single)


def settle_cluster(config: AgentConfig, record: ClusterRecord | None) -> AgentConfig:
    """The cluster's name: that of the directory unless another was asked for, which is a mistake.

    Raises StartError.
    """
    if record is None or record.cluster == config.cluster:
        return config
    if config.cluster_is_explicit:
        raise StartError(
            f"{config.data} belongs to cluster {record.cluster!r}, not {config.cluster!r}: "
            f"start with --cluster {record.cluster}, or give another --data"
        )
    return replace(config, cluster=record.cluster, cluster_is_explicit=record.cluster != DEFAULT_CLUSTER)
