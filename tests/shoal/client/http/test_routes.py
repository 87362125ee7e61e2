"""What a client believes about leaders, and what it does after a failure: tables."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.http.routes import (
    CONNECTION_LOST,
    IMMEDIATE_HINTS_MAX,
    SETTLE_MS,
    UNEXPECTED_ANSWER,
    UNREACHABLE,
    AgentList,
    Failure,
    RetryPolicy,
    RouteTable,
    after_failure,
    failure_from_problem,
)
from shoal.errors import ERRORS, ShoalError

POLICY = RetryPolicy(base_ms=20, cap_ms=250, total_ms=60_000)


def document(term: int, leader: str | None, topic_id: str = "1", **extra: Any) -> dict[str, Any]:
    """Routes of one topic with one partition."""
    entry = {"partition": 0, "hash_range": [0, 2**32 - 1], "leader_url": leader, "term": term, **extra}
    return {"version": "a.1", "topics": {"t": {"id": topic_id, "partitions": [entry]}}}


def verdict(failure: Failure, attempt: int = 0, elapsed_ms: int = 0) -> Any:
    return after_failure(failure, attempt, elapsed_ms, POLICY, random.Random(1))


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (document(4, "http://old"), "http://b"),
        (document(5, None), "http://b"),
        (document(6, None), None),
        (document(6, "http://c/"), "http://c"),
        (document(1, "http://c", topic_id="2"), "http://c"),
    ],
    ids=["older term", "same term, not known there", "newer term, none yet", "newer term", "made again"],
)
def test_the_claim_of_the_higher_term_counts(second: dict[str, Any], expected: str | None) -> None:
    """Answers come from different agents in any order; only a topic made again begins anew."""
    table = RouteTable()
    table.learn(document(5, "http://b"))
    table.learn(second)
    assert table.leader_url("t", 0) == expected


def test_a_hint_is_taken_only_if_it_says_something_new() -> None:
    """A 421 with what was known already must not be followed for ever."""
    table = RouteTable()
    assert not table.learn_leader("t", 0, "http://b", 5)
    table.learn(document(5, "http://b"))
    assert not table.learn_leader("t", 0, "http://b", 5)
    assert not table.learn_leader("t", 0, "http://c", 4)
    assert table.learn_leader("t", 0, "http://c", 6)
    assert table.leader_url("t", 0) == "http://c"
    assert table.leader_changes == 1


def test_a_first_leader_is_no_change_of_leaders() -> None:
    """The first record of a new topic was told as `1 leader change`. One that is lost and followed is one."""
    table = RouteTable()
    table.learn(document(0, None))
    table.learn(document(1, "http://b"))
    assert table.leader_changes == 0
    table.learn(document(2, None))
    table.learn(document(2, "http://c"))
    assert table.leader_changes == 1
    table.learn(document(3, "http://b"))
    assert table.leader_changes == 2


def test_a_sealed_partition_takes_no_appends() -> None:
    """Its range belongs to its successors."""
    table = RouteTable()
    table.learn(document(5, "http://b", successors=[1, 2]))
    assert table.leader_url("t", 0) is None


@pytest.mark.parametrize(
    "wrong",
    [{}, {"topics": []}, {"topics": {"t": {}}}, {"topics": {"t": {"partitions": [{"partition": 0}]}}}],
)
def test_a_document_that_is_no_routing_table_is_refused(wrong: dict[str, Any]) -> None:
    """ValueError, and nothing is learnt."""
    with pytest.raises(ValueError, match="not a routing document"):
        RouteTable().learn(wrong)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_of_the_table_is_retried_or_not_as_it_says(code: str) -> None:
    """Retriable, or in doubt: again, with the same sequence. Anything else: give up at once."""
    problem = ShoalError(code, "x").to_problem()
    failure = failure_from_problem(ERRORS[code].status, problem)
    expected = ERRORS[code].retriable or not ERRORS[code].definite
    assert verdict(failure, attempt=1, elapsed_ms=SETTLE_MS).retry == expected


def test_a_hint_is_followed_at_once_but_not_for_ever() -> None:
    """Two agents that name each other are asked with pauses after IMMEDIATE_HINTS_MAX."""
    failure = Failure("not-leader", "", True, definite=True, leader_url="http://b", term=3)
    assert verdict(failure, attempt=0)[:2] == (True, 0)
    assert verdict(failure, attempt=IMMEDIATE_HINTS_MAX).delay_ms > 0


def test_a_topic_made_a_moment_ago_may_be_unknown_for_a_while() -> None:
    """Then it is believed, unless it is the first answer, which was long in coming."""
    failure = failure_from_problem(404, ShoalError("unknown-topic", "x").to_problem())
    assert verdict(failure, attempt=1, elapsed_ms=SETTLE_MS - 1).retry
    assert not verdict(failure, attempt=1, elapsed_ms=SETTLE_MS).retry
    assert verdict(failure, attempt=0, elapsed_ms=SETTLE_MS).retry
    never_named = after_failure(failure, 0, 0, POLICY, random.Random(1), settle_ms=0)
    assert not never_named.retry


@pytest.mark.parametrize("code", [UNREACHABLE, CONNECTION_LOST])
def test_an_agent_out_of_reach_is_reached_through_others_every_other_time(code: str) -> None:
    """Its advertised address may not be for this client."""
    failure = Failure(code, "", True, definite=code == UNREACHABLE)
    assert [verdict(failure, attempt).through_any for attempt in range(4)] == [False, True, False, True]


@given(attempt=st.integers(0, 10_000), elapsed_ms=st.integers(0, 120_000), seed=st.integers())
def test_pauses_are_bounded_and_the_end_is_kept(attempt: int, elapsed_ms: int, seed: int) -> None:
    """No attempt begins after total_ms, none waits longer than cap_ms."""
    failure = Failure("no-leader", "", True, definite=True)
    found = after_failure(failure, attempt, elapsed_ms, POLICY, random.Random(seed))
    assert found.delay_ms <= POLICY.cap_ms
    assert found.retry == (elapsed_ms + found.delay_ms <= POLICY.total_ms)


def test_retry_after_is_honoured() -> None:
    """An overloaded agent says when to come back."""
    failure = failure_from_problem(429, ShoalError("overloaded", "x").to_problem(), "2")
    assert verdict(failure).delay_ms == 2_000


def test_a_quota_that_suffices_again_is_not_spent_on_routes() -> None:
    """Nothing has moved; where three requests a second are allowed, each question would be one of them."""
    problem = ShoalError("quota-exceeded", "x", retry_after_ms=333).to_problem()
    found = verdict(failure_from_problem(429, problem, "1"))
    assert found == (True, 333, False, False)
    assert verdict(failure_from_problem(429, ShoalError("overloaded", "x").to_problem(), "1")).refresh


def test_an_agent_that_stops_is_not_waited_for() -> None:
    """Another one leads by now, or is about to. Agents of former versions send a Retry-After all the same."""
    failure = failure_from_problem(503, ShoalError("stopping", "x").to_problem(), "1")
    assert verdict(failure).retry
    assert verdict(failure).delay_ms <= POLICY.base_ms


@pytest.mark.parametrize(("status", "retriable"), [(502, True), (503, True), (404, False), (500, False)])
def test_an_answer_without_a_problem_document_is_in_doubt(status: int, retriable: bool) -> None:
    """A proxy in between may have passed the request on."""
    failure = failure_from_problem(status, None)
    assert (failure.retriable, failure.definite) == (retriable, False)


def test_agents_that_answer_come_before_those_that_fail() -> None:
    """And an answer forgives."""
    agents = AgentList([])
    agents.add(["http://a/", "http://b", "http://a"])
    assert agents.in_order() == ["http://a", "http://b"]
    agents.failed("http://a")
    assert agents.in_order() == ["http://b", "http://a"]
    agents.answered("http://a")
    assert agents.in_order() == ["http://a", "http://b"]


def test_the_list_of_agents_is_bounded() -> None:
    """A member list of any size costs no more than agents_max entries."""
    agents = AgentList([])
    agents.add([f"http://{number}" for number in range(1_000)])
    assert len(agents.urls) == agents.agents_max


def test_what_no_agent_said_is_called_otherwise_than_what_agents_say() -> None:
    """Else an agent's refusal of that name would pass for silence, and silence for a refusal."""
    assert {UNREACHABLE, CONNECTION_LOST, UNEXPECTED_ANSWER}.isdisjoint(ERRORS)


@given(wait_ms=st.integers(0, 200_000), elapsed_ms=st.integers(0, 60_000))
def test_a_quota_is_waited_for_as_long_as_it_says(wait_ms: int, elapsed_ms: int) -> None:
    """To the millisecond, however long; and not at all where the end comes before."""
    error = ShoalError("quota-exceeded", "x", quota="requests", retry_after_ms=wait_ms)
    failure = failure_from_problem(429, error.to_problem(), "200")
    found = verdict(failure, elapsed_ms=elapsed_ms)
    assert max(wait_ms, POLICY.base_ms // 2) <= found.delay_ms <= max(wait_ms, POLICY.base_ms)
    assert found.retry == (elapsed_ms + found.delay_ms <= POLICY.total_ms)


def test_a_quotas_seconds_suffice_where_a_proxy_has_cut_the_document() -> None:
    """The header has them, and they are not cut to those of an overload."""
    failure = failure_from_problem(429, {"code": "quota-exceeded", "retriable": True}, "40")
    assert verdict(failure).delay_ms == 40_000
