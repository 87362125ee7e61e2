"""scripts/simulate: what a person sees of a seed, good or bad."""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
from types import ModuleType

import pytest
from cluster_sim import coverage
from process_families import descendants
from raft_sim.invariants import InvariantViolation
from raft_sim.knobs import Knobs
from raft_sim.simulation import Simulation
from waiting import LOOK_INTERVAL_S

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "simulate"
SHORT_SEED = min(range(40), key=lambda seed: Knobs.of_seed(seed).safety_ms)


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script as a process of its own."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture
def script() -> ModuleType:
    """The script as a module, so that a fault can be put under it."""
    loader = importlib.machinery.SourceFileLoader("simulate_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("simulate_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_single_seed_is_replayed_with_its_trace() -> None:
    """The first line names seed and knobs, the last the outcome; between them every event."""
    done = run_script("--core", "--seed", str(SHORT_SEED))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == f"seed {SHORT_SEED} {Knobs.of_seed(SHORT_SEED)}"
    assert lines[-1].startswith(f"seed {SHORT_SEED} ok: ")
    assert any("HEAL" in line for line in lines)
    assert any("AppendRequest" in line for line in lines)


def test_help_shows_an_example_and_nonsense_is_refused() -> None:
    """--help says how; a negative seed is one clear line."""
    assert "--seed 7" in run_script("--help").stdout
    refused = run_script("--seed", "-3")
    assert refused.returncode == 2
    assert "at least 0" in refused.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_whoever_ends_it_ends_its_seeds(number: signal.Signals, status: int) -> None:
    """All that run at that moment."""
    command = [sys.executable, str(SCRIPT), "--seeds", "1000", "--jobs", "2"]
    variables = os.environ | {"PYTHONHASHSEED": "0"}  # or the script would begin anew
    seeds: list[int] = []
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as script:
        try:
            while len(seeds) < 2:
                assert script.poll() is None
                await asyncio.sleep(LOOK_INTERVAL_S)
                seeds += descendants(script.pid)
            script.send_signal(number)
            assert script.wait(100) == status
        finally:
            script.kill()
    for seed in seeds:
        assert select.select([seed], [], [], 0)[0], "a seed runs on"
        os.close(seed)


def test_a_failing_seed_is_named_with_its_replay(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several seeds the bad one is named, the command to replay it given, and the exit status is 1."""
    broken: list[int] = []

    def run(self: Simulation) -> None:
        broken.append(1)
        if len(broken) == 2:
            raise InvariantViolation("ElectionSafety", "0.0 and 0.1 lead term 3")

    monkeypatch.setattr(Simulation, "run", run)
    monkeypatch.setattr(sys, "argv", ["simulate", "--core", "--seed", "5", "--seeds", "3"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # or the script would begin anew in a process of its own
    assert script.main() == 1
    output = capsys.readouterr().out
    assert "seed 6 FAILED : InvariantViolation ElectionSafety: 0.0 and 0.1 lead term 3" in output
    assert "replay: scripts/simulate --core --seed 6" in output
    assert "2 of 3 seeds held; failed: [6]" in output


def test_coverage_says_what_a_seed_ran_and_names_the_rest() -> None:
    """Shares by package; what a simulation cannot run is left out with its reason, and nothing else."""
    command = [sys.executable, str(SCRIPT), "--seed", "2", "--coverage", "--verbose", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shares = dict(re.findall(r"^(\S+) +\d+ +\d+ +([0-9.]+)%", done.stdout, re.MULTILINE))
    assert set(shares) == set(coverage.PACKAGES)
    assert 60 < float(shares["replication"]) < 100
    assert re.search(r"^left out, asks the kernel.*segment_store/disk/ring\.py", done.stdout, re.MULTILINE)
    assert "never run, agent/http/admin/keys.py" not in done.stdout
    refused = run_script("--core", "--coverage")
    assert refused.returncode == 2


def test_only_what_has_a_body_is_counted_and_only_files_that_are_there_are_left_out() -> None:
    """A name of an interface cannot run; a file that has moved must not stay excused."""
    lines = ("class A:", "    def none(self) -> None:", '        """Nothing."""')
    lines += ("    @x", "    def some(self):", "        return 1")
    text = "\n".join(lines)
    assert [item[1:] for item in coverage._functions_of("a.py", text)] == [(4, "some")]
    missing = [path for path in coverage.EXCLUDED if not (coverage.ROOT / path).exists()]
    assert missing == []
    rows = {row.package: row for row in coverage.table({"agent/host/host.py": set()})}
    assert all(not row.ran and row.missed for row in rows.values())
    assert coverage.too_small({}, coverage.SHARES_FROM_SEEDS) == list(coverage.SHARES)
    assert coverage.too_small({}, coverage.SHARES_FROM_SEEDS - 1) == []
    assert coverage.SHARES.keys() <= set(coverage.PACKAGES)
