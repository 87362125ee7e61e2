"""What an agent keeps about its cluster: the birth of the catalog, and the last state of the catalog it knew.

Law of this file: one file, replaced whole and synced; bytes <-> value is pure, the rest is two disk
operations. The birth is needed to open the catalog's group again after a restart. The state is a copy of
something committed, so that an agent can open its replicas before it has reached anybody; it may be old, it
is never wrong. The file is written before the identity names the cluster: an identity with a cluster id
always has it (safety 2, 6).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import crc32c

from shoal.agent.catalog import ID_BYTES, MAX_SNAPSHOT_BYTES, Catalog, CatalogError
from shoal.agent.kept import Remembered, remembered_document, remembered_from
from shoal.segment_store.disk import Disk

FILE_NAME = "cluster"
_MAGIC = b"shoal-cluster-1"
MAX_VOTERS = 7
MAX_FILE_BYTES = MAX_SNAPSHOT_BYTES + 4_096


class ClusterFileError(Exception):
    """The file is damaged or was written by a newer version. The text says what to do."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """`catalog_birth`: agent ids of the catalog's birth voters, by ordinal. `kept`: topics held here that an
    earlier catalog knew and this one does not, by id."""

    cluster: str
    cluster_id: bytes
    catalog_birth: tuple[str, ...]
    catalog: bytes  # Catalog.to_bytes()
    kept: Mapping[bytes, Remembered] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """A line with magic and checksum, a line of JSON, then the catalog's own bytes."""
        document: dict[str, Any] = {
            "cluster": self.cluster,
            "id": self.cluster_id.hex(),
            "birth": list(self.catalog_birth),
        }
        if self.kept:
            document["kept"] = remembered_document(self.kept)
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
            record = cls(
                str(document["cluster"]),
                bytes.fromhex(document["id"]),
                tuple(str(voter) for voter in document["birth"]),
                catalog,
                remembered_from(document.get("kept", [])),
            )
            if len(record.cluster_id) != ID_BYTES or not 1 <= len(record.catalog_birth) <= MAX_VOTERS:
                raise ValueError("an id or a birth that cannot be")
            Catalog.from_bytes(catalog)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CatalogError) as error:
            raise ClusterFileError(str(error)) from None
        return record


async def load_cluster(disk: Disk, directory: str) -> ClusterRecord | None:
    """None when the agent never belonged to a cluster. Raises ClusterFileError."""
    path = os.path.join(directory, FILE_NAME)
    if not await disk.exists(path):
        return None
    file = await disk.open(path)
    try:
        size = await file.size()
        if size > MAX_FILE_BYTES:
            raise ClusterFileError(f"{path} has {size} bytes")
        data = await file.read(0, size)
    finally:
        await file.close()
    try:
        return ClusterRecord.from_bytes(data)
    except ClusterFileError as error:
        raise ClusterFileError(
            f"{path} is damaged ({error}): move it away, and this agent will ask its peers for a copy"
        ) from None


async def save_cluster(disk: Disk, directory: str, record: ClusterRecord) -> None:
    """Durable on return: a crash leaves the old file or the new one."""
    path = os.path.join(directory, FILE_NAME)
    temporary = f"{path}.new"
    if await disk.exists(temporary):
        await disk.unlink(temporary)
    file = await disk.open(temporary, create=True)
    try:
        await file.write_and_sync(0, record.to_bytes())
    finally:
        await file.close()
    await disk.rename(temporary, path)
    await disk.sync_directory(directory)
