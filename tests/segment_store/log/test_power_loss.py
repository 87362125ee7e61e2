"""The power fails: at any operation of many lives, and at every operation of one trace."""

import pytest
from power_loss import UNSYNCED, run_life, run_prefixes


@pytest.mark.parametrize("block", range(8))
def test_power_loss(block: int) -> None:
    """Twenty lives with up to eight power failures each, from seeds."""
    for seed in range(block * 20, block * 20 + 20):
        run_life(seed)


@pytest.mark.parametrize("block", range(2))
def test_power_loss_without_fsync(block: int) -> None:
    """A log that does not sync may lose its end, never its middle."""
    for seed in range(block * 20, block * 20 + 20):
        run_life(seed, UNSYNCED)


def test_every_prefix_of_a_trace_in_several_orders() -> None:
    """200 operations, the power fails after each of them, and five times keeps other sectors: a thousand
    failures."""
    assert run_prefixes(seed=7, operations=200, orders=5) == 1000
