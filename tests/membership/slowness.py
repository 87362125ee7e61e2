"""The experiment of the Lifeguard paper (section V.D, "Interval"): some members handle messages slowly.

Law of this file: it repeats the paper's set-up on the simulated network and counts what the paper counts,
false positives: healthy members that somebody declares dead. `lifeguard` False turns the extensions off,
which leaves SWIM with a fixed suspicion timeout, the paper's baseline.
"""

from dataclasses import dataclass

from shoal.membership.config import GossipConfig
from shoal.membership.serf.ready import EventKind
from tests.membership.experiments import odds_of_a_lost_handshake
from tests.membership.pool import Pool

DURATION_MS = 120_000
PAPER_REDUCTION = 50
"""The paper's abstract and summary: Lifeguard reduces false positives more than fiftyfold."""


@dataclass(frozen=True)
class Slowness:
    """False positives: declared dead although healthy, by anybody, and by healthy members only."""

    false_positives: int
    at_healthy: int
    suspicions: int


def run_slow_members(
    seed: int,
    *,
    lifeguard: bool,
    members: int = 128,
    slow: int = 16,
    blocked_ms: int = 16_384,
    free_ms: int = 1_024,
    loss: float = 0.0,
) -> Slowness:
    """`slow` members are blocked for `blocked_ms` and free for `free_ms`, by turns, for two minutes. `loss`
    of all packets is ours: the paper names loss among the causes of slowness, and has no figure for it."""
    off = {} if lifeguard else {"awareness_max": 1, "suspicion_max_mult": 1}
    pool = Pool(
        members,
        seed,
        profile=GossipConfig.lan,
        loss=loss,
        stream_loss=odds_of_a_lost_handshake(loss),
        check_every=1_000,
        acquainted=True,
        suspicion_mult=5,
        **off,
    )
    pool.run_for(5_000)
    anomalous = set(pool.rng.sample(sorted(pool.processes), slow))

    def block(name: str) -> None:
        pool.block(name, blocked_ms)
        pool.at(blocked_ms + free_ms, lambda: block(name))

    for name in sorted(anomalous):
        block(name)
    pool.run_for(DURATION_MS)
    wrong = [
        heard for heard in pool.heard if heard.kind is EventKind.FAILED and heard.member not in anomalous
    ]
    at_healthy = [heard for heard in wrong if heard.observer not in anomalous]
    suspicions = [
        heard for heard in pool.heard if heard.kind is EventKind.SUSPECTED and heard.member not in anomalous
    ]
    return Slowness(len(wrong), len(at_healthy), len(suspicions))
