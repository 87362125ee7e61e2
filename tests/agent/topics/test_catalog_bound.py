"""The catalog has a bound where topics are made, and whatever was written is read and handed on again."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDisk

from shoal.agent.durable.catalog_version import NO_VERSION, CatalogVersion
from shoal.agent.interface import MAX_PARTITIONS
from shoal.agent.peers.frames import MAX_BULK_PAYLOAD_BYTES
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.topics import catalog as module
from shoal.agent.topics import catalog_exchange
from shoal.agent.topics.catalog import (
    MAX_COST,
    MAX_STATE_BYTES,
    Catalog,
    CatalogError,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    PartitionBirth,
    TopicEntry,
    entry_document,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command
from shoal.agent.topics.catalog_pull import MAX_BEGINNINGS, PIECE_BYTES, Copy, Piece, piece_from_bytes
from shoal.agent.topics.cluster_file import (
    FILE_NAMES,
    SINGLE_FILE_NAME,
    ClusterFileError,
    ClusterRecord,
    load_cluster,
    save_cluster,
)
from shoal.agent.topics.settings import settings_from_body
from shoal.format.hash_ranges import hash_ranges
from tests.agent.agents import Agents, agents_in, eventually
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, entry

VOTERS = tuple(f"{number:032x}" for number in range(3))
LARGE = settings_from_body({"partitions": MAX_PARTITIONS})[0]
BIRTHS = tuple(PartitionBirth(bounds, VOTERS) for bounds in hash_ranges(MAX_PARTITIONS))


def large(number: int) -> TopicEntry:
    """As many partitions as a topic may have."""
    return TopicEntry(f"topic-{number}", number.to_bytes(16, "big"), LARGE, BIRTHS, 1)


def full() -> Catalog:
    """As many of those as are taken."""
    catalog = Catalog()
    while catalog.apply(catalog.offset, CreateTopic(large(catalog.offset))) == "done":
        pass
    return catalog


# ---- the rule ------------------------------------------------------------------------------------


async def test_topics_of_1024_partitions_are_made_up_to_the_bound() -> None:
    """Then they are refused, the state is within what an agent writes and reads, deletions go on, and make
    room."""
    catalog = full()
    catalog.check_invariants()
    assert len(catalog.topics) > 60
    assert MAX_COST - large(0).cost() < catalog.cost <= MAX_COST
    data = catalog.to_bytes()
    assert len(data) < MAX_STATE_BYTES
    disk = MemoryDisk(random.Random(1), pause_max=1)
    record = ClusterRecord("c", b"c" * 16, VOTERS, data)
    await disk.make_directory("d")
    await save_cluster(disk, "d", record)
    assert await load_cluster(disk, "d") == record
    again = Catalog.from_bytes(data)
    again.check_invariants()
    assert again.apply(again.offset, CreateTopic(large(9_999))) == "full"
    assert again.apply(again.offset, DeleteTopic(large(0).topic_id, frozenset(VOTERS))) == "done"
    for voter in VOTERS:
        assert again.apply(again.offset, ConfirmDeletion(large(0).topic_id, voter)) == "done"
    again.check_invariants()
    assert again.apply(again.offset, CreateTopic(large(9_999))) == "done"


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 64), st.integers(1, 249), st.booleans())
def test_a_topic_costs_no_less_than_its_bytes(
    partitions: int, voters: int, id_length: int, name_length: int, adopted: bool
) -> None:
    """And the same before and after its bytes: every agent refuses the same topics."""
    settings = settings_from_body(
        {
            "partitions": partitions,
            "replication_factor": 7,
            "retention": {"age": "3650d", "bytes": 2**62},
            "segment": {"bytes": 2**30, "age": "3650d"},
        }
    )[0]
    names = tuple(f"{number}".rjust(id_length, "v")[-64:] for number in range(voters))
    births = tuple(PartitionBirth(bounds, tuple(dict.fromkeys(names))) for bounds in hash_ranges(partitions))
    topic = TopicEntry("n" * name_length, os.urandom(16), settings, births, 2**62, adopted)
    command = decode_command(encode_command(CreateTopic(topic)))
    assert isinstance(command, CreateTopic)
    assert command.entry.cost() == topic.cost()
    catalog = Catalog()
    empty = len(catalog.to_bytes())
    assert catalog.apply(0, command) == "done"
    assert len(catalog.to_bytes()) - empty <= topic.cost()
    catalog.apply(1, DeleteTopic(topic.topic_id))
    assert len(catalog.to_bytes()) - empty <= catalog.cost
    assert entry_document(topic)["name"] == topic.name


def test_what_was_written_without_a_bound_is_read() -> None:
    """By an agent before there was one: more than any catalog gets now."""
    catalog = full()
    topics = [
        replace(item, name=f"{item.name}-again", topic_id=os.urandom(16))
        for item in (*catalog.topics.values(),)
    ]
    for item in topics:
        catalog.topics[item.name] = item
    data = catalog.to_bytes()
    assert len(data) > MAX_STATE_BYTES
    again = Catalog.from_bytes(data)
    assert again.topics.keys() == catalog.topics.keys()
    assert again.apply(again.offset, CreateTopic(entry())) == "full"


# ---- copies in pieces ----------------------------------------------------------------------------


async def test_a_state_larger_than_a_frame_is_pulled() -> None:
    """Each answer fits into a frame of a link; what comes together is the state."""
    catalog = full()
    for item in [*catalog.topics.values()]:
        twin = replace(item, name=f"{item.name}-again", topic_id=os.urandom(16))
        catalog.topics[twin.name] = catalog._by_id[twin.topic_id] = twin
    source, follower = Fixture((SELF,), catalog), Fixture((OTHER,), leader=OTHER)
    assert len(catalog.to_bytes()) > MAX_BULK_PAYLOAD_BYTES
    sizes = []

    async def request(_agent: str, kind: int, payload: bytes, _timeout_ms: int) -> bytes:
        assert kind == PeerMessage.CATALOG_PULL
        answer = await source.service.exchange.on_pull(SELF, payload)
        sizes.append(len(answer))
        return answer

    follower.peers.request = request  # type: ignore[method-assign]
    newer = await follower.service.exchange.pull(OTHER)
    assert newer is not None
    assert newer.topics == catalog.topics
    assert max(sizes) <= PIECE_BYTES + 64 < MAX_BULK_PAYLOAD_BYTES
    assert len(sizes) == -(-len(catalog.to_bytes()) // PIECE_BYTES)


def answers(version: CatalogVersion, data: bytes, piece_bytes: int) -> Callable[[int], bytes]:
    return lambda position: Piece(version, len(data), data[position : position + piece_bytes]).to_bytes()


def test_a_copy_begins_again_where_the_peer_has_news_and_not_for_ever() -> None:
    """Pieces of two versions never make one state."""
    old, new = CatalogVersion(0, 3), CatalogVersion(0, 4)
    copy = Copy(NO_VERSION)
    copy.add(answers(old, b"a" * 10, 4)(0))
    copy.add(answers(new, b"b" * 10, 4)(0))
    copy.add(answers(new, b"b" * 10, 4)(4))
    assert copy.state() is None
    copy.add(answers(new, b"b" * 10, 4)(8))
    assert copy.state() == b"b" * 10
    copy = Copy(NO_VERSION)
    for number in range(MAX_BEGINNINGS):
        copy.add(answers(CatalogVersion(0, number + 1), b"a" * 10, 4)(0))
    with pytest.raises(CatalogError, match="faster"):
        copy.add(answers(CatalogVersion(0, 99), b"a" * 10, 4)(0))
    copy = Copy(NO_VERSION)
    copy.add(answers(old, b"a" * 10, 8)(0))
    with pytest.raises(CatalogError, match="more pieces"):
        copy.add(answers(old, b"a" * 10, 8)(0))


@given(st.binary(max_size=80))
def test_an_answer_that_is_no_piece(data: bytes) -> None:
    """One error, and nothing else."""
    try:
        piece = piece_from_bytes(data)
    except CatalogError:
        return
    assert piece.to_bytes() == data


# ---- the file ------------------------------------------------------------------------------------


async def written(disk: MemoryDisk, path: str, data: bytes) -> None:
    file = await disk.open(path, create=True)
    await file.write_and_sync(0, data)
    await file.close()


async def read(disk: MemoryDisk, path: str) -> bytes:
    file = await disk.open(path)
    try:
        return await file.read(0, await file.size())
    finally:
        await file.close()


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("harm", ["flip", "cut", "append", "empty", "gone"])
async def test_one_damaged_copy_heals(name: str, harm: str) -> None:
    """The other one has everything."""
    disk = MemoryDisk(random.Random(1), pause_max=1)
    await disk.make_directory("d")
    record = ClusterRecord("c", b"c" * 16, (SELF,), Catalog().to_bytes())
    await save_cluster(disk, "d", record)
    good = await read(disk, f"d/{name}")
    await disk.unlink(f"d/{name}")
    bad = {
        "flip": good[:40] + bytes([good[40] ^ 1]) + good[41:],
        "cut": good[:-1],
        "append": good + b"x",
        "empty": b"",
    }
    if harm != "gone":
        await written(disk, f"d/{name}", bad[harm])
    assert await load_cluster(disk, "d") == record
    assert [await read(disk, f"d/{copy}") for copy in FILE_NAMES] == [good, good]


async def test_both_copies_damaged_are_told_and_the_newer_of_two_counts() -> None:
    """A crash between the two leaves an old one; the single file of an earlier version is read, and goes."""
    disk = MemoryDisk(random.Random(1), pause_max=1)
    await disk.make_directory("d")
    old = ClusterRecord("c", b"c" * 16, (SELF,), Catalog().to_bytes())
    newer = Catalog()
    newer.apply(0, CreateTopic(entry()))
    new = replace(old, catalog=newer.to_bytes())
    await written(disk, f"d/{SINGLE_FILE_NAME}", old.to_bytes())
    assert await load_cluster(disk, "d") == old
    assert not await disk.exists(f"d/{SINGLE_FILE_NAME}")
    await save_cluster(disk, "d", new)
    await disk.unlink("d/cluster.a")
    await written(disk, "d/cluster.a", old.to_bytes())
    assert await load_cluster(disk, "d") == new
    for name in FILE_NAMES:
        await disk.unlink(f"d/{name}")
        await written(disk, f"d/{name}", b"")
    with pytest.raises(ClusterFileError, match="move them away"):
        await load_cluster(disk, "d")


@pytest.mark.parametrize("crash_at", range(12))
async def test_a_crash_leaves_the_old_or_the_new_record(crash_at: int) -> None:
    """Whatever was synced of either copy."""
    rng = random.Random(crash_at)
    disk = MemoryDisk(rng, pause_max=2)
    await disk.make_directory("d")
    old = ClusterRecord("c", b"c" * 16, (SELF,), Catalog().to_bytes())
    newer = Catalog()
    newer.apply(0, CreateTopic(entry()))
    new = replace(old, catalog=newer.to_bytes())
    await save_cluster(disk, "d", old)
    saving = asyncio.create_task(save_cluster(disk, "d", new))
    for _ in range(crash_at):
        await asyncio.sleep(0)
    done = saving.done()
    disk.crash(rng)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    assert await load_cluster(disk, "d") in ((new,) if done else (old, new))


# ---- whole agents --------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in a smaller world: some tens of topics, and a copy of several pieces."""
    monkeypatch.setattr(module, "MAX_COST", 24_000)
    monkeypatch.setattr(catalog_exchange, "PIECE_BYTES", 1_000)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
