"""The door of the agent: typed, in small protocols, and the same for the real agent and the tests' own."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from shoal.agent import interface
from shoal.agent.service.broker import Broker
from shoal.agent.submission import Submission
from shoal.format.records import RecordColumns
from tests.agent.fake_broker import FakeBroker
from tests.agent.harness import message

PARTS = (
    interface.Records,
    interface.ConsumerGroups,
    interface.Deliveries,
    interface.GroupPartitions,
    interface.Tables,
    interface.Leaders,
    interface.Topics,
    interface.Members,
    interface.Peers,
    interface.Documents,
)
METHODS_MAX = 9


def methods(part: type) -> dict[str, Any]:
    """The methods that a protocol asks for itself."""
    return {name: item for name, item in vars(part).items() if inspect.isfunction(item) and name[0] != "_"}


def test_the_whole_is_its_parts() -> None:
    """Beside them it has plain facts only; no part has become large again."""
    assert set(PARTS) <= set(interface.Broker.__mro__)
    assert methods(interface.Broker) == {}
    assert {part.__name__: len(methods(part)) for part in PARTS if len(methods(part)) > METHODS_MAX} == {}


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_any(part: type) -> None:
    """A topic, an offset or acks of another kind does not pass the type checker."""
    for name, method in methods(part).items():
        assert Any not in get_type_hints(method).values(), name


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("agent", [Broker, FakeBroker])
def test_both_agents_take_what_the_door_takes(part: type, agent: type) -> None:
    """A fake that lags behind would let tests pass that call nothing real."""
    for name, method in methods(part).items():
        asked, has = inspect.signature(method).parameters, inspect.signature(getattr(agent, name)).parameters
        assert [(item.name, item.kind) for item in asked.values()] == [
            (item.name, item.kind) for item in has.values()
        ], name


def test_a_submission_knows_its_size() -> None:
    """Of columns about what a batch of them takes, of messages their bodies."""
    columns = RecordColumns([None], [b"k"], [b"v" * 1_000], [None])
    assert Submission.of(columns, timeout_ms=1).size_bytes == columns.size_bytes
    messages = [message("a"), message("b" * 500)]
    assert Submission.of(messages, timeout_ms=1).size_bytes == sum(len(item.body) for item in messages)
