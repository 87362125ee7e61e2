"""Proof that the simulation of the whole cluster finds bugs: deliberate faults are each caught.

They come on top of those in test_raft_mutations.py, which are faults of the core itself.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from cluster_sim import mutants
from cluster_sim.mutants import MUTANTS, Mutant

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
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode in {0, 1}, done.stderr[
        -4_000:
    ]  # 1: not all were caught, and each test says its own
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_a_mutant_of_the_cluster_is_caught(name: str, outcomes: dict[str, str]) -> None:
    """One of the invariants that such a fault breaks says so, within a few seeds."""
    print(outcomes[name])
    assert outcomes[name].startswith("seed ")
    assert "AttributeError" not in outcomes[name], "the mutant itself is broken: it calls what is gone"


@pytest.mark.parametrize("control", [False, True])
def test_a_mutant_whose_process_dies_is_neither_caught_nor_held(
    control: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it dies of; and no other seed is tried. The others are told as ever."""

    def caught(mutant: Mutant, seed: int, *, control: bool) -> str | None:
        if mutant.mutate is mutants.ack_before_sync:
            os.kill(os.getpid(), signal.SIGKILL)
        if mutant.mutate is mutants.vote_before_sync:
            os._exit(0)
        if mutant.mutate is mutants.forget_the_vote:
            raise LookupError("no such thing")
        return None if control or seed < 3 else "OneVotePerTerm: two"

    deaths = (mutants.ack_before_sync, mutants.vote_before_sync, mutants.forget_the_vote)
    judged = [Mutant(mutate, (), first_seed=2) for mutate in (*deaths, mutants.no_dedupe)]
    monkeypatch.setattr(mutants, "MUTANTS", judged)
    monkeypatch.setattr(mutants, "caught", caught)
    assert mutants.main(["--control"] if control else []) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "ack_before_sync: its process died at seed 2: signal 9, Killed",
        "forget_the_vote: its process died at seed 2: exit status 1 without its whole word",
        f"no_dedupe: {'not caught' if control else 'seed 3: OneVotePerTerm: two'}",
        "vote_before_sync: its process died at seed 2: exit status 0 without its whole word",
    ]
    monkeypatch.setattr(mutants, "MUTANTS", judged[3:])
    assert mutants.main(["--control", "--times"] if control else ["--times"]) == 0
    assert re.fullmatch(r"no_dedupe: \d+\.\d s: .*\n", capsys.readouterr().out)
