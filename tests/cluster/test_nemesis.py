"""Real agents, real kills, pauses and cuts: clients write down what they saw, and the checker finds nothing.

The long runs, of every fault, are `scripts/campaign nemesis`.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from nemesis import FAULTS, Faults
from nemesis_hosts import can_isolate

NEMESIS = pathlib.Path(__file__).with_name("nemesis.py")
SECONDS = 60
"""Some fifteen faults fit in, drawn from all."""
PAUSE_MS = 60
"""Between two requests of a producer: other tests run beside this one."""
GROUPS_SECONDS = 20
GROUPS_PAUSE_MS = 300
"""What is left of the groups in the end is drained while other tests run, too."""
GROUPS_FAULTS = ("kill-leader", "kill-one", "pause", "partition-halves", "partition-one-way")
LIMIT_S = 1_200
"""Of a run, which takes two minutes where nothing else runs."""


def test_every_fault_has_its_method() -> None:
    """What the command line names can be made."""
    for name in FAULTS:
        assert callable(getattr(Faults, name.replace("-", "_")))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 40)
def test_real_agents_survive_a_nemesis(tmp_path: pathlib.Path) -> None:
    """Three agents in three network namespaces under mixed faults: nothing acknowledged is lost, reordered,
    doubled or read wrongly, and every partition is served again when the faults end. Where no namespaces can
    be made this cannot run, and fails with what is missing.
    """
    report = report_of(tmp_path, SECONDS, "--seed", "1", "--pause-ms", str(PAUSE_MS), "--fault", *FAULTS)
    assert report["faults"] >= 1
    assert report["acknowledged"] > 100
    assert report["reads"] > 10


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 40)
def test_groups_and_tables_survive_a_nemesis(tmp_path: pathlib.Path) -> None:
    """Consumers of all modes, an operator and clients of a table beside the others, by TLS and tokens: each
    message is done once, in its order, or has one letter, and each key is linearizable. Guests lose their
    tokens meanwhile, and are answered by no agent that has heard of it."""
    load = ["--workload", "groups", "tables", "--batch", "3", "--pause-ms", str(GROUPS_PAUSE_MS)]
    report = report_of(tmp_path, GROUPS_SECONDS, "--seed", "2", "--secured", *load, "--fault", *GROUPS_FAULTS)
    assert report["faults"] >= 1
    assert report["delivered"] > report["done"] > 50
    assert report["letters"] > 0
    assert report["rows"] > 50
    assert report["watched"] > 10
    assert report["revoked"] > 1
    assert report["refused"] > 10


def report_of(directory: pathlib.Path, seconds: int, *options: str) -> dict[str, Any]:
    """What a run without an anomaly did."""
    assert can_isolate(), "this needs root, `unshare` and `ip`: network namespaces cannot be made here"
    command = [sys.executable, str(NEMESIS), "--directory", str(directory), "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(NEMESIS.parents[2]), str(NEMESIS.parent)])},
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(report)
    assert report["anomalies"] == []
    assert done.returncode == 0
    return report
