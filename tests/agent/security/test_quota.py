"""Quotas under virtual time: what passes, what is refused, for how long, and whom it concerns."""

from __future__ import annotations

import heapq
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.security.access import AskedBy
from shoal.agent.security.documents import command_document, command_from, state_document, state_from
from shoal.agent.security.principals import PutPrincipal, PutRole, Security
from shoal.agent.security.quota import (
    HELD,
    NO_QUOTAS,
    QUOTA_MAX,
    REFUSAL_DELAY_MAX_NS,
    REFUSALS_PER_S,
    SECOND_NS,
    Buckets,
    Holdings,
    QuotaError,
    QuotaKeeper,
    Quotas,
    Taken,
    joined,
    quotas_from,
)

BY = AskedBy("ann", "token", "127.0.0.1", 1_000, "0" * 16)
PAUSES = st.lists(st.tuples(st.integers(0, 3 * SECOND_NS), st.integers(0, 5_000)), max_size=60)


@given(PAUSES, st.integers(1, 3_000), st.integers(1, 20))
def test_no_more_than_rate_times_time_and_one_second(
    asked: list[tuple[int, int]], bytes_in: int, requests: int
) -> None:
    """At every moment, of bytes and of requests; a larger request than a second's worth counts for itself."""
    quotas, buckets, now_ns = Quotas(bytes_in=bytes_in, requests=requests), Buckets(), 0
    passed = passed_bytes = largest = 0
    for pause_ns, size in asked:
        now_ns += pause_ns
        if buckets.take(quotas, Taken(size, reads=False), now_ns) is None:
            passed += 1
            passed_bytes += size
            largest = max(largest, size)
            assert passed * SECOND_NS <= requests * (now_ns + SECOND_NS)
            assert passed_bytes * SECOND_NS <= bytes_in * now_ns + max(bytes_in, largest) * SECOND_NS


@given(PAUSES, st.integers(1, 3_000), st.integers(1, 20))
def test_a_refusal_says_when_the_same_request_passes(
    asked: list[tuple[int, int]], bytes_in: int, requests: int
) -> None:
    """Then it does, and a moment before it does not; a refused one has taken nothing."""
    quotas, buckets, now_ns = Quotas(bytes_in=bytes_in, requests=requests), Buckets(), 0
    for pause_ns, size in asked:
        now_ns += pause_ns
        taken, before = Taken(size, reads=False), repr(buckets)
        while (refusal := buckets.take(quotas, taken, now_ns)) is not None:
            assert repr(buckets) == before
            assert refusal.wait_ns > 0
            again = buckets.take(quotas, taken, now_ns + refusal.wait_ns - 1)
            assert again is not None
            now_ns += refusal.wait_ns


@given(PAUSES, st.integers(1, 3_000))
def test_answers_that_are_cut_keep_the_rate(asked: list[tuple[int, int]], bytes_out: int) -> None:
    """A reader that takes what is left at each time has at most rate * time and a second's worth."""
    quotas, buckets, now_ns, sent = Quotas(bytes_out=bytes_out), Buckets(), 0, 0
    for pause_ns, wanted in asked:
        now_ns += pause_ns
        if buckets.take(quotas, Taken(0, reads=True), now_ns) is not None:
            continue
        left = buckets.left_out(quotas, now_ns)
        assert left is not None
        assert left >= 1
        buckets.send(quotas, min(wanted, left), now_ns)
        sent += min(wanted, left)
        assert sent * SECOND_NS <= bytes_out * (now_ns + SECOND_NS)
        assert buckets.debt_ns(now_ns) <= bytes_out * len(asked)  # each cost is rounded up by less than 1 ns


