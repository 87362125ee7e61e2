"""Who waits for a handshake: in turn by network, never too many, beside an obvious twin."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.agent.tls.listener import HANDSHAKES_MAX
from shoal.agent.tls.waiting_room import WaitingRoom, may_enter


def test_networks_take_turns() -> None:
    """Of each its first; one that comes late waits for one turn of each other."""
    room = WaitingRoom[str](10)
    for one in ("a1", "a2", "a3", "b1", "b2"):
        room.enter(one[0], one)
    assert room.leave(lambda _: True) == "a1"
    room.enter("c", "c1")
    assert [room.leave(lambda _: True) for _ in range(6)] == ["b1", "a2", "c1", "b2", "a3", None]
    assert len(room) == 0


def test_who_is_not_let_in_keeps_its_turn() -> None:
    """And those behind it are not kept waiting."""
    room = WaitingRoom[str](10)
    for one in ("a1", "a2", "b1", "b2"):
        room.enter(one[0], one)
    assert room.leave(lambda network: network != "a") == "b1"
    assert room.leave(lambda network: network == "c") is None
    assert [room.leave(lambda _: True) for _ in range(3)] == ["a1", "b2", "a2"]


def test_in_a_full_room_the_first_of_the_longest_line_goes() -> None:
    """Whoever comes; so a stranger costs its own network a place."""
    room = WaitingRoom[str](4)
    for one in ("b1", "a1", "a2", "a3"):
        room.enter(one[0], one)
        assert room.overflow() is None
    for one, gone in (("a4", "a1"), ("b2", "a2")):
        room.enter(one[0], one)
        assert room.overflow() == gone
        assert room.overflow() is None
    assert repr(room) == "WaitingRoom(waiting=4 networks=2 places=4)"
    assert sorted(room.clear()) == ["a3", "a4", "b1", "b2"]
    assert room.leave(lambda _: True) is None


@pytest.mark.parametrize(("networks", "all_held"), [(1, 224), (2, 240), (5, 250), (300, 256)])
def test_a_few_networks_leave_places_to_others(networks: int, all_held: int) -> None:
    """However many connections they have."""
    held: Counter[int] = Counter()
    while True:
        before = held.total()
        for network in range(networks):
            held[network] += may_enter(held[network], HANDSHAKES_MAX - held.total())
        if held.total() == before:
            break
    assert abs(held.total() - all_held) <= 2
    assert may_enter(0, HANDSHAKES_MAX - held.total()) == (held.total() < HANDSHAKES_MAX)


@given(
    some.integers(1, 6),
    some.lists(some.tuples(some.sampled_from(["enter", "leave", "late"]), some.integers(0, 4)), max_size=60),
)
def test_beside_a_list(places: int, steps: list[tuple[str, int]]) -> None:
    """Everybody who enters leaves once, by the rules, in whatever order things happen."""
    room = WaitingRoom[tuple[int, int]](places)
    line: list[tuple[int, int]] = []  # the network and the number of each, in the order of their coming
    for number, (what, network) in enumerate(steps):
        if what == "enter":
            room.enter(str(network), (network, number))
            line.append((network, number))
            gone = room.overflow()
            if len(line) > places:
                lengths = Counter(one[0] for one in line)
                assert gone is not None
                assert lengths[gone[0]] == max(lengths.values())
                assert gone == next(one for one in line if one[0] == gone[0])
                line.remove(gone)
            else:
                assert gone is None
        elif what == "leave":
            left = room.leave(lambda name, no=network: name != str(no))
            allowed = [one for one in line if one[0] != network]
            assert (left is None) == (not allowed)
            if left is not None:
                assert left == next(one for one in line if one[0] == left[0])
                line.remove(left)
        else:
            late = [one for one in line if one[1] < number - 10]
            assert sorted(room.leave_while(lambda one, now=number: one[1] < now - 10)) == sorted(late)
            line = [one for one in line if one not in late]
        assert len(room) == len(line)
        room.check_invariants()
