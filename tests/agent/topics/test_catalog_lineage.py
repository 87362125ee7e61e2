"""A catalog recovered by force is another lineage: numbers do not compare, and absence deletes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import until

from shoal.agent.durable.catalog_version import (
    MAX_NUMBER,
    NO_VERSION,
    CatalogVersion,
    epoch_of,
    recoveries,
    version_from_bytes,
    version_from_text,
)
from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.peers.links import PeerUnavailable
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Catalog,
    CatalogError,
    Command,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command
from shoal.agent.topics.cluster_file import ClusterRecord
from shoal.agent.topics.kept import Kept, KeptTopic, decode_kept, encode_kept, gathered
from shoal.errors import ShoalError
from shoal.format.batch import Message
from shoal.replication.interfaces import ReplicaId
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, asks, entry, frame, gives

TERM = 1 << EPOCH_BITS
EPOCH = epoch_of(1, 77)
HELD = GroupId(entry().topic_id, 0)


def folded(*commands: Command, epoch: int = 0) -> Catalog:
    """What these commands come to; the epoch begins before the first of them."""
    catalog = Catalog()
    if epoch:
        assert catalog.apply(0, BeginEpoch(epoch, catalog.digest())) == "done"
    for command in commands:
        catalog.apply(catalog.offset, command)
    return catalog


def follower(catalog: Catalog, newer: Catalog) -> Fixture:
    """Holds a replica of what the older catalog knows, and hears of the newer one."""
    fixture = Fixture((OTHER,), catalog, leader=OTHER)
    fixture.groups.records = {HELD: ReplicaRecord(HELD, ReplicaId(0, 0), ReplicaState.ACTIVE)}
    fixture.peers.versions = {OTHER: newer.version}
    fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
    return fixture


# ---- versions ------------------------------------------------------------------------------------


@given(st.integers(0, MAX_NUMBER - 1), st.integers(0, MAX_NUMBER - 1))
@example(10**18, 10**18)
def test_a_version_survives_bytes_and_text(epoch: int, offset: int) -> None:
    """In frames and in tags; an older agent's tag is a number alone."""
    version = CatalogVersion(epoch, offset)
    assert version_from_bytes(version.to_bytes()) == version
    assert version_from_text(str(version)) == version
    assert version_from_text(str(offset)) == CatalogVersion(0, offset)


@given(st.text(max_size=40) | st.from_regex(r"[0-9a-f]{0,30}\.?[0-9]{0,30}"))
def test_a_tag_that_is_no_version_is_the_lowest(text: str) -> None:
    """Somebody else wrote it."""
    assert version_from_text(text) >= NO_VERSION


@given(st.binary(max_size=40))
def test_bytes_that_are_no_version(data: bytes) -> None:
    """None, and nothing is raised."""
    version = version_from_bytes(data)
    assert version is None or version.to_bytes() == data


def test_a_new_epoch_is_newer_than_any_number_of_the_one_before() -> None:
    """And two recoveries of the same catalog are two epochs."""
    assert CatalogVersion(epoch_of(1, 0), 0) > CatalogVersion(0, 2**40)
    assert epoch_of(1, 5) != epoch_of(1, 6)
    assert recoveries(epoch_of(3, 2**32 - 1)) == 3


# ---- the state machine ---------------------------------------------------------------------------


def test_an_epoch_begins_at_its_place_in_the_survivors_log() -> None:
    """On the very state that the survivor had, even one that went further than its log; once; and it is kept
    in the snapshot."""
    catalog = folded(CreateTopic(entry(1)), CreateTopic(entry(2)), CreateTopic(entry(3)))
    command = decode_command(encode_command(BeginEpoch(EPOCH, catalog.digest())))
    elsewhere = folded(CreateTopic(entry(1)), CreateTopic(entry(2)), CreateTopic(entry(4)))
    assert elsewhere.apply(3, command) == "other-base"
    assert elsewhere.version == (0, 3)
    assert catalog.apply(1, command) == "done"
    assert catalog.version == (EPOCH, 2)
    assert catalog.apply(2, command) == "already-applied"
    assert catalog.apply(3, CreateTopic(entry(4))) == "done"
    assert set(catalog.topics) == {"t1", "t2", "t3", "t4"}
    again = Catalog.from_bytes(catalog.to_bytes())
    assert (again.version, again.digest()) == (catalog.version, catalog.digest())


