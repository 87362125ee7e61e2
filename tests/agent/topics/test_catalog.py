"""The catalog as a state machine: births are final, deletions leave tombstones, a seal forbids creation."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.levels import AdditionKind, level_of
from shoal.agent.topics.catalog import (
    AlterTopic,
    Catalog,
    CatalogError,
    ChangeTopic,
    Command,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    PartitionBirth,
    Seal,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.entries import HigherLevel
from shoal.agent.topics.settings import (
    TopicSettings,
    changed_settings,
    check_sizes,
    check_topic_name,
    settings_from_body,
    settings_table,
    settings_version,
)
from shoal.errors import ShoalError
from shoal.format.hash_ranges import hash_ranges
from shoal.format.timestamps import format_duration

FIELDS = ("v", "op", "topic", "id", "agent", "name", "settings", "before", "partitions", "version", "topics")
AGENTS = ("a" * 32, "b" * 32, "c" * 32)


def entry(
    name: str = "t", number: int = 1, partitions: int = 2, voters: tuple[str, ...] = AGENTS
) -> TopicEntry:
    births = tuple(PartitionBirth(bounds, voters) for bounds in hash_ranges(partitions))
    return TopicEntry(name, bytes([number]) * 16, TopicSettings(partitions=partitions), births, 1_000)


def folded(*commands: Command) -> Catalog:
    catalog = Catalog()
    for offset, command in enumerate(commands):
        catalog.apply(offset, command)
        catalog.check_invariants()
    return catalog


def test_a_name_is_born_once() -> None:
    """Two agents that race to create one topic: the first committed wins, the birth never changes."""
    first, second = entry(number=1), entry(number=2, partitions=5)
    catalog = folded(CreateTopic(first))
    assert catalog.apply(1, CreateTopic(second)) == "name-taken"
    assert catalog.topics["t"] == first
    assert catalog.by_id(second.topic_id) is None


def test_a_change_keeps_what_was_fixed_at_birth() -> None:
    """Retention and segments follow the last change; partitions, replicas and fsync stay, the birth too."""
    born = entry(partitions=2)
    asked = TopicSettings(partitions=9, replication_factor=1, fsync=False, retention_age_ms=60_000)
    change = decode_command(encode_command(ChangeTopic(born.topic_id, asked)))
    catalog = folded(CreateTopic(born), change)
    changed = catalog.topics["t"]
    assert changed is catalog.by_id(born.topic_id)
    assert changed.partitions == born.partitions
    assert changed.settings == TopicSettings(partitions=2, retention_age_ms=60_000)
    assert Catalog.from_bytes(catalog.to_bytes()).topics["t"] == changed


def test_an_alteration_counts_only_on_the_settings_that_it_was_made_for() -> None:
    """Two changes at once, made for the same settings: the first counts, and of the second nothing. What is
    fixed at birth stays, whatever the command has."""
    born = entry(partitions=2)
    fixed = {"partitions": 9, "fsync": False}
    more = TopicSettings(replication_factor=5, **fixed)  # type: ignore[arg-type]
    older = TopicSettings(retention_age_ms=60_000, **fixed)  # type: ignore[arg-type]
    first = AlterTopic(born.topic_id, born.settings, more)
    second = AlterTopic(born.topic_id, born.settings, older)
    assert [decode_command(encode_command(item)) for item in (first, second)] == [first, second]
    catalog = folded(CreateTopic(born), first)
    assert catalog.topics["t"].settings == TopicSettings(partitions=2, replication_factor=5)
    assert catalog.apply(2, second) == "other-settings"
    assert catalog.topics["t"].settings == TopicSettings(partitions=2, replication_factor=5)
    assert catalog.subject(second) is catalog.topics["t"]
    again = AlterTopic(born.topic_id, catalog.topics["t"].settings, older)
    assert catalog.apply(3, again) == "done"
    assert catalog.topics["t"].settings == TopicSettings(partitions=2, retention_age_ms=60_000)
    assert catalog.topics["t"].partitions == born.partitions
    assert Catalog.from_bytes(catalog.to_bytes()) == catalog


def test_a_change_of_a_deleted_topic_changes_nothing() -> None:
    """By id: a late change of the old topic must not touch a new one of the same name."""
    old, new = entry(number=1), entry(number=2)
    catalog = folded(CreateTopic(old), DeleteTopic(old.topic_id), CreateTopic(new))
    asked = TopicSettings(partitions=2, retention_bytes=1 << 21)
    assert catalog.apply(3, ChangeTopic(old.topic_id, asked)) == "unknown-id"
    assert catalog.apply(4, AlterTopic(old.topic_id, old.settings, asked)) == "unknown-id"
    assert catalog.topics["t"] == new


def test_what_a_patch_may_name() -> None:
    """What is named changes, what is not named stays, null takes a limit away."""
    current = TopicSettings(partitions=3, retention_age_ms=1_000, retention_bytes=1 << 30)
    changed = changed_settings(current, {"retention": {"age": "7d"}, "segment": {"bytes": 1 << 20}})
    assert (changed.retention_age_ms, changed.retention_bytes) == (7 * 86_400_000, 1 << 30)
    assert (changed.segment_bytes, changed.partitions) == (1 << 20, 3)
    assert changed_settings(current, {"retention": {"bytes": None}}).retention_bytes is None
    assert changed_settings(current, {"replication_factor": "all"}).replication_factor == "all"
    assert changed_settings(current, {"replication_factor": 7}).replication_factor == 7


@pytest.mark.parametrize(
    ("body", "hints"),
    [
        (None, ["nothing to change", "replication_factor"]),
        ({}, ["nothing to change"]),
        ({"partitions": 4}, ["'partitions' of an existing topic", "create another topic and copy"]),
        ({"fsync": False}, ["'fsync' of an existing topic"]),
        ({"kind": "log"}, ["'kind' of an existing topic"]),
        ({"retention": 7}, ["must be an object"]),
        ({"retention": {"hours": 1}}, ["'hours' in retention", "age, bytes"]),
        ({"retention": {"bites": 1}}, ["did you mean 'bytes'?"]),
        ({"segment": {"bytes": 1}}, ["bytes must be"]),
        ({"retention": {"age": "soon"}}, ["retention.age"]),
        ({"retention": {"acknowledged": "yes"}}, ["retention.acknowledged must be true or false"]),
        ({"replication_factor": 0}, ["1 to 7"]),
        ({"replication_factor": 8}, ["1 to 7"]),
        ({"replication_factor": None}, ["1 to 7"]),
        ({"replication_factor": True}, ["1 to 7"]),
        ({"replication-factor": 3}, ["did you mean 'replication_factor'?"]),
        ({"retension": {"age": "1d"}}, ["did you mean 'retention'?"]),
        ({"retention_age": "1d"}, ['did you mean {"retention": {"age": ...}}?']),
        ({"retention.bytes": 1}, ['did you mean {"retention": {"bytes": ...}}?']),
        ({"colour": "red"}, ["unknown setting 'colour': use replication_factor, retention, segment"]),
        ({"retention": {"age": "1d"}, "partitions": 4}, ["'partitions' of an existing topic"]),
    ],
)
def test_what_a_patch_may_not_name(body: dict[str, object] | None, hints: list[str]) -> None:
    """One clear refusal, with the name that was probably meant; nothing is changed by half."""
    with pytest.raises(ShoalError) as refused:
        changed_settings(TopicSettings(), body)
    assert refused.value.code == "bad-request"
    for hint in hints:
        assert hint in refused.value.detail


def test_settings_are_shown_with_their_defaults() -> None:
    """What differs from the default was set; what is fixed says so. Equal settings have one version."""
    settings = settings_from_body({"retention": {"age": "7d"}, "partitions": 6})[0]
    table = {row["name"]: row for row in settings_table(settings)}
    assert {name for name, row in table.items() if row["set"]} == {"retention.age", "partitions"}
    assert {name for name, row in table.items() if not row["changeable"]} == {"kind", "partitions", "fsync"}
    age = {"name": "retention.age", "value": "7d", "default": None, "set": True, "changeable": True}
    assert table["retention.age"] == age
    assert settings_version(settings) == settings_version(settings_from_body(settings.to_document())[0])
    assert settings_version(settings) != settings_version(TopicSettings(partitions=6))


def test_deletion_is_by_id_and_frees_the_name() -> None:
    """A late delete of the old topic must not touch the new one of the same name."""
    first, second = entry(number=1), entry(number=2)
    catalog = folded(CreateTopic(first), DeleteTopic(first.topic_id), CreateTopic(second))
    assert catalog.apply(3, DeleteTopic(first.topic_id)) == "unknown-id"
    assert catalog.topics == {"t": second}


def test_a_tombstone_waits_for_every_holder() -> None:
    """A returning agent must still learn that its replica is dead (safety 4)."""
    dead = entry()
    catalog = folded(CreateTopic(dead), DeleteTopic(dead.topic_id))
    for offset, agent in enumerate(AGENTS, start=2):
        assert catalog.tombstones[dead.topic_id].waiting_for == frozenset(AGENTS[offset - 2 :])
        assert catalog.apply(offset, ConfirmDeletion(dead.topic_id, agent)) == "done"
    assert not catalog.tombstones
    assert catalog.apply(5, ConfirmDeletion(dead.topic_id, AGENTS[0])) == "unknown-id"


def test_a_tombstone_waits_for_those_who_came_later_too() -> None:
    """Replicas move: whoever holds one when the topic dies must free its disk as well."""
    dead = entry()
    command = DeleteTopic(dead.topic_id, frozenset({"late" * 8, AGENTS[0]}))
    assert decode_command(encode_command(command)) == command
    older = {"v": 1, "op": "delete", "id": dead.topic_id.hex()}
    assert decode_command(json.dumps(older).encode()) == DeleteTopic(dead.topic_id)
    catalog = folded(CreateTopic(dead), command)
    assert catalog.tombstones[dead.topic_id].waiting_for == {*AGENTS, "late" * 8}


def test_a_seal_and_a_topic_exclude_each_other() -> None:
    """The order in the log decides; whichever comes second has no effect (safety 6)."""
    sealed = folded(Seal(b"s" * 16))
    assert sealed.apply(1, CreateTopic(entry())) == "sealed"
    assert not sealed.topics
    lived_in = folded(CreateTopic(entry()))
    assert lived_in.apply(1, Seal(b"s" * 16)) == "not-empty"
    assert lived_in.sealed_for is None


def test_replayed_offsets_change_nothing() -> None:
    """A voter restarts from its snapshot and is given the log from its start."""
    commands = [CreateTopic(entry()), DeleteTopic(entry().topic_id), CreateTopic(entry(number=2))]
    catalog = Catalog.from_bytes(folded(*commands).to_bytes())
    before = catalog.to_bytes()
    assert [catalog.apply(offset, command) for offset, command in enumerate(commands)] == [
        "already-applied"
    ] * 3
    assert catalog.to_bytes() == before


def test_a_gap_in_the_offsets_is_a_bug() -> None:
    """Never a fault to be survived: the state would no longer be the fold of the log."""
    with pytest.raises(AssertionError):
        Catalog().apply(1, CreateTopic(entry()))


names = st.sampled_from(["t", "u", "v"])
numbers = st.integers(1, 4)
factors = st.sampled_from([2, 3, "all"])
commands = st.one_of(
    st.builds(lambda name, number: CreateTopic(entry(name, number * 16 + ord(name) % 16)), names, numbers),
    st.builds(lambda name, number: DeleteTopic(bytes([number * 16 + ord(name) % 16]) * 16), names, numbers),
    st.builds(
        lambda name, number, agent: ConfirmDeletion(bytes([number * 16 + ord(name) % 16]) * 16, agent),
        names,
        numbers,
        st.sampled_from(AGENTS),
    ),
    st.builds(
        lambda name, number, before, after: AlterTopic(
            bytes([number * 16 + ord(name) % 16]) * 16,
            TopicSettings(partitions=2, replication_factor=before),
            TopicSettings(replication_factor=after),
        ),
        names,
        numbers,
        factors,
        factors,
    ),
    st.just(Seal(b"s" * 16)),
)


@given(st.lists(commands, max_size=40), st.integers(0, 40))
def test_any_log_folds_to_one_state(log: list[Command], cut: int) -> None:
    """Through bytes, and through a snapshot taken anywhere on the way."""
    seen: set[bytes] = set()
    catalog, other = Catalog(), Catalog()
    for offset, command in enumerate(log):
        if isinstance(command, CreateTopic):
            if command.entry.topic_id in seen:
                command = Seal(b"s" * 16)  # ids are random: none is ever used twice
            else:
                seen.add(command.entry.topic_id)
        if offset == cut:
            other = Catalog.from_bytes(other.to_bytes())
        outcome = catalog.apply(offset, command)
        catalog.check_invariants()
        assert other.apply(offset, decode_command(encode_command(command))) == outcome
    assert catalog == other
    assert Catalog.from_bytes(catalog.to_bytes()) == catalog


@given(
    st.binary(max_size=64)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(FIELDS),
                inner,
                max_size=6,
            )
        ),
        max_leaves=12,
    ).map(
        lambda document: json.dumps(document | {"v": 1} if isinstance(document, dict) else document).encode()
    )
)
def test_decoders_raise_their_one_error(data: bytes) -> None:
    """Whatever the bytes."""
    for decode in (decode_command, Catalog.from_bytes):
        with contextlib.suppress(CatalogError):
            decode(data)


def test_a_newer_version_is_refused_by_name() -> None:
    """An old agent must stop rather than fold half of the truth."""
    with pytest.raises(HigherLevel, match="install on its host the version"):
        decode_command(b'{"v":9999,"op":"create"}')


# ---- settings ------------------------------------------------------------------------------------


def test_settings_survive_their_document() -> None:
    """What the API shows can be put again and is equal."""
    body = {
        "kind": "log",
        "partitions": 6,
        "replication_factor": "all",
        "retention": {"age": "7d", "bytes": None, "hold_for_groups": True, "acknowledged": False},
        "segment": {"bytes": 1 << 20, "age": "90s"},
        "fsync": False,
    }
    settings, explicit = settings_from_body(body)
    assert explicit
    assert settings.to_document() == body
    assert settings_from_body(settings.to_document())[0] == settings
    assert settings_from_body(None) == (TopicSettings(), False)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"partition": 3}, "unknown field 'partition'"),
        ({"partitions": 0}, "from 1 to"),
        ({"partitions": "6"}, "whole number"),
        ({"partitions": True}, "whole number"),
        ({"replication_factor": 0}, "replication_factor"),
        ({"replication_factor": "some"}, "replication_factor"),
        ({"kind": "stack"}, "kind"),
        ({"retention": 7}, "retention must be an object"),
        ({"retention": {"days": 7}}, "'days' in retention"),
        ({"retention": {"age": "a week"}}, "retention.age"),
        ({"retention": {"age": 0}}, "one second"),
        ({"retention": {"bytes": 5}}, "retention.bytes"),
        ({"segment": {"bytes": 1}}, "segment.bytes must be"),
        ({"fsync": "yes"}, "fsync"),
    ],
)
def test_a_bad_body_says_which_field(body: dict[str, object], hint: str) -> None:
    """One problem, named, with what it may be."""
    with pytest.raises(ShoalError) as caught:
        settings_from_body(body)
    assert caught.value.code == "bad-request"
    assert hint in caught.value.detail


def test_differences_are_told_by_name() -> None:
    """409 topic-differs must say in what."""
    assert TopicSettings(partitions=6).differences(TopicSettings(partitions=3)) == [
        "partitions is 6, asked was 3"
    ]
    assert TopicSettings().differences(TopicSettings()) == []
    kept = TopicSettings(retention_age_ms=7 * 86_400_000, segment_bytes=1 << 20, fsync=False)
    assert kept.differences(TopicSettings(replication_factor="all")) == [
        "replication_factor is 3, asked was all",
        "retention.age is 7d, asked was none",
        "segment.bytes is 1048576, asked was 67108864",
        "fsync is false, asked was true",
    ]


def test_a_size_that_no_other_language_reads_is_refused_and_a_stored_one_is_read() -> None:
    """Of a request only: a catalog that holds such goes on."""
    huge = {"retention": {"bytes": 1 << 53}}
    for body in (huge, {"replication_factor": 1} | huge):
        with pytest.raises(ShoalError, match=r"retention\.bytes must be null or at most 9007199254740991"):
            changed_settings(TopicSettings(), body)
    stored, _ = settings_from_body(huge)
    with pytest.raises(ShoalError, match="at most 9007199254740991"):
        check_sizes(stored)
    assert changed_settings(stored, {"replication_factor": 1}).retention_bytes == 1 << 53
    check_sizes(changed_settings(stored, {"retention": {"bytes": (1 << 53) - 1}}))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_legal_names(name: str) -> None:
    """The alphabet of docs/http.md, at its bounds."""
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "_mine", "a\n"])
def test_illegal_names(name: str) -> None:
    """Each by its own rule."""
    with pytest.raises(ShoalError) as caught:
        check_topic_name(name)
    assert caught.value.code == "illegal-name"


@pytest.mark.parametrize(
    ("factor", "live", "wanted"),
    [(3, 1, 1), (3, 2, 2), (3, 9, 3), ("all", 1, 1), ("all", 2, 2), ("all", 4, 3), ("all", 9, 5)],
)
def test_wanted_replicas(factor: object, live: int, wanted: int) -> None:
    """A target, as far as there are members; `all` is at most five voters, and never four."""
    assert settings_from_body({"replication_factor": factor})[0].wanted_replicas(live) == wanted


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(None, None), (604_800_000, "7d"), (5_400_000, "90m"), (1_500, "1500ms"), (30_000, "30s")],
)
def test_durations_are_shown_short(duration_ms: int | None, text: str | None) -> None:
    """In the largest unit that is exact."""
    assert format_duration(duration_ms) == text


def test_settings_of_a_later_level_stand_in_the_catalog_where_they_are_set() -> None:
    """Agents of former levels read all other topics; a change of the first level leaves them as they are."""
    plain, held = TopicSettings(), TopicSettings(hold_for_groups=True)
    assert plain.to_catalog()["retention"] == {"age": None, "bytes": None}
    assert held.to_catalog()["retention"] == {"age": None, "bytes": None, "hold_for_groups": True}
    for settings in (plain, held, TopicSettings(acknowledged=True)):
        assert settings_from_body(settings.to_catalog())[0] == settings
    assert settings_version(plain) != settings_version(held)
    later = level_of(AdditionKind.TOPIC_SETTING, "retention.hold_for_groups")
    made = entry()
    alter = AlterTopic(made.topic_id, made.settings, replace(made.settings, hold_for_groups=True))
    create = CreateTopic(replace(made, settings=replace(made.settings, acknowledged=True)))
    assert {level_of_command(command) for command in (alter, create)} == {later}
    assert level_of_command(AlterTopic(made.topic_id, made.settings, made.settings)) < later
    catalog = folded(
        CreateTopic(made), alter, ChangeTopic(made.topic_id, replace(made.settings, segment_age_ms=7_000))
    )
    assert catalog.topics["t"].settings.hold_for_groups
    assert catalog.topics["t"].settings.segment_age_ms == 7_000
    again = Catalog.from_bytes(catalog.to_bytes())
    assert again.topics["t"] == catalog.topics["t"]
    assert changed_settings(held, {"retention": {"age": "7d"}}).hold_for_groups
    assert not changed_settings(held, {"retention": {"hold_for_groups": False}}).hold_for_groups
