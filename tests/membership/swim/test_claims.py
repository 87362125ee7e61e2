"""Which claim supersedes which: the tables of memberlist's state machine."""

import random

import pytest

from shoal.membership.swim.claims import (
    Node,
    NodeTable,
    Verdict,
    compatible,
    judge_alive,
    judge_dead,
    judge_suspect,
)
from shoal.membership.wire.messages import VSN, Alive, Dead, Endpoint, State, Suspect

HERE = Endpoint(bytes((127, 0, 0, 1)), 1000)
THERE = Endpoint(bytes((127, 0, 0, 1)), 2000)
MAPPED = Endpoint(bytes(10) + b"\xff\xff\x7f\x00\x00\x01", 1000)


def node(state: State = State.ALIVE, incarnation: int = 5, changed_ms: int = 0) -> Node:
    """A record as the tables below need it."""
    return Node("n", HERE, b"meta", VSN, incarnation, state, changed_ms)


@pytest.mark.parametrize(
    ("known", "incarnation", "endpoint", "verdict"),
    [
        (None, 1, HERE, Verdict.ACCEPT),
        (None, 0, HERE, Verdict.IGNORE),
        (node(), 4, HERE, Verdict.IGNORE),
        (node(), 5, HERE, Verdict.IGNORE),
        (node(), 6, HERE, Verdict.ACCEPT),
        (node(State.SUSPECT), 5, HERE, Verdict.IGNORE),
        (node(State.SUSPECT), 6, HERE, Verdict.ACCEPT),
        (node(State.DEAD), 5, HERE, Verdict.IGNORE),
        (node(State.DEAD), 6, HERE, Verdict.ACCEPT),
        (node(State.LEFT), 5, HERE, Verdict.IGNORE),
        (node(), 9, THERE, Verdict.CONFLICT),
        (node(), 9, MAPPED, Verdict.CONFLICT),
        (node(State.SUSPECT), 9, THERE, Verdict.CONFLICT),
        (node(State.LEFT), 1, THERE, Verdict.ACCEPT),
        (node(State.DEAD, changed_ms=950), 1, THERE, Verdict.CONFLICT),
        (node(State.DEAD, changed_ms=900), 1, THERE, Verdict.ACCEPT),
    ],
)
def test_alive_about_others(
    known: Node | None, incarnation: int, endpoint: Endpoint, verdict: Verdict
) -> None:
    """Strictly newer wins; an address moves only from a node that left, or was dead for the reclaim time."""
    claim = Alive(incarnation, "n", endpoint, b"meta", VSN)
    judged = judge_alive(known, claim, is_self=False, leaving=False, reclaim_ms=100, now_ms=1000)
    assert judged is verdict


def test_dead_name_keeps_its_address_when_reclaim_is_off() -> None:
    """As a Serf agent does."""
    claim = Alive(9, "n", THERE, b"", VSN)
    dead = node(State.DEAD)
    judged = judge_alive(dead, claim, is_self=False, leaving=False, reclaim_ms=0, now_ms=10**9)
    assert judged is Verdict.CONFLICT


@pytest.mark.parametrize(
    ("incarnation", "meta", "vsn", "leaving", "verdict"),
    [
        (4, b"other", VSN, False, Verdict.IGNORE),
        (5, b"meta", VSN, False, Verdict.IGNORE),
        (5, b"other", VSN, False, Verdict.REFUTE),
        (5, b"meta", b"", False, Verdict.REFUTE),
        (6, b"meta", VSN, False, Verdict.REFUTE),
        (6, b"meta", VSN, True, Verdict.IGNORE),
    ],
)
def test_alive_about_ourselves(
    incarnation: int, meta: bytes, vsn: bytes, leaving: bool, verdict: Verdict
) -> None:
    """What we did not say is refuted; what we did say is not (else two nodes refute each other for ever)."""
    claim = Alive(incarnation, "n", HERE, meta, vsn)
    judged = judge_alive(node(), claim, is_self=True, leaving=leaving, reclaim_ms=1, now_ms=0)
    assert judged is verdict


@pytest.mark.parametrize(
    ("vsn", "fits"),
    [
        (VSN, True),
        (b"", True),
        (bytes((1, 5, 5, 2, 5, 5)), True),
        (bytes(6), False),
        (bytes((3, 5, 4, 2, 5, 5)), False),
        (bytes((1, 1, 1, 2, 5, 5)), False),
        (bytes((1, 5, 6, 2, 5, 5)), False),
        (bytes((1, 5, 2, 2, 5, 4)), True),
        (bytes((0, 5, 2, 2, 5, 5)), False),
        (bytes((1, 5, 0, 2, 5, 5)), False),
        (bytes((1, 5, 2, 2, 4, 4)), False),
        (bytes((1, 5, 2, 2, 6, 6)), False),
        (bytes((1, 5, 2, 0, 5, 1)), False),
    ],
)
def test_incompatible_versions_stay_outside(vsn: bytes, fits: bool) -> None:
    """A node that cannot be spoken to would poison every push/pull of the pool, as would one of unknown
    versions; of a known node none need be told again."""
    assert compatible(vsn) is fits
    claim = Alive(6, "n", HERE, b"", vsn)
    judged = judge_alive(None, claim, is_self=False, leaving=False, reclaim_ms=1, now_ms=0)
    assert judged is (Verdict.ACCEPT if fits and vsn else Verdict.IGNORE)
    judged = judge_alive(node(), claim, is_self=False, leaving=False, reclaim_ms=1, now_ms=0)
    assert judged is (Verdict.ACCEPT if fits else Verdict.IGNORE)


