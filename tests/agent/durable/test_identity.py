"""Durable records in two copies, and what they mean: survival of crashes, torn writes, flipped bits."""

import asyncio
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_disk import Fault, MemoryDisk

from shoal.agent.durable.identity import (
    AgentIdentity,
    HardStateFile,
    IdentityStore,
    ReplicaRecord,
    ReplicaRegistry,
    ReplicaState,
)
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.durable.paired_file import (
    MAX_RECORD_BYTES,
    SLOT_BYTES,
    PairedFile,
    PairedFileError,
    decode_slot,
    encode_slot,
)
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import HardState, ReplicaId

GROUP = GroupId(b"t" * 16, 3)
IDENTITY = AgentIdentity("ab" * 16, b"c" * 16, "änna", 7070, 7946)


async def new_disk(seed: int = 0) -> MemoryDisk:
    """A disk with the directory the records live in."""
    disk = MemoryDisk(random.Random(seed), pause_max=3)
    await disk.make_directory("data")
    return disk


async def test_records_return() -> None:
    """Saved, replaced and removed records are as they were left."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    for number in range(5):
        await records.save(b"%d" % number, b"first")
    await records.save(b"1", b"second")
    await records.remove(b"2")
    await records.remove(b"no such key")
    await records.save(b"new", b"takes the free slot")
    await records.close()
    again = await PairedFile.open(disk, "data", "x")
    assert dict(again.items()) == {
        b"0": b"first",
        b"1": b"second",
        b"3": b"first",
        b"4": b"first",
        b"new": b"takes the free slot",
    }
    assert len(disk.content("data/x.a")) == 5 * SLOT_BYTES
    assert again.damaged_slots == 0


async def test_saves_are_group_committed() -> None:
    """A thousand saves at once cost a handful of syncs, not two thousand."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    disk.trace.operations.clear()
    await asyncio.gather(*(records.save(b"%d" % number, b"v") for number in range(1_000)))
    assert len(disk.trace.of("sync")) <= 4
    assert len(records) == 1_000


async def test_the_first_copy_is_synced_before_the_second_is_touched() -> None:
    """Else one crash could tear both."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    disk.trace.operations.clear()
    await records.save(b"k", b"v")
    order = [(kind, path[-1]) for kind, path in disk.trace.of("write", "sync")]
    assert order == [("write", "a"), ("sync", "a"), ("write", "b"), ("sync", "b")]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_power_failure_loses_nothing_that_was_acknowledged(seed: int) -> None:
    """After a crash at any point, every key holds its last acknowledged value or one asked for later."""

    async def run() -> None:
        rng = random.Random(seed)
        disk = await new_disk(seed)
        acknowledged: dict[bytes, int] = {}
        asked: dict[bytes, int] = {}
        for _ in range(3):
            records = await PairedFile.open(disk, "data", "x")
            assert records.damaged_slots == 0
            for key, value in acknowledged.items():
                stored = records.get(key)
                assert stored is not None
                assert value <= int(stored) <= asked[key]

            async def save(records: PairedFile, key: bytes, value: int) -> None:
                asked[key] = max(asked.get(key, 0), value)
                await records.save(key, b"%d" % value)
                acknowledged[key] = max(acknowledged.get(key, 0), value)

            tasks = []
            for _ in range(rng.randrange(1, 12)):
                key = b"%d" % rng.randrange(4)
                value = asked.get(key, 0) + 1
                asked[key] = value
                tasks.append(asyncio.create_task(save(records, key, value)))
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            disk.crash(rng)
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("copy", ["a", "b"])
async def test_one_flipped_bit_harms_nothing(copy: str) -> None:
    """The other copy answers, and the damaged one is mended."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    await records.save(b"k", b"v")
    for position in (0, 5, 20, 25, SLOT_BYTES - 1):
        disk.damage(f"data/x.{copy}", position)
        again = await PairedFile.open(disk, "data", "x")
        assert (again.get(b"k"), again.damaged_slots) == (b"v", 0)
        assert disk.content("data/x.a") == disk.content("data/x.b")