async def test_a_full_catalog_starts_again_and_so_do_agents_that_lost_their_files(tmp_path: Path) -> None:
    """Creation is refused with advice; every agent comes back, once on its file, and once when the files of
    all are gone and each would wait for another. Acknowledged records are there."""
    async with agents_in(tmp_path) as agents:
        members = await agents.cluster(3)
        made = 0
        while True:
            status, answer = await members[0].call("PUT", f"/v1/topics/topic-{made}")
            if status != 201:
                break
            made += 1
        assert (status, answer["code"], made > 10) == (507, "catalog-full", True)
        assert "delete topics" in answer["detail"]
        record = {"records": [{"value": "acknowledged"}]}
        assert (await members[0].call("POST", "/v1/topics/topic-3/records", record))[0] == 200
        members = await again(agents, tmp_path, lose_files=False)
        await serves(members, made)
        members = await again(agents, tmp_path, lose_files=True)
        await serves(members, made)
        assert (await members[1].call("DELETE", "/v1/topics/topic-4"))[0] == 204

        async def has_room() -> bool:
            return bool((await members[2].call("PUT", "/v1/topics/another"))[0] == 201)

        await eventually(has_room)


async def again(agents: Agents, directory: Path, *, lose_files: bool) -> list:  # type: ignore[type-arg]
    for running in agents.running:
        await running.crash()
    names = [str(running.agent.config.name) for running in agents.running]
    agents.running.clear()
    if lose_files:
        for name in names:
            for copy in FILE_NAMES:
                (directory / name / copy).unlink()
    first = agents.start(names[0], expect=3)
    address = await first.gossip_address()
    others = [agents.start(name, expect=3, join=[address]) for name in names[1:]]
    return [await running.until_ready() for running in (first, *others)]


async def serves(members: list, made: int) -> None:  # type: ignore[type-arg]
    async def know() -> bool:
        answers = [await running.call("GET", "/v1/topics") for running in members]
        return all(status == 200 and len(answer["topics"]) == made for status, answer in answers)

    await eventually(know)

    async def is_read() -> bool:
        status, answer = await members[2].call("GET", "/v1/topics/topic-3/partitions/0/records", offset=0)
        return status == 200 and [item["value"] for item in answer["records"]] == ["acknowledged"]

    await eventually(is_read)
