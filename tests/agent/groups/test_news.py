"""News of groups: told at once, added up where they come fast, and bounded for an agent as a whole."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.groups import news as news_file
from shoal.agent.groups.news import (
    HELD_MAX,
    INTERVAL_MS,
    LOST,
    OFFSETS_MAX,
    TOLD_MAX,
    Bulletins,
    LeaderWatch,
    News,
    Told,
)
from shoal.agent.receive import GroupKey
from tests.agent.groups.group_entries import KEYS


def dead(*offsets: int, reason: str = "nack") -> News:
    return News("group-messages-died", len(offsets), offsets, facts={"reason": reason})


def test_the_first_is_told_at_once_and_the_others_together() -> None:
    """Numbers are added up, the first offsets are named, and the newest fact counts."""
    bulletins = Bulletins()
    bulletins.note("p", dead(1))
    assert bulletins.take(5_000) == [Told("p", dead(1))]
    for first in range(2, 22, 2):
        bulletins.note("p", dead(first, first + 1, reason=f"{first}"))
    bulletins.note("q", dead(7))
    assert bulletins.take(5_999) == [Told("q", dead(7))]
    assert bulletins.deadline_ms() == 5_000 + INTERVAL_MS
    (told,) = bulletins.take(6_000)
    assert told.news == News(
        "group-messages-died", 20, tuple(range(2, 2 + OFFSETS_MAX)), facts={"reason": "20"}
    )
    assert bulletins.deadline_ms() is None


def test_a_change_that_is_undone_before_it_was_told_is_not_told() -> None:
    """Else it has the value that was told last, and the newest one."""
    bulletins = Bulletins()

    def owner(before: str, after: str) -> News:
        return News("group-owner-changed", change=(before, after))

    bulletins.note("p", owner("", "a"))
    assert bulletins.take(0) == [Told("p", owner("", "a"))]
    for change in (("a", ""), ("", "b"), ("b", "c")):
        bulletins.note("p", owner(*change))
    assert bulletins.take(INTERVAL_MS) == [Told("p", owner("a", "c"))]
    for change in (("c", ""), ("", "c")):
        bulletins.note("p", owner(*change))
    assert bulletins.take(9_000) == []
    assert bulletins.deadline_ms() is None


def test_all_groups_together_have_a_bound_and_news_beyond_the_memory_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first noted is the first told; a place that is held takes more."""
    monkeypatch.setattr(news_file, "HELD_MAX", 2 * TOLD_MAX)
    bulletins = Bulletins()
    for number in range(2 * TOLD_MAX + 3):
        bulletins.note(number, dead(number))
    bulletins.note(0, dead(0))
    first = bulletins.take(0)
    assert [told.place for told in first] == [*range(TOLD_MAX), None]
    assert first[0].news.messages == 2
    assert first[-1].news == News(LOST, facts={"events": 3})
    assert bulletins.take(INTERVAL_MS - 1) == []
    assert bulletins.deadline_ms() == INTERVAL_MS
    assert [told.place for told in bulletins.take(INTERVAL_MS)] == list(range(TOLD_MAX, 2 * TOLD_MAX))


STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from("abc"), st.integers(0, 400), st.booleans()), max_size=120
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_nothing_is_told_too_often_and_nothing_gets_lost(
    steps: list[tuple[int, str, int, bool]],
) -> None:
    """Whatever happens when: each place and kind has its interval, all together their bound, and the sum of
    messages is right once all is told."""
    bulletins, now_ms = Bulletins(), 0
    noted: Counter[tuple[object, str]] = Counter()
    heard: Counter[tuple[object, str]] = Counter()
    times: dict[tuple[object, str], list[int]] = {}
    within: deque[int] = deque()

    def take() -> None:
        for place, news in bulletins.take(now_ms):
            heard[place, news.kind] += news.messages
            times.setdefault((place, news.kind), []).append(now_ms)
            within.append(now_ms)
            while within[0] <= now_ms - INTERVAL_MS:
                within.popleft()
            assert len(within) <= TOLD_MAX
        bulletins.check_invariants()

    for place, kind, later_ms, asks in steps:
        bulletins.note(place, News(kind, 1, (place,)))
        noted[place, kind] += 1
        now_ms += later_ms
        if asks:
            take()
    while (deadline_ms := bulletins.deadline_ms()) is not None:
        now_ms = max(now_ms, deadline_ms)
        take()
    assert heard == noted
    assert all(after - before >= INTERVAL_MS for one in times.values() for before, after in pairwise(one))
    assert len(noted) < HELD_MAX


def test_owners_and_windows_are_told_when_they_change() -> None:
    """A leader that is made anew knows nothing at first: that is no change. One that is gone is forgotten."""
    watch, key, other = LeaderWatch(), KEYS[0], KEYS[1]

    def owner(before: str, after: str, group: GroupKey = key) -> tuple[GroupKey, News]:
        return group, News("group-owner-changed", change=(before, after))

    assert watch.look({key: ("", "")}) == []
    assert watch.look({key: ("a", ""), other: ("b", "")}) == [owner("", "a"), owner("", "b", other)]
    assert watch.look({key: None, other: ("b", "window-full")}) == [
        (other, News("group-window-changed", change=("", "window-full")))
    ]
    assert watch.look({key: ("a", "")}) == []
    assert watch.look({}) == []
    assert watch.look({key: ("a", "")}) == [owner("", "a")]
