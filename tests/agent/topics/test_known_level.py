"""The highest level that a cluster was known to have: kept over a recovery by force that begins below it."""

from __future__ import annotations

from collections.abc import Sequence

import crc32c
import pytest
from waiting import until

from shoal.agent.durable.catalog_version import epoch_of
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.levels import BEFORE_LEVELS, FIRST_LEVEL, Level
from shoal.agent.topics.catalog import BeginEpoch, Catalog, CreateTopic, RaiseLevel
from shoal.agent.topics.catalog_codec import decode_command
from shoal.agent.topics.cluster_file import ClusterFileError, ClusterRecord, newest_copy
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    Term,
    stamp_message,
    to_record_batch,
)
from tests.agent.topics.test_catalog_lineage import folded, follower
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, entry, gives
from tests.agent.topics.test_cluster_level import World

TWO = Level(2)
TERM = Term(1 << EPOCH_BITS)
EPOCH = epoch_of(1, 5)


def record(catalog: Catalog, level: Level = FIRST_LEVEL) -> ClusterRecord:
    return ClusterRecord("prod", b"c" * 16, (SELF,), catalog.to_bytes(), level=level)


async def test_a_recovered_state_of_a_lower_level_does_not_lower_what_is_known() -> None:
    """The agent's own directory may hold something of the higher one. It says so on new links, once, and
    after a restart."""
    newer = folded(CreateTopic(entry(2, (OTHER,))), epoch=EPOCH)
    fixture = follower(folded(CreateTopic(entry()), RaiseLevel(TWO)), newer)
    async with fixture.running():
        await until(lambda: fixture.saved and fixture.saved[-1].version == newer.version)
        later = folded(CreateTopic(entry(2, (OTHER,))), CreateTopic(entry(3, (OTHER,))), epoch=EPOCH)
        fixture.peers.versions = {OTHER: later.version}
        fixture.peers.answers = dict.fromkeys(fixture.peers.answers, gives(later))
        fixture.service.exchange.look()
        await until(lambda: fixture.saved[-1].version == later.version)
    local = fixture.service.local
    assert (fixture.service.catalog.level, local.level, fixture.peers.greeted_again) == (1, 2, 1)
    kept = ClusterRecord.from_bytes(fixture.records[-1].to_bytes())
    assert (kept.level, Catalog.from_bytes(kept.catalog).level) == (2, 1)


async def test_a_level_that_a_member_says_is_known_and_kept() -> None:
    """The log tells it a moment later, as a rule."""
    fixture = Fixture((SELF,), leader=OTHER)
    async with fixture.running():
        fixture.service.note_level(TWO)
        assert (fixture.service.local.level, fixture.peers.level, fixture.service.catalog.level) == (2, 2, 1)
        await until(lambda: fixture.records and fixture.records[-1].level == 2)
        fixture.service.note_level(FIRST_LEVEL)
    assert (fixture.service.local.level, fixture.peers.level) == (2, 2)


async def test_the_recovered_catalog_begins_at_the_level_that_the_survivor_knows() -> None:
    """In one entry: no agent of the former version can join in between."""
    fixture = Fixture((SELF,), folded(CreateTopic(entry(7, (OTHER,)))))
    fixture.groups.end, fixture.groups.term = 1, TERM
    fixture.service.note_level(TWO)

    def append(messages: Sequence[Message]) -> None:
        (message,) = messages
        identity = LogIdentity(b"c" * 16, bytes(16), 0)
        numbers = {"base_offset": Offset(1), "term": TERM, "previous_term": Term(0), "index": LogIndex(2)}
        appended = stamp_message(message, identity, append_time_us=0, **numbers)
        values = to_record_batch(appended.data, DEFAULT_SCHEMA).column("value").to_pylist()
        begin, raised = (decode_command(value) for value in values)
        assert isinstance(begin, BeginEpoch)
        assert raised == RaiseLevel(TWO)
        fixture.service.apply(appended)

    fixture.groups.on_append = append
    async with fixture.running():
        await fixture.service.make_current(1_000)
        await until(lambda: fixture.saved and fixture.saved[-1].level == 2)
    assert fixture.service.catalog.version.offset == 3
    assert fixture.service.local.published == fixture.service.catalog.version


async def test_the_leader_takes_a_known_level_again_at_once() -> None:
    """Whatever is held, and whoever does not understand it: the cluster was there."""
    world = World()
    world.said[OTHER], world.holds = BEFORE_LEVELS, [SELF]
    assert await world.after(0) == 1
    world.known = TWO
    assert await world.after(0) == 2
    assert world.catalog.offset == 2
    assert await world.after(0) == 2
    assert world.catalog.offset == 2


def test_the_highest_level_of_two_copies_counts() -> None:
    """The newer one may have been written by a version that knew of no such number."""
    older, newer = folded(RaiseLevel(TWO)), folded(epoch=EPOCH)
    for copies in ([record(older), record(newer)], [record(newer), record(newer, TWO)]):
        found = newest_copy([copy.to_bytes() for copy in copies])
        assert found is not None
        assert (Catalog.from_bytes(found.catalog).version, found.level) == (newer.version, 2)


def test_a_record_without_a_level_has_that_of_its_catalog() -> None:
    """As former versions wrote it; and at the first level it is written so still."""
    assert b'"level"' not in record(Catalog()).to_bytes()
    for catalog in (Catalog(), folded(RaiseLevel(TWO))):
        assert ClusterRecord.from_bytes(record(catalog).to_bytes()).level == catalog.level


@pytest.mark.parametrize("text", [b"0", b"-1", b"10000", b"1.5", b'"2"', b"true", b"null", b"[]"])
def test_a_record_with_a_level_that_is_none_is_damaged(text: bytes) -> None:
    """Nobody wrote it; its checksum says that somebody did."""
    _, body = record(Catalog(), Level(7)).to_bytes().split(b"\n", 1)
    assert b'"level":7' in body
    body = body.replace(b'"level":7', b'"level":' + text)
    with pytest.raises(ClusterFileError, match="a level that is none"):
        ClusterRecord.from_bytes(b"shoal-cluster-1 %08x\n" % crc32c.crc32c(body) + body)
