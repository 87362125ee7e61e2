"""Real agents, real kills, pauses and cuts: clients write down what they saw, and the checker finds nothing.

The long runs, of every fault, are `scripts/campaign nemesis`.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from nemesis import FAULTS, Faults
from nemesis_hosts import can_isolate

NEMESIS = pathlib.Path(__file__).with_name("nemesis.py")
SECONDS = 60
"""Some fifteen faults fit in, drawn from all."""
PAUSE_MS = 60
"""Between two requests of a producer: other tests run beside this one."""
LIMIT_S = 500


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
    assert can_isolate(), "this needs root, `unshare` and `ip`: network namespaces cannot be made here"
    command = [sys.executable, str(NEMESIS), "--directory", str(tmp_path), "--seconds", str(SECONDS)]
    done = subprocess.run(
        [*command, "--seed", "1", "--pause-ms", str(PAUSE_MS), "--fault", *FAULTS],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(NEMESIS.parents[2]), str(NEMESIS.parent)])},
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    print(report)
    assert report["anomalies"] == []
    assert done.returncode == 0
    assert report["faults"] >= 1
    assert report["acknowledged"] > 100
    assert report["reads"] > 10
