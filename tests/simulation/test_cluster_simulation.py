"""The whole cluster under virtual time: real agents, as many seeds as fit, and the same outcome every time.

Each seed runs in a process of its own, as `scripts/simulate` does it: what a killed process leaves behind
must not reach the next one.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import time
from dataclasses import fields

import pytest
from cluster_sim import limits_met, runner
from cluster_sim.knobs import Knobs

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "simulate"
SEEDS = 200
FIRST_SEED, SEEDS_HELD = 200, 9
"""Few that have everything between them; scripts/campaign runs thousands."""
LIMIT_S = 2_000
"""For all of them, on a machine that has other work. Alone they take a minute."""
QUICK_SEED = 2


def simulate(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """The script as a process of its own."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


@pytest.mark.timeout(LIMIT_S + 10)
def test_whole_cluster_seeds_hold() -> None:
    """No invariant breaks, and when the faults end all is well again."""
    done = simulate("--seed", str(FIRST_SEED), "--seeds", str(SEEDS_HELD))
    print(done.stdout[-4_000:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^seed \d+ ok: ", done.stdout, re.MULTILINE)) == SEEDS_HELD


FULL_AGENTS = """
import gc
from dataclasses import replace
from cluster_sim.knobs import Knobs
from cluster_sim.mutants import SHORT
from cluster_sim.simulation import ClusterSimulation

gc.disable()
few = SHORT | {"little_memory": True, "crowd": True, "few_producers": True, "impatient": True, "arrow": True}
few |= {"only": ("hoard", "crowd", "kill_leader", "mute_leader"), "partitions": 3, "nodes": 3}
simulation = ClusterSimulation(5, knobs=replace(Knobs.of_seed(5), **few))
simulation.keep()
simulation.run()
print(simulation.summary(), flush=True)
"""


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    """Code that imports the simulation, in a process of its own."""
    root = SCRIPT.parent.parent
    paths = [root, root / "tests" / "simulation", root / "tests" / "cluster"]
    variables = {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **variables},
    )


def test_full_agents_refuse_and_lose_nothing() -> None:
    """Strangers fill connections and memory of agents that have little of either, and clients ask for more
    than they take: each bound is met, leaders stay, and what was acknowledged is there."""
    done = run_code(FULL_AGENTS)
    assert done.returncode == 0, done.stderr[-4_000:]
    said = runner.LIMITS_MET.search(done.stdout)
    assert said is not None
    met = limits_met.from_text(said[1])
    assert {"connections", "requests", "bytes arriving", "bytes promised"} <= met.keys()
    assert limits_met.from_text(limits_met.to_text(met)) == met


CONSUMERS = """
import gc
from dataclasses import replace
from cluster_sim.knobs import Knobs
from cluster_sim.mutants import SHORT
from cluster_sim.simulation import ClusterSimulation

gc.disable()
knobs = SHORT | {"groups": ("shared", "exclusive", "key-ordered")}
simulation = ClusterSimulation(8, knobs=replace(Knobs.of_seed(8), **knobs))
simulation.keep()
simulation.run()
print(simulation.summary(), flush=True)
"""


def test_groups_of_each_mode_keep_their_promises() -> None:
    """Hundreds of messages, under faults; and consumers are served twice alike."""
    first, second = run_code(CONSUMERS), run_code(CONSUMERS)
    assert first.returncode == 0, first.stderr[-4_000:]
    said = re.search(r"(\d+) messages received, (\d+) done with", first.stdout)
    assert said is not None
    assert int(said[1]) > int(said[2]) > 500
    assert first.stdout == second.stdout


TIMERS = """
import gc
from dataclasses import replace
from cluster_sim.knobs import Knobs
from cluster_sim.mutants import TIMERS
from cluster_sim.simulation import ClusterSimulation

gc.disable()
simulation = ClusterSimulation(1, knobs=replace(Knobs.of_seed(1), **TIMERS))
simulation.keep()
simulation.run()
print(simulation.summary(), flush=True)
"""


def test_timers_keep_their_promises() -> None:
    """Groups of all modes have hundreds of messages by due time, while the log under the views goes."""
    ran = run_code(TIMERS)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    said = re.search(r"(\d+) timed messages received, (\d+) done with", ran.stdout)
    assert said is not None
    assert int(said[1]) > int(said[2]) > 200


SECURED = """
import gc
from dataclasses import replace
from cluster_sim.knobs import Knobs
from cluster_sim.mutants import SECURED
from cluster_sim.simulation import ClusterSimulation

gc.disable()
simulation = ClusterSimulation(1, knobs=replace(Knobs.of_seed(1), **SECURED))
simulation.keep()
simulation.run()
print(simulation.summary(), flush=True)
"""


def test_what_operators_end_stays_ended() -> None:
    """Principals and tokens come and go under kills; states are read back from files and from peers, and
    holders are let in and refused."""
    ran = run_code(SECURED)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    said = re.search(
        r"(\d+) done.*; (\d+) tokens, (\d+) ended, (\d+) let in, (\d+) refused, (\d+) rest", ran.stdout
    )
    assert said is not None, ran.stdout
    done, tokens, ended, let_in, refused, restored = map(int, said.groups())
    assert done > tokens > ended > 1
    assert min(let_in, refused) > 5
    assert restored > 20


ASKING = f"""
from cluster_sim.simulation import ClusterSimulation

print(sum(ClusterSimulation(seed).secured.is_on for seed in range({SEEDS})))
"""


def test_half_of_all_seeds_ask_for_tokens() -> None:
    """Where no other fault holds the level back that principals need."""
    ran = run_code(ASKING)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    assert 0.4 * SEEDS < int(ran.stdout) < 0.6 * SEEDS


ASKING_THE_CLOCK = """
import gc
import sys
import time

# What is told of time but decides nothing: the Date of an answer, and when a line was logged.
TELLERS = ("aiohttp/helpers.py", "logging/__init__.py", "email/utils.py")
asked = set()

def noted(name, real):
    def read(*arguments):
        caller = sys._getframe(1).f_code.co_filename
        if is_running and not caller.endswith(TELLERS):
            asked.add((name, caller))
        return real(*arguments)
    return read

is_running = False
names = "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns thread_time"
for name in names.split():
    setattr(time, name, noted(name, getattr(time, name)))

from dataclasses import replace
from cluster_sim.knobs import Knobs
from cluster_sim.mutants import SHORT
from cluster_sim.simulation import ClusterSimulation

gc.disable()
is_running = True
doing = dict.fromkeys(("arrow", "leader_acks", "keys", "library", "sink", "crowd", "impatient"), True)
doing |= {"groups": ("shared", "exclusive", "key-ordered"), "secured": True}
simulation = ClusterSimulation(3, knobs=replace(Knobs.of_seed(3), **SHORT | doing))
simulation.keep()
simulation.run()
is_running = False
print(sorted(asked))
"""


def test_no_code_of_a_seed_asks_the_clock_of_the_machine() -> None:
    """Or a busy machine would change what happens: kept connections were closed by its time, so that one
    seed in a hundred ended in two ways."""
    done = run_code(ASKING_THE_CLOCK)
    assert done.stdout == "[]\n", done.stdout + done.stderr[-4_000:]


PARTS = f"""
from cluster_sim.simulation import ClusterSimulation

for seed in range({FIRST_SEED}, {FIRST_SEED + SEEDS_HELD}):
    made = ClusterSimulation(seed)
    print(*(name for name in ("queues", "timers", "tables", "secured") if getattr(made, name).is_on))
"""


def test_the_seeds_that_are_run_have_everything() -> None:
    """Each fault and each kind of client is there in one of them at least, and absent from another."""
    drawn = [Knobs.of_seed(seed) for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_HELD)]
    for name in [item.name for item in fields(Knobs) if isinstance(getattr(drawn[0], item.name), bool)]:
        assert {getattr(knobs, name) for knobs in drawn} == {True, False}, name
    for name in ("loss", "duplication", "straggler", "split", "retention_bytes", "operates"):
        assert {bool(getattr(knobs, name)) for knobs in drawn} == {True, False}, name
    assert {knobs.nodes for knobs in drawn} == {3, 4, 5}
    assert {mode for knobs in drawn for mode in knobs.groups} == {"shared", "exclusive", "key-ordered"}
    ran = run_code(PARTS)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    parts = [set(line.split(" ")) - {""} for line in ran.stdout.splitlines()]
    assert len(parts) == SEEDS_HELD
    for name in ("queues", "timers", "tables", "secured"):
        assert {name in on for on in parts} == {True, False}, name


