"""The long search over the membership core: one seed after the other, each with everything there is.

Law of this file: which runs make up a seed's share, and what must hold of their numbers. `scripts/campaign
membership` repeats it for hours; a failure names the run that replays it.
"""

from collections.abc import Callable, Iterator

from shoal.membership.config import GossipConfig
from tests.membership.chaos import Chaos
from tests.membership.experiments import Profile, expected_failed_probes, run_death, run_loss
from tests.membership.slowness import PAPER_REDUCTION, run_slow_members

CHAOS_PER_SHARE = 20
HOUR_MS = 3_600_000
DEATHS = ((3, 10), (10, 10), (50, 5), (200, 2), (1_000, 1))
PROFILES: tuple[Profile, ...] = (GossipConfig.lan, GossipConfig.local)


def chaos(seed: int) -> int:
    """How many faults it took without harm."""
    run = Chaos(seed)
    run.run()
    return run.faults


def deaths(seed: int, members: int, count: int, profile: Profile) -> int:
    """Everybody sees each death within the bound, and accuses nobody else."""
    for number in range(count):
        run = run_death(seed + number, members, profile)
        assert run.others_failed == 0, run
    return count


def hour_of_loss(seed: int, members: int, profile: Profile) -> int:
    """A simulated hour at 5 % loss, without a death."""
    run = run_loss(seed, members, profile, 0.05, HOUR_MS)
    assert run.deaths == 0, run
    assert run.all_alive, run
    return run.failed_probes


def ten_percent(seed: int, members: int, profile: Profile) -> int:
    """Fewer probes fail than SWIM's arithmetic has it, and nobody is buried by it."""
    run = run_loss(seed, members, profile, 0.1, HOUR_MS // 12)
    assert run.deaths == 0, run
    assert run.failed_probes < run.probes * expected_failed_probes(profile, 0.1), run
    return run.failed_probes


def slowness(seed: int, members: int, slow: int) -> int:
    """The Lifeguard paper's experiment, and more than the paper's gain."""
    without = run_slow_members(seed, lifeguard=False, members=members, slow=slow)
    lifeguard = run_slow_members(seed, lifeguard=True, members=members, slow=slow)
    assert lifeguard.false_positives * PAPER_REDUCTION <= without.false_positives, (without, lifeguard)
    return slow


def share(seed: int) -> Iterator[tuple[str, Callable[[], int]]]:
    """Everything of one seed: a name to find it again by, and the run, which gives the faults it took."""
    for number in range(seed, seed + CHAOS_PER_SHARE):
        yield f"Chaos({number})", lambda number=number: chaos(number)
    profile = PROFILES[seed // CHAOS_PER_SHARE % 2]
    for members, count in DEATHS:
        name = f"deaths({seed}, {members}, {count}, {profile.__name__})"
        yield name, lambda members=members, count=count: deaths(seed, members, count, profile)
    for members in (3, 8):
        name = f"hour_of_loss({seed}, {members}, {profile.__name__})"
        yield name, lambda members=members: hour_of_loss(seed, members, profile)
    yield f"ten_percent({seed}, 20, {profile.__name__})", lambda: ten_percent(seed, 20, profile)
    yield f"slowness({seed}, 64, 8)", lambda: slowness(seed, 64, 8)
