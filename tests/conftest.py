"""Hypothesis and time as every test has them: no deadline, examples that change only when the test does, and
clocks that a stand-still of the process does not move."""

from __future__ import annotations

import asyncio
import gc
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# On a shared machine a deadline measures the neighbours, not the code, and so does what is too slow to draw.
# Where Hypothesis finds the variable CI it would take a profile of its own, that passes over the seed: other
# examples were drawn there than on anybody's desk.
settings.register_profile(
    "shared machine",
    settings.get_profile("default"),
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")

# Hypothesis mixes numbers and texts that stand in the code under test into its examples. With them any
# changed constant anywhere, and the order of imports, would draw others from the same seed, and a red example
# could not be run again. The campaigns, which look for new examples, leave them in.
# It is not called here: where a module of ours came before pytest it would write files, and be refused.
assert callable(providers._get_local_constants)
assert providers.Constants().integers is not None
providers._get_local_constants = providers.Constants


HERE = pathlib.Path(__file__).parent
AGENTS_APART = ("cluster", "serf", "spark", "operations", "agent/cli")
"""Folders of tests whose agents and clients are processes of their own. These go by the machine's clock, and
who judges what happened before what must too: by a clock that lags answers come before questions."""


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--plain-clocks",
        action="store_true",
        help="asynchronous tests by the machine's clock, instead of tests/steady_loop.py",
    )


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Of the loop of each asynchronous test and fixture."""
    from steady_loop import SteadyLoop

    is_apart = any(item.path.is_relative_to(HERE / folder) for folder in AGENTS_APART)
    if is_apart or config.getoption("plain_clocks") or item.get_closest_marker("machine_clock"):
        return {"machine": asyncio.new_event_loop}
    return {"steady": SteadyLoop}


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the collector, which looked at them all again and again, took a
    tenth of the processor time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def warm_starts() -> Iterator[None]:
    """Each `shoal` that a test starts is forked from a process that has imported it."""
    from warm_start import warm_starts

    with warm_starts():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Those that judge a start itself have a real one."""
    from warm_start import WARM

    WARM.is_off = item.get_closest_marker("cold_start") is not None


@pytest.fixture(scope="session", autouse=True)
def steady_clock() -> Iterator[None]:
    """Agents, hosts and links of a test's process go by the time of a steady loop. No timer outlives a test's
    tasks."""
    from steady_loop import now_ms, shutdown_asyncgens

    from shoal.agent.process.clock import SystemClock

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SystemClock, "now_ms", now_ms)
        patched.setattr(asyncio.BaseEventLoop, "shutdown_asyncgens", shutdown_asyncgens)
        yield
