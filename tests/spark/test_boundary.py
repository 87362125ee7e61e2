"""Errors as Spark's workers tell them: no Java, their part of PySpark is called as Spark calls it."""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.util import handle_worker_exception

from shoal.spark.boundary import HIDE_TRACEBACK_VARIABLE, says_errors_in_one_line, worker_module
from shoal.spark.options.errors import SourceError


@says_errors_in_one_line
class Source:
    """Fails as it is told."""

    def plans(self, error: Exception) -> None:
        """Before there is an answer."""
        self._inner(error)

    def reads(self, error: Exception, *, after: int) -> Iterator[int]:
        """Within the answer."""
        yield from range(after)
        self._inner(error)

    def sound(self, first: int, *, second: int) -> list[int]:
        """Does not fail."""
        return [first, second]

    def _inner(self, error: Exception) -> None:
        try:
            raise ValueError("the cause")
        except ValueError:
            raise error  # noqa: B904 - the trace of both is what has to go


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of Spark's workers."""
    monkeypatch.setenv(HIDE_TRACEBACK_VARIABLE, "")
    spec = types.SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)


def told(work: Any) -> list[str]:
    """The lines that go to the JVM."""
    out = io.BytesIO()
    try:
        work()
    except (SourceError, KeyError) as error:
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode().splitlines()


@pytest.mark.usefixtures("worker")
def test_a_fault_is_told_in_one_line() -> None:
    """While planning and within an answer; what was read before is there."""
    assert worker_module() == "pyspark.daemon"
    line = "shoal.spark.options.errors.SourceError: no topic"
    assert told(lambda: Source().plans(SourceError("no topic"))) == [line]
    os.environ[HIDE_TRACEBACK_VARIABLE] = ""
    answer = Source().reads(SourceError("no topic"), after=2)
    assert [next(answer), next(answer)] == [0, 1]
    assert told(lambda: next(answer)) == [line]


@pytest.mark.usefixtures("worker")
def test_a_bug_keeps_its_trace() -> None:
    """An error that nobody foresaw is told with all its frames."""
    lines = told(lambda: Source().plans(KeyError("a bug")))
    assert lines[-1] == "KeyError: 'a bug'"
    assert any("in _inner" in line for line in lines)
    assert "ValueError: the cause" in lines


def test_a_users_own_program_sees_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of workers nothing is hidden: neither frames nor the errors of others."""
    monkeypatch.delenv(HIDE_TRACEBACK_VARIABLE, raising=False)
    assert worker_module() == ""
    lines = told(lambda: Source().plans(SourceError("no topic")))
    assert any("in _inner" in line for line in lines)
    assert HIDE_TRACEBACK_VARIABLE not in os.environ


def test_answers_are_those_of_the_method() -> None:
    """Also its name and its arguments, which Spark looks at."""
    assert Source().sound(1, second=2) == [1, 2]
    assert list(Source().reads(ValueError(), after=0).__class__.__name__) == list("generator")
    assert (Source.sound.__name__, Source.sound.__doc__) == ("sound", "Does not fail.")
