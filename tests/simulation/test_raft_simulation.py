"""The Raft core under every fault the simulation knows: safety while it lasts, liveness when it ends."""

from __future__ import annotations

import time

import pytest
from raft_sim.knobs import Knobs
from raft_sim.simulation import Simulation

SEED_COUNT = 100  # about 25 s on one core; scripts/simulate runs any other
SEEDS_PER_TEST = 10
SECONDS_MAX = 60  # a seed more is not begun after that: a slow machine runs fewer, and says so


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, SEEDS_PER_TEST))
def test_invariants_hold_after_every_event(first_seed: int) -> None:
    """Ten seeds: no invariant breaks, and after the faults the group elects, commits and agrees."""
    started = time.monotonic()
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except AssertionError as error:
            error.add_note(f"replay: scripts/simulate --core --seed {seed}")
            raise
        assert simulation.acknowledged_count > 0
        if time.monotonic() - started > SECONDS_MAX:
            print(f"slow machine: seeds {seed + 1} to {first_seed + SEEDS_PER_TEST - 1} were left out")
            break


def test_a_seed_decides_everything() -> None:
    """Two runs of one seed print the same trace, so that any failure can be seen again."""
    traces = []
    for _ in range(2):
        lines: list[str] = []
        simulation = Simulation(3, print_line=lines.append)
        simulation.run()
        traces.append((lines, simulation.summary()))
    assert traces[0] == traces[1]
    assert len(traces[0][0]) > 100


def test_seeds_differ_and_cover_the_faults() -> None:
    """The knobs of the seeds that the tests run switch every fault on somewhere, and off somewhere else."""
    drawn = [Knobs.of_seed(seed) for seed in range(SEED_COUNT)]
    for name in (
        "crashes",
        "partitions",
        "pauses",
        "membership",
        "transfers",
        "retention",
        "pre_vote",
        "rot",
    ):
        assert {getattr(knobs, name) for knobs in drawn} == {True, False}
    for name in ("loss", "duplication", "straggler", "late_drain", "shorten", "idle"):
        values = {getattr(knobs, name) for knobs in drawn}
        assert 0 in values
        assert len(values) > 1
    assert {knobs.voters for knobs in drawn} == {3, 5}


def test_seeds_ship_segments() -> None:
    """Retention overtakes some follower in some seed, and it comes back by way of whole segments (safety
    27)."""
    shipped = 0
    for seed in (seed for seed in range(SEED_COUNT) if Knobs.of_seed(seed).retention):
        simulation = Simulation(seed)
        simulation.run()
        shipped += simulation.installed_count
        if shipped:
            break
    assert shipped


def test_idle_groups_go_quiet_and_wake() -> None:
    """A healthy idle group stops all messages (safety 25), and the death of its leader still ends its
    rule."""
    simulation = Simulation(1, knobs=calm_knobs())
    simulation.run_until(lambda: simulation.acknowledged_count > 10, 10_000)
    simulation.stop_clients()
    simulation.run_until(simulation.is_quiet, 10_000)
    assert simulation.is_quiet()
    sent = simulation.sent_count
    simulation.run_until(lambda: False, 5000)
    assert simulation.sent_count == sent, "a quiet group sends nothing"
    leader = simulation.newest_leader()
    assert leader is not None
    simulation.crash(leader.agent.name, down_ms=60_000)
    simulation.run_until(lambda: simulation.newest_leader() is not None, 5000)
    assert simulation.newest_leader() is not None, "the silence of its agent wakes the group"


def test_a_quiet_group_notices_a_restarted_leader() -> None:
    """A leader that crashes and is back before anybody misses it leads no more: the new boot nonce says
    so."""
    simulation = Simulation(2, knobs=calm_knobs())
    simulation.run_until(lambda: simulation.acknowledged_count > 10, 10_000)
    simulation.stop_clients()
    simulation.run_until(simulation.is_quiet, 10_000)
    leader = simulation.newest_leader()
    assert leader is not None
    term = leader.core.term
    simulation.crash(leader.agent.name, down_ms=20)
    assert simulation.run_until(
        lambda: (new := simulation.newest_leader()) is not None and new.core.term > term, 5000
    )


def calm_knobs() -> Knobs:
    """A healthy network, and no faults."""
    return Knobs(
        voters=3,
        safety_ms=1000,
        loss=0,
        duplication=0,
        delay_ms_max=2,
        straggler=0,
        straggler_ms_max=100,
        sync_ms_max=3,
        fault_interval_ms=10_000_000,
        proposal_interval_ms=20,
        read_interval_ms=50,
        late_drain=0,
        shorten=0,
        max_entries_per_append=256,
        max_inflight_appends=64,
        commit_notice_ms=10,
        quiet_after_ms=600,
        idle=0,
        pre_vote=True,
        crashes=False,
        partitions=False,
        pauses=False,
        membership=False,
        transfers=False,
        retention=False,
    )
