"""Durable records and a full disk: what was refused is settled once there is room."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_disk import Fault, MemoryDisk

from shoal.agent.durable.identity import HardStateFile, ReplicaRecord, ReplicaRegistry, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import SLOT_BYTES, PairedFile, PairedFileError, PairedFileFull
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import HardState, ReplicaId

GROUP, OTHER = GroupId(b"t" * 16, 3), GroupId(b"t" * 16, 4)
OWN_ID = ReplicaId(0, 0)
FOREVER = 10**6


async def new_disk(seed: int = 0) -> MemoryDisk:
    disk = MemoryDisk(random.Random(seed), pause_max=3)
    await disk.make_directory("data")
    return disk


def fill(disk: MemoryDisk, path_part: str, times: int = FOREVER, partial_bytes: int = 0) -> None:
    """Writes to these files find no room."""
    disk.faults.append(Fault("write", errno.ENOSPC, path_part, times=times, partial_bytes=partial_bytes))


async def test_what_was_refused_is_written_when_there_is_room() -> None:
    """Until then nothing is taken, and nothing of it is in memory alone."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    await records.save(b"k", b"old")
    fill(disk, "x.a")
    refused = await asyncio.gather(
        records.save(b"k", b"new"), records.save(b"l", b"w"), return_exceptions=True
    )
    assert [type(error) for error in refused] == [PairedFileFull, PairedFileFull]
    for change in (records.save(b"m", b"u"), records.remove(b"l"), records.remove(b"no such key")):
        with pytest.raises(PairedFileFull, match="No space left"):
            await change
    assert not await records.write_again()
    with pytest.raises(PairedFileFull):
        records.check()
    disk.faults.clear()
    assert await records.write_again()
    assert disk.content("data/x.a") == disk.content("data/x.b")
    await records.save(b"m", b"v")
    again = await PairedFile.open(disk, "data", "x")
    assert dict(again.items()) == dict(records.items()) == {b"k": b"new", b"l": b"w", b"m": b"v"}


async def test_the_first_copy_rests_while_the_second_may_be_torn() -> None:
    """The refused write goes on in the second, even where newer values of the same record wait."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    await records.save(b"k", b"1")
    fill(disk, "x.b", partial_bytes=100)
    saves = [asyncio.create_task(records.save(b"k", b"2"))]
    while not disk.trace.of("sync") or disk.trace.of("sync")[-1] != ("sync", "data/x.a"):
        await asyncio.sleep(0)
    saves.append(asyncio.create_task(records.save(b"k", b"3")))
    refused = await asyncio.gather(*saves, return_exceptions=True)
    assert [type(error) for error in refused] == [PairedFileFull, PairedFileFull]
    disk.faults.clear()
    disk.trace.operations.clear()
    assert await records.write_again()
    order = [(kind, path[-1]) for kind, path in disk.trace.of("write", "sync")]
    copy = [[("write", name), ("sync", name)] for name in "bab"]
    assert order == [*copy[0], *copy[1], *copy[2]]
    again = await PairedFile.open(disk, "data", "x")
    assert again.get(b"k") == b"3"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_sync_that_fails_is_final_though_the_disk_was_full_before(error: int) -> None:
    """It may have lost what was written, for want of space too."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    fill(disk, "x.a", times=1)
    with pytest.raises(PairedFileFull):
        await records.save(b"k", b"v")
    disk.faults.append(Fault("sync", error, "x.a"))
    assert await records.write_again()  # there is room; what failed is something else
    for _ in range(2):
        with pytest.raises(PairedFileError, match="the disk failed") as raised:
            await records.save(b"k", b"v")
        assert not isinstance(raised.value, PairedFileFull)
        assert await records.write_again()


