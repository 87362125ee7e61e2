"""Which log lines an operator hears of members and partitions; time is a number here."""

from __future__ import annotations

import pathlib

import pytest

from shoal.agent.log_lines.cluster_news import (
    INTERVAL_MS,
    LEADERLESS_MS,
    SUSPICION_INTERVAL_MS,
    TEXTS,
    ClusterNews,
    PartitionView,
)

LED_HERE = PartitionView("cod", is_mine=True, missing=(), is_concern=True, term=7)
LED_THERE = PartitionView("herring", is_mine=False, missing=(), is_concern=True, term=7)
LEADERLESS = PartitionView(None, is_mine=False, missing=(), is_concern=True, term=7)
GONE = PartitionView(None, is_mine=False, missing=(), is_concern=False, term=7)


class Log:
    """News with a clock; `said` is what the log has, with the time of each line."""

    def __init__(self) -> None:
        self.news = ClusterNews()
        self.now_ms = 0
        self.said: list[tuple[int, str]] = []
        self.events: list[str] = []

    def member(self, name: str, *statuses: str) -> None:
        for status in statuses:
            self.news.member(f"id of {name}", name, status, self.now_ms)

    def partition(self, where: str, *views: PartitionView) -> None:
        for view in views:
            self.news.partition(where, view, self.now_ms)

    def until(self, end_ms: int) -> list[str]:
        """As the shell does: lines when they are due, and never a wait beyond a deadline. What was said."""
        before = len(self.said)
        while True:
            lines = self.news.lines(self.now_ms)
            self.said += [(self.now_ms, line.text) for line in lines]
            self.events += [line.event for line in lines]
            deadline_ms = self.news.deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                self.now_ms = end_ms
                return [text for _, text in self.said[before:]]
            assert deadline_ms > self.now_ms, "no busy loop"
            self.now_ms = deadline_ms


def test_the_life_of_a_member() -> None:
    """Each change once, at once, by its name."""
    log = Log()
    for status in (
        "alive",
        "alive",
        "suspect",
        "alive",
        "suspect",
        "failed",
        "failed",
        "alive",
        "leaving",
        "left",
    ):
        log.member("herring", status)
        log.until(log.now_ms + SUSPICION_INTERVAL_MS)
    assert [text for _, text in log.said] == [
        "agent joined: herring",
        "agent does not answer and may have failed: herring",
        "agent answers again: herring",
        "agent does not answer and may have failed: herring",
        "agent failed: herring; restart it with the same --data",
        "agent is back: herring",
        "agent left: herring",
    ]
    assert [at_ms % SUSPICION_INTERVAL_MS for at_ms, _ in log.said] == [0] * 7
    log.news.forget_member("id of herring")
    log.member("herring", "alive")
    assert log.until(log.now_ms + INTERVAL_MS) == ["agent joined: herring"]


def test_suspicions_of_a_busy_machine_are_few_lines() -> None:
    """Suspected and cleared five times a second: one pair a minute. A failure is told all the same."""
    log = Log()
    log.member("herring", "alive")
    for _ in range(590):
        log.member("herring", "suspect")
        log.until(log.now_ms + 100)
        log.member("herring", "alive")
        log.until(log.now_ms + 100)
    assert [text.split(":")[0] for _, text in log.said] == [
        "agent joined",
        *("agent does not answer and may have failed", "agent answers again") * 2,
    ]
    log.member("herring", "suspect", "failed")
    assert log.until(log.now_ms + INTERVAL_MS) == ["agent failed: herring; restart it with the same --data"]


def test_leadership_of_a_thousand_partitions_moves_in_a_few_lines() -> None:
    """A line names four and counts the rest; the first comes at once, the next a second later."""
    log = Log()
    for number in range(1_000):
        log.partition(f"orders/{number}", LED_HERE)
        log.until(log.now_ms + 1)
    log.until(10 * INTERVAL_MS)
    assert log.said == [
        (0, "leadership gained: orders/0"),
        (INTERVAL_MS, "leadership gained: orders/1, orders/2, orders/3, orders/4 and 995 more"),
    ]
    for number in range(1_000):
        log.partition(f"orders/{number}", LED_THERE)
    assert log.until(log.now_ms + INTERVAL_MS) == [
        "leadership lost: orders/0, orders/1, orders/2, orders/3 and 996 more (led by: herring)"
    ]