def test_one_that_asks_for_ten_times_its_quota_costs_another_nothing() -> None:
    """A minute of virtual time: the one within its quota passes always, and the greedy one as often as if it
    were alone."""
    quotas = Quotas(requests=100, bytes_in=10_000)

    def minute(*principals: tuple[str, int]) -> dict[str, int]:
        keeper, passed = QuotaKeeper(), dict.fromkeys((name for name, _ in principals), 0)
        for now_ns in range(0, 60 * SECOND_NS, SECOND_NS // 1_000):
            for name, rate in principals:
                if now_ns % (SECOND_NS // rate) == 0:
                    taken = Taken(100, reads=False)
                    passed[name] += keeper.of(name, now_ns).take(quotas, taken, now_ns) is None
        return passed

    both = minute(("greedy", 1_000), ("modest", 100))
    assert both["modest"] == 60 * 100
    assert both["greedy"] == minute(("greedy", 1_000))["greedy"] <= 61 * 100


def test_an_empty_bucket_of_answers_refuses_reads_alone() -> None:
    """Writes go on, and so do reads once it is paid for."""
    quotas, buckets = Quotas(bytes_out=1_000), Buckets()
    buckets.send(quotas, 3_000, 0)
    assert buckets.debt_ns(0) == 2 * SECOND_NS
    assert buckets.take(quotas, Taken(500, reads=False), 0) is None
    refusal = buckets.take(quotas, Taken(0, reads=True), 0)
    assert refusal is not None
    assert (refusal.kind, refusal.limit) == ("bytes_out", 1_000)
    assert buckets.take(quotas, Taken(0, reads=True), refusal.wait_ns) is None


def test_a_request_that_begins_anew_takes_once() -> None:
    """What was given back is there again."""
    quotas, buckets, taken = Quotas(bytes_in=100, requests=1), Buckets(), Taken(100, reads=False)
    assert buckets.take(quotas, taken, SECOND_NS) is None
    buckets.give_back(quotas, taken)
    assert buckets.take(quotas, taken, SECOND_NS) is None
    assert buckets.take(quotas, taken, SECOND_NS) is not None


def test_without_a_limit_nothing_is_counted() -> None:
    """The buckets stay as they were made."""
    buckets = Buckets()
    assert buckets.take(NO_QUOTAS, Taken(QUOTA_MAX, reads=True), 0) is None
    buckets.send(NO_QUOTAS, QUOTA_MAX, 0)
    assert repr(buckets) == repr(Buckets())
    assert buckets.left_out(NO_QUOTAS, 0) is None


def test_buckets_are_bounded_and_full_ones_are_forgotten_first() -> None:
    """However many principals ask: one that asked lately keeps what it owes."""
    quotas, keeper = Quotas(requests=1), QuotaKeeper(buckets_max=3)
    for number in range(10):
        keeper.of(f"p{number}", 0).take(quotas, Taken(0, reads=False), 0)
        assert len(keeper) <= 3
    assert keeper.of("p9", 0).take(quotas, Taken(0, reads=False), 0) is not None
    keeper.of("new", 2 * SECOND_NS)
    assert len(keeper) == 1


def test_a_principals_own_quota_counts_before_those_of_its_roles() -> None:
    """Of its roles the most generous one, each kind by itself."""
    roles = (Quotas(bytes_in=5, requests=7), Quotas(bytes_in=9), NO_QUOTAS)
    assert joined(Quotas(requests=3), roles) == Quotas(bytes_in=9, requests=3)
    assert joined(NO_QUOTAS, roles) == Quotas(bytes_in=9, requests=7)
    assert joined(NO_QUOTAS, ()) == joined(NO_QUOTAS, (NO_QUOTAS,)) == NO_QUOTAS


def test_a_state_of_before_there_were_more_kinds() -> None:
    """A snapshot with rates alone has no other limits."""
    assert quotas_from({"bytes_in": 4, "requests": 9}) == Quotas(4, None, 9, None, None, None)
    assert quotas_from({}) == NO_QUOTAS


def test_the_cost_of_quotas_covers_their_bytes() -> None:
    """Of the largest numbers, too."""
    largest = Quotas(*[QUOTA_MAX] * len(Quotas._fields))
    assert len(json.dumps({"quotas": largest.document()})) <= largest.cost()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(HELD), st.integers(-1, 4)), max_size=200))
def test_what_is_held_is_never_more_than_the_limit_and_comes_back(
    steps: list[tuple[str, str, int]],
) -> None:
    """-1: the oldest one of these ends. Each principal and kind is counted by itself; in the end nothing is
    left."""
    holdings, held = Holdings(), dict.fromkeys(((who, kind) for who in "ab" for kind in HELD), 0)
    for who, kind, limit in steps:
        if limit < 0:
            if held[who, kind]:
                holdings.give_back(who, kind)
                held[who, kind] -= 1
        else:
            assert holdings.take(who, kind, limit) == (held[who, kind] < limit)
            held[who, kind] += held[who, kind] < limit
        assert {key: holdings.held(*key) for key in held} == held
        assert len(holdings) == sum(count > 0 for count in held.values())
    for (who, kind), count in held.items():
        for _ in range(count):
            holdings.give_back(who, kind)
    assert len(holdings) == 0
    with pytest.raises(KeyError):
        holdings.give_back("a", "waits")


@pytest.mark.parametrize("value", [
    [], "requests=5", 5, {"request": 5}, {"requests": 0}, {"requests": -1}, {"requests": 1.5},
    {"waits": 0}, {"streams": "1"}, {"connections": True}, {"holds": 1},
    {"requests": True}, {"requests": "5"}, {"requests": None}, {"bytes_in": QUOTA_MAX + 1}, {1: 5},
])  # fmt: skip
def test_quotas_that_cannot_be(value: object) -> None:
    """One error, in words."""
    with pytest.raises(QuotaError):
        quotas_from(value)


