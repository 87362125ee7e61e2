"""The membership core under everything a network does to it: seconds here, hours in `scripts/campaign`.

No live, reachable member stays failed; a death is seen by all within the papers' bound; after healing all
lists are equal; loss buries nobody; and the numbers of the Lifeguard paper are met in its own experiment.
"""

from collections.abc import Callable

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf import core as serf
from shoal.membership.serf import member_list as statuses
from shoal.membership.serf.ready import EventKind
from shoal.membership.swim import broadcasts, suspicion
from shoal.membership.swim import claims as members
from shoal.membership.swim import core as swim
from shoal.membership.swim import prober as probing
from shoal.membership.wire.messages import State
from tests.membership.bounds import expected_first_probe_ms
from tests.membership.chaos import Chaos, Knobs
from tests.membership.experiments import expected_failed_probes, run_death, run_loss
from tests.membership.pool import Pool
from tests.membership.slowness import PAPER_REDUCTION, run_slow_members

SMALL = 8
"""Members of the chaotic pools here; the campaign's have up to 32."""


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_the_lists_are_equal_in_the_end(seed: int) -> None:
    """Kills, restarts, moves, leaves, pauses, frozen machines, jumping clocks, cuts of seven shapes and
    loss; then peace, and one truth everywhere."""
    Chaos(seed, members=min(SMALL, Knobs.of_seed(seed).members)).run()


def test_one_seed_is_one_trace() -> None:
    """Every packet, at its millisecond, twice the same; another seed is another run."""
    fingerprints = []
    for seed in (5, 5, 6):
        lines: list[str] = []
        chaos = Chaos(seed, trace=lines.append, members=4)
        chaos.run()
        assert len(lines) > 500
        fingerprints.append(chaos.pool.fingerprint())
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize(("members", "seeds"), [(3, 8), (10, 6), (50, 2)])
@pytest.mark.parametrize("profile", [GossipConfig.local, GossipConfig.lan], ids=["local", "lan"])
def test_a_death_is_seen_by_all_within_the_bound(
    members: int, seeds: int, profile: Callable[..., GossipConfig]
) -> None:
    """Everybody shows it in time, nobody else is accused; the first probe comes as soon as the paper says."""
    config = profile(name="n")
    runs = [run_death(seed, members, profile) for seed in range(seeds)]
    assert all(run.last_ms <= run.bound_ms and run.others_failed == 0 for run in runs)
    shortest = suspicion.suspicion_bounds(
        mult=config.suspicion_mult,
        max_mult=config.suspicion_max_mult,
        probe_interval_ms=config.probe_interval_ms,
        members=members,
    ).min_ms
    mean_ms = sum(run.first_ms for run in runs) / seeds
    assert shortest <= mean_ms <= shortest + 3 * expected_first_probe_ms(config)


def test_the_few_who_are_left_see_the_next_death_as_soon() -> None:
    """Five of eight die one after the other: what the rest say is not used up on the dead, who still get
    gossip for a while, so that suspicions are confirmed and short."""
    for seed in range(6):
        pool = Pool(8, seed, profile=GossipConfig.lan, check_every=500, acquainted=True)
        pool.run_for(1_000)
        for victim in ("n3", "n4", "n5", "n6", "n7"):
            pool.kill(victim)
            survivors = len(pool.alive())

            def is_seen(pool: Pool = pool, victim: str = victim, survivors: int = survivors) -> bool:
                seen = [heard for heard in pool.heard if heard.kind is EventKind.FAILED]
                return sum(heard.member == victim for heard in seen) >= survivors

            pool.run_until(is_seen, 11_000)
            pool.run_for(2_000 + pool.rng.randrange(2_000))


@pytest.mark.timeout(900)  # 16 s of processor time, and it stands back behind the others
def test_a_thousand_members_see_a_death_within_the_bound() -> None:
    """The time grows with the logarithm: 12 s of suspicion, then everybody within a quarter of a second."""
    run = run_death(1, 1_000, GossipConfig.lan)
    assert run.last_ms <= run.bound_ms
    assert run.others_failed == 0
    assert run.last_ms - run.first_ms <= 2_000


def test_five_percent_loss_buries_nobody_in_an_hour() -> None:
    """Helpers, TCP and refutation catch what the network drops; three members have one helper only."""
    run = run_loss(3, 3, GossipConfig.lan, 0.05, 3_600_000)
    assert run.deaths == 0
    assert run.all_alive
    assert run.probes > 9_000


@pytest.mark.parametrize("profile", [GossipConfig.local, GossipConfig.lan], ids=["local", "lan"])
def test_ten_percent_loss_accuses_less_than_the_papers_protocol(profile: Callable[..., GossipConfig]) -> None:
    """Fewer probes fail than SWIM's own arithmetic has it, and none of it buries anybody."""
    run = run_loss(4, 10, profile, 0.1, 120_000)
    assert run.deaths == 0
    assert run.all_alive
    assert run.failed_probes / run.probes < expected_failed_probes(profile, 0.1)


def test_slow_members_bury_the_healthy_fifty_times_less_than_without_lifeguard() -> None:
    """The paper's experiment and its result; among the healthy nobody is ever buried."""
    without = run_slow_members(1, lifeguard=False, members=12, slow=2)
    lifeguard = run_slow_members(1, lifeguard=True, members=12, slow=2)
    assert without.false_positives >= 2 * PAPER_REDUCTION, "the experiment provokes nothing"
    assert lifeguard.false_positives * PAPER_REDUCTION <= without.false_positives
    assert lifeguard.at_healthy == 0


