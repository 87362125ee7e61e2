"""The level of tables, for tests of what is not reachable yet."""

from __future__ import annotations

import pytest

from shoal.agent import levels
from shoal.agent.levels import AdditionKind, Level, LevelRange
from shoal.agent.topics import entries


@pytest.fixture
def table_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 5, with topics of kind table."""
    monkeypatch.setitem(levels._LEVELS, (AdditionKind.TOPIC_SETTING, "kind.table"), Level(5))
    monkeypatch.setattr(entries, "SUPPORTED", LevelRange(Level(1), Level(5)))
