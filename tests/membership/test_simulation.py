"""Whole pools in virtual time: what SWIM promises, over many seeds.

No false death without loss; a dead member seen by all within the bound; equal lists
after healing. Every packet goes through the real encoder and decoder (pool.py), and the
cores' invariants are checked on the way.
"""

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf.ready import EventKind
from shoal.membership.swim.ready import Exchange
from shoal.membership.wire.messages import Endpoint, State
from tests.membership.pool import Pool, endpoint_of


def all_alive(count: int) -> dict[str, str]:
    """The list of a healthy pool."""
    return {f"n{number}": "alive" for number in range(count)}


def healthy(count: int, seed: int, **knobs: object) -> Pool:
    """A pool in which everybody knows everybody."""
    pool = Pool(count, seed, **knobs)
    pool.run_until(lambda: pool.all_show(all_alive(count)), 10_000)
    return pool


@pytest.mark.parametrize("count", [2, 3, 10, 30])
def test_no_false_suspicion_without_loss(count: int) -> None:
    """A minute and more of peace: not even a suspicion."""
    pool = healthy(count, seed=count, check_every=10)
    pool.run_for(60_000)
    assert pool.count(EventKind.SUSPECTED, EventKind.FAILED, EventKind.LEFT) == 0
    assert pool.all_show(all_alive(count))


