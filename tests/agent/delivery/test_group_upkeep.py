"""Operations that a leader appends unasked, for records that nobody can read any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.delivery.group_upkeep import GroupUpkeep
from shoal.agent.groups.entry import Begin, Lost
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.place import EntryStamp
from shoal.agent.groups.settings import GroupPlan, GroupPlans, GroupSettings
from shoal.agent.levels import Level
from shoal.agent.receive import Range
from shoal.format.batch import LogIndex, Offset
from tests.agent.groups.group_desk import KEY


@pytest.mark.parametrize("by_due", [False, True])
def test_quarantined_records_are_lost_where_offsets_are_places(by_due: bool) -> None:
    """Where due times are, the view knows what can be read: no operation is made again and again."""
    fold = GroupFold(by_due=by_due)
    stamp = EntryStamp(LogIndex(1), Offset(9), 1_000_000)
    assert fold.stage(KEY, [Begin((1, 1))], stamp) == [True]
    fold.fold(stamp, fold.staged_entry())  # type: ignore[arg-type]
    damage = SimpleNamespace(first_index=3, last_index=3, first_offset=5, end_offset=8)
    replica: Any = SimpleNamespace(
        plan=SimpleNamespace(quarantined=frozenset({3})),
        log=SimpleNamespace(start_offset=0),
        damaged_ranges=[damage],
    )
    plan = GroupPlan(KEY, "g", GroupSettings(), b"mac", (1, 1))
    plans = GroupPlans({KEY: plan}, (1, 1), Level(3), 1)
    found = list(GroupUpkeep(replica, fold).due(plans))
    assert found == ([] if by_due else [(KEY, Lost((Range(0, 5, 3),)))])
