"""The arithmetic of memberlist and Lifeguard as tables."""

import pytest

from shoal.membership.config import GossipConfig, push_pull_interval_ms
from shoal.membership.swim.broadcasts import retransmit_limit
from shoal.membership.swim.prober import Awareness, probe_failure_delta
from shoal.membership.swim.suspicion import Suspicion, SuspicionBounds, suspicion_bounds, suspicion_timeout_ms


@pytest.mark.parametrize(
    ("mult", "members", "limit"),
    [(4, 0, 0), (4, 1, 4), (4, 9, 4), (4, 10, 8), (4, 99, 8), (4, 100, 12), (2, 3, 2), (3, 999, 9)],
)
def test_retransmit_limit(mult: int, members: int, limit: int) -> None:
    """mult * ceil(log10(n + 1))."""
    assert retransmit_limit(mult, members) == limit


@pytest.mark.parametrize(
    ("members", "interval_ms"),
    [(1, 100), (32, 100), (33, 200), (64, 200), (65, 300), (128, 300), (129, 400), (1000, 600)],
)
def test_push_pull_interval(members: int, interval_ms: int) -> None:
    """Constant to 32 members, then one more interval per doubling."""
    assert push_pull_interval_ms(100, members) == interval_ms


@pytest.mark.parametrize(
    ("mult", "members", "bounds"),
    [
        (4, 1, SuspicionBounds(0, 4000, 4000)),
        (4, 3, SuspicionBounds(0, 4000, 4000)),
        (4, 4, SuspicionBounds(2, 4000, 24000)),
        (4, 10, SuspicionBounds(2, 4000, 24000)),
        (4, 50, SuspicionBounds(2, 6792, 40752)),
        (4, 100, SuspicionBounds(2, 8000, 48000)),
        (4, 500, SuspicionBounds(2, 10792, 64752)),
        (3, 3, SuspicionBounds(1, 3000, 18000)),
        (3, 2, SuspicionBounds(0, 3000, 3000)),
        (2, 9, SuspicionBounds(0, 2000, 2000)),
    ],
)
def test_suspicion_bounds(mult: int, members: int, bounds: SuspicionBounds) -> None:
    """Minimum grows with log10 n from ten members on; too few members to confirm means
    the minimum at once."""
    assert suspicion_bounds(mult=mult, max_mult=6, probe_interval_ms=1000, members=members) == bounds


@pytest.mark.parametrize(
    ("confirmed", "timeout_ms"), [(0, 30_000), (1, 16_000), (2, 7_810), (3, 2_000), (4, 2_000)]
)
def test_suspicion_timeout(confirmed: int, timeout_ms: int) -> None:
    """max - ln(c+1)/ln(k+1) * (max - min) for k = 3, as in memberlist's own table (2 s and 30 s)."""
    assert suspicion_timeout_ms(confirmed, SuspicionBounds(3, 2_000, 30_000)) == timeout_ms


def test_without_confirmations_the_minimum_holds() -> None:
    """k = 0: nobody could confirm, so nobody is waited for."""
    assert suspicion_timeout_ms(0, SuspicionBounds(0, 2_000, 30_000)) == 2_000


def test_suspicion_counts_each_accuser_once() -> None:
    """The first accuser is no confirmation, a repeated one neither, and none beyond k matters."""
    suspicion = Suspicion("a", SuspicionBounds(2, 1_000, 6_000), now_ms=100)
    assert suspicion.deadline_ms == 6_100
    assert not suspicion.confirm("a")
    assert suspicion.confirm("b")
    assert 1_100 < suspicion.deadline_ms < 6_100
    assert not suspicion.confirm("b")
    assert suspicion.confirm("c")
    assert suspicion.deadline_ms == 1_100
    assert not suspicion.confirm("d")


@pytest.mark.parametrize(
    ("expected", "received", "delta"), [(0, 0, 1), (3, 3, 0), (3, 1, 2), (1, 0, 1), (2, 3, 0)]
)
def test_failed_probe_delta(expected: int, received: int, delta: int) -> None:
    """Silent helpers count against us; without helpers a failed probe counts one."""
    assert probe_failure_delta(expected, received) == delta


def test_awareness_stays_in_its_bounds_and_scales() -> None:
    """Score 0 to 7; a probe interval is stretched at most eightfold."""
    awareness = Awareness(8)
    assert awareness.scale(1000) == 1000
    awareness.apply(-1)
    assert awareness.score == 0
    awareness.apply(100)
    assert awareness.score == 7
    assert awareness.scale(1000) == 8000
    awareness.apply(-1)
    assert awareness.scale(1000) == 7000


def test_profiles_are_memberlists() -> None:
    """The numbers a pool with real agents shares; local() differs in two of its own."""
    lan, local = GossipConfig.lan(name="n"), GossipConfig.local(name="n")
    assert (lan.probe_interval_ms, lan.probe_timeout_ms, lan.indirect_checks) == (1000, 500, 3)
    assert (lan.suspicion_mult, lan.suspicion_max_mult, lan.awareness_max) == (4, 6, 8)
    assert (lan.gossip_interval_ms, lan.gossip_nodes, lan.retransmit_mult) == (200, 3, 4)
    assert (lan.gossip_to_dead_ms, lan.push_pull_interval_ms, lan.stream_timeout_ms) == (
        30_000,
        30_000,
        10_000,
    )
    assert (local.probe_timeout_ms, local.indirect_checks, local.suspicion_mult) == (200, 1, 3)
    assert (local.gossip_interval_ms, local.gossip_to_dead_ms) == (100, 15_000)
    assert (local.probe_interval_ms, local.retransmit_mult) == (700, 4)


@pytest.mark.parametrize(
    "values",
    [
        {"name": ""},
        {"name": "n" * 129},
        {"name": "n", "bind_address": "localhost"},
        {"name": "n", "advertise_address": "0.0.0.0"},
        {"name": "n", "bind_port": 65_536},
        {"name": "n", "probe_timeout_ms": 1000},
        {"name": "n", "packet_bytes": 100},
        {"name": "n", "tags": {"k": "v" * 600}},
    ],
)
def test_bad_configurations_are_refused(values: dict[str, object]) -> None:
    """Each rule of the configuration, before anything is bound."""
    with pytest.raises(ValueError, match=r"."):
        GossipConfig.lan(**values)
