"""The level of timer topics, for tests of what is not reachable yet."""

from __future__ import annotations

import pytest

from shoal.agent import levels
from shoal.agent.levels import AdditionKind, Level, LevelRange
from shoal.agent.topics import entries


@pytest.fixture
def timer_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 4, with topics of kind timer."""
    monkeypatch.setitem(levels._LEVELS, (AdditionKind.TOPIC_SETTING, "kind.timer"), Level(4))
    monkeypatch.setattr(entries, "SUPPORTED", LevelRange(Level(1), Level(4)))
