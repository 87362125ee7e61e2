"""Checkpoints of the third version: sections, and who writes and reads them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition.state.checkpoint import CHECKPOINT_VERSION, Checkpoint, FoldError
from shoal.agent.partition.state.idempotence import ProducerTable
from shoal.format.batch import LogIndex, Offset, Term
from shoal.replication.interfaces import Configuration

CONFIGURATION = Configuration.birth(("a" * 32,))
BARE = Checkpoint(LogIndex(4), Term(2), Offset(9), 5, CONFIGURATION, ProducerTable().to_bytes(), b"", 6)
GROUPS = BARE._replace(group_state=b"groups")
HEAD = struct.Struct("<4sHHqqqqqII")
SECTION = struct.Struct("<HHI")


def of_sections(*sections: tuple[int, bytes], flags: int = 0, count: int | None = None) -> bytes:
    """A checkpoint of the third version that this version need not have written."""
    total = len(sections) if count is None else count
    head = HEAD.pack(b"SHCP", 3, flags, 4, 2, 9, 5, 6, total, 0)
    return head + b"".join(SECTION.pack(kind, 0, len(data)) + data for kind, data in sections)


def version_of(data: bytes) -> int:
    return struct.unpack_from("<H", data, 4)[0]  # type: ignore[no-any-return]


def test_the_third_version_is_written_only_where_there_are_groups() -> None:
    """A group is there only once the cluster's level is raised: agents of former levels read all others."""
    assert CHECKPOINT_VERSION == 3
    assert version_of(BARE.to_bytes()) == 2
    assert version_of(GROUPS.to_bytes()) == 3
    for checkpoint in (BARE, GROUPS):
        assert Checkpoint.from_bytes(checkpoint.to_bytes() + bytes(7)) == checkpoint


CONFIGURED = (1, CONFIGURATION.to_bytes())
PRODUCED = (2, BARE.producers)
GROUPED = (3, b"groups")


def test_sections_are_what_the_format_says() -> None:
    """Type, length and bytes, one behind the other; that of groups may be missing."""
    assert of_sections(CONFIGURED, PRODUCED, GROUPED) == GROUPS.to_bytes()
    assert Checkpoint.from_bytes(of_sections(CONFIGURED, PRODUCED)) == BARE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (of_sections(CONFIGURED, PRODUCED, (4, b"inherited")), "of a later level: section 4"),
        (of_sections(CONFIGURED, PRODUCED, GROUPED, flags=1), "of a later level"),
        (of_sections(CONFIGURED, PRODUCED, GROUPED, count=9), "of a later level"),
        (of_sections(PRODUCED, CONFIGURED), "out of order"),
        (of_sections(CONFIGURED, CONFIGURED), "out of order"),
        (of_sections(CONFIGURED, GROUPED), "without section"),
        (of_sections(CONFIGURED, PRODUCED, count=3), "ends within its sections"),
        (of_sections(CONFIGURED, PRODUCED, GROUPED)[:-1], "too long"),
        (GROUPS.to_bytes() + b"\1", "differ"),
    ],
)
def test_other_sections_are_refused(data: bytes, reason: str) -> None:
    """A later level may have more of them, and what they hold would be lost."""
    with pytest.raises(FoldError, match=reason):
        Checkpoint.from_bytes(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_flipped_and_cut_ones_raise_one_error(position: int, value: int) -> None:
    """Or are another checkpoint."""
    good = GROUPS.to_bytes()
    mutated = bytearray(good)
    mutated[position % len(good)] = value
    for hostile in (bytes(mutated), good[: position % len(good)]):
        try:
            Checkpoint.from_bytes(hostile)
        except FoldError:
            continue
