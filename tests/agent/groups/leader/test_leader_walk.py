"""Walks of a group under its leaders, with tiny bounds, slow feeds, operators and leaders that come late."""

from __future__ import annotations

import pytest

from shoal.agent.receive import GroupMode
from tests.agent.groups.leader.leader_walk import walk

SEEDS = 40
STEPS = 100


@pytest.mark.parametrize("by_due", [False, True])
@pytest.mark.parametrize("mode", list(GroupMode))
def test_what_is_promised_holds_on_every_way(mode: GroupMode, by_due: bool) -> None:
    """Nothing is lost, given twice, early, out of order or too often; in the end everything is done with."""
    for seed in range(SEEDS):
        walk(seed, STEPS, mode, by_due=by_due)
