"""Spark programs beside real agents, both to be killed: for the pipeline's test and the campaign.

Law of this file: everything that is started here is ended here, by its own process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import cluster as local
import psutil
from real_agents import is_ready, shoal_command, wait_until

DRIVER_SECONDS_MAX = 300.0
APPEND_SECONDS_MAX = 30.0
STARTS_MAX = 12
IMPATIENCE = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")


@contextlib.contextmanager
def agents(directory: pathlib.Path, count: int = 3) -> Iterator[local.LocalCluster]:
    """Agents that are ready."""
    cluster = local.LocalCluster(directory)
    try:
        cluster.start(shoal_command(), f"spark-{secrets.token_hex(4)}", tuple(local.NAMES[:count]))
        wait_until(
            lambda: all(is_ready(agent.url, count) for agent in cluster.agents), "the agents are ready"
        )
        yield cluster
    finally:
        cluster.stop()


def ask(url: str, method: str, path: str, body: bytes | None = None, media: str = "application/json") -> Any:
    """One JSON answer, asked for again while agents come and go (creations and reads, and appends to nobody
    else's topics before anything is killed)."""

    def once() -> Any:
        request = urllib.request.Request(
            url + path, data=body, method=method, headers={"Content-Type": media}
        )
        with urllib.request.urlopen(request, timeout=APPEND_SECONDS_MAX) as answer:
            return [json.load(answer)]

    return wait_until(once, f"{method} {path}")[0]


def make_topic(url: str, name: str, partitions: int) -> None:
    """Three replicas."""
    body = json.dumps({"partitions": partitions, "replication_factor": 3}).encode()
    ask(url, "PUT", f"/v1/topics/{name}", body)


def append_lines(url: str, topic: str, partition: int, lines: list[str]) -> None:
    """One value a line."""
    body = "\n".join(lines).encode()
    ask(url, "POST", f"/v1/topics/{topic}/partitions/{partition}/records", body, "application/x-ndjson")


def records(url: str, topic: str, partitions: int) -> list[tuple[str | None, str]]:
    """(key, value) of all records."""
    found: list[tuple[str | None, str]] = []
    for partition in range(partitions):
        offset = 0
        while True:
            query = f"offset={offset}&limit=10000&max_bytes=8388608"
            page = ask(url, "GET", f"/v1/topics/{topic}/partitions/{partition}/records?{query}")
            if not page["records"]:
                break
            found += [(record["key"], record["value"]) for record in page["records"]]
            offset = page["next_offset"]
    return found


class DriverFailedError(Exception):
    """The program ended by itself, and not well."""


class Driver:
    """A Spark program in a session of its own, started again as a supervisor would: it can be
    killed with its JVM.

    It may only fail by itself where Spark gives Python ten seconds to start and a busy machine needs more.
    """

    def __init__(
        self,
        program: pathlib.Path,
        arguments: list[str],
        log: pathlib.Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables`: beside those of this process."""
        self._command = [sys.executable, str(program), *arguments]
        self._variables = dict(variables or {})
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Begin, or begin again."""
        self.kill()
        variables = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        variables |= self._variables
        self.starts += 1
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(
                self._command,
                env=variables,
                cwd=self._log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def has_ended(self) -> bool:
        """Whether it came to its end; started again where Spark was too impatient. Raises DriverFailedError
        for other ends."""
        assert self._process is not None
        code = self._process.poll()
        if code:
            words = self._log.read_text("utf-8", "replace")
            excused = any(impatience in words for impatience in IMPATIENCE)
            if not excused or self.starts >= STARTS_MAX:
                raise DriverFailedError(f"the driver ended with {code}: {words[-3_000:]}")
            self.start()
        return code == 0

    def finish(self) -> None:
        """Wait for its end."""
        deadline = time.monotonic() + DRIVER_SECONDS_MAX
        while not self.has_ended():
            assert time.monotonic() < deadline, self._log.read_text("utf-8", "replace")[-3_000:]
            time.sleep(0.05)

    def reach(self, checkpoint: pathlib.Path, batch: int) -> None:
        """Wait until a micro-batch is complete. Fails when the driver ends before."""
        deadline = time.monotonic() + DRIVER_SECONDS_MAX
        while not (checkpoint / "commits" / str(batch)).exists():
            assert not self.has_ended(), f"it ended before micro-batch {batch}"
            assert time.monotonic() < deadline, self._log.read_text("utf-8", "replace")[-3_000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to driver and JVM; the Python workers end by themselves when their JVM is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_worker(self, rng: random.Random) -> bool:
        """SIGKILL to a Python worker of executor or driver; False if there is none."""
        assert self._process is not None
        try:
            below = psutil.Process(self._process.pid).children(recursive=True)
            workers = [child for child in below if "pyspark" in " ".join(child.cmdline()[:4])]
            workers = [child for child in workers if "python" in child.name()]
        except psutil.Error:
            return False
        if not workers:
            return False
        with contextlib.suppress(psutil.Error):
            rng.choice(workers).kill()
        return True
