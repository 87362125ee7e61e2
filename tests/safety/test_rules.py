"""Every safety rule has a fault and a test that notices it; that they do is for `python -m tests.safety.run`,
which takes minutes. Here: that the list is whole, and that the runner can tell a fault from none."""

import pathlib

import pytest

from tests.safety.rules import FAULTS, NOT_BUILT, Fault
from tests.safety.run import ROOT, check, copy_tree

RULES = range(1, 29)
QUORUM = "tests/replication/state/test_quorum.py::test_majority_value_is_what_a_majority_has_reached"


def test_every_rule_has_a_fault_that_a_test_notices() -> None:
    """Each rule is broken somewhere, or about something that the product does not have."""
    broken = {fault.rule for fault in FAULTS}
    assert broken | NOT_BUILT.keys() == set(RULES)
    assert not broken & NOT_BUILT.keys()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}-{fault.what}")
def test_what_a_fault_names_is_there(fault: Fault) -> None:
    """The place to break, once, and each test by its name."""
    assert (ROOT / fault.path).read_text().count(fault.old) == 1
    assert fault.old != fault.new
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_the_runner_tells_a_fault_from_none(tmp_path: pathlib.Path) -> None:
    """A majority of less than half is noticed; a comment is not, nor a fault whose place is gone; and the
    copy is whole again afterwards."""
    copy_tree(tmp_path)
    path, good = "replication/state/quorum.py", "    return voter_count // 2 + 1\n"
    for new, expected in (("    return voter_count // 2\n", ""), (good + "    # more\n", "NOT NOTICED")):
        problem = check(Fault(0, "a majority", path, good, new, (QUORUM,)), tmp_path)
        assert (problem == "") == (expected == "")
        assert problem.startswith(expected)
    assert "0 places" in check(Fault(0, "nothing", path, "no such text", "", (QUORUM,)), tmp_path)
    assert (tmp_path / path).read_bytes() == (ROOT / path).read_bytes()
