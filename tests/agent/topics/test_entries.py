"""Births in the catalog: final once somebody has led them, given up for others before, and never both."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.durable.catalog_version import epoch_of
from shoal.agent.interface import MAX_PARTITIONS
from shoal.agent.topics import catalog as module
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Births,
    Catalog,
    CatalogError,
    Command,
    ConfirmBirths,
    CreateTopic,
    DeleteTopic,
    PartitionBirth,
    Rebirth,
    RepeatBirths,
    TopicEntry,
    entry_document,
    entry_from,
)
from shoal.agent.topics.catalog_codec import MAX_COMMAND_BYTES, decode_command, encode_command
from shoal.agent.topics.entries import mask_from_text, mask_of, mask_to_text, partitions_in
from shoal.agent.topics.settings import TopicSettings
from shoal.format.hash_ranges import hash_ranges
from shoal.replication.interfaces import MAX_GENERATION

FIRST, SECOND = ("a" * 32, "b" * 32, "c" * 32), ("a" * 32, "d" * 32, "e" * 32)
PARTITIONS = 4


def unborn(number: int = 1, partitions: int = PARTITIONS) -> TopicEntry:
    """A topic as it is made."""
    births = tuple(PartitionBirth(bounds, FIRST) for bounds in hash_ranges(partitions))
    settings = TopicSettings(partitions=partitions)
    topic_id = bytes([number]) * 16
    return TopicEntry(f"t{number}", topic_id, settings, births, 1, unborn=mask_of(range(partitions)))


TOPIC = unborn().topic_id


def born(*partitions: int, generation: int = 0, topic_id: bytes = TOPIC) -> ConfirmBirths:
    return ConfirmBirths((Births(topic_id, generation, mask_of(partitions)),))


def again(*partitions: int, generation: int = 1, voters: tuple[str, ...] = SECOND) -> RepeatBirths:
    return RepeatBirths(TOPIC, tuple(Rebirth(partition, generation, voters) for partition in partitions))


def folded(*commands: Command) -> Catalog:
    """Through their bytes, as every agent folds them."""
    catalog = Catalog()
    for command in commands:
        catalog.apply(catalog.offset, decode_command(encode_command(command)))
        catalog.check_invariants()
        assert Catalog.from_bytes(catalog.to_bytes()).digest() == catalog.digest()
    return catalog


def test_a_birth_that_was_led_is_final() -> None:
    """Whoever wants to give it up comes too late, however often."""
    catalog = folded(CreateTopic(unborn()), born(0, 2))
    assert list(partitions_in(catalog.topics["t1"].unborn)) == [1, 3]
    assert catalog.apply(2, again(0)) == "too-late"
    assert catalog.apply(3, again(0, 1)) == "done"
    entry = catalog.topics["t1"]
    assert [birth.generation for birth in entry.partitions] == [0, 1, 0, 0]
    assert [birth.voters for birth in entry.partitions] == [FIRST, SECOND, FIRST, FIRST]
    assert entry.is_born(0, 0)
    assert not entry.is_born(0, 1)
    assert not entry.is_born(1, 1)


def test_who_leads_a_birth_that_was_given_up_comes_too_late() -> None:
    """It serves nobody then, and the birth in its place still waits."""
    catalog = folded(CreateTopic(unborn()), again(1), born(1))
    assert not catalog.topics["t1"].is_born(1, 0)
    assert not catalog.topics["t1"].is_born(1, 1)
    assert catalog.led_of(born(1).births, born=False) == ()
    assert catalog.led_of(born(1, generation=1).births, born=False) == born(1, generation=1).births
    catalog.apply(3, born(1, generation=1))
    assert catalog.topics["t1"].is_born(1, 1)
    assert catalog.led_of(born(1, generation=1).births, born=True) == born(1, generation=1).births
    assert catalog.led_of(born(1).births, born=True) == ()


def test_one_proposal_gives_up_one_birth() -> None:
    """A retry of it, or another agent's that saw the same, finds the next one."""
    catalog = folded(CreateTopic(unborn()), again(0))
    assert catalog.apply(2, again(0, voters=FIRST)) == "too-late"
    assert catalog.apply(3, again(0, generation=3)) == "too-late"
    assert catalog.apply(4, again(0, generation=2, voters=FIRST)) == "done"
    assert catalog.topics["t1"].partitions[0].voters == FIRST


def test_what_names_no_partition_changes_nothing() -> None:
    """A topic that was deleted, a partition that is not there."""
    catalog = folded(CreateTopic(unborn()))
    before = catalog.topics["t1"]
    assert catalog.apply(1, born(9)) == "done"
    assert catalog.apply(2, born(0, topic_id=b"x" * 16)) == "done"
    assert catalog.apply(3, again(9)) == "too-late"
    assert catalog.topics["t1"] == before
    catalog.apply(4, DeleteTopic(TOPIC))
    assert catalog.apply(5, born(0)) == "done"
    assert catalog.apply(6, again(0)) == "unknown-id"