def test_a_flapping_partition_is_told_once_a_second_at_most() -> None:
    """And what is back before it was told not at all."""
    log = Log()
    log.partition("orders/0", LED_HERE)
    log.until(1)
    for _ in range(500):
        log.partition("orders/0", LED_THERE, LED_HERE)
        log.until(log.now_ms + 10)
    assert log.said == [(0, "leadership gained: orders/0")]
    for _ in range(500):
        log.partition("orders/0", LED_THERE)
        log.until(log.now_ms + 10)
        log.partition("orders/0", LED_HERE)
        log.until(log.now_ms + 10)
    assert len(log.said) <= 2 + 2 * 10_000 // INTERVAL_MS


@pytest.mark.parametrize("away_ms", [LEADERLESS_MS - 1, LEADERLESS_MS])
def test_a_partition_without_leader_is_told_after_a_bound(away_ms: int) -> None:
    """An election is no news. What was told to have no leader is told to have one."""
    log = Log()
    log.partition("orders/0", LED_THERE)
    log.until(1_000)
    log.partition("orders/0", LEADERLESS, LEADERLESS)
    said = log.until(1_000 + away_ms)
    log.partition("orders/0", LED_THERE)
    said += log.until(20_000)
    expected = [
        "no leader for 5 s: orders/0; `shoal status` says which agents are needed",
        "led again: orders/0",
    ]
    assert said == (expected if away_ms >= LEADERLESS_MS else [])


def test_a_deleted_partition_is_nobodys_news() -> None:
    """Led by nobody, for nobody's concern; also after it was told to have no leader."""
    log = Log()
    log.partition("orders/0", LEADERLESS, GONE)
    log.partition("orders/1", LEADERLESS)
    assert len(log.until(LEADERLESS_MS)) == 1
    log.partition("orders/1", GONE)
    assert log.until(100_000) == []
    assert log.news.deadline_ms() is None


def test_under_replication_is_told_by_the_leader_with_who_is_missing() -> None:
    """Told anew when others are missing, over once all are there, and none of it by who leads no longer."""
    log = Log()
    log.partition("orders/0", LED_HERE, LED_HERE._replace(missing=("herring",)))
    assert log.until(2_000) == [
        "leadership gained: orders/0",
        "under-replicated: orders/0 (missing: herring)",
    ]
    log.partition("orders/0", *[LED_HERE._replace(missing=("herring", "hake"))] * 2)
    log.partition("orders/1", LED_HERE._replace(missing=("hake", "herring")))
    assert log.until(4_000) == [
        "leadership gained: orders/1",
        "under-replicated: orders/0, orders/1 (missing: hake, herring)",
    ]
    log.partition("orders/1", LED_HERE)
    assert log.until(5_000) == ["fully replicated again: orders/1"]
    log.partition("orders/0", LED_HERE)
    assert log.until(6_000) == ["fully replicated again: orders/0"]
    log.partition("orders/0", LED_HERE._replace(missing=("herring",)))
    log.until(8_000)
    log.partition("orders/0", LED_THERE._replace(missing=("hake",)), LED_THERE)
    assert log.until(9_000) == ["leadership lost: orders/0 (led by: herring)"]


def test_every_event_has_a_level_and_fields_for_programs() -> None:
    """All of them once, in an order in which cause comes before effect."""
    log = Log()
    log.member("a", "alive")
    log.member("b", "alive", "suspect")
    log.until(0)
    log.member("b", "alive", "failed", "alive", "left")
    log.partition("orders/0", LEADERLESS)
    log.partition("orders/1", LED_HERE._replace(missing=("b",)))
    log.until(LEADERLESS_MS)
    log.partition("orders/0", LED_THERE)
    log.partition("orders/1", LED_HERE)
    log.until(2 * LEADERLESS_MS)
    log.partition("orders/1", LED_THERE)
    log.until(3 * LEADERLESS_MS)
    assert set(log.events) == set(TEXTS)
    many = [f"agent-{number}" for number in range(9)]
    for name in many:
        log.member(name, "failed")
    (line,) = log.news.lines(log.now_ms)
    assert (line.level, line.event, line.names, line.total) == (
        "warning",
        "member-failed",
        tuple(many[:4]),
        9,
    )


def test_operators_find_every_line_in_the_documents() -> None:
    """With what it means and what to do."""
    page = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations" / "monitoring.md"
    described = page.read_text()
    assert [text for _, text in TEXTS.values() if f"`{text.partition(':')[0]}" not in described] == []
