"""Who owns which partition: balanced, alike everywhere, and moving little."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.groups.leader.owners import MOST_MS, SETTLED_MS, Presence, assign
from shoal.agent.groups.requests import MAX_CONSUMERS
from shoal.agent.receive import NOBODY
from tests.agent.groups.group_desk import name

NAMES = st.sets(st.binary(min_size=16, max_size=16), min_size=1, max_size=12).map(sorted)


@given(NAMES, st.integers(1, 40))
def test_owners_are_balanced_within_one(names: list[bytes], partitions: int) -> None:
    """Nobody has two more than another, and every partition has an owner."""
    owners = assign(tuple(names), partitions)
    assert len(owners) == partitions
    loads = Counter(dict.fromkeys(names, 0))
    loads.update(owners)
    assert set(loads) == set(names)
    assert max(loads.values()) - min(loads.values()) <= 1


@given(NAMES, st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_order_of_names_is_nothing(names: list[bytes], partitions: int, chance: random.Random) -> None:
    """Leaders hear of consumers in any order."""
    other = list(names)
    chance.shuffle(other)
    assert assign(tuple(other), partitions) == assign(tuple(names), partitions)


def test_few_partitions_move_when_a_consumer_joins() -> None:
    """A newcomer must get its share; of the others few move. As many move back when it leaves."""
    chance = random.Random(17)
    moved = needed = 0
    for _ in range(200):
        partitions, count = chance.randint(1, 64), chance.randint(1, 16)
        names = tuple(sorted(chance.randbytes(16) for _ in range(count)))
        before = assign(names, partitions)
        after = assign(tuple(sorted((*names, chance.randbytes(16)))), partitions)
        changes = sum(one != other for one, other in zip(before, after, strict=True))
        share = -(-partitions // count)
        assert changes <= 3 * (share + 1), (partitions, count, changes)
        moved += changes
        needed += -(-partitions // (count + 1))
    assert moved <= 1.5 * needed, (moved, needed)


def test_presence_lasts_a_session() -> None:
    """And is renewed by whatever is heard."""
    presence = Presence(10_000)
    assert presence.see(name("a"), NOBODY, 0, "a")
    assert presence.see(name("b"), NOBODY, 5_000, "b")
    assert presence.deadline_ms() == 10_000
    assert presence.see(name("a"), NOBODY, 9_000)
    assert presence.expire(14_999) == []
    assert presence.expire(15_000) == [name("b")]
    assert presence.deadline_ms() == 19_000
    assert [(consumer, seen.name) for consumer, seen in presence.items()] == [(name("a"), "a")]


def test_a_name_is_one_process() -> None:
    """Another instance is another consumer; one without instance is whoever is there."""
    presence = Presence(10_000)
    presence.see(name("a"), name("1"), 0)
    assert presence.is_other(name("a"), name("2"))
    assert not presence.is_other(name("a"), NOBODY)
    presence.see(name("a"), NOBODY, 1)
    assert presence.is_other(name("a"), name("2"))
    assert not presence.leave(name("a"), name("2"), 1)
    assert presence.leave(name("a"), name("1"), 1)
    assert not presence.leave(name("a"), name("1"), 1)
    assert not presence.is_other(name("a"), name("2"))


def test_consumers_are_bounded() -> None:
    """Those who are there stay."""
    presence = Presence(10_000)
    for number in range(MAX_CONSUMERS):
        assert presence.see(name(str(number)), NOBODY, 0)
    assert not presence.see(name("more"), NOBODY, 0)
    assert presence.see(name("7"), NOBODY, 1)
    assert len(presence) == MAX_CONSUMERS


def test_many_consumers_are_given_their_partitions_once_they_have_settled() -> None:
    """A thousand that come at once do not have the owners computed a thousand times."""
    assign.cache_clear()
    presence = Presence(60_000)
    for number in range(500):
        assert presence.see(name(str(number)), NOBODY, number)
        assert presence.owner_of(7, 1_000, number) is not None
    few = assign.cache_info().misses
    assert few <= 20
    assert presence.deadline_ms() == 499 + SETTLED_MS
    assert presence.expire(499 + SETTLED_MS) == []
    assert assign.cache_info().misses == few + 1
    assert presence.deadline_ms() == 60_000
    owners = [presence.owner_of(partition, 1_000, 2_000) for partition in range(1_000)]
    assert set(Counter(owners).values()) == {2}
    assert assign.cache_info().misses == few + 1


def test_consumers_that_never_settle_are_given_partitions_all_the_same() -> None:
    """Now and then; and once they have settled all of them are."""
    assign.cache_clear()
    presence = Presence(60_000)
    for at_ms in range(0, 3 * MOST_MS, 500):
        presence.see(name(f"{at_ms}"), NOBODY, at_ms)
        assert presence.owner_of(0, 10_000, at_ms) in presence
    assert 3 <= assign.cache_info().misses <= 5
    owners = {presence.owner_of(partition, 10_000, 4 * MOST_MS) for partition in range(10_000)}
    assert len(owners) == len(presence)
