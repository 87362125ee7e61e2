"""Faults for the hard states of replicas. As rules.py, which is too long for them."""

# ruff: noqa: E501 -- lines of the product, as they stand there

from __future__ import annotations

from tests.safety.fault import A, Fault, R

HARD_STATE_FAULTS: tuple[Fault, ...] = (
    Fault(
        3,
        "a log that lost its newest segment is taken for a shorter one",
        "agent/partition/opener.py",
        "    synced = max(hard_state.commit_index, stores.hard_states.floor(plan.group))\n",
        "    synced = hard_state.commit_index\n",
        (
            A
            + "host/test_host_faults.py::test_a_voter_whose_newest_segment_is_ruined_does_not_vote_what_was_acknowledged_away",
        ),
    ),
    Fault(
        3,
        "the second copy is written while the first is not synced",
        "agent/durable/paired_file.py",
        '        await file.write(first * SLOT_BYTES, b"".join(run))\n    await file.sync()\n',
        '        await file.write(first * SLOT_BYTES, b"".join(run))\n',
        (
            A + "durable/test_identity.py::test_the_first_copy_is_synced_before_the_second_is_touched",
            A + "durable/test_identity.py::test_a_power_failure_loses_nothing_that_was_acknowledged",
        ),
    ),
    Fault(
        3,
        "a write that found no room begins anew, while the other copy may be torn",
        "agent/durable/paired_file.py",
        '            failure: PairedFileError = PairedFileFull(f"no room for {path}: {error}")\n',
        '            failure: PairedFileError = PairedFileFull(f"no room for {path}: {error}")\n'
        "            self._batch.copies_left[:] = self._files\n",
        (A + "durable/test_full_disk.py::test_the_first_copy_rests_while_the_second_may_be_torn",),
    ),
    Fault(
        3,
        "a vote that found no room is given",
        "agent/host/host.py",
        "        await self._stores.hard_states.save(replica.group, replica.replica_id, state)\n",
        "        with __import__('contextlib').suppress(PairedFileError):\n"
        "            await self._stores.hard_states.save(replica.group, replica.replica_id, state)\n",
        (A + "host/test_reopener.py::test_a_vote_that_found_no_room_is_not_given_and_is_made_up_for",),
    ),
    Fault(
        3,
        "a granted vote leaves before it is on disk",
        "replication/roles/candidate.py",
        "    state.outbox.send_after_sync(VoteReply(state.replica_id, message.sender, state.term, True))\n",
        "    state.send(VoteReply(state.replica_id, message.sender, state.term, True))\n",
        (R + "roles/test_elections.py::test_a_vote_in_a_term_that_is_on_disk_already_waits_too",),
    ),
    Fault(
        3,
        "a replica whose vote is gone votes on",
        "agent/partition/opener.py",
        "    if stored is None or stored[0] != record.replica_id:\n        raise await _lose(",
        "    if stored is None:\n        stored = record.replica_id, HardState(type(record.replica_id.term)(10**6))\n"
        "    if stored[0] != record.replica_id:\n        raise await _lose(",
        (A + "host/test_host_faults.py::test_a_forgotten_vote_makes_a_replica_lost",),
    ),
    Fault(
        3,
        "a log ahead of the stored term is believed",
        "agent/partition/opener.py",
        "    if log.last_term > hard_state.term:\n",
        "    if False:\n",
        (A + "host/test_host_faults.py::test_a_log_above_the_stored_term_is_a_lost_replica",),
    ),
)