@pytest.mark.parametrize(
    ("count", "bound_ms", "seeds"), [(2, 4_000, 20), (3, 5_100, 30), (5, 6_000, 10), (30, 8_000, 2)]
)
def test_a_killed_member_is_seen_by_all_within_the_bound(count: int, bound_ms: int, seeds: int) -> None:
    """Each survivor hears of it once, and nobody else is accused."""
    taken_ms = []
    for seed in range(seeds):
        pool = healthy(count, seed, check_every=20)
        pool.run_for(pool.rng.randrange(5_000))
        pool.kill("n1")
        expected = all_alive(count) | {"n1": "failed"}
        taken_ms.append(
            pool.run_until(lambda pool=pool, expected=expected: pool.all_show(expected), bound_ms)
        )
        assert pool.count(EventKind.FAILED) == count - 1
        assert {heard.member for heard in pool.heard if heard.kind is EventKind.SUSPECTED} == {"n1"}
    assert sorted(taken_ms)[len(taken_ms) // 2] <= 5_000


def test_lan_profile_detects_as_serf_does() -> None:
    """A Serf agent of three sees a kill after about 6 s (measured on the real one)."""
    taken_ms = []
    for seed in range(10):
        pool = healthy(3, seed, profile=GossipConfig.lan, check_every=20)
        pool.run_for(pool.rng.randrange(5_000))
        pool.kill("n1")
        expected = all_alive(3) | {"n1": "failed"}
        taken_ms.append(pool.run_until(lambda pool=pool, expected=expected: pool.all_show(expected), 9_000))
    assert 5_000 <= sorted(taken_ms)[5] <= 7_000


@pytest.mark.parametrize("loss", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("count", [3, 8])
def test_no_false_death_under_loss(count: int, loss: float) -> None:
    """Five minutes: indirect probes, TCP and refutation catch what the network drops."""
    pool = Pool(count, seed=int(loss * 100) + count, loss=loss, check_every=50)
    pool.run_for(300_000)
    assert pool.count(EventKind.FAILED) == 0
    assert pool.all_show(all_alive(count))


def test_duplicated_and_reordered_packets_do_no_harm() -> None:
    """Every third packet twice, delays up to the probe timeout: suspicions at most."""
    pool = Pool(6, seed=8, duplication=0.3, delay_ms=(1, 150), check_every=20)
    pool.run_for(120_000)
    assert pool.count(EventKind.FAILED) == 0
    assert pool.all_show(all_alive(6))


def test_udp_lost_entirely_is_survived_by_tcp() -> None:
    """The stream probe alone keeps everybody alive."""
    pool = healthy(3, seed=1)
    pool.loss = 1.0
    pool.run_for(30_000)
    assert pool.count(EventKind.FAILED, EventKind.SUSPECTED) == 0


def test_one_broken_pair_is_bridged_by_the_others() -> None:
    """Two members that cannot reach each other at all stay alive for each other: others probe for them."""
    pool = healthy(4, seed=3)
    pool.cut("n1", "n2")
    pool.cut("n2", "n1")
    pool.run_for(120_000)
    assert pool.count(EventKind.FAILED) == 0


def test_false_suspicion_is_refuted() -> None:
    """A member that stands still for 1.6 s is suspected at most, never buried, and nobody is buried by it."""
    for seed in range(10):
        pool = healthy(5, seed, check_every=10)
        pool.pause("n2", 1_600)
        pool.run_for(30_000)
        assert pool.count(EventKind.FAILED) == 0, pool.story()
        assert pool.all_show(all_alive(5)), pool.story()


@pytest.mark.parametrize("duration_ms", [16_000, 60_000])
@pytest.mark.parametrize("count", [3, 10, 20])
def test_after_a_partition_heals_all_lists_are_equal(count: int, duration_ms: int) -> None:
    """Short (the dead still get gossip) and long (SWIM has forgotten them; Serf's reconnect dials them)."""
    pool = healthy(count, seed=count, check_every=20)
    names = list(pool.processes)
    here, there = names[: count // 2], names[count // 2 :]
    pool.partition(here, there)
    pool.run_for(duration_ms)
    assert all(status == ("alive" if name in here else "failed") for name, status in pool.view("n0").items())
    pool.heal()
    pool.run_until(lambda: pool.all_show(all_alive(count)), 40_000)


def test_graceful_leave_is_left_everywhere() -> None:
    """Never failed, not even for a moment; the leaver is done within its bounds."""
    for seed in range(5):
        pool = healthy(5, seed)
        pool.leave("n3")
        pool.run_until(lambda pool=pool: not pool.processes["n3"].alive, 4_000)
        expected = all_alive(5) | {"n3": "left"}
        pool.run_until(lambda pool=pool, expected=expected: pool.all_show(expected), 3_000)
        pool.run_for(10_000)
        assert pool.count(EventKind.FAILED) == 0
        assert pool.all_show(expected)


def test_last_member_leaves_without_waiting() -> None:
    """Nobody is there to be told."""
    pool = Pool(1, seed=1)
    pool.leave("n0")
    assert not pool.processes["n0"].alive


def test_crash_after_the_leave_intent_ends_as_left() -> None:
    """Leaving, then silence: left, as in Serf."""
    pool = healthy(4, seed=2)
    pool.leave("n3")
    pool.run_until(lambda: all(pool.view(f"n{number}")["n3"] == "leaving" for number in range(3)), 1_000)
    pool.kill("n3")
    pool.run_until(lambda: pool.all_show(all_alive(4) | {"n3": "left"}), 10_000)
    assert pool.count(EventKind.FAILED) == 0


@pytest.mark.parametrize("wait_ms", [0, 500, 3_000, 20_000, 60_000])
@pytest.mark.parametrize("moved", [False, True], ids=["same-address", "new-address"])
def test_a_killed_member_restarts(wait_ms: int, moved: bool) -> None:
    """Before it is missed, while suspected, when dead, when forgotten; under its old port or another one."""
    pool = healthy(4, seed=wait_ms + moved)
    pool.kill("n2")
    pool.run_for(wait_ms)
    pool.restart("n2", endpoint_of(77) if moved else None)
    life = pool.processes["n2"].core.members()

    def back() -> bool:
        lists = [process.core.members() for process in pool.alive()]
        return pool.all_show(all_alive(4)) and all(
            member.tags.get("life") == str(member_life)
            for members in lists
            for member in members
            if member.name == "n2"
        )

    member_life = next(member.tags["life"] for member in life if member.name == "n2")
    pool.run_until(back, 12_000)


def moved_within(count: int, seed: int) -> int:
    """A member is killed and back at once on another port of its host: after how many ms all know."""
    pool = healthy(count, seed=seed)
    where = Endpoint(endpoint_of(1).address, 7_947)
    pool.restart("n1", where)

    def all_know() -> bool:
        tables = [process.core.swim.table.get("n1") for process in pool.alive()]
        return all(
            node is not None and node.endpoint == where and node.state == State.ALIVE for node in tables
        )

    return pool.run_until(all_know, 30_000)


@pytest.mark.parametrize(("count", "seeds"), [(3, 40), (5, 20), (20, 5)])
def test_who_is_back_on_another_port_is_not_taken_for_dead_first(count: int, seeds: int) -> None:
    """Nobody answers at the former port: the new life says for it that it left, and all let it in. It took
    longer than a suspicion does, and everybody who listed it as failed meanwhile looked for a replacement."""
    times = [moved_within(count, seed) for seed in range(seeds)]
    assert max(times) <= 1_000, times


def test_a_member_whose_address_changes_is_found_there() -> None:
    """While it runs: it leaves its former address and claims the new one under a higher incarnation, and all
    let it in, long before they would have missed it."""
    where = endpoint_of(77)
    for seed in range(20):
        pool = healthy(4, seed=seed)
        process = pool.processes["n1"]
        del pool._names[process.endpoint]
        pool._names[where] = "n1"
        process.endpoint = where
        before = process.core.swim.table.local.incarnation
        process.core.move(where, pool.clock_ms(process))
        pool._carry_out(process)

        def all_know(pool: Pool = pool) -> bool:
            tables = [process.core.swim.table.get("n1") for process in pool.alive()]
            return all(
                node is not None and node.endpoint == where and node.state == State.ALIVE for node in tables
            )

        assert pool.run_until(all_know, 30_000) <= 2_000
        pool.run_until(lambda pool=pool: pool.all_show(all_alive(4)), 2_000)
        assert process.core.swim.table.local.incarnation > before
        pool.run_for(10_000)
        assert all_know()
        assert pool.all_show(all_alive(4))


def test_a_member_that_moves_nowhere_or_leaves_says_nothing() -> None:
    """Neither changes what it has said of itself."""
    pool = healthy(3, seed=1)
    core = pool.processes["n1"].core
    before = core.swim.table.local.incarnation
    core.move(endpoint_of(1), pool.now_ms)
    core.swim.leaving = True
    core.move(endpoint_of(77), pool.now_ms)
    assert core.swim.table.local.endpoint == endpoint_of(1)
    assert core.swim.table.local.incarnation == before


def test_a_second_process_under_a_name_does_not_say_that_the_first_one_left() -> None:
    """It answers, so it is no former life: a copied data directory, on the same host."""
    pool = healthy(3, seed=1)
    first = pool.processes["n1"]
    pool.start("n1", Endpoint(first.endpoint.address, 7_947), {"name": "n1"})
    second = pool.processes.pop("n1")
    pool.processes["n1 again"], pool.processes["n1"] = second, first
    pool._names[second.endpoint] = "n1 again"
    pool._exchange(second, Exchange(pool.processes["n0"].endpoint, join=True), joined=True)
    pool.run_for(20_000)
    assert pool.count(EventKind.LEFT, EventKind.FAILED) == 0
    for name in ("n0", "n2"):
        node = pool.processes[name].core.swim.table.get("n1")
        assert node is not None
        assert node.endpoint == first.endpoint


def test_tags_reach_everybody() -> None:
    """A changed tag is an update, not a join, and arrives within a second or so."""
    pool = healthy(10, seed=4)
    process = pool.processes["n5"]
    process.core.set_tags({"name": "n5", "v": "2"}, pool.now_ms)
    pool._carry_out(process)

    def told() -> bool:
        return all(
            member.tags.get("v") == "2"
            for other in pool.alive()
            for member in other.core.members()
            if member.name == "n5"
        )

    assert pool.run_until(told, 3_000) <= 2_000


def test_force_leave_of_a_failed_member_and_of_a_living_one() -> None:
    """The failed one is left for all; the living one undoes it with a newer join intent."""
    pool = healthy(4, seed=5)
    pool.kill("n3")
    pool.run_until(lambda: pool.all_show(all_alive(4) | {"n3": "failed"}), 8_000)
    for name in ("n3", "n2"):
        process = pool.processes["n0"]
        process.core.force_leave(name, pool.now_ms)
        pool._carry_out(process)
    pool.run_for(200)
    pool.run_until(lambda: pool.all_show(all_alive(4) | {"n3": "left"}), 5_000)


def test_one_name_on_two_addresses_is_reported_and_the_first_stays() -> None:
    """A cloned data directory: the pool keeps the one it knows, and says so."""
    pool = healthy(4, seed=6)
    original = pool.processes["n3"]
    pool.processes["clone"] = pool.start("n3", endpoint_of(99))
    pool.processes["n3"] = original
    pool.processes["clone"].name = "clone"
    pool._exchange(pool.processes["clone"], Exchange(endpoint_of(0), join=True), joined=True)
    pool.run_for(5_000)
    assert pool.count(EventKind.CONFLICT) > 0
    assert pool.processes["n0"].core.swim.table.get("n3").endpoint == original.endpoint


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen_and_the_lists_agree_in_the_end(seed: int) -> None:
    """Kills, restarts, leaves, pauses, partitions and loss at random; then quiet, and
    one truth everywhere."""
    count = 6
    pool = Pool(count, seed, loss=0.05, check_every=20)
    pool.run_for(3_000)
    rng = pool.rng
    for _ in range(8):
        victim = f"n{rng.randrange(1, count)}"
        action = rng.choice(("kill", "restart", "pause", "partition", "heal"))
        if action == "kill" and pool.processes[victim].alive:
            pool.kill(victim)
        elif action == "restart":
            pool.restart(victim)
        elif action == "pause" and pool.processes[victim].alive:
            pool.pause(victim, rng.randrange(500, 8_000))
        elif action == "partition":
            names = list(pool.processes)
            rng.shuffle(names)
            pool.partition(names[:3], names[3:])
        else:
            pool.heal()
        pool.run_for(rng.randrange(200, 15_000))
    pool.heal()
    pool.loss = 0.0
    living = {process.name for process in pool.alive()}
    expected = {f"n{number}": "alive" if f"n{number}" in living else "failed" for number in range(count)}

    def agreed() -> bool:
        views = [pool.view(process.name) for process in pool.alive()]
        return all(view[name] == expected[name] for view in views for name in living & view.keys()) and all(
            living <= view.keys() and all(view[name] != "alive" for name in view.keys() - living)
            for view in views
        )

    pool.run_until(agreed, 90_000)