async def test_slots_of_removals_that_were_refused_are_used_again() -> None:
    """Once they are written, and not twice."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    for key in (b"1", b"2"):
        await records.save(key, b"v")
    fill(disk, "x.b", times=1)
    with pytest.raises(PairedFileFull):
        await records.remove(b"1")
    assert await records.write_again()
    for key in (b"3", b"4"):
        await records.save(key, b"w")
    assert len(disk.content("data/x.a")) == 3 * SLOT_BYTES
    again = await PairedFile.open(disk, "data", "x")
    assert dict(again.items()) == {b"2": b"v", b"3": b"w", b"4": b"w"}


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32))
def test_a_power_failure_around_a_full_disk_loses_nothing_that_was_acknowledged(seed: int) -> None:
    """Whether it comes before there is room, while the refused is written, or after."""

    async def run() -> None:
        rng = random.Random(seed)
        disk = await new_disk(seed)
        acknowledged: dict[bytes, int] = {}
        asked: dict[bytes, int] = {}

        async def save(records: PairedFile, key: bytes, value: int) -> None:
            await records.save(key, b"%d" % value)
            acknowledged[key] = max(acknowledged.get(key, 0), value)

        for _ in range(3):
            records = await PairedFile.open(disk, "data", "x")
            assert records.damaged_slots == 0
            for key, value in acknowledged.items():
                stored = records.get(key)
                assert stored is not None
                assert value <= int(stored) <= asked[key]
            tasks: list[asyncio.Task[object]] = []
            for _ in range(rng.randrange(1, 4)):
                partial = rng.randrange(3 * SLOT_BYTES)
                disk.faults.append(
                    Fault("write", errno.ENOSPC, "x.", rng.randrange(4), partial_bytes=partial)
                )
                for _ in range(rng.randrange(1, 8)):
                    key = b"%d" % rng.randrange(4)
                    asked[key] = asked.get(key, 0) + 1
                    tasks.append(asyncio.create_task(save(records, key, asked[key])))
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                if rng.randrange(2):
                    await asyncio.gather(*tasks, return_exceptions=True)
                tasks.append(asyncio.create_task(records.write_again()))
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            disk.crash(rng)
            disk.faults.clear()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def registry_on(disk: MemoryDisk) -> ReplicaRegistry:
    registry = await ReplicaRegistry.open(disk, "data")
    await registry.put(ReplicaRecord(GROUP, OWN_ID, ReplicaState.ACTIVE))
    return registry


async def test_a_record_that_was_refused_is_undone() -> None:
    """A replica that goes on from its old log must not be found installing the new one after a restart."""
    disk = await new_disk()
    registry = await registry_on(disk)
    fill(disk, "replicas.b")
    installing = ReplicaRecord(GROUP, OWN_ID, ReplicaState.INSTALLING)
    born = ReplicaRecord(OTHER, OWN_ID, ReplicaState.CREATING)
    refused = await asyncio.gather(registry.put(installing), registry.put(born), return_exceptions=True)
    assert [type(error) for error in refused] == [PairedFileFull, PairedFileFull]
    assert not await registry.write_again()
    disk.faults.clear()
    disk.faults.append(Fault("write", errno.ENOSPC, "replicas.a", skip=1))  # the undoing itself
    assert not await registry.write_again()
    with pytest.raises(PairedFileFull):
        await registry.put(born)
    assert await registry.write_again()
    again = await ReplicaRegistry.open(disk, "data")
    for found in (registry, again):
        assert list(found) == [ReplicaRecord(GROUP, OWN_ID, ReplicaState.ACTIVE)]
    await registry.put(born)
    again = await ReplicaRegistry.open(disk, "data")
    assert again.get(OTHER) == born


async def test_a_record_whose_removal_was_refused_is_still_there() -> None:
    """Whoever removes it tries again, as after a restart."""
    disk = await new_disk()
    registry = await registry_on(disk)
    fill(disk, "replicas.a", times=1)
    with pytest.raises(PairedFileFull):
        await registry.remove(GROUP)
    assert registry.get(GROUP) is not None
    assert await registry.write_again()
    assert (await ReplicaRegistry.open(disk, "data")).get(GROUP) is not None
    await registry.remove(GROUP)
    assert registry.get(GROUP) is None
    assert (await ReplicaRegistry.open(disk, "data")).get(GROUP) is None


async def test_no_log_is_cut_below_a_floor_that_the_disk_still_holds() -> None:
    """After a crash it would look as if the log had lost its end."""
    disk = await new_disk()
    states = await HardStateFile.open(disk, "data")
    await states.save(GROUP, OWN_ID, HardState(Term(1), None, LogIndex(1)))
    await states.save_floor(GROUP, LogIndex(9))
    fill(disk, "hard-state", times=1)
    for _ in range(2):
        with pytest.raises(PairedFileFull):
            await states.lower_floor(GROUP, LogIndex(4))
    assert await states.write_again()
    await states.lower_floor(GROUP, LogIndex(4))
    assert (await HardStateFile.open(disk, "data")).floor(GROUP) == 4


async def test_a_term_counts_once_it_is_synced() -> None:
    """What rests on it is told to others: a crash must not take it back."""
    disk = await new_disk()
    states = await HardStateFile.open(disk, "data")
    assert states.synced_term(GROUP) == 0
    await states.save(GROUP, OWN_ID, HardState(Term(3), None, LogIndex(0)))
    states = await HardStateFile.open(disk, "data")
    saves = [
        asyncio.create_task(states.save(GROUP, OWN_ID, HardState(Term(term), None, LogIndex(0))))
        for term in (4, 5)
    ]
    while (known := states.get(GROUP)) is None or known[1].term < 5:
        await asyncio.sleep(0)
    assert states.synced_term(GROUP) == 3
    await asyncio.gather(*saves)
    assert states.synced_term(GROUP) == 5
    fill(disk, "hard-state", times=1)
    with pytest.raises(PairedFileFull):
        await states.save(GROUP, OWN_ID, HardState(Term(6), None, LogIndex(0)))
    assert states.synced_term(GROUP) == 5
    assert await states.write_again()
    await states.remove(GROUP)
    assert states.synced_term(GROUP) == 0