def test_an_adopted_topic_takes_no_id_that_is_alive_or_dead() -> None:
    """A topic would be both, or stand twice."""
    catalog = folded(CreateTopic(entry(1)), CreateTopic(entry(2)), DeleteTopic(entry(2).topic_id))
    for number in (1, 2):
        adopted = replace(entry(number), name="again", adopted=True)
        assert catalog.apply(catalog.offset, CreateTopic(adopted)) == "id-taken"
        catalog.check_invariants()
    adopted = replace(entry(3), adopted=True)
    assert catalog.apply(catalog.offset, decode_command(encode_command(CreateTopic(adopted)))) == "done"
    assert Catalog.from_bytes(catalog.to_bytes()).topics["t3"].adopted
    assert not Catalog.from_bytes(catalog.to_bytes()).topics["t1"].adopted


# ---- an agent that follows -----------------------------------------------------------------------


async def test_a_recovered_catalog_that_does_not_know_a_topic_deletes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its records may stand nowhere else. They are kept, over a restart too, said once, and taken back."""
    old = folded(CreateTopic(entry()))
    newer = folded(CreateTopic(entry(2, (OTHER,))), CreateTopic(entry(3, (OTHER,))), epoch=EPOCH)
    fixture = follower(old, newer)
    with caplog.at_level(logging.WARNING):
        async with fixture.running():
            await until(lambda: fixture.saved and fixture.saved[-1].version == newer.version)
            fixture.service.exchange.look()
            await until(lambda: bool(caplog.records))
            fixture.service.exchange.look()
            await asyncio.sleep(0.05)
    assert fixture.groups.deleted == []
    assert [record for record in caplog.messages if "t1" in record and "shoal topic adopt" in record] != []
    assert len([record for record in caplog.records if "is not in the catalog" in record.message]) == 1
    assert fixture.service.kept_replicas.here() == [Kept(entry().topic_id, "t1", 2, (0, 1))]
    record = ClusterRecord.from_bytes(fixture.records[-1].to_bytes())
    assert record.kept[entry().topic_id] == (old.version, entry())

    restarted = Fixture((OTHER,), newer, leader=OTHER, kept=record.kept)
    restarted.groups.records = {HELD: fixture.groups.records[HELD]}
    adopted = folded(
        CreateTopic(entry(2, (OTHER,))),
        CreateTopic(entry(3, (OTHER,))),
        CreateTopic(replace(entry(), adopted=True)),
        epoch=EPOCH,
    )
    restarted.peers.answers = {PeerMessage.CATALOG_PULL: gives(adopted)}
    async with restarted.running():
        await asyncio.sleep(0.05)
        assert restarted.groups.deleted == []
        restarted.service.exchange.on_hint(OTHER, adopted.version.to_bytes())
        restarted.peers.versions = {OTHER: adopted.version}
        await until(lambda: HELD in restarted.groups.opened)
        await asyncio.sleep(0.05)
    assert restarted.groups.opened[HELD]["replica_id"] == ReplicaId(0, 0)
    second = GroupId(entry().topic_id, 1)
    assert second not in restarted.groups.opened, "a voter was born that forgot its vote"
    assert restarted.service.kept_replicas.here() == []


async def test_a_tombstone_deletes_across_epochs() -> None:
    """Somebody wanted the topic gone, in any lineage."""
    newer = folded(CreateTopic(entry()), DeleteTopic(entry().topic_id), epoch=EPOCH)
    fixture = follower(folded(CreateTopic(entry())), newer)
    fixture.peers.answers[PeerMessage.CATALOG_CONFIRM] = lambda _: b""
    async with fixture.running():
        await until(lambda: HELD in fixture.groups.deleted)


async def test_the_same_number_of_another_lineage_is_another_state() -> None:
    """Version 1 and version 1: the newer epoch's is taken, and nothing of it is given for the older one's."""
    newer = folded(epoch=EPOCH)
    fixture = follower(folded(CreateTopic(entry())), newer)
    async with fixture.running():
        await until(lambda: fixture.service.catalog.version == (EPOCH, 1))
        assert await fixture.service.exchange.on_pull(OTHER, asks(5)) == gives(newer)(b"")
        assert await fixture.service.exchange.on_pull(OTHER, asks(1, EPOCH)) == b""
        assert await fixture.service.exchange.on_pull(OTHER, asks(0, EPOCH + 1)) == b""
        fixture.service.apply(frame(1, CreateTopic(entry(4)), term=3))  # of the group that was left behind
        assert fixture.service.catalog.version == (EPOCH, 1)
    assert fixture.groups.deleted == []


async def test_what_is_deleted_within_one_epoch_is_deleted_still() -> None:
    """Who was away until no tombstone waited for it knows that the topic was there."""
    commands = (CreateTopic(entry()), DeleteTopic(entry().topic_id))
    confirmations = tuple(ConfirmDeletion(entry().topic_id, agent) for agent in (SELF, OTHER))
    fixture = follower(folded(commands[0], epoch=EPOCH), folded(*commands, *confirmations, epoch=EPOCH))
    async with fixture.running():
        await until(lambda: HELD in fixture.groups.deleted)


# ---- a survivor ----------------------------------------------------------------------------------


async def test_the_survivor_tells_nobody_before_its_epoch_has_begun() -> None:
    """What its log has and nobody acknowledged counts from now on, under numbers that others know otherwise:
    until the epoch has begun nothing is told, opened or deleted."""
    fixture = Fixture((SELF,), folded(CreateTopic(entry(7, (OTHER,)))))
    proposed: list[bytes] = []
    fixture.groups.end, fixture.groups.term = 1, TERM

    def append(messages: Sequence[Message]) -> None:
        command = BeginEpoch(epoch_of(1, 5), fixture.service.catalog.digest())
        proposed.append(fixture.service.catalog.digest())
        fixture.service.apply(frame(fixture.groups.end, command, term=TERM + 1))

    async with fixture.running():
        fixture.service.exchange.look()
        fixture.groups.on_append = append
        fixture.groups.end = 2
        fixture.service.apply(frame(1, CreateTopic(entry()), term=3))
        assert fixture.service.local.published == (0, 1)
        assert await fixture.service.exchange.on_pull(OTHER, asks(0)) == b""
        assert fixture.peers.hints == []
        assert HELD not in fixture.groups.opened
        await until(lambda: HELD in fixture.groups.opened)
    assert len(proposed) == 1
    assert fixture.service.local.published == (epoch_of(1, 5), 3)
    assert fixture.peers.hints == [(OTHER, 3)]


async def test_who_knows_more_than_its_log_goes_on_from_what_it_knows() -> None:
    """A survivor that had pulled a newer state than it has in its log: the numbers begin at the log's end."""
    fixture = Fixture((SELF,), folded(*(CreateTopic(entry(number, (OTHER,))) for number in range(1, 6))))
    fixture.groups.end, fixture.groups.term = 2, TERM

    def append(_: Sequence[Message]) -> None:
        command = BeginEpoch(EPOCH, fixture.service.catalog.digest())
        fixture.service.apply(frame(2, command, term=TERM + 1))

    fixture.groups.on_append = append
    async with fixture.running():
        machine = fixture.groups.opened[CATALOG_GROUP]["machine"]
        assert (machine.next_offset(), machine.saved_offset()) == (0, 0), "the log is gone through"
        fixture.service.apply(frame(0, CreateTopic(entry(1)), CreateTopic(entry(2)), term=1))
        await fixture.service.make_current(1_000)
        assert fixture.service.catalog.version == (EPOCH, 3)
        assert len(fixture.service.catalog.topics) == 5
        await until(lambda: machine.saved_offset() == 3)
        assert machine.next_offset() == 3


