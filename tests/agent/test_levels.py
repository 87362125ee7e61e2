"""The list of levels, held against the code; ranges as text; and when a level rises by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import level_reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.addresses import HOST_NAME_CHARACTERS_MAX
from shoal.agent import levels
from shoal.agent.config import MAX_NAME_CHARACTERS
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.levels import (
    ADDITIONS,
    BEFORE_LEVELS,
    HOLD,
    RAISE_AFTER_MS,
    SUPPORTED,
    AdditionKind,
    Level,
    LevelRange,
    RaiseTimer,
    common_level,
    level_in,
    range_from_text,
    refusal,
)
from shoal.agent.members.tags import TAG_HOST, TAGS, check_length
from shoal.agent.partition.state import checkpoint
from shoal.agent.peers.frames import FrameType
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.errors import StartError
from shoal.agent.receive import GroupKey
from shoal.agent.security.access import AskedBy
from shoal.agent.security.principals import (
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    PutPrincipal,
    PutRole,
    RevokeToken,
)
from shoal.agent.security.sessions import EndSession, MakeSessionKey
from shoal.agent.topics.catalog import (
    AlterTopic,
    BeginEpoch,
    Births,
    ChangeTopic,
    Command,
    ConfirmBirths,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    RaiseLevel,
    Rebirth,
    RepeatBirths,
    Seal,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import encode_command, level_of_command
from shoal.agent.topics.entries import PartitionBirth
from shoal.agent.topics.groups_catalog import MAC_BYTES, ChangeGroup, CreateGroup, DeleteGroup, GroupEntry
from shoal.agent.topics.settings import LATER_SETTINGS, TopicSettings, served_kinds
from shoal.format.batch import Kind
from shoal.format.hash_ranges import hash_ranges
from shoal.membership.wire.serf import encode_tags

UNWRITTEN_KINDS = {"SEAL"}
"""Numbers that are reserved. Who writes one first gives it a level."""
ID = b"i" * 16
levels_1_to_9 = st.integers(1, 9).map(Level)
ranges = st.builds(lambda one, two: LevelRange(min(one, two), max(one, two)), levels_1_to_9, levels_1_to_9)


def commands() -> Iterator[Command]:
    """One of each."""
    births = (PartitionBirth(hash_ranges(1)[0], ("a" * 32,)),)
    yield CreateTopic(TopicEntry("t", ID, TopicSettings(), births, 0))
    yield ChangeTopic(ID, TopicSettings())
    yield AlterTopic(ID, TopicSettings(), TopicSettings(replication_factor=1))
    yield DeleteTopic(ID)
    yield ConfirmDeletion(ID, "a" * 32)
    yield Seal(ID)
    yield BeginEpoch(1, ID)
    yield ConfirmBirths((Births(ID, 0, 1),))
    yield RepeatBirths(ID, (Rebirth(0, 1, ("a" * 32,)),))
    yield RaiseLevel(Level(2))
    group = GroupEntry("g", GroupKey(ID), bytes(MAC_BYTES), GroupSettings())
    yield CreateGroup(ID, group)
    yield ChangeGroup(ID, group.key, group.settings, GroupSettings(paused=True))
    yield DeleteGroup(ID, group.key)
    by = AskedBy("ann", "token", "127.0.0.1", 1, "r")
    yield PutPrincipal("bob", None, ("viewer",), (), by)
    yield DeletePrincipal("bob", (0, 1), by)
    yield PutRole("clerk", None, (), by)
    yield DeleteRole("clerk", (0, 1), by)
    yield MakeToken("bob", "a" * 8, bytes(32), None, by)
    yield RevokeToken("a" * 8, by)
    yield MakeSessionKey("a" * 8, bytes(32), None, by)
    yield EndSession("a" * 16, "bob", 1, by)


def listed(kind: AdditionKind) -> set[str]:
    return {addition.name for addition in ADDITIONS if addition.kind is kind}


def test_one_of_each_command_is_tried() -> None:
    """A new command has to come here, and so into the list."""
    assert {type(command) for command in commands()} == set(Command.__args__)


def test_everything_that_is_written_or_sent_stands_in_a_level() -> None:
    """And nothing else does."""
    operations = {json.loads(encode_command(command))["op"] for command in commands()}
    assert listed(AdditionKind.CATALOG_COMMAND) == operations
    kinds = {f"kind.{kind}" for kind in served_kinds()} - {"kind.log"}
    settings = {*TopicSettings().to_catalog(), *LATER_SETTINGS, *kinds}
    assert listed(AdditionKind.TOPIC_SETTING) == settings
    assert listed(AdditionKind.ENTRY_KIND) == {kind.name for kind in Kind} - UNWRITTEN_KINDS
    assert listed(AdditionKind.LINK_FRAME) == {frame.name for frame in FrameType}
    assert listed(AdditionKind.LINK_MESSAGE) == {message.name for message in PeerMessage}
    assert listed(AdditionKind.GOSSIP_TAG) == TAGS
    versions = range(1, checkpoint.CHECKPOINT_VERSION + 1)
    assert listed(AdditionKind.CHECKPOINT) == {str(version) for version in versions}


def test_a_command_says_the_level_of_its_line_in_the_list() -> None:
    """An agent that does not understand it stops before it."""
    kind = AdditionKind.CATALOG_COMMAND
    of = {addition.name: addition.level for addition in ADDITIONS if addition.kind is kind}
    for command in commands():
        document = json.loads(encode_command(command))
        assert document["v"] == level_of_command(command) == of[document["op"]]


GUARDED = {
    AdditionKind.CATALOG_COMMAND,
    AdditionKind.TOPIC_SETTING,
    AdditionKind.GOSSIP_TAG,
    AdditionKind.ENTRY_KIND,
    AdditionKind.CHECKPOINT,
    AdditionKind.LINK_MESSAGE,
}
"""CatalogService.propose() refuses commands above the cluster's level. Unknown tags are passed over. Entries
and checkpoints of groups: test_a_group_begins_only_at_its_level, and
test_the_third_version_is_written_only_where_there_are_groups. Views are asked for by replicas of topics that
have them, which are of this level: test_only_a_topic_with_a_view_asks_for_runs. Letters: of messages of
groups alone."""


def test_nothing_stands_above_the_first_level_without_a_guard() -> None:
    """Whoever adds an entry, a checkpoint, a frame or a message writes or sends it only once the cluster is
    at its level, shows that by a test, and names its kind here."""
    assert {addition.kind for addition in ADDITIONS if addition.level > 1} <= GUARDED


def test_the_tags_of_an_agent_with_the_longest_names_fit() -> None:
    """Beside the levels, in 512 bytes: an upgrade must not keep a host from starting. A DNS name is new; one
    that does not fit is refused."""
    longest = "n" * MAX_NAME_CHARACTERS
    values = {
        "v": "100.100.100", "name": longest, "cl": longest, "cid": "c" * 32, "fd": longest, "w": "10000",
        "url": "http://[2001:0db8:0000:0000:0000:ff00:0042:8329]:65535", "dr": "1", "boot": "b" * 16,
        "pv": f"99.{2**53}", "cv": f"{2**53:x}.{2**53}", "nt": "1",
        "lv": f"{levels.MAX_LEVEL}-{levels.MAX_LEVEL}{HOLD}",
    }  # fmt: skip
    assert set(values) | {TAG_HOST} == TAGS
    assert len(encode_tags(values)) <= 512
    check_length({**values, TAG_HOST: "h" * 16})
    with pytest.raises(StartError, match="shorten --advertise, --name"):
        check_length({**values, TAG_HOST: "h" * HOST_NAME_CHARACTERS_MAX})


def test_levels_are_counted_from_one_without_a_gap_and_each_line_says_something() -> None:
    """The number is all that agents exchange."""
    assert sorted({addition.level for addition in ADDITIONS}) == list(range(1, SUPPORTED.highest + 1))
    assert len({(addition.kind, addition.name) for addition in ADDITIONS}) == len(ADDITIONS)
    assert all(len(addition.sentence.split()) > 1 for addition in ADDITIONS)


@given(ranges, st.booleans())
def test_a_range_comes_back_from_its_text(given_range: LevelRange, held: bool) -> None:
    """Of a tag, and of a header."""
    assert range_from_text(f"{given_range}{HOLD if held else ''}") == given_range


@given(st.text(max_size=12) | st.none())
def test_a_text_that_is_no_range_is_of_before_levels(text: str | None) -> None:
    """Agents of before levels send none."""
    found = range_from_text(text)
    assert found == BEFORE_LEVELS or (text is not None and str(found) in text)
    assert 1 <= found.lowest <= found.highest


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, levels.MAX_LEVEL + 1])
def test_what_is_no_level_is_none(value: object) -> None:
    """As documents may have it."""
    assert level_in(value) is None


@given(st.lists(ranges, max_size=5))
def test_the_common_level_is_the_highest_that_all_understand(understood: list[LevelRange]) -> None:
    """None for nobody, and for ranges without a common number."""
    good = [level for level in map(Level, range(1, 10)) if all(item.has(level) for item in understood)]
    assert common_level(understood) == (max(good) if good and understood else None)


def test_a_refusal_says_which_side_is_older() -> None:
    """One is upgraded, the other comes too early."""
    assert refusal(LevelRange(Level(1), Level(3)), Level(3)) is None
    older = refusal(LevelRange(Level(1), Level(2)), Level(3))
    newer = refusal(LevelRange(Level(3), Level(4)), Level(1))
    assert older is not None
    assert "level 3, and the agent understands 1 to 2: install on its host the version" in older
    assert newer is not None
    assert "an older version of Shoal on its host first" in newer


def test_the_page_of_formats_has_the_list() -> None:
    """If this fails: `python scripts/level_reference.py` writes the table anew."""
    page = level_reference.PAGE.read_text()
    assert page == level_reference.with_table(page)


# ---- when it rises -------------------------------------------------------------------------------

OLD, NEW, NEWEST = (LevelRange(Level(1), Level(highest)) for highest in (1, 2, 3))
ONE, TWO, THREE = Level(1), Level(2), Level(3)


def test_a_level_rises_once_all_have_understood_it_for_a_minute() -> None:
    """Until then the former version may come back."""
    timer = RaiseTimer()
    assert timer.look(0, ONE, [NEW, OLD], held=False, is_new=False) is None
    assert timer.look(1_000, ONE, [NEW, NEWEST], held=False, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS + 999, ONE, [NEW, NEW], held=False, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS + 1_000, ONE, [NEW, NEW], held=False, is_new=False) == TWO
    assert timer.look(RAISE_AFTER_MS + 1_001, TWO, [NEW, NEW], held=False, is_new=False) is None


@pytest.mark.parametrize("held", [False, True])
def test_the_minute_begins_anew_after_a_member_of_the_former_version_or_a_hold(held: bool) -> None:
    """A failed member counts as it last said, so that this is no matter of who is alive."""
    timer = RaiseTimer()
    assert timer.look(0, ONE, [NEW], held=False, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS, ONE, [NEW] if held else [NEW, OLD], held=held, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS + 1, ONE, [NEW], held=False, is_new=False) is None
    assert timer.look(2 * RAISE_AFTER_MS, ONE, [NEW], held=False, is_new=False) is None
    assert timer.look(2 * RAISE_AFTER_MS + 1, ONE, [NEW], held=False, is_new=False) == TWO


def test_a_higher_target_waits_for_its_own_minute() -> None:
    """The last host to be upgraded to the newest may be rolled back as any other."""
    timer = RaiseTimer()
    assert timer.look(0, ONE, [NEW], held=False, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS - 1, ONE, [NEWEST], held=False, is_new=False) is None
    assert timer.look(RAISE_AFTER_MS, ONE, [NEWEST], held=False, is_new=False) is None
    assert timer.look(2 * RAISE_AFTER_MS, ONE, [NEWEST], held=False, is_new=False) == THREE


def test_a_new_cluster_has_the_highest_level_at_once() -> None:
    """No former version has been there; but a hold holds."""
    assert RaiseTimer().look(0, ONE, [NEW, NEW], held=False, is_new=True) == TWO
    assert RaiseTimer().look(0, ONE, [NEW, NEW], held=True, is_new=True) is None
    assert RaiseTimer().look(0, ONE, [], held=False, is_new=True) is None


@given(st.lists(st.tuples(st.integers(0, 2 * RAISE_AFTER_MS), st.lists(ranges, max_size=3), st.booleans())))
def test_no_history_raises_a_level_that_somebody_does_not_understand(
    history: list[tuple[int, list[LevelRange], bool]],
) -> None:
    """Nor lowers one, nor one that was not understood for a minute without a break."""
    timer, now_ms, level = RaiseTimer(), 0, ONE
    since_ms: dict[Level, int] = {}
    for step_ms, understood, held in history:
        now_ms += step_ms
        common = common_level(understood)
        since_ms = {} if held or common is None else {common: since_ms.get(common, now_ms)}
        found = timer.look(now_ms, level, understood, held=held, is_new=False)
        if found is not None:
            assert found > level
            assert all(item.has(found) for item in understood)
            assert now_ms - since_ms[found] >= RAISE_AFTER_MS
            level = found
