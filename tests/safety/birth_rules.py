"""Faults for births that are given up while nobody has led them. As rules.py, which is too long for them."""

# ruff: noqa: E501 -- lines of the product, as they stand there

from __future__ import annotations

from tests.safety.fault import A, Fault

BIRTH_FAULTS: tuple[Fault, ...] = (
    Fault(
        1,
        "a leader serves before the catalog has its birth",
        "agent/partition/replica.py",
        "            if self.awaits_birth and self.is_unborn:\n",
        "            if False:\n",
        (A + "host/test_newborns.py::test_the_first_leader_waits_for_the_catalog",),
    ),
    Fault(
        1,
        "a birth that was led is given up",
        "agent/topics/catalog.py",
        "            if not entry.unborn >> partition & 1 or births[partition].generation + 1 != generation:\n",
        "            if births[partition].generation + 1 != generation:\n",
        (A + "topics/test_entries.py::test_a_birth_that_was_led_is_final",),
    ),
    Fault(
        1,
        "a birth that was given up is taken for one that was led",
        "agent/topics/catalog.py",
        "(number for number, birth in known if birth.generation == generation)",
        "(number for number, birth in known)",
        (A + "topics/test_entries.py::test_who_leads_a_birth_that_was_given_up_comes_too_late",),
    ),
    Fault(
        1,
        "births are given up that a lost majority may have taken",
        "agent/topics/catalog.py",
        "            self._put(replace(entry, unborn=0))\n",
        "            self._put(entry)\n",
        (A + "topics/test_entries.py::test_a_recovery_by_force_leaves_nothing_unborn",),
    ),
    Fault(
        2,
        "replicas of two births have the same ids",
        "replication/interfaces.py",
        "        first = generation * BIRTH_ORDINALS\n",
        "        first = 0\n",
        (A + "host/test_newborns.py::test_a_birth_that_is_given_up_leaves_nothing_and_another_one_begins",),
    ),
    Fault(
        4,
        "what has records goes with a birth that was given up",
        "agent/host/newborns.py",
        "        if has_records or await holds_records(self._stores, group, schema):\n",
        "        if False:\n",
        (A + "host/test_newborns.py::test_what_has_records_is_never_given_up",),
    ),
)
