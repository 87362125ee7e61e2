"""The table of error codes, and the documents made from it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.errors import ERRORS, ErrorCode, ShoalError
from shoal.format.batch import BatchError


def test_the_table_is_consistent() -> None:
    """Codes are their keys, and those that type checkers know; only what may have happened is indefinite."""
    assert get_args(ErrorCode) == tuple(ERRORS)
    for code, row in ERRORS.items():
        assert row.code == code
        assert 400 <= row.status < 600
        assert row.title[0].isupper()
        assert not row.title.endswith(".")
    assert {code for code, row in ERRORS.items() if not row.definite} == {
        "internal",
        "timeout",
        "leadership-lost",
    }
    retriable = {
        "not-leader",
        "overloaded",
        "too-many-producers",
        "too-many-consumers",
        "quota-exceeded",
        "consumer-in-use",
        "unreachable",
        "no-leader",
        "not-ready",
        "stopping",
        "timeout",
        "leadership-lost",
        "disk-full",
    }
    assert {code for code, row in ERRORS.items() if row.retriable} == retriable


@pytest.mark.parametrize("code", ERRORS)
def test_problem_documents_round_trip(code: str) -> None:
    """What an agent writes, a client reads: code, detail, definiteness and extra members."""
    error = ShoalError(code, "what went wrong", definite=False, leader_url="http://a:1", partitions=[1, 2])
    document = json.loads(json.dumps(error.to_problem()))
    assert document["status"] == ERRORS[code].status
    assert document["type"].endswith(code)
    again = ShoalError.from_problem(document)
    assert (again.code, again.detail, again.definite, again.extra) == (code, error.detail, False, error.extra)
    assert again.retriable == ERRORS[code].retriable
    assert again.to_problem() == error.to_problem()
    copy = pickle.loads(pickle.dumps(error))
    assert copy.to_problem() == error.to_problem()


def test_definiteness_is_the_tables_unless_said() -> None:
    """A broken forward of a definite failure is indefinite; the caller says so."""
    assert ShoalError("no-leader", "x").definite
    assert not ShoalError("timeout", "x").definite
    assert not ShoalError("no-leader", "x", definite=False).definite


json_values = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "detail", "title", "definite", "self", "kind"]) | st.text(), json_values
    )
)
def test_any_document_becomes_an_error(document: dict[str, object]) -> None:
    """Proxies and other versions write documents too; an unknown one is internal and indefinite."""
    error = ShoalError.from_problem(document)
    if document.get("code") not in list(ERRORS):
        assert (error.code, error.definite) == ("internal", False)
    assert isinstance(error.detail, str)


def test_bugs_are_not_faults() -> None:
    """A code outside the table, or an extra member that hides the document's own, is a bug."""
    with pytest.raises(AssertionError):
        ShoalError("no-such-code", "x")
    with pytest.raises(AssertionError):
        ShoalError("internal", "x", status=200)


def test_batch_errors_are_pickled() -> None:
    """Spark sends them between processes."""
    error = pickle.loads(pickle.dumps(BatchError("length", "too long")))
    assert (error.reason, str(error)) == ("length", "length: too long")


def test_importing_shoal_is_cheap() -> None:
    """The package alone loads neither Arrow nor aiohttp; the batch format loads no server (PEP 562)."""
    program = (
        "import sys, shoal\n"
        "assert not {'pyarrow', 'aiohttp', 'asyncio'} & set(sys.modules)\n"
        "import pyarrow\n"
        "arrow = set(sys.modules)\n"  # with numpy, where that is installed
        "import shoal.format.batch, shoal.format.records, shoal.format.partitioner\n"
        "assert not {'aiohttp', 'asyncio', 'liburing', 'pyspark', 'numpy'} & (set(sys.modules) - arrow)\n"
        "assert shoal.ShoalError.__name__ in dir(shoal)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    with pytest.raises(AttributeError):
        _ = shoal.no_such_name