def test_at_ten_percent_there_are_fewer_false_positives_than_the_paper_reports() -> None:
    """A tenth of the members slow, and a tenth of all packets lost at the same time: still the paper's
    fiftieth at most of what SWIM without Lifeguard does, none of them at the healthy, and suspicions fewer
    too."""
    without = run_slow_members(1, lifeguard=False, members=20, slow=2, loss=0.1)
    lifeguard = run_slow_members(1, lifeguard=True, members=20, slow=2, loss=0.1)
    assert without.false_positives >= 2 * PAPER_REDUCTION, "the experiment provokes nothing"
    assert lifeguard.false_positives * PAPER_REDUCTION <= without.false_positives
    assert lifeguard.at_healthy == 0
    assert lifeguard.suspicions * 2 <= without.suspicions


@pytest.mark.parametrize("fault", ["freeze", "jump"])
@pytest.mark.parametrize("profile", [GossipConfig.local, GossipConfig.lan], ids=["local", "lan"])
def test_who_stood_still_buries_nobody(fault: str, profile: Callable[..., GossipConfig]) -> None:
    """A machine that stops while it suspects somebody wakes up long after that suspicion's end: what was
    said meanwhile is lost to it, and proves nothing."""
    suspected = 0
    for seed in range(4):
        pool = Pool(8, seed, profile=profile, check_every=100, acquainted=True)
        pool.run_for(2_000 + 137 * seed)
        pool.pause("n5", 5_000)
        for _ in range(200):
            pool.run_for(50)
            if pool.view("n3")["n5"] == "suspect":
                suspected += 1
                break
        pool._resume(pool.processes["n5"])
        getattr(pool, fault)("n3", 30_000)
        pool.run_for(60_000)
        buried = {heard.member for heard in pool.heard if heard.kind is EventKind.FAILED}
        assert buried <= {"n3"}, pool.story()
    assert suspected >= 2, "nobody was suspected when the machine stopped"


@pytest.mark.parametrize("profile", [GossipConfig.local, GossipConfig.lan], ids=["local", "lan"])
def test_a_machine_that_halts_for_a_moment_accuses_nobody(profile: Callable[..., GossipConfig]) -> None:
    """Every process on it stands still for the same 0.6 to 3.5 s, and all go on at once: whoever wakes first
    finds its probe unanswered, because the others had no turn either."""
    for seed in range(12):
        pool = Pool(3, seed, profile=profile, check_every=100, acquainted=True)
        for _ in range(10):
            pool.run_for(pool.rng.randrange(500, 6_000))
            duration_ms = pool.rng.randrange(600, 3_500)
            for name in pool.processes:
                pool.pause(name, duration_ms)
            pool.run_for(duration_ms)
        pool.run_for(5_000)
        assert pool.count(EventKind.SUSPECTED, EventKind.FAILED) == 0, pool.story()


def test_an_accuser_that_gossip_passed_by_hears_the_refutation_from_the_accused() -> None:
    """It pings whom it suspects and says so; the accused, who has refuted that long ago, answers it."""
    pool = Pool(2, 1, acquainted=True)
    accuser, accused = (pool.processes[name].core.swim for name in ("n0", "n1"))
    for node in (accused.table.local, accused.table.get("n1")):
        assert node is not None
        node.incarnation = 2  # refuted; told to everybody but one
    pool.cut("n1", "n0")
    pool.run_until(lambda: pool.view("n0")["n1"] == "suspect", 5_000)
    pool.heal()
    while len(accused.outbox.own):
        accused.outbox.own.take(1_400, 1, 255)
    known = accuser.table.get("n1")
    assert known is not None
    pool.run_until(lambda: known.incarnation == 2 and known.state is State.ALIVE, 2_500)
    assert pool.count(EventKind.FAILED) == 0


# A simulation that never failed has shown nothing: each of these breaks the core on purpose.
MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "never refutes": lambda patch: patch.setattr(swim.SwimCore, "_refute", lambda *_: None),
    "never reconnects": lambda patch: patch.setattr(serf.SerfCore, "_reconnect", lambda *_: None),
    "believes old claims": lambda patch: patch.setattr(
        swim, "judge_dead", lambda node, *_, **__: members.Verdict.ACCEPT if node else members.Verdict.IGNORE
    ),
    "tells nothing on": lambda patch: patch.setattr(
        broadcasts.BroadcastQueue, "take", lambda *_, **__: ([], 0)
    ),
    "takes silence for life": lambda patch: patch.setattr(
        probing.Prober, "_continue_probe", lambda self, _: setattr(self, "_probe", None)
    ),
    "forgets who joined": lambda patch: patch.setattr(statuses.MemberList, "_on_node_join", lambda *_: None),
    "never gets well": lambda patch: patch.setattr(probing.Awareness, "scale", lambda _, ms: 600 * ms),
}


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_broken_core_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few seeds of all the runs above."""
    MUTATIONS[fault](monkeypatch)
    for seed in range(8):
        try:
            assert run_death(seed, 12, GossipConfig.local).others_failed == 0
            under_loss = run_loss(seed, 6, GossipConfig.local, 0.1, 60_000)
            assert under_loss.deaths == 0
            assert under_loss.all_alive
            Chaos(seed, members=4).run()
        except (AssertionError, KeyError):
            return
    pytest.fail("eight seeds saw nothing")
