"""A copied log takes the place of a replica's: which view it has then, also after a crash in the middle."""

from __future__ import annotations

import errno
import random

import pytest
from memory_disk import Fault, MemoryDisk

from shoal.agent.durable.identity import HardStateFile, ReplicaRecord, ReplicaRegistry, ReplicaState
from shoal.agent.partition.opener import VIEW_DIRECTORY, Stores, finish_install
from shoal.replication.interfaces import ReplicaId
from tests.agent.harness import CLUSTER, GROUP

RECORD = ReplicaRecord(GROUP, ReplicaId(1, 1), ReplicaState.INSTALLING)


async def write(disk: MemoryDisk, directory: str, name: str, data: bytes) -> None:
    """A file with its name, durably."""
    await disk.make_directory(directory)
    file = await disk.open(f"{directory}/{name}", create=True)
    await file.write_and_sync(0, data)
    await file.close()
    await disk.sync_directory(directory)


async def stores_of(disk: MemoryDisk) -> Stores:
    """Of an agent in that life."""
    await disk.make_directory("data")
    registry = await ReplicaRegistry.open(disk, "data")
    return Stores(disk, "data", CLUSTER, registry, await HardStateFile.open(disk, "data"))


@pytest.mark.parametrize("brings_view", [True, False])
@pytest.mark.parametrize("operation", ["rename", "sync_directory", "remove_tree", "write", "sync"])
@pytest.mark.parametrize("skip", range(4))
async def test_a_copy_keeps_the_own_view_or_brings_another(
    brings_view: bool, operation: str, skip: int
) -> None:
    """The old log is gone and the copy there, with the view that came along; else with the replica's own."""
    disk = MemoryDisk()
    stores = await stores_of(disk)
    await stores.registry.put(RECORD)
    directory, side = stores.directory(GROUP), stores.side_directory(GROUP)
    await write(disk, directory, "old", b"log")
    await write(disk, f"{directory}/{VIEW_DIRECTORY}", "run", b"own")
    await write(disk, side, "new", b"log")
    if brings_view:
        await write(disk, f"{side}/{VIEW_DIRECTORY}", "run", b"copied")
    disk.faults = [Fault(operation, errno.EIO, skip=skip)]
    record = RECORD
    try:
        record = await finish_install(stores, record)
    except Exception:  # noqa: BLE001 -- whatever ends it, the next start goes on
        disk.faults = []
        disk.crash(random.Random(skip))
        stores = await stores_of(disk)
        stored = stores.registry.get(GROUP)
        assert stored is not None
        record = stored if stored.state is ReplicaState.ACTIVE else await finish_install(stores, stored)
    assert record.state is ReplicaState.ACTIVE
    assert await disk.list(directory) == ["new", VIEW_DIRECTORY]
    view = disk.content(f"{directory}/{VIEW_DIRECTORY}/run")
    assert view == (b"copied" if brings_view else b"own")
