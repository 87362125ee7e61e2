"""Consumer groups in the catalog: made once, changed as expected, ended by key, and handed to replicas."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.settings import GroupPlan, GroupSettings, settings_from_body
from shoal.agent.levels import FIRST_LEVEL, Level
from shoal.agent.receive import GroupKey, GroupMode
from shoal.agent.topics import catalog as catalog_module
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Catalog,
    Command,
    CreateTopic,
    DeleteTopic,
    Outcome,
    RaiseLevel,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.entries import CatalogError
from shoal.agent.topics.groups_catalog import (
    MAC_BYTES,
    MAX_GROUPS,
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    GroupEntry,
)
from shoal.errors import ShoalError
from tests.agent.topics.test_catalog_service import SELF, Fixture, entry, frame

TOPIC = entry().topic_id
THREE = Level(3)


def group(name: str = "g", number: int = 1, **settings: object) -> GroupEntry:
    key = GroupKey(bytes([number]) * 16)
    return GroupEntry(name, key, bytes([number]) * MAC_BYTES, GroupSettings(**settings))  # type: ignore[arg-type]


def create(made: GroupEntry | None = None) -> CreateGroup:
    return CreateGroup(TOPIC, made or group())


def change(before: GroupSettings, after: GroupSettings, key: GroupKey | None = None) -> ChangeGroup:
    return ChangeGroup(TOPIC, key or group().key, before, after)


def folded(*commands: Command) -> tuple[Catalog, list[Outcome]]:
    """With the topic at offset 0. Every state is read back as it was written."""
    catalog, outcomes = Catalog(), []
    for offset, command in enumerate((CreateTopic(entry()), *commands)):
        assert decode_command(encode_command(command)) == command
        outcomes.append(catalog.apply(offset, command))
        catalog.check_invariants()
        assert Catalog.from_bytes(catalog.to_bytes()) == catalog
    return catalog, outcomes[1:]


def test_a_group_is_made_once_by_name_and_by_key() -> None:
    """Its place is that of the command that made it."""
    namesake, same_key = group(number=2), group("h", number=1)
    catalog, outcomes = folded(create(), create(namesake), create(same_key), create(group("a", 3)))
    assert outcomes == ["done", "group-taken", "group-taken", "done"]
    entries = catalog.topics["t1"].groups
    assert [(item.name, item.made) for item in entries] == [("a", (0, 4)), ("g", (0, 1))]
    assert catalog.topics["t1"].group("g") == replace(group(), made=(0, 1))
    assert catalog.by_id(TOPIC) is catalog.topics["t1"]


def test_the_65th_group_is_refused() -> None:
    """And a deletion makes room."""
    commands = [create(group(f"g{number}", number)) for number in range(MAX_GROUPS + 1)]
    _, outcomes = folded(*commands, DeleteGroup(TOPIC, group(number=7).key), commands[-1])
    assert outcomes == ["done"] * MAX_GROUPS + ["too-many-groups", "done", "done"]


def test_a_change_counts_only_on_the_settings_that_it_was_made_for() -> None:
    """Mode and start stay, whatever the command has."""
    first = GroupSettings(paused=True, mode=GroupMode.EXCLUSIVE, start="latest")
    second = GroupSettings(visibility_ms=60_000)
    catalog, outcomes = folded(
        create(), change(GroupSettings(), first), change(GroupSettings(), second),
        DeleteGroup(TOPIC, group().key), change(GroupSettings(paused=True), second),
    )  # fmt: skip
    assert outcomes == ["done", "done", "other-settings", "done", "unknown-group"]
    changed, _ = folded(create(), change(GroupSettings(), first))
    assert changed.topics["t1"].groups[0].settings == GroupSettings(paused=True)
    assert catalog.topics["t1"].groups == ()


def test_a_late_deletion_does_not_touch_a_namesake() -> None:
    """By key."""
    late = DeleteGroup(TOPIC, group().key)
    catalog, outcomes = folded(create(), late, create(group(number=2)), late)
    assert outcomes == ["done", "done", "done", "unknown-group"]
    assert [item.key for item in catalog.topics["t1"].groups] == [group(number=2).key]


def test_groups_end_with_their_topic() -> None:
    """What a tombstone costs has nothing of them."""
    catalog, outcomes = folded(create(), DeleteTopic(TOPIC), create(group(number=2)))
    assert outcomes == ["done", "done", "unknown-id"]
    assert catalog.cost == next(iter(catalog.tombstones.values())).cost()


def test_a_topic_of_dead_letters_has_no_groups() -> None:
    """It says whose letters it holds."""
    letters = replace(entry(), name="t1.dead.g", letters_of=b"s" * 16)
    catalog = Catalog()
    for command in (decode_command(encode_command(CreateTopic(letters))), create()):
        outcome = catalog.apply(catalog.offset, command)
    assert outcome == "no-groups-here"
    assert Catalog.from_bytes(catalog.to_bytes()).topics["t1.dead.g"].letters_of == b"s" * 16


def test_a_full_catalog_takes_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions go on."""
    catalog, _ = folded(create())
    monkeypatch.setattr(catalog_module, "MAX_COST", catalog.cost + group().cost() - 1)
    assert catalog.apply(2, create(group("h", 2))) == "full"
    assert catalog.apply(3, DeleteGroup(TOPIC, group().key)) == "done"
    catalog.check_invariants()
    assert catalog.apply(4, create(group("h", 2))) == "done"