async def test_a_voter_with_another_state_takes_a_copy() -> None:
    """It must not apply the new lineage's commands to what it has."""
    newer = folded(CreateTopic(entry(2, (OTHER,))), CreateTopic(entry(3, (OTHER,))), epoch=EPOCH)
    fixture = Fixture((SELF,), folded(CreateTopic(entry(1, (OTHER,)))), leader=OTHER)
    fixture.peers.versions = {OTHER: newer.version}
    async with fixture.running():
        fixture.groups.term = TERM
        fixture.service.apply(frame(1, BeginEpoch(EPOCH, b"x" * 16), term=TERM))
        fixture.service.apply(frame(2, CreateTopic(entry(3, (OTHER,))), term=TERM))
        assert fixture.service.local.astray
        assert set(fixture.service.catalog.topics) == {"t1"}
        fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
        fixture.service.exchange.look()
        await until(lambda: fixture.service.catalog.version == newer.version)
        assert not fixture.service.local.astray


async def test_a_replica_of_the_recovered_catalog_is_opened_on_its_own_state_only() -> None:
    """Who is asked to hold one first takes a copy of the state that the log goes on from."""
    fixture = Fixture((OTHER,), folded(CreateTopic(entry(1, (OTHER,)))), leader=OTHER)
    async with fixture.running():
        async with fixture.service.changing:
            with pytest.raises(ShoalError) as caught:
                await fixture.service.open_replica(CATALOG_GROUP, ReplicaId(TERM, 5))
        assert caught.value.code == "not-ready"
        newer = folded(epoch=EPOCH)
        fixture.peers.versions = {OTHER: newer.version}
        fixture.peers.answers = {PeerMessage.CATALOG_PULL: gives(newer)}
        fixture.service.exchange.look()
        await until(lambda: fixture.service.catalog.epoch == EPOCH)
        async with fixture.service.changing:
            await fixture.service.open_replica(CATALOG_GROUP, ReplicaId(TERM, 5))
    assert CATALOG_GROUP in fixture.groups.opened


