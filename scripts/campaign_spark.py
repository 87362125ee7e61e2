"""The campaign of exactly-once: a stream is copied from topic to topic while everybody is killed.

Law of this file: what runs stands in tests/spark (copy_program.py, spark_kills.py); here it is killed by a
seed, repeated and judged. A finding is a record that is missing or there twice.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import pathlib
import random
import signal
import tempfile
import time
import traceback
from typing import Any, Protocol

import environment
import terminal

RECORDS = 12_000
RECORD_BYTES = 2_000  # so that a task brings more than one chunk to a partition
RECORDS_PER_TRIGGER = 5_000
LINES_PER_REQUEST = 1_000
KILLS_MAX = 12  # of a round; then it may come to its end
PAUSE_SECONDS = (0.5, 6.0)  # between two kills
AGENT_AWAY_SECONDS = 2.0
ROUND_SECONDS_MAX = 900.0


class Tally(Protocol):
    """campaigns.Outcome, as far as it is needed here."""

    next_seed: int
    faults: int
    records: int
    findings: list[str]


def spark(outcome: Tally, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Rounds until the deadline, or until the first finding."""
    kills = importlib.import_module("spark_kills")
    with (
        tempfile.TemporaryDirectory() as directory,
        kills.agents(pathlib.Path(directory) / "agents") as cluster,
    ):
        while time.monotonic() < deadline and not outcome.findings:
            try:
                outcome.faults += one_round(kills, cluster, pathlib.Path(directory), outcome.next_seed)
                outcome.records += RECORDS
            except Exception as error:  # noqa: BLE001 -- a finding, whatever it is
                traceback.print_exc()
                outcome.findings.append(f"seed {outcome.next_seed}: {type(error).__name__}: {error}"[:160])
            outcome.next_seed += 1
            done = (time.monotonic() - started) / max(1e-9, deadline - started)
            bar.update(min(1.0, done), f"{outcome.faults} kills, {len(outcome.findings)} findings")


def one_round(kills: Any, cluster: Any, directory: pathlib.Path, seed: int) -> int:
    """One topic copied under kills; how many there were. Raises AssertionError when the copy differs."""
    rng = random.Random(seed)  # noqa: S311 - a replayable schedule, no secret
    source, target = f"in-{seed}", f"out-{seed}"
    partitions = rng.choice([1, 2])
    url = cluster.agents[0].url
    kills.make_topic(url, source, partitions)
    kills.make_topic(url, target, rng.choice([1, 3]))
    for number, first in enumerate(range(0, RECORDS, LINES_PER_REQUEST)):
        numbers = range(first, first + LINES_PER_REQUEST)
        lines = [json.dumps({"record": record, "padding": "." * RECORD_BYTES}) for record in numbers]
        kills.append_lines(url, source, number % partitions, lines)
    urls = ",".join(agent.url for agent in cluster.agents)
    program = environment.ROOT / "tests" / "spark" / "copy_program.py"
    arguments = [urls, source, target, str(directory / f"checkpoint-{seed}"), str(RECORDS_PER_TRIGGER)]
    driver = kills.Driver(program, arguments, directory / f"driver-{seed}.log")
    try:
        faults = _killed(kills, cluster, driver, rng)
        driver.finish()
    finally:
        driver.kill()
    _judge(kills, cluster, target, seed)
    return faults


def _killed(kills: Any, cluster: Any, driver: Any, rng: random.Random) -> int:
    driver.start()
    faults = 0
    deadline = time.monotonic() + ROUND_SECONDS_MAX
    while faults < KILLS_MAX and time.monotonic() < deadline:
        time.sleep(rng.uniform(*PAUSE_SECONDS))
        ended = False
        with contextlib.suppress(kills.DriverFailedError):
            ended = driver.has_ended()
        if ended:
            return faults
        victim = rng.choice(["driver", "worker", "worker", "worker", "agent"])
        if victim == "driver" or not driver.is_alive():
            driver.start()
        elif victim == "worker" and not driver.kill_worker(rng):
            continue
        elif victim == "agent":
            agent = rng.choice(cluster.agents)
            agent.signal(signal.SIGKILL)
            time.sleep(AGENT_AWAY_SECONDS)
            while agent.is_alive():
                time.sleep(0.05)
            cluster.restart(agent)
        faults += 1
    return faults


def _judge(kills: Any, cluster: Any, target: str, seed: int) -> None:
    described = kills.ask(cluster.agents[0].url, "GET", f"/v1/topics/{target}/offsets")
    copied = kills.records(cluster.agents[0].url, target, len(described["partitions"]))
    counts = collections.Counter(json.loads(value)["record"] for _, value in copied)
    missing = sorted(set(range(RECORDS)) - set(counts))
    twice = sorted(record for record, count in counts.items() if count > 1)
    assert not missing, f"seed {seed}: {len(missing)} records are missing, the first is {missing[0]}"
    assert not twice, f"seed {seed}: {len(twice)} records are there twice, the first is {twice[0]}"