def test_a_cluster_seed_is_replayed_exactly() -> None:
    """Two processes, two orders of hashing, one trace: every line and every step of the loop is the same."""
    traces = [simulate("--seed", str(QUICK_SEED), hash_seed=number) for number in ("1", "2")]
    first, second = (done.stdout.splitlines() for done in traces)
    assert first[0] == f"seed {QUICK_SEED} {Knobs.of_seed(QUICK_SEED)}"
    assert first == second
    assert re.search(r"ok: .* trace [0-9a-f]{16}$", first[-1])
    assert any("HEAL" in line for line in first)


def test_seeds_at_once_are_told_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However they end, and whichever of them dies: a campaign says up to which seed it came."""

    def run_seed(seed: int, *, trace: bool) -> str:
        assert not trace
        time.sleep(0.2 if seed == 0 else 0)
        if seed == 3:
            os._exit(9)
        return f"seed {seed} ok: 2 faults, 10 records acknowledged, limits met: requests {seed}; trace 0"

    monkeypatch.setattr(runner, "run_seed", run_seed)
    outcome = runner.run_seeds(range(6), jobs=3)
    ended = re.findall(r"^seed (\d) (?:ok|FAILED)", capsys.readouterr().out, re.MULTILINE)
    assert ended == list("012345")
    assert outcome.failures == [(3, "seed 3 FAILED: its process died: exit status 9 without its whole word")]
    assert (outcome.seeds, outcome.next_seed, outcome.faults, outcome.records) == (6, 6, 10, 50)
    assert outcome.limits_met == {"requests": 0 + 1 + 2 + 4 + 5}


def test_cluster_knobs_cover_the_faults() -> None:
    """Each fault is there in some of the first seeds, and absent from others."""
    drawn = [Knobs.of_seed(seed) for seed in range(SEEDS)]
    for name in ("kills", "power", "cuts", "weather", "pauses", "slow_disks", "disk_errors", "clocks"):
        assert {getattr(knobs, name) for knobs in drawn} == {True, False}, name
    for name in ("leaving", "joining", "draining", "topics", "rot", "lost_disk", "loopback", "alterations"):
        assert {getattr(knobs, name) for knobs in drawn} == {True, False}, name
    assert {knobs.nodes for knobs in drawn} == {3, 4, 5}
    for name in (
        "crowd",
        "little_memory",
        "few_producers",
        "impatient",
        "years",
        "births",
        "disaster",
        "timers",
        "secured",
    ):
        assert {getattr(knobs, name) for knobs in drawn} == {True, False}, name
    assert {mode for knobs in drawn for mode in knobs.groups} == {"shared", "exclusive", "key-ordered"}
    assert any(not knobs.groups for knobs in drawn)
    assert any(knobs.retention_bytes for knobs in drawn)
    assert not any(knobs.rot and knobs.lost_disk for knobs in drawn)