@pytest.mark.parametrize(
    ("known", "incarnation", "is_self", "verdict"),
    [
        (None, 9, False, Verdict.IGNORE),
        (node(), 4, False, Verdict.IGNORE),
        (node(), 5, False, Verdict.ACCEPT),
        (node(), 6, False, Verdict.ACCEPT),
        (node(State.SUSPECT), 5, False, Verdict.CONFIRM),
        (node(State.SUSPECT), 4, False, Verdict.IGNORE),
        (node(State.DEAD), 6, False, Verdict.IGNORE),
        (node(State.LEFT), 6, False, Verdict.IGNORE),
        (node(), 5, True, Verdict.REFUTE),
        (node(), 4, True, Verdict.IGNORE),
    ],
)
def test_suspect(known: Node | None, incarnation: int, is_self: bool, verdict: Verdict) -> None:
    """Equal incarnation suffices against alive; the dead are not suspected."""
    assert judge_suspect(known, Suspect(incarnation, "n", "a"), is_self=is_self) is verdict


@pytest.mark.parametrize(
    ("known", "incarnation", "is_self", "leaving", "verdict"),
    [
        (None, 9, False, False, Verdict.IGNORE),
        (node(), 4, False, False, Verdict.IGNORE),
        (node(), 5, False, False, Verdict.ACCEPT),
        (node(State.SUSPECT), 5, False, False, Verdict.ACCEPT),
        (node(State.DEAD), 9, False, False, Verdict.IGNORE),
        (node(State.LEFT), 9, False, False, Verdict.IGNORE),
        (node(), 5, True, False, Verdict.REFUTE),
        (node(), 5, True, True, Verdict.ACCEPT),
    ],
)
def test_dead(known: Node | None, incarnation: int, is_self: bool, leaving: bool, verdict: Verdict) -> None:
    """Once dead or left, nothing but a newer alive changes it."""
    assert judge_dead(known, Dead(incarnation, "n", "a"), is_self=is_self, leaving=leaving) is verdict


def test_probe_round_visits_everybody_once() -> None:
    """The time to the first probe is bounded by one round."""
    rng = random.Random(1)
    table = NodeTable(Node("self", HERE, b"", VSN, 1, State.ALIVE, 0))
    names = {f"n{number}" for number in range(20)}
    for name in sorted(names):
        table.add(Node(name, HERE, b"", VSN, 1, State.ALIVE, 0), rng)
    rounds = [[table.probe_target(rng, lambda _: False) for _ in names] for _ in range(3)]
    for visited in rounds:
        assert {target.name for target in visited if target is not None} == names
    assert rounds[0] != rounds[1]
    table.check_invariants()


def test_newcomers_do_not_disturb_the_round() -> None:
    """However many enter meanwhile, those of the round are visited once each."""
    rng = random.Random(2)
    table = NodeTable(Node("self", HERE, b"", VSN, 1, State.ALIVE, 0))
    old = [f"old-{number}" for number in range(10)]
    for name in old:
        table.add(Node(name, HERE, b"", VSN, 1, State.ALIVE, 0), rng)
    visited = []
    for number in range(40):
        target = table.probe_target(rng, lambda _: False)
        assert target is not None
        visited.append(target.name)
        if number < 20:
            table.add(Node(f"new-{number}", HERE, b"", VSN, 1, State.ALIVE, 0), rng)
        table.check_invariants()
        if set(old) <= set(visited):
            break
    assert [visited.count(name) for name in old] == [1] * 10


def test_round_skips_the_gone_and_forgets_them_at_its_end() -> None:
    """Forgetting waits for the end of a round, as in memberlist."""
    rng = random.Random(1)
    table = NodeTable(Node("self", HERE, b"", VSN, 1, State.ALIVE, 0))
    table.add(Node("dead", HERE, b"", VSN, 1, State.DEAD, 0), rng)
    table.add(Node("alive", HERE, b"", VSN, 1, State.ALIVE, 0), rng)
    first = table.probe_target(rng, lambda known: known.gone)
    assert first is table.get("alive")
    assert table.get("dead") is not None
    assert table.probe_target(rng, lambda known: known.gone) is table.get("alive")
    assert table.get("dead") is None
    table.check_invariants()


def test_nobody_to_probe() -> None:
    """Alone, or with the dead only."""
    rng = random.Random(1)
    table = NodeTable(Node("self", HERE, b"", VSN, 1, State.ALIVE, 0))
    assert table.probe_target(rng, lambda _: False) is None
    table.add(Node("dead", HERE, b"", VSN, 1, State.DEAD, 0), rng)
    assert table.probe_target(rng, lambda _: False) is None