@given(st.integers(1, 64), st.sampled_from(("earliest", "latest", "@2026-01-01T00:00:00.123456Z")))
def test_a_group_costs_no_less_than_its_bytes(name_length: int, start: str) -> None:
    """With the longest settings."""
    body = {"mode": "key-ordered", "start": start, "visibility": "43199999ms", "max_attempts": 100,
            "retry": {"first": "604799999ms", "factor": 10, "most": "604799999ms"}, "dead": "letter",
            "session": "299999ms", "paused": False}  # fmt: skip
    key = GroupKey(os.urandom(16))
    made = GroupEntry("n" * name_length, key, os.urandom(MAC_BYTES), settings_from_body(body), (2**52, 2**52))
    topic = entry()
    empty, full = (Catalog(topics={"t1": replace(topic, groups=groups)}) for groups in ((), (made,)))
    assert len(full.to_bytes()) - len(empty.to_bytes()) <= made.cost()
    assert replace(topic, groups=(made,)).cost() - topic.cost() == made.cost()


def test_a_topic_without_groups_is_written_as_before_there_were_any() -> None:
    """The same bytes, at the first level."""
    catalog, _ = folded()
    document = json.loads(catalog.to_bytes())["topics"][0]
    assert set(document) == {"name", "id", "settings", "created_us", "partitions"}
    assert level_of_command(CreateTopic(entry())) == FIRST_LEVEL


@pytest.mark.parametrize(
    "command",
    [
        create(), change(GroupSettings(), GroupSettings()), DeleteGroup(TOPIC, group().key),
        CreateTopic(replace(entry(), groups=(group(),))), CreateTopic(replace(entry(), letters_of=TOPIC)),
    ],
)  # fmt: skip
async def test_commands_about_groups_are_refused_below_their_level(command: Command) -> None:
    """Not every member may understand them: nothing is appended."""
    assert level_of_command(command) == json.loads(encode_command(command))["v"] == THREE
    for level in (FIRST_LEVEL, Level(2)):
        fixture = Fixture((SELF,), Catalog(level=level))
        fixture.groups.on_append = lambda _: pytest.fail("it was appended")
        with pytest.raises(ShoalError, match="needs level 3") as caught:
            await fixture.service.propose(command, 50)
        assert caught.value.code == "level-too-low"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a/b"), ("name", "n" * 65), ("name", 7), ("key", "00"), ("mac", "00" * 8), ("mac", "z" * 64),
        ("made", [0]), ("made", [0, -1]), ("made", [True, 1]), ("settings", {"mode": "wild"}),
        ("settings", {"what": 1}), ("settings", None),
    ],
)  # fmt: skip
def test_a_group_that_cannot_be_is_refused(field: str, value: object) -> None:
    """With the one error of decoders, in a command and in a state."""
    command = json.loads(encode_command(create()))
    command["group"][field] = value
    with pytest.raises(CatalogError):
        decode_command(json.dumps(command).encode())
    state = json.loads(folded(create())[0].to_bytes())
    state["topics"][0]["groups"][0][field] = value
    with pytest.raises(CatalogError):
        Catalog.from_bytes(json.dumps(state).encode())


def test_groups_that_stand_twice_are_refused() -> None:
    """Or not by name."""
    state = json.loads(folded(create(), create(group("h", 2)))[0].to_bytes())
    groups = state["topics"][0]["groups"]
    for wrong in ([groups[0], groups[0]], groups[::-1]):
        state["topics"][0]["groups"] = wrong
        with pytest.raises(CatalogError, match="by name"):
            Catalog.from_bytes(json.dumps(state).encode())


async def test_replicas_hear_of_their_groups() -> None:
    """As they are opened, and with every change: also which state of the catalog says so."""
    fixture = Fixture((SELF,))
    where = GroupId(TOPIC, 0)
    fixture.service.apply(frame(0, CreateTopic(entry()), RaiseLevel(THREE), create()))
    async with fixture.running():
        await until(lambda: where in fixture.groups.opened)
        plans = fixture.groups.opened[where]["groups"]
        key = group().key
        assert plans.groups == {key: GroupPlan(key, "g", GroupSettings(), group().mac, (0, 2))}
        assert (plans.catalog, plans.level, plans.partitions) == ((0, 3), THREE, 2)
        paused = GroupSettings(paused=True)
        fixture.service.apply(frame(3, change(GroupSettings(), paused)))
        await until(lambda: fixture.groups.opened[where]["groups"].groups[key].settings == paused)
        fixture.service.apply(frame(4, DeleteGroup(TOPIC, key)))
        await until(lambda: not fixture.groups.opened[where]["groups"].groups)
        assert fixture.groups.opened[where]["groups"].catalog == (0, 5)


def test_groups_stay_through_a_recovery_by_force() -> None:
    """Their places are of the epoch that made them."""
    catalog, _ = folded(create())
    begin = BeginEpoch(1 << 20, catalog.digest())
    assert catalog.apply(catalog.offset, begin) == "done"
    topic: TopicEntry = catalog.topics["t1"]
    assert [item.made for item in topic.groups] == [(0, 1)]