# ---- what is kept ------------------------------------------------------------------------------


async def test_what_is_kept_is_found_over_all_agents() -> None:
    """By name or id, with the newest settings that anybody remembers; ambiguous and unknown ones are
    refused."""
    fixture = follower(folded(CreateTopic(entry())), folded(epoch=EPOCH))
    theirs = Kept(entry(5).topic_id, None, None, (0, 3))
    fixture.peers.answers[PeerMessage.CATALOG_KEPT] = lambda asked: b"" if asked else encode_kept([theirs])
    async with fixture.running():
        await until(lambda: fixture.service.catalog.epoch == EPOCH)
        kept_replicas = fixture.service.kept_replicas
        (own, other), silent = await kept_replicas.everywhere()
        assert silent == []
        assert (own.name, own.holders) == ("t1", {0: (SELF,), 1: (SELF,)})
        assert (other.name, other.count, other.holders) == (None, None, {0: (OTHER,), 3: (OTHER,)})
        for wanted in ("t1", entry().topic_id.hex()):
            assert (await kept_replicas.find(wanted)).entry == entry()
        for wanted in ("none", entry(5).topic_id.hex()):
            with pytest.raises(ShoalError) as caught:
                await kept_replicas.find(wanted)
            assert caught.value.code == "unknown-topic"


async def test_who_does_not_answer_may_keep_what_nobody_else_has() -> None:
    """An agent that has just come back holds the topic, and its link is not there yet: that is no reason to
    say that nobody has it."""
    fixture = follower(folded(CreateTopic(entry())), folded(epoch=EPOCH))

    def is_silent(_asked: bytes) -> bytes:
        raise PeerUnavailable("its link is not there yet")

    def keeps_its_settings_to_itself(asked: bytes) -> bytes:
        return is_silent(asked) if asked else encode_kept([Kept(entry(5).topic_id, "t5", 1, (0,))])

    async with fixture.running():
        await until(lambda: fixture.service.catalog.epoch == EPOCH)
        for answer, wanted in ((is_silent, "t5"), (keeps_its_settings_to_itself, "t5")):
            fixture.peers.answers[PeerMessage.CATALOG_KEPT] = answer
            with pytest.raises(ShoalError, match="did not say which topics it keeps") as caught:
                await fixture.service.kept_replicas.find(wanted)
            assert (caught.value.code, caught.value.retriable) == ("not-ready", True)
            assert (await fixture.service.kept_replicas.find("t1")).entry == entry()
        for answer, silent in (
            (is_silent, [OTHER]),
            (lambda _asked: b"no list", [OTHER]),
            (keeps_its_settings_to_itself, []),
        ):
            fixture.peers.answers[PeerMessage.CATALOG_KEPT] = answer
            found = await fixture.service.kept_replicas.everywhere()
            assert ([item.name for item in found[0]], found[1]) == (
                ["t1"] if silent else ["t1", "t5"],
                silent,
            )


def test_namesakes_stay_apart() -> None:
    """Two kept topics may have had one name; several agents hold one topic."""
    first = Kept(b"\1" * 16, "t", 2, (0,))
    second = Kept(b"\2" * 16, "t", 2, (1,))
    both = gathered({"b": [first], "a": [first, second]})
    assert [item.topic_id for item in both] == [first.topic_id, second.topic_id]
    assert both[0].holders == {0: ("a", "b")}
    shown = KeptTopic(b"\1" * 16, "t", 2, {0: ("a",)}).document({"a": "sardine"})
    assert shown["held"] == [{"partition": 0, "agents": [{"id": "a", "name": "sardine"}]}]


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_what_a_peer_says_it_keeps_is_read_or_refused(data: bytes) -> None:
    """With its one error."""
    try:
        decode_kept(data)
    except CatalogError:
        return
