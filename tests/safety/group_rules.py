"""The faults of rule 21, consumer groups."""

# ruff: noqa: E501 -- lines of the product, as they stand there

from __future__ import annotations

from tests.safety.fault import A, Fault

GROUP_FAULTS: tuple[Fault, ...] = (
    Fault(
        21,
        "messages are given before the entry that gives them is committed",
        "agent/delivery/keeper.py",
        "        if request.entry > self._replica.state.committed.last_index:\n",
        "        if False:\n",
        (
            A + "delivery/test_fail_over.py::test_an_entry_that_is_cut_says_that_leadership_was_lost",
            A + "delivery/test_fail_over.py::test_a_record_that_is_cut_takes_along_the_entry_that_gave_it",
        ),
    ),
    Fault(
        21,
        "an entry is made while the one before is not synced",
        "agent/delivery/keeper.py",
        "        if replica.core.stable_index >= self._last_entry:\n",
        "        if True:\n",
        (A + "delivery/test_entries.py::test_plans_that_come_while_an_entry_is_synced_are_followed",),
    ),
    Fault(
        21,
        "a leader that was deposed refuses a receipt of the next one",
        "agent/delivery/keeper.py",
        "        if request.is_unlogged(answer):\n",
        "        if False:\n",
        (A + "delivery/test_fail_over.py::test_a_leader_that_was_deposed_refuses_no_receipt_of_the_next",),
    ),
    Fault(
        21,
        "a leader that was deposed makes leases longer of which the next one knows nothing",
        "agent/delivery/queued.py",
        "        return self.lengthened or any(self.outcomes)\n",
        "        return any(self.outcomes)\n",
        (A + "delivery/test_fail_over.py::test_a_leader_that_was_deposed_makes_no_lease_longer",),
    ),
    Fault(
        21,
        "messages that stand in the log are told as not given",
        "agent/delivery/entry_turn.py",
        "entry_of(found.delivery))\n        self.logged.append(request)\n",
        "entry_of(found.delivery))\n",
        (A + "delivery/test_fail_over.py::test_only_a_mere_refusal_says_that_nothing_happened",),
    ),
    Fault(
        21,
        "a catalog from before a group ends it",
        "agent/groups/fold.py",
        "                if group is None or epoch != group.begun[0] or offset <= group.begun[1]:\n",
        "                if group is None:\n",
        (A + "groups/test_fold.py::test_begin_and_drop",),
    ),
    Fault(
        21,
        "groups wait for what retention has taken",
        "agent/delivery/group_upkeep.py",
        "            if self.is_trimmed(group):\n",
        "            if False:\n",
        (A + "delivery/test_fail_over.py::test_a_group_skips_what_retention_has_taken",),
    ),
    Fault(
        21,
        "an attempt is not counted",
        "agent/groups/partition_group.py",
        "            attempts = min(span.attempts + 1, MAX_COUNTED_ATTEMPTS)\n",
        "            attempts = span.attempts\n",
        (A + "groups/test_fold.py::test_the_way_of_a_message",),
    ),
    Fault(
        21,
        "a receipt counts after its message was given again",
        "agent/groups/leader/acts.py",
        "        if span.delivery != receipt.delivery:\n",
        "        if False:\n",
        (A + "groups/leader/test_acts.py::test_a_late_ack_counts_until_the_message_is_given_again",),
    ),
    Fault(
        21,
        "two answers of one entry have one number",
        "agent/groups/partition_group.py",
        "        return max(index * DELIVERIES, self.last_delivery + 1)\n",
        "        return index * DELIVERIES\n",
        (A + "groups/leader/test_acts.py::test_two_answers_of_one_entry_have_receipts_of_their_own",),
    ),
    Fault(
        21,
        "a group is done with a message that nobody is done with",
        "agent/groups/floor.py",
        "            if span.state is not SpanState.DONE or not (self.by_due or span.begin == floor):\n",
        "            if span.state is not SpanState.DONE:\n",
        (A + "groups/test_fold.py::test_the_floor_stops_at_a_message_that_is_not_done",),
    ),
    Fault(
        21,
        "a new leader gives at once what is in hand",
        "agent/groups/leader/leases.py",
        "        until_ms = now_ms + span.lease_ms\n",
        "        until_ms = now_ms\n",
        (
            A
            + "groups/leader/test_group_leader.py::test_a_new_leader_hides_what_is_in_flight_for_one_visibility",
        ),
    ),
    Fault(
        21,
        "the entry that was cut from the log stays in the groups",
        "agent/groups/fold.py",
        "            group.undo(folded.changes)\n",
        "            pass\n",
        (A + "groups/test_fold_machine.py::test_undo_at_every_index",),
    ),
    Fault(
        21,
        "a repeated receive brings other messages",
        "agent/groups/requests.py",
        "        return kept if kept is not None and kept.request == request else None\n",
        "        return None\n",
        (A + "delivery/test_keeper.py::test_a_receive_that_comes_again_gives_the_same_messages",),
    ),
    Fault(
        21,
        "a checkpoint leaves the groups out",
        "agent/groups/fold.py",
        "        return join_groups(self._encoded, by_due=self.by_due)\n",
        '        return b""\n',
        (A + "delivery/test_fail_over.py::test_a_restart_folds_the_same_groups",),
    ),
)