async def test_two_bad_copies_are_damage() -> None:
    """What cannot be proven is not guessed."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    await records.save(b"k", b"v")
    await records.save(b"l", b"w")
    for copy in "ab":
        disk.damage(f"data/x.{copy}", 30)
    again = await PairedFile.open(disk, "data", "x")
    assert (again.get(b"k"), again.get(b"l"), again.damaged_slots) == (None, b"w", 1)


@pytest.mark.parametrize("length", [1, 100, SLOT_BYTES, 3 * SLOT_BYTES + 7])
@pytest.mark.parametrize("copy", ["a", "b"])
async def test_rubbish_behind_the_end_of_one_copy_is_no_damage(copy: str, length: int) -> None:
    """A record stands in the first file before it stands in the second, so nothing was ever there. It is
    wiped: in whatever order its slots are used later, they are not taken for records lost in both files."""
    disk = await new_disk()
    doubled = await PairedFile.open(disk, "data", "r")
    await doubled.save(b"k", b"v")
    await doubled.close()
    file = await disk.open(f"data/r.{copy}")
    await file.write_and_sync(await file.size(), random.Random(1).randbytes(length))
    await file.close()
    for life in range(3):
        doubled = await PairedFile.open(disk, "data", "r")
        assert doubled.damaged_slots == 0
        assert doubled.get(b"k") == b"v"
        await doubled.save(bytes([life]), b"more")
        await doubled.close()
    doubled = await PairedFile.open(disk, "data", "r")
    assert (doubled.damaged_slots, len(doubled)) == (0, 4)
    await doubled.close()


async def test_a_bad_slot_of_the_second_copy_is_damage_where_the_first_is_gone() -> None:
    """There it may have been a record."""
    disk = await new_disk()
    doubled = await PairedFile.open(disk, "data", "r")
    await doubled.save(b"k", b"v")
    await doubled.close()
    await disk.unlink("data/r.a")
    file = await disk.open("data/r.b")
    await file.write_and_sync(30, b"x")
    await file.close()
    doubled = await PairedFile.open(disk, "data", "r")
    assert doubled.damaged_slots == 1
    await doubled.close()


async def test_a_failed_sync_is_final() -> None:
    """It is raised to everybody, and for ever after."""
    disk = await new_disk()
    records = await PairedFile.open(disk, "data", "x")
    disk.faults.append(Fault("sync", errno.EIO, "x.b"))
    results = await asyncio.gather(records.save(b"k", b"v"), records.save(b"l", b"w"), return_exceptions=True)
    assert [type(result) for result in results] == [PairedFileError, PairedFileError]
    with pytest.raises(PairedFileError):
        await records.save(b"k", b"v")


async def test_a_record_too_long_is_refused() -> None:
    """Before anything is written."""
    records = await PairedFile.open(await new_disk(), "data", "x")
    await records.save(b"k", bytes(MAX_RECORD_BYTES - 1))
    with pytest.raises(PairedFileError):
        await records.save(b"k", bytes(MAX_RECORD_BYTES))


@given(st.binary(max_size=SLOT_BYTES + 10), st.integers(0, SLOT_BYTES - 1), st.integers(1, 255))
def test_slots_are_whole_or_not_at_all(data: bytes, position: int, mask: int) -> None:
    """Every changed byte is noticed, and garbage never raises."""
    slot = encode_slot(9, b"key", b"payload")
    changed = bytearray(slot)
    changed[position] ^= mask
    good = decode_slot(slot)
    assert good is not None
    assert decode_slot(bytes(changed)) != good
    decode_slot(data)


async def test_identity_returns_and_refuses_damage() -> None:
    """An agent keeps its id; two damaged copies stop it with a line that says what to do."""
    disk = await new_disk()
    store = await IdentityStore.open(disk, "data")
    assert store.load() is None
    await store.save(IDENTITY)
    await store.close()
    again = await IdentityStore.open(disk, "data")
    assert again.load() == IDENTITY
    for copy in "ab":
        disk.damage(f"data/identity.{copy}", 40)
    with pytest.raises(IdentityError, match="backup"):
        await IdentityStore.open(disk, "data")


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_id": "AB" * 16},
        {"agent_id": "ab"},
        {"cluster_id": b"short"},
        {"name": ""},
        {"http_port": 70_000},
    ],
)
def test_an_impossible_identity_is_refused(changes: dict[str, object]) -> None:
    """Before it is written anywhere."""
    with pytest.raises(IdentityError):
        AgentIdentity(**{"agent_id": "ab" * 16, "cluster_id": None, "name": "n", **changes})  # type: ignore[arg-type]


@given(st.binary(max_size=100))
def test_hostile_identities_raise_one_error(data: bytes) -> None:
    """JSON or not."""
    for hostile in (data, b'{"cluster_id": 3}', b"[]", IDENTITY.to_bytes()[:-1]):
        with pytest.raises(IdentityError):
            AgentIdentity.from_bytes(hostile)


async def test_registry_and_hard_states_return() -> None:
    """Replica ids, states, terms and votes are as they were saved; removal is durable."""
    disk = await new_disk()
    registry = await ReplicaRegistry.open(disk, "data")
    hard_states = await HardStateFile.open(disk, "data")
    record = ReplicaRecord(GROUP, ReplicaId(4, 17), ReplicaState.ACTIVE)
    other = ReplicaRecord(GroupId(b"u" * 16, 0), ReplicaId(0, 2), ReplicaState.LOST)
    await registry.put(record)
    await registry.put(other)
    state = HardState(Term(9), ReplicaId(0, 1), LogIndex(12))
    await hard_states.save(GROUP, record.replica_id, state)
    await hard_states.save(other.group, other.replica_id, HardState())
    await hard_states.remove(other.group)
    registry = await ReplicaRegistry.open(disk, "data")
    hard_states = await HardStateFile.open(disk, "data")
    assert set(registry) == {record, other}
    assert hard_states.get(GROUP) == (record.replica_id, state)
    assert hard_states.get(other.group) is None
    await registry.remove(GROUP)
    assert set(await ReplicaRegistry.open(disk, "data")) == {other}


async def test_what_could_not_be_saved_is_not_known_either() -> None:
    """A record whose save failed would be acted on by whoever asks again, and be gone after a restart; and a
    file that failed says so to whoever is about to rely on it."""
    disk = await new_disk()
    registry = await ReplicaRegistry.open(disk, "data")
    hard_states = await HardStateFile.open(disk, "data")
    created = ReplicaRecord(GROUP, ReplicaId(4, 17), ReplicaState.CREATING)
    await registry.put(created)
    hard_states.check()
    disk.faults.append(Fault("write", errno.EIO, "data/", times=2))
    with pytest.raises(PairedFileError):
        await registry.put(created._replace(state=ReplicaState.ACTIVE))
    assert registry.get(GROUP) == created
    with pytest.raises(PairedFileError):
        await hard_states.save(GROUP, created.replica_id, HardState(Term(1), created.replica_id, LogIndex(0)))
    with pytest.raises(PairedFileError, match="the disk failed"):
        hard_states.check()
    assert set(await ReplicaRegistry.open(disk, "data")) == {created}
