"""Proof that the simulation of the whole cluster finds bugs: deliberate faults are each caught.

They come on top of those in test_raft_mutations.py, which are faults of the core itself.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from cluster_sim.mutants import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIMIT_S = 2_200


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """By mutant: what noticed it, or that nothing did. One process for all, as hashes must be the same."""
    paths = [ROOT, ROOT / "tests" / "simulation", ROOT / "tests" / "cluster"]
    done = subprocess.run(
        [sys.executable, "-m", "cluster_sim.mutants"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_a_mutant_of_the_cluster_is_caught(name: str, outcomes: dict[str, str]) -> None:
    """One of the invariants that such a fault breaks says so, within a few seeds."""
    print(outcomes[name])
    assert outcomes[name].startswith("seed ")
    assert "AttributeError" not in outcomes[name], "the mutant itself is broken: it calls what is gone"