def test_quotas_stand_in_the_state_and_its_documents() -> None:
    """With their principal or role; one without any has the document that it had before there were any."""
    some = Quotas(bytes_out=10, requests=5, streams=2)
    role = PutRole("clerk", None, (), BY, Quotas(requests=9, bytes_in=4, waits=3, connections=8))
    bob = PutPrincipal("bob", None, ("clerk",), (), BY, some)
    for command, operation in ((role, "role-put"), (bob, "principal-put")):
        assert command_from(operation, command_document(command)) == command
    state = Security()
    assert [state.apply(role, (0, 1)), state.apply(bob, (0, 2))] == ["done", "done"]
    state.check_invariants()
    assert state_from(json.loads(json.dumps(state_document(state)))) == state
    of_both = Quotas(bytes_in=4, bytes_out=10, requests=5, connections=8, waits=3, streams=2)
    assert state.quotas_of("bob") == of_both
    assert state.quotas_of("eve", ("clerk", "nobody")) == Quotas(4, None, 9, 8, 3)
    bare = PutPrincipal("bob", (0, 2), (), (), BY)
    assert "quotas" not in command_document(bare)
    assert state.apply(bare, (0, 3)) == "done"
    state.check_invariants()
    assert "quotas" not in state_document(state)["principals"][0]
    assert state.quotas_of("bob") == NO_QUOTAS
    with pytest.raises(ValueError, match="whole number"):
        command_from("principal-put", {**command_document(role), "roles": [], "quotas": {"requests": 0}})


# ---- fairness: a model of an agent, which does one thing at a time

APPEND_NS = 100_000
REFUSAL_NS = 200_000
QUOTA = 200
SECONDS = 10


class OneCore:
    """An agent's time under requests of two principals: `other`, as quickly as eight connections get their
    answers, and `greedy`, so many requests a second over 64 connections, whatever it is told."""

    def __init__(self, offered: int, *, in_line: bool = True, quotas: Quotas = NO_QUOTAS) -> None:
        self._offered = offered
        self._in_line = in_line
        self._quotas = quotas
        self._buckets = Buckets()
        self.served = {"other": 0, "greedy": 0}

    def run(self) -> int:
        """Answers that `other` had."""
        events = [(0, number, "other") for number in range(8)]
        if self._offered:
            pause_ns = 64 * SECOND_NS // self._offered
            events += [(number * pause_ns // 64, 8 + number, "greedy") for number in range(64)]
        heapq.heapify(events)
        now_ns = 0
        while events[0][0] < SECONDS * SECOND_NS:
            came_ns, number, who = heapq.heappop(events)
            now_ns = max(now_ns, came_ns)
            cost_ns, delay_ns = APPEND_NS, 0
            if who == "greedy" and self._quotas != NO_QUOTAS and self._is_refused(now_ns):
                cost_ns, delay_ns = REFUSAL_NS, self._buckets.refuse(now_ns) if self._in_line else 0
            else:
                self.served[who] += 1
            now_ns += cost_ns
            pause_ns = 0 if who == "other" else 64 * SECOND_NS // self._offered
            heapq.heappush(events, (max(came_ns + pause_ns, now_ns + delay_ns), number, who))
        return self.served["other"]

    def _is_refused(self, now_ns: int) -> bool:
        return self._buckets.take(self._quotas, Taken(10, reads=False), now_ns) is not None


@pytest.mark.parametrize("times", [10, 20, 40])
def test_one_at_many_times_its_quota_costs_another_at_most_a_tenth(times: int) -> None:
    """It has its quota itself meanwhile. Without a line its refusals alone would cost more, and without a
    quota its requests."""
    alone = OneCore(0).run()
    quotas = Quotas(requests=QUOTA)
    beside = OneCore(times * QUOTA, quotas=quotas)
    assert beside.run() >= 0.9 * alone
    assert QUOTA * (SECONDS - 1) <= beside.served["greedy"] <= QUOTA * (SECONDS + 1)
    assert OneCore(times * QUOTA, in_line=False, quotas=quotas).run() < 0.9 * alone
    assert OneCore(times * QUOTA).run() < 0.9 * alone


@given(st.lists(st.integers(0, SECOND_NS // 10), max_size=300))
def test_refusals_of_a_principal_stand_in_a_line(pauses_ns: list[int]) -> None:
    """A second's at once, then so many a second, and none waits for longer than clients do."""
    buckets, now_ns, last_ns, at_once = Buckets(), 0, 0, 0
    for number, pause_ns in enumerate(pauses_ns, 1):
        now_ns += pause_ns
        delay_ns = buckets.refuse(now_ns)
        assert 0 <= delay_ns <= REFUSAL_DELAY_MAX_NS
        assert now_ns + delay_ns >= last_ns
        last_ns = now_ns + delay_ns
        at_once += delay_ns == 0
        assert at_once <= REFUSALS_PER_S * (1 + now_ns / SECOND_NS)
        assert number > REFUSALS_PER_S or delay_ns == 0
