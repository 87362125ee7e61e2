"""The rules of the Raft paper (Ongaro and Ousterhout, USENIX ATC 2014) and of Ongaro's thesis (2014), each
with the tests that fail without it. Whoever adds a rule adds its test; a renamed one is missed here."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent

RULES: dict[str, tuple[str, ...]] = {
    "figure 2, persistent state": ("test_a_vote_survives_a_restart", "test_a_restart_keeps_log_and_term"),
    "figure 2, AppendEntries 1": ("test_a_stale_leader_is_told_the_term",),
    "figure 2, AppendEntries 2": ("test_the_consistency_check",),
    "figure 2, AppendEntries 3 and 4": (
        "test_conflicting_entries_are_removed",
        "test_an_old_request_removes_nothing",
    ),
    "figure 2, AppendEntries 5": ("test_a_follower_commits_no_more_than_it_was_sent",),
    "figure 2, RequestVote 1": ("test_candidates_of_an_older_term_are_told_the_newer_one",),
    "figure 2, RequestVote 2": ("test_one_vote_per_term", "test_votes_for_logs_at_least_as_up_to_date"),
    "figure 2, all servers 1": ("test_entries_reach_everybody_and_commit",),
    "figure 2, all servers 2": ("test_a_newer_term_turns_anybody_into_a_follower",),
    "figure 2, followers": ("test_starts_as_follower", "test_campaigns_when_no_leader_is_heard"),
    "figure 2, candidates": (
        "test_a_majority_of_votes_makes_a_leader",
        "test_a_candidate_yields_to_the_leader_of_its_term",
        "test_a_split_vote_is_tried_again",
    ),
    "figure 2, leaders 1": ("test_a_leader_speaks_at_once_and_then_at_every_interval",),
    "figure 2, leaders 2": ("test_nothing_commits_without_a_majority",),
    "figure 2, leaders 3": ("test_figure_7", "test_back_off_skips_a_whole_term_at_a_time"),
    "figure 2, leaders 4": ("test_old_terms_are_not_committed_by_counting",),
    "figure 3, election safety": (
        "ElectionSafety",
        "test_two_leaders_in_a_term_are_an_impossibility_that_is_counted",
    ),
    "figure 3, leader append-only": ("test_a_leader_only_appends_to_its_own_log",),
    "figure 3, log matching": ("LogMatching",),
    "figure 3, leader completeness": ("LeaderCompleteness", "test_a_committed_entry_is_never_replaced"),
    "figure 3, state machine safety": ("StateMachineSafety",),
    "figure 4": ("test_the_table_of_transitions_is_the_one_documented",),
    "figure 7": ("test_figure_7",),
    "figure 8": ("test_old_terms_are_not_committed_by_counting", "CommitsOwnTerm"),
    "section 5.1": ("test_a_newer_term_turns_anybody_into_a_follower", "MonotonicTermAndCommit"),
    "section 5.2": ("test_election_timeouts_are_random_within_their_range", "OneVotePerTerm"),
    "section 5.3": ("test_a_lost_append_is_sent_again", "test_a_gap_starts_the_flight_anew"),
    "section 5.4.1": ("test_votes_for_logs_at_least_as_up_to_date",),
    "section 5.4.2": ("test_old_terms_are_not_committed_by_counting",),
    "section 5.5": ("test_repeated_and_reordered_requests_change_nothing",),
    "section 5.6": ("test_contradicting_knobs_are_refused",),
    "section 8": (
        "test_a_leader_opens_its_term_with_an_entry",
        "test_the_noop_is_named_and_lies_inside_the_append",
    ),
    "thesis 3.8": ("test_a_granted_vote_waits_for_the_disk", "PromisesAreDurable"),
    "thesis 3.10": (
        "test_leadership_is_handed_over_within_a_round_trip",
        "test_the_target_gets_everything_first",
        "test_proposals_are_refused_meanwhile",
        "test_a_transfer_is_given_up_after_an_election_timeout",
    ),
    "thesis 4.1": (
        "test_a_change_takes_effect_when_it_is_appended",
        "test_only_one_change_at_a_time",
        "test_a_change_waits_for_the_first_commit_of_the_term",
        "test_the_new_majority_commits_the_change",
        "test_a_truncated_change_is_undone",
        "OneChangeAtATime",
    ),
    "thesis 4.2.1": (
        "test_a_learner_is_promoted_when_it_has_caught_up",
        "test_learners_do_not_count_towards_a_commit",
        "test_a_learner_never_campaigns_but_votes_when_asked",
        "test_a_learners_vote_does_not_count",
    ),
    "thesis 4.2.2": ("test_a_removed_leader_leads_until_that_is_committed",),
    "thesis 4.2.3": (
        "test_votes_are_not_heard_while_there_is_a_leader",
        "test_a_transfer_is_heard_in_spite_of_the_leader",
        "test_a_removed_replica_does_not_disturb",
    ),
    "thesis 6.2": ("test_a_leader_that_hears_no_majority_steps_down",),
    "thesis 6.4": (
        "test_a_read_waits_for_a_majority_to_confirm",
        "test_an_answer_to_an_earlier_round_proves_nothing",
        "test_a_deposed_leader_answers_no_read",
        "test_a_read_before_the_first_commit_of_the_term_waits",
        "LinearizableRead",
    ),
    "thesis 9.6": (
        "test_pre_vote_moves_no_term",
        "test_a_returning_replica_does_not_disturb",
        "test_a_pre_vote_needs_a_good_log_and_a_silent_leader",
    ),
    "thesis 10.2.1": (
        "test_the_own_copy_counts_after_its_sync",
        "test_a_majority_of_followers_may_commit_before_the_leader_has_synced",
    ),
    "thesis 10.2.2": ("test_a_flight_is_bounded", "test_a_pipeline_does_not_wait_for_answers"),
}
"""Not ours: joint consensus (section 6, thesis 4.3), since one change at a time does; leases for reads
(thesis 6.4.1), since no clock decides safety; snapshots (section 7, thesis 5), instead of which whole
segments are copied (test_catch_up.py); client sessions (thesis 6.3), instead of which producers have
sequences (agent/partition/state/test_idempotence.py)."""


def documented() -> dict[str, str]:
    """Every test of this folder and every invariant of the simulation, with its docstring."""
    paths = [*TESTS.glob("replication/**/test_*.py"), TESTS / "simulation" / "raft_sim" / "invariants.py"]
    found = {}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = ast.get_docstring(node) or ""
    return found


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_tests_that_name_where_it_stands(rule: str) -> None:
    """Each test is there and cites the paper or the thesis; one of them cites this very section or figure,
    but for figure 2, whose rules the sections explain."""
    docstrings = documented()
    cited = [" ".join(docstrings[name].lower().split()) for name in RULES[rule]]
    assert all(re.search(r"(figure|section|thesis|raft paper|rules? for) ?\d*", text) for text in cited), (
        cited
    )
    place = rule.partition(",")[0]
    assert place == "figure 2" or any(re.search(rf"{re.escape(place)}(?![.\d])", text) for text in cited), (
        cited
    )
