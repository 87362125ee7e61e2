"""Long walks beside a sorted list, as the campaign `timers` has them."""

from __future__ import annotations

import pytest

from tests.agent.views.view_walk import walk


@pytest.mark.parametrize("seed", range(3))
async def test_a_view_gives_what_a_sorted_list_gives_under_every_fault(seed: int) -> None:
    """Power failures and damage between appends, runs and merges."""
    assert await walk(seed, 60) > 5
