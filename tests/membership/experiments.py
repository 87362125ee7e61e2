"""Measured runs of a simulated pool: how soon a death is seen, and who is accused falsely under loss.

Law of this file: it builds a pool, does one thing to it and gives the numbers; what they must be is the
tests' and the campaign's business.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.membership.config import GossipConfig
from shoal.membership.serf.ready import EventKind
from tests.membership.bounds import seen_by_all_bound_ms
from tests.membership.pool import Pool

Profile = Callable[..., GossipConfig]


def odds_of_a_lost_handshake(loss: float) -> float:
    """A ping over TCP comes too late when its SYN or the answer to it is lost: that costs a second."""
    return 1 - (1 - loss) ** 2


@dataclass(frozen=True)
class Detection:
    """Milliseconds from the death until the first and until the last survivor showed it; who else was
    accused."""

    first_ms: int
    last_ms: int
    bound_ms: int
    others_failed: int


def run_death(seed: int, members: int, profile: Profile) -> Detection:
    """Kill one member of a pool at peace. Raises AssertionError when somebody has not seen it in time."""
    config = profile(name="n")
    bound_ms = seen_by_all_bound_ms(config, members)
    pool = Pool(members, seed, profile=profile, check_every=5_000, acquainted=True)
    pool.run_for(pool.rng.randrange(1_000, 3_000))
    pool.kill("n1")
    killed_ms = pool.now_ms
    pool.run_until(lambda: pool.count(EventKind.FAILED) >= members - 1, bound_ms)
    seen = sorted(
        heard.at_ms - killed_ms
        for heard in pool.heard
        if heard.kind is EventKind.FAILED and heard.member == "n1"
    )
    assert len(seen) == members - 1, f"seen by {len(seen)} of {members - 1}"
    return Detection(seen[0], seen[-1], bound_ms, pool.count(EventKind.FAILED) - len(seen))


@dataclass(frozen=True)
class UnderLoss:
    """What a lossy network made members believe of each other."""

    probes: int
    failed_probes: int
    suspicions: int
    deaths: int
    all_alive: bool


def run_loss(seed: int, members: int, profile: Profile, loss: float, duration_ms: int) -> UnderLoss:
    """A pool in which nobody dies, and every packet is lost with these odds."""
    pool = Pool(
        members,
        seed,
        profile=profile,
        loss=loss,
        stream_loss=odds_of_a_lost_handshake(loss),
        check_every=1_000,
        acquainted=True,
    )
    pool.run_for(duration_ms)
    statistics = [process.core.statistics() for process in pool.processes.values()]
    deaths = pool.count(EventKind.FAILED)
    pool.loss = pool.stream_loss = 0.0
    pool.run_for(60_000)  # suspicions under way are refuted
    return UnderLoss(
        probes=sum(one.probes for one in statistics),
        failed_probes=sum(one.failed_probes for one in statistics),
        suspicions=pool.count(EventKind.SUSPECTED),
        deaths=deaths,
        all_alive=pool.all_show(dict.fromkeys(pool.processes, "alive")),
    )


def expected_failed_probes(profile: Profile, loss: float) -> float:
    """The share of probes that SWIM as published leaves unanswered: the direct ping, and each helper's
    (SWIM, section 3.1; four packets each). Memberlist's ping over TCP makes it less."""
    helpers = profile(name="n").indirect_checks
    direct, helped = 1 - (1 - loss) ** 2, 1 - (1 - loss) ** 4
    return float(direct * helped**helpers)
