"""kill -9 at random moments: what was acknowledged is there when the log opens again."""

from pathlib import Path

import pytest
from kills import run_kills

KILLS = 25  # of each kind of disk


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_acknowledged_frames_survive_kill_nine(kind: str, tmp_path: Path) -> None:
    """25 lives of one directory, each ended by SIGKILL, with every acknowledged frame counted after each."""
    assert await run_kills(str(tmp_path / "log"), kind, KILLS, seed=3) > KILLS
