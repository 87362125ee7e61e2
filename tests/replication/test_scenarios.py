"""The scripted scenarios print what their files say."""

from __future__ import annotations

import pathlib

import pytest
from scenarios import TESTDATA, Script

from tests.scenario_files import play

SCRIPTS = sorted(TESTDATA.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario(path: pathlib.Path) -> None:
    """Every block of the script has the outcome written below it (`scenarios.py --rewrite` renews them)."""
    blocks, outcomes = play(path, Script)
    assert blocks
    for block, outcome in zip(blocks, outcomes, strict=True):
        assert outcome == block.expected, f"{path.name}: {' / '.join(block.commands)}"


def test_there_are_scenarios() -> None:
    """The folder is where the tests look."""
    assert len(SCRIPTS) >= 5
