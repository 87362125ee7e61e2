"""Faults for the rules 17 to 19: time, checkpoints, producers. As rules.py, which is too long for them."""

# ruff: noqa: E501 -- lines of the product, as they stand there

from __future__ import annotations

from tests.safety.fault import A, Fault, S

TIME_FAULTS: tuple[Fault, ...] = (
    Fault(
        17,
        "append times follow a clock that goes back",
        "segment_store/log/log.py",
        "        return max(self._chain.append_time_us, now_us)\n",
        "        return now_us\n",
        (S + "log/test_log.py::test_append_times_never_fall",),
    ),
    Fault(
        17,
        "a leader stamps with a clock that has jumped",
        "agent/partition/state/log_time.py",
        "        return now_ms * 1000 + self.offset_us\n",
        "        return wall_us\n",
        (A + "partition/state/test_log_time.py", A + "partition/state/test_retention.py"),
    ),
    Fault(
        17,
        "the age of what this agent appended follows its wall clock",
        "agent/partition/state/log_time.py",
        "    if watched_ms is not None:\n",
        "    if False:\n",
        (A + "partition/state/test_log_time.py",),
    ),
    Fault(
        17,
        "a log that is years ahead stands still",
        "agent/partition/state/log_time.py",
        "        return self.passed(previous_us, now_ms)\n",
        "        return previous_us\n",
        (A + "partition/state/test_log_time.py",),
    ),
    Fault(
        17,
        "a leader trims by age though a majority has another time",
        "agent/partition/state/retention.py",
        "        return 2 * agreeing > len(voters)\n",
        "        return True\n",
        (A + "partition/state/test_retention.py",),
    ),
    Fault(
        18,
        "the newest committed checkpoint is trimmed",
        "agent/partition/state/retention.py",
        "    return max(0, sum(span.first_index <= index for span in spans) - 1)\n",
        "    return max(0, len(spans) - 1)\n",
        (A + "partition/state/test_retention.py",),
    ),
    Fault(
        18,
        "a late retry of a forgotten producer is stored",
        "agent/partition/state/idempotence.py",
        "        if number != 0 and (consecutive or producer.in_lanes):\n",
        "        if False:\n",
        (A + "partition/state/test_idempotence.py::test_an_unknown_producer_begins_at_zero",),
    ),
    Fault(
        18,
        "a checkpoint forgets the producers",
        "agent/partition/state/log_state.py",
        "            self.producers.to_bytes(),\n",
        "            ProducerTable().to_bytes(),\n",
        (A + "partition/state/test_log_state.py::test_a_checkpoint_is_the_fold_of_the_log_before_it",),
    ),
    Fault(
        18,
        "a producer is forgotten for another's sake however young it is",
        "agent/partition/state/idempotence.py",
        "            if silent_us <= (self._window_us if self.size_bytes >= self._max_bytes else self._expiry_us):\n",
        "            if self.size_bytes < self._max_bytes and silent_us <= self._expiry_us:\n",
        (A + "partition/state/test_idempotence.py",),
    ),
    Fault(
        18,
        "a full table of producers takes another one",
        "agent/partition/state/idempotence.py",
        "        if self.size_bytes - replaced_bytes < self._max_bytes or not self._entries:\n",
        "        if True:\n",
        (A + "partition/state/test_idempotence.py",),
    ),
    Fault(
        18,
        "a clock that jumps makes producers old",
        "agent/partition/state/log_state.py",
        "        return self.elapsed_us + min(max(step_us, 0), ELAPSED_STEP_US)\n",
        "        return self.elapsed_us + max(step_us, 0)\n",
        (A + "partition/state/test_log_state.py",),
    ),
    Fault(
        18,
        "what a producer did before an entry that is cut is forgotten with it",
        "agent/partition/state/idempotence.py",
        "            if before is not None:\n                self._put(change.producer_id, before)\n",
        "            if False:\n                pass\n",
        (A + "partition/state/test_idempotence.py",),
    ),
    Fault(
        19,
        "a repeated sequence is stored again",
        "agent/partition/state/idempotence.py",
        "            if kept_sequence.sequence == producer.sequence:\n                return kept_sequence\n",
        "            if kept_sequence.sequence == producer.sequence:\n                return None\n",
        (
            A + "partition/state/test_idempotence.py::test_check",
            A + "host/test_host.py::test_producers_duplicates_gaps_epochs",
        ),
    ),
)
