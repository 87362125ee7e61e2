"""The real code, over the real ring and real threads, on a file system that loses power and fails.

Where /dev/fuse cannot be opened nothing here is collected, and the end of the run says so (conftest.py).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fuse_scenarios import NAMES, POWER_NAMES

PROGRAM = Path(__file__).parents[1] / "fuse_scenarios.py"
SEEDS, FAILURES = 12, 6  # of each kind of disk


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """All scenarios in one program: starting it costs as much as ten of them."""
    command = [sys.executable, str(PROGRAM), "1", str(SEEDS), str(FAILURES)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("name", POWER_NAMES)
def test_power_failures_on_a_real_file_system(name: str, outcomes: dict[str, str | None]) -> None:
    """72 failures a disk, at any write, sync or change of names: what was acknowledged is there."""
    assert outcomes[name] is None, outcomes[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_failing_file_system(name: str, outcomes: dict[str, str | None]) -> None:
    """As each scenario of fuse_scenarios.py says."""
    assert outcomes[name] is None, outcomes[name]
