"""The fold of a log's own entries follows the log's end, its commits and its checkpoints."""

from __future__ import annotations

import pytest

from shoal.agent.partition.state.checkpoint import FoldError
from shoal.agent.partition.state.log_state import PartitionState
from shoal.format.batch import Flag, Kind, LogIndex
from tests.agent.partition.state.test_log_state import BIRTH, Writer
from tests.agent.text_fold import TextFold


def written(fold: TextFold) -> tuple[PartitionState, Writer]:
    """Records between three entries of its own."""
    state = PartitionState(BIRTH, fold)
    writer = Writer(state)
    writer.control(Kind.CHECKPOINT, state.checkpoint().to_bytes(), flags=Flag.FIRST_OF_SEGMENT)
    for text in ("one", "two", "three"):
        writer.control(Kind.GROUP_STATE, text.encode())
        writer.data()
    return state, writer


def test_what_is_cut_is_undone_and_what_is_committed_is_not() -> None:
    """Entries 2, 4 and 6 are the fold's."""
    fold = TextFold()
    state, writer = written(fold)
    assert fold.texts == ["one", "two", "three"]
    state.commit(LogIndex(3))
    assert fold.undoable == [4, 6]
    state.truncate(LogIndex(5))
    assert fold.texts == ["one", "two"]
    state.truncate(LogIndex(4))
    assert fold.texts == ["one"]
    writer.control(Kind.GROUP_STATE, b"another")
    assert fold.texts == ["one", "another"]
    state.commit(LogIndex(99))
    assert fold.undoable == []


def test_a_checkpoint_has_it_and_a_restart_begins_with_it() -> None:
    """The same as folding everything."""
    state, writer = written(TextFold())
    head = writer.control(Kind.CHECKPOINT, state.checkpoint().to_bytes(), flags=Flag.FIRST_OF_SEGMENT)
    fold = TextFold()
    restored = PartitionState(BIRTH, fold)
    restored.start_from(head)
    assert fold.texts == ["one", "two", "three"]
    assert restored.checkpoint() == state.checkpoint()


def test_an_entry_that_cannot_be_read_is_damage_and_changes_nothing() -> None:
    """The log stays where it was."""
    fold = TextFold()
    state, writer = written(fold)
    before = state.tail
    with pytest.raises(FoldError, match="entry 8"):
        writer.control(Kind.GROUP_STATE, b"\xff\xff")
    assert (state.tail, fold.texts) == (before, ["one", "two", "three"])


def test_a_log_without_such_entries_refuses_them() -> None:
    """As the catalog's log does: an entry there, or in a checkpoint, is damage."""
    state, writer = written(TextFold())
    head = writer.control(Kind.CHECKPOINT, state.checkpoint().to_bytes(), flags=Flag.FIRST_OF_SEGMENT)
    with pytest.raises(FoldError, match="does not have"):
        PartitionState(BIRTH).start_from(head)
    bare = PartitionState(BIRTH)
    with pytest.raises(FoldError, match="kind GROUP_STATE in a log that has none"):
        Writer(bare).control(Kind.GROUP_STATE, b"one")
