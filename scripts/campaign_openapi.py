"""The campaign of the described API: schemathesis against an agent, by the agent's own description.

Law of this file: the fuzzer runs in an environment of its own, the agent in a process of its own on loopback
and a temporary directory; here they are started, ended and judged. Every other round has its gossip sealed.
A finding is one of schemathesis', an agent that ended, or a traceback in its log.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Protocol

import environment
import terminal

ROUND_SECONDS = 300.0  # of one agent; each round has a seed of its own
READY_SECONDS = 60.0
STOP_SECONDS = 40.0
# Beyond its time it ends what it has begun, long polls of a minute among it.
GRACE_SECONDS = 300.0
# `timeout` and `wait` may be a minute each, and are what was asked for.
RESPONSE_SECONDS_MAX = 130
# What ends the agent, has no end, or is no request for clients.
LEFT_OUT = ("leave", "followEvents", "peer")
# openapi_checks.py has what the first of them checks, and more; the others are for APIs that know who asks.
REPLACED = ("positive_data_acceptance", "ignored_auth", "object_level_authorization")


class Tally(Protocol):
    """campaigns.Outcome, as far as it is needed here."""

    next_seed: int
    faults: int
    findings: list[str]


def openapi(outcome: Tally, deadline: float, bar: terminal.Bar, started: float) -> None:
    """Rounds until the deadline. A fault is a request that schemathesis made up."""
    while (left := deadline - time.monotonic()) > 1:
        seed = outcome.next_seed
        with tempfile.TemporaryDirectory(prefix="shoal-openapi-") as name:
            directory = pathlib.Path(name)
            with _agent(directory, sealed=bool(seed % 2)) as (process, url):
                found, requests = _fuzz(directory, url, seed, min(ROUND_SECONDS, left))
                if process.poll() is not None:
                    found.append(f"the agent ended with {process.returncode}")
            log = (directory / "agent.log").read_text()
            found += ["a traceback in the agent's log"] if "Traceback" in log else []
            if found:
                print(f"{log}\n{(directory / 'schemathesis.log').read_text()}", flush=True)
        outcome.findings += [f"seed {seed}: {finding}" for finding in found]
        outcome.faults += requests
        outcome.next_seed += 1
        done = (time.monotonic() - started) / max(1e-9, deadline - started)
        bar.update(min(1.0, done), f"{outcome.faults} requests, {len(outcome.findings)} findings")


@contextlib.contextmanager
def _agent(directory: pathlib.Path, *, sealed: bool) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """One agent that is ready, and where it listens."""
    command = [sys.executable, "-m", "shoal.agent", "agent", "--expect", "1", "--name", "fuzzed"]
    command += ["--data", str(directory / "data"), "--cluster", "openapi", "--bind", "127.0.0.1"]
    command += ["--http-port", "0", "--gossip-port", "0"]
    if sealed:
        key = directory / "gossip.key"
        key.touch(mode=0o600)
        key.write_bytes(base64.b64encode(bytes(range(32))))
        command += ["--gossip-key", f"@{key}"]
    log = directory / "agent.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=environment.ROOT,
            stdout=output,
            stderr=output,
            env=os.environ | {"SHOAL_MDNS": "false"},
        )
    try:
        yield process, _ready_url(log, process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready_url(log: pathlib.Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            _, ready, rest = line.partition("ready: ")
            if ready:
                return rest.split()[0]
        time.sleep(0.05)
    raise RuntimeError(f"the agent was not ready within {READY_SECONDS:g} s: {log.read_text()}")


def _fuzz(directory: pathlib.Path, url: str, seed: int, seconds: float) -> tuple[list[str], int]:
    """What was found, and how many requests were made up."""
    report = directory / "report.json"
    command = [environment.command("schemathesis", "fuzz"), "run", f"{url}/openapi.json", "--no-color"]
    command += ["--checks", "all", "--exclude-checks", ",".join(REPLACED), "--seed", str(seed)]
    command += ["--max-time", f"{max(1, seconds):.0f}", "--continue-on-failure"]
    command += [
        "--max-response-time",
        str(RESPONSE_SECONDS_MAX),
        "--request-timeout",
        str(RESPONSE_SECONDS_MAX),
    ]
    command += ["--report", "json", "--report-json-path", str(report)]
    command += [word for name in LEFT_OUT for word in ("--exclude-operation-id", name)]
    variables = environment.clean_environment() | {
        "SCHEMATHESIS_HOOKS": "openapi_checks",
        "PYTHONPATH": str(environment.ROOT / "scripts"),
    }
    with open(directory / "schemathesis.log", "wb") as output:
        done = subprocess.run(
            command,
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            timeout=seconds + GRACE_SECONDS,
            check=False,
        )
    if not report.exists():
        return [f"schemathesis ended with {done.returncode} and no report"], 0
    return _findings(json.loads(report.read_text()), done.returncode)


def _findings(report: Any, status: int) -> tuple[list[str], int]:
    found = [f"{failure['title']}: {', '.join(failure['operations'])}" for failure in report["failures"]]
    found += [str(error)[:200] for error in report["errors"]]
    if status and not found:
        found.append(f"schemathesis ended with {status}")
    if report["operations"]["tested"] != report["operations"]["selected"]:
        found.append(f"not all operations were tried: {report['operations']}")
    return found, int(report["test_cases"]["generated"])