def test_a_recovery_by_force_leaves_nothing_unborn() -> None:
    """What was committed about births may be lost with the others' logs: nothing is given up any more."""
    catalog = folded(CreateTopic(unborn()), again(1))
    assert catalog.apply(2, BeginEpoch(epoch_of(1, 7), catalog.digest())) == "done"
    catalog.check_invariants()
    assert catalog.topics["t1"].unborn == 0
    assert catalog.topics["t1"] is catalog.by_id(TOPIC)
    assert catalog.apply(3, again(0)) == "too-late"
    assert catalog.topics["t1"].is_born(1, 1)


def test_what_was_written_before_there_were_births_is_born() -> None:
    """Commands and states of earlier versions name none; what they do not name must not come from ours."""
    document = entry_document(replace(unborn(), unborn=0))
    assert not {"unborn"} & document.keys()
    assert not any("birth" in partition for partition in document["partitions"])
    entry = entry_from(document)
    assert all(entry.is_born(partition, 0) for partition in range(PARTITIONS))
    adopted = entry_from(entry_document(replace(unborn(), adopted=True)))
    assert adopted.unborn == 0


def test_a_full_catalog_gives_no_more_voters_and_others_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is committed has a bound, births too."""
    catalog = folded(CreateTopic(unborn()))
    monkeypatch.setattr(module, "MAX_COST", catalog.cost)
    assert catalog.apply(1, again(0, voters=(*SECOND, "f" * 32))) == "full"
    assert catalog.apply(2, again(0)) == "done"
    catalog.check_invariants()


def test_a_thousand_births_are_a_short_command() -> None:
    """One bit each, while they wait and when they are told."""
    entry = unborn(partitions=MAX_PARTITIONS)
    assert len(encode_command(born(*range(MAX_PARTITIONS)))) < 400
    waiting, led = folded(CreateTopic(entry)), folded(CreateTopic(replace(entry, unborn=0)))
    assert len(waiting.to_bytes()) - len(led.to_bytes()) < 300
    assert len(encode_command(again(*range(MAX_PARTITIONS)))) < MAX_COMMAND_BYTES


SETS = st.sets(st.integers(0, PARTITIONS - 1), min_size=1)
COMMANDS = st.builds(
    lambda make, partitions, generation: make(*partitions, generation=generation),
    st.sampled_from([born, again]),
    SETS,
    st.integers(0, 3),
)


@given(st.lists(COMMANDS, max_size=30))
def test_each_partition_has_one_birth_that_serves(commands: list[Command]) -> None:
    """In whatever order they come: once a birth is born, it is that for ever, and no other one is."""
    catalog = folded(CreateTopic(unborn()))
    served: dict[int, int] = {}
    for command in commands:
        catalog.apply(catalog.offset, command)
        catalog.check_invariants()
        for partition in range(PARTITIONS):
            for generation in range(MAX_GENERATION):
                if catalog.topics["t1"].is_born(partition, generation):
                    assert served.setdefault(partition, generation) == generation
    for partition, generation in served.items():
        assert catalog.topics["t1"].is_born(partition, generation)


@given(st.sets(st.integers(0, MAX_PARTITIONS - 1)))
def test_a_set_of_partitions_survives(partitions: set[int]) -> None:
    """As a number and as text."""
    assert list(partitions_in(mask_of(partitions))) == sorted(partitions)
    assert mask_from_text(mask_to_text(mask_of(partitions)), MAX_PARTITIONS) == mask_of(partitions)


@pytest.mark.parametrize("text", ["", "-1", "0x1", "10", "1_0", " 1", "f" * 300, 7, None, "g"])
def test_what_is_no_set_of_partitions(text: object) -> None:
    """One clear refusal."""
    with pytest.raises(CatalogError):
        mask_from_text(text, PARTITIONS)


@given(
    st.sampled_from([born(0, 3), again(2)]).flatmap(
        lambda command: st.tuples(
            st.just(encode_command(command)), st.integers(0, 80), st.binary(min_size=1, max_size=2)
        )
    )
)
def test_a_damaged_command_is_read_or_refused(drawn: tuple[bytes, int, bytes]) -> None:
    """With its one error; and what is read can be folded."""
    data, position, other = drawn
    with contextlib.suppress(CatalogError):
        folded(CreateTopic(unborn()), decode_command(data[:position] + other + data[position + 1 :]))
