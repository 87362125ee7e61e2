"""Where Shoal's errors and warnings leave for Spark: one line, without a trace.

Spark's workers put the whole trace of an error into the message that a user gets. For a SourceError the line
says it all; any other error is a bug, and keeps its trace.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVar

from shoal.spark.options.errors import SourceError

HIDE_TRACEBACK_VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's setting spark.sql.execution.pyspark.udf.hideTraceback.enabled, as its workers get it. They read it
once an error has reached them, and end thereafter, so it counts for this error only."""

_logger: Final = logging.getLogger("shoal.spark")
C = TypeVar("C", bound=type)


def worker_module() -> str:
    """The module that this process was started with, where it is one of Spark's Python workers; else ""."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "" if spec is None else spec.name
    return name if name.startswith("pyspark.") else ""


def warn_of(idle: Sequence[str]) -> None:
    """Name options that have no effect, if there are some."""
    if idle:
        _logger.warning('format("shoal"): options without effect: %s', ", ".join(idle))


def says_errors_in_one_line(source: C) -> C:
    """Decorate a class that Spark calls: within its workers a SourceError loses its trace as it leaves."""
    for name, method in list(vars(source).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(source, name, _in_one_line(method))
    return source


def _in_one_line(method: Callable[..., Any]) -> Callable[..., Any]:
    def iterated(answer: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from answer
        except SourceError as error:
            _leave(error)

    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            answer = method(*arguments, **named)
        except SourceError as error:
            _leave(error)
        return iterated(answer) if inspect.isgenerator(answer) else answer

    return called


def _leave(error: SourceError) -> NoReturn:
    if not worker_module():  # called by a program of the user's: its trace is welcome
        raise error
    os.environ[HIDE_TRACEBACK_VARIABLE] = "1"
    raise error.with_traceback(None) from None
