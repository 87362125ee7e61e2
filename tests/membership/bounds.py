"""How long a pool may take to see a death, from the papers.

Law of this file: arithmetic. SWIM (section 3.1): in a pool of n, somebody probes the dead member in each
period with odds 1 - 1/e, so that the first probe of it comes after e/(e - 1) periods on average; section
4.3: going round the list, every single member probes it within 2n - 1 periods. Lifeguard (section IV.B): a
suspicion lasts its minimum once enough others confirmed it, its maximum otherwise. Then the news spreads
in O(log n) rounds of gossip.
"""

import math

from shoal.membership.config import GossipConfig
from shoal.membership.swim.suspicion import suspicion_bounds

ODDS_OF_LATER = 1e-6
"""The bound may be missed so often by chance alone: never, in all the seeds there are."""


def expected_first_probe_ms(config: GossipConfig) -> float:
    """e / (e - 1) periods (SWIM, section 3.1)."""
    return math.e / (math.e - 1) * config.probe_interval_ms


def accusers_within_periods(members: int, accusers: int) -> int:
    """Periods by which so many different members have probed the dead one: each does within two rounds
    of its list at the latest; in big pools chance, one probe a period on average, is much quicker."""
    latest = 2 * (members - 1) - 1
    for periods in range(1, latest):
        # Poisson: fewer than `accusers` probes in so many periods.
        terms = (periods**count / math.factorial(count) for count in range(accusers))
        if math.exp(-periods) * sum(terms) < ODDS_OF_LATER:
            return periods
    return latest


def spread_ms(config: GossipConfig, members: int) -> int:
    """Rounds of gossip until everybody was told, with odds of ODDS_OF_LATER against it: epidemic growth
    to half of the pool, then decay of those who were not told (SWIM, section 4.1)."""
    growth = math.log(members) / math.log(1 + config.gossip_nodes / 2)
    decay = math.log(members / ODDS_OF_LATER) / config.gossip_nodes
    return math.ceil(growth + decay) * config.gossip_interval_ms


def seen_by_all_bound_ms(config: GossipConfig, members: int) -> int:
    """From the death to the moment at which every living member shows it, without loss."""
    bounds = suspicion_bounds(
        mult=config.suspicion_mult,
        max_mult=config.suspicion_max_mult,
        probe_interval_ms=config.probe_interval_ms,
        members=members,
    )
    accusers = bounds.confirmations + 1
    first_ms = accusers_within_periods(members, 1) * config.probe_interval_ms
    all_ms = accusers_within_periods(members, accusers) * config.probe_interval_ms
    probe_ms = config.probe_interval_ms
    # A suspicion ends after its minimum, or when the last confirmation needed comes after that.
    silent_ms = max(first_ms + bounds.min_ms, all_ms)
    return silent_ms + probe_ms + 2 * spread_ms(config, members)


def healed_bound_ms(config: GossipConfig, members: int) -> int:
    """From the end of all faults to equal lists. A member that all others show as failed is dialled by
    each with odds failed/alive a reconnect interval: together about once, and each dial heals it; a
    suspicion that began before runs to its end first."""
    dials = math.ceil(-math.log(ODDS_OF_LATER))
    suspicion = suspicion_bounds(
        mult=config.suspicion_mult,
        max_mult=config.suspicion_max_mult,
        probe_interval_ms=config.probe_interval_ms,
        members=members,
    )
    slowest_probe_ms = config.awareness_max * config.probe_interval_ms
    return (
        suspicion.max_ms
        + 2 * members * slowest_probe_ms // 4
        + dials * (config.reconnect_interval_ms + config.push_pull_interval_ms)
    )
