"""How many calls the leader of three replicas makes for one record, and its moves from file to file.

Law of this file: agents as users start them, but that they count their calls (counted_agent.py, which says
how moves are counted); one record in flight. The profiler slows the agents, and so does other work of the
machine: the mean holds the heartbeats of that longer time, the lowest tenth hardly any.

`python scripts/benchmarks_calls.py [PYTHON]` prints the counts and each function. PYTHON: the interpreter of
another checkout's environment, to count an older commit by the same method.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import secrets
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from typing import Any, Protocol

import bench_topics
import cluster
import environment
import load
from bench_topics import RECORD_BYTES
from row import Row

AGENTS = 3
WARM_UP_REQUESTS = 200
REQUESTS = 400
WRITTEN_TIMEOUT_SECONDS = 30.0
CALLS_BAR, MOVES_BAR = 400, 150
LISTED_CALLS_MIN = 0.5
"""What is called more seldom per append is no part of its way."""
COUNTS = ("python", "c", "changes", "into")
Appends = list[dict[str, Any]]


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path


def rows(bench: Bench) -> list[Row]:
    """The table of one count, printed, and its two rows with their bars."""
    appends = count(bench.directory, str(environment.python()))
    print_table(appends)
    columns = _columns(appends)
    asked = (("Python calls of a replicated append in the leader", "python", CALLS_BAR),
             ("moves from file to file among them", "changes", MOVES_BAR))  # fmt: skip
    return [
        Row(name, f"{_tenth(columns[of]):.0f}", f"bar: {bar}", _tenth(columns[of]) / bar, 1.0, True)
        for name, of, bar in asked
    ]


def count(directory: pathlib.Path, python: str) -> Appends:
    """What the leader of three fresh agents called for each append."""
    own = directory / secrets.token_hex(4)
    agents = cluster.LocalCluster(own)
    try:
        names = tuple(f"calls-{number}" for number in range(AGENTS))
        agents.start(_launcher(own, python), f"calls-{secrets.token_hex(4)}", names)
        bench_topics.wait_ready(agents)
        bench_topics.create_topic(agents.agents[0].url, "bench", 1, AGENTS)
        url = bench_topics.wait_leader(agents.agents[0].url, "bench")
        leader = next(agent for agent in agents.agents if agent.url == url)
        target = f"{url}/v1/topics/bench/records"
        request = load.request_bytes("POST", target, b"x" * RECORD_BYTES, Content_Type="text/plain")
        bench_topics.post(request, url, connections=1, requests=WARM_UP_REQUESTS)
        leader.signal(signal.SIGUSR1)
        bench_topics.post(request, url, connections=1, requests=REQUESTS)
        leader.signal(signal.SIGUSR2)
        return _written(own / f"{leader.pid}.json")
    finally:
        agents.stop()


def _launcher(directory: pathlib.Path, python: str) -> str:
    """A command that stands in for `shoal`; its process id names the file of its counts."""
    directory.mkdir(parents=True)
    script = pathlib.Path(__file__).with_name("counted_agent.py")
    path = directory / "shoal"
    words = shlex.join([python, "-P", str(script)])
    path.write_text(f'#!/bin/sh\nexec {words} {shlex.quote(str(directory))}/$$.json "$@"\n')
    path.chmod(0o700)
    return str(path)


def _written(path: pathlib.Path) -> Appends:
    deadline = time.monotonic() + WRITTEN_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            appends: Appends = json.loads(path.read_text())
            return appends
        time.sleep(cluster.POLL_SECONDS)
    raise cluster.ClusterProblem("the leader did not write down what it had called")


def _tenth(counts: list[int]) -> float:
    """What the lowest tenth stays within: on a busy machine most appends have a heartbeat in between."""
    return statistics.quantiles(counts, n=10)[0]


def _columns(appends: Appends) -> dict[str, list[int]]:
    columns = {name: [append[name] for append in appends] for name in COUNTS}
    columns["both"] = [append["python"] + append["c"] for append in appends]
    return columns


def print_table(appends: Appends) -> None:
    """Each count, and the functions that an append of the lower half calls."""
    print(f"{len(appends)} appends, one in flight, the leader of {AGENTS} replicas, its event loop included")
    titles = {
        "python": "Python calls",
        "c": "C calls",
        "both": "both",
        "changes": "moves: calls of another file than the call before",
        "into": "moves: calls by a function of another file",
    }
    print(f"{'':52}{'least':>10}{'tenth':>10}{'median':>10}{'mean':>10}")
    columns = _columns(appends)
    for name, title in titles.items():
        counts = columns[name]
        tenth, median, mean = _tenth(counts), statistics.median(counts), statistics.mean(counts)
        print(f"{title:52}{min(counts):10}{tenth:10.0f}{median:10.0f}{mean:10.1f}")
    ordered = sorted(appends, key=lambda append: append["python"] + append["c"])
    _print_functions(ordered[: len(ordered) // 2])


def _print_functions(appends: Appends) -> None:
    sections: Counter[str] = Counter()
    functions: Counter[tuple[str, str]] = Counter()
    for append in appends:
        for section, function, calls in append["functions"]:
            sections[section] += calls
            functions[section, function] += calls
    for section, calls in sections.most_common():
        if calls / len(appends) < LISTED_CALLS_MIN:
            continue
        print(f"{calls / len(appends):8.1f}  {section}")
        for (of, function), times in functions.most_common():
            if of == section and times / len(appends) >= LISTED_CALLS_MIN:
                print(f"{times / len(appends):12.1f}  {function}")


def main() -> int:
    python = sys.argv[1] if len(sys.argv) > 1 else str(environment.python())
    with tempfile.TemporaryDirectory(prefix="shoal-calls-") as directory:
        print_table(count(pathlib.Path(directory), python))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (cluster.ClusterProblem, load.LoadProblem) as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
