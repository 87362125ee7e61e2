"""The show of scripts/quickstart: what it does, in order, and what is cleaned up when it is cut short.

Law of this file: it drives the product only through what a user has, the `shoal` command and HTTP.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import cluster
import environment
import flights
import terminal

DIRECTORY = environment.ROOT / ".quickstart"
PARTITIONS = 6
REPLICAS = 3
KILL_AT_SHARE = 0.3
STREAM_TIMEOUT_SECONDS = 300.0
CHECK_TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.1
FREE_MB = 2000
SPARK_STAGES = ["spark", "pipelines"]
# A pipeline starts a Spark of its own each time: 15 s on two idle cores.
PIPELINE_TIMEOUT_SECONDS = 300.0
CUSTOMERS = ("ann", "bob", "eve", "joe")
ORDERS = (3000, 1000)  # before the first run and between the two


class Show:
    """One run. Every process that it starts is either an agent of `cluster` or in `children`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.home: pathlib.Path = options.directory
        self.cluster = cluster.LocalCluster(self.home)
        self.children: list[subprocess.Popen[bytes]] = []
        self._stored = 0
        self.spark_share = 0.0
        self.spark_problem: environment.EnvironmentProblem | None = None
        self.spark_thread: threading.Thread | None = None

    # The steps, in order

    def run(self) -> None:
        self.clear_last_run()
        self.start_installing_spark()
        self.start_agents()
        self.create_topic()
        self.stream()
        self.check()
        if not self.options.without_spark:
            self.run_pipeline()
        self.say_goodbye()

    def clear_last_run(self) -> None:
        self.home.mkdir(exist_ok=True)
        self.cluster.recall()
        if self.cluster.live():
            terminal.step("Stopping the agents of the last run")
        self.cluster.stop()
        self.cluster.clear()
        shutil.rmtree(self.project(), ignore_errors=True)
        free_mb = shutil.disk_usage(self.home).free // 2**20
        if free_mb < FREE_MB:
            raise cluster.ClusterProblem(f"the show needs {FREE_MB} MB in {self.home}; {free_mb} are free")

    def start_installing_spark(self) -> None:
        if self.options.without_spark or all(map(environment.is_ready, SPARK_STAGES)):
            return
        terminal.line("Spark (580 MB) is being fetched in the background; the show goes on meanwhile")

        def install() -> None:
            try:
                environment.ensure(SPARK_STAGES, lambda share, _: setattr(self, "spark_share", share))
            except environment.EnvironmentProblem as problem:
                self.spark_problem = problem

        self.spark_thread = threading.Thread(target=install, name="install-spark", daemon=True)
        self.spark_thread.start()

    def start_agents(self) -> None:
        terminal.step("Three agents start on this machine and find each other by themselves")
        self.cluster.start(shoal_command(), f"quickstart-{secrets.token_hex(4)}")
        self.shoal("status", "--wait")
        self.shoal("members", "--wait", str(len(cluster.NAMES)))

    def create_topic(self) -> None:
        terminal.step(f"A topic: {PARTITIONS} partitions, {REPLICAS} replicas of each")
        factors = ["--partitions", str(PARTITIONS), "--replication-factor", str(REPLICAS)]
        self.shoal("topic", "create", "flights", *factors)
        self.shoal("status", "--wait")

    def stream(self) -> None:
        count = flights.FLIGHTS
        terminal.step(f"All {count:,} flights that left New York in 2013, at {self.options.rate:,} a second")
        path = self.flights_path()
        bar = terminal.Bar("unpack")
        flights.write(path, bar.update)
        producer = self.start_producer(path)
        bar = terminal.Bar("stream")
        victim: cluster.AgentProcess | None = None
        watch: LeaderWatch | None = None
        deadline = time.monotonic() + STREAM_TIMEOUT_SECONDS
        while producer.poll() is None:
            if time.monotonic() > deadline:
                raise cluster.ClusterProblem("the stream did not end in time")
            share = self.stored() / count
            if victim is None and share >= KILL_AT_SHARE:
                victim, watch = self.kill_busiest_leader(share)
            if watch is not None:
                watch.look(self.survivor())
            bar.update(min(share, 0.99), f"{int(share * count):,} records stored")
            time.sleep(POLL_SECONDS)
        if producer.returncode != 0:
            raise cluster.ClusterProblem(f"shoal produce ended with exit code {producer.returncode}")
        bar.update(1.0, f"{self.stored():,} records stored")
        if victim is None or watch is None:
            raise cluster.ClusterProblem("the stream was over before an agent could be killed: lower --rate")
        watch.wait_until_noticed(self.survivor())
        terminal.line("The stream is complete. The member list now:")
        self.shoal("members")

    def start_producer(self, path: pathlib.Path) -> subprocess.Popen[bytes]:
        arguments = [
            "produce",
            "flights",
            str(path),
            "--key-field",
            "carrier",
            "--rate",
            str(self.options.rate),
        ]
        producer = subprocess.Popen(
            [shoal_command(), *arguments, "--agent", self.urls()],
            stdin=subprocess.DEVNULL,
            stderr=open(self.home / "produce.log", "wb"),  # noqa: SIM115
        )
        self.children.append(producer)
        return producer

    def kill_busiest_leader(self, share: float) -> tuple[cluster.AgentProcess, LeaderWatch]:
        leaders = leaders_by_partition(cluster.get(self.survivor(), "/v1/routes?topic=flights"))
        by_url = {agent.url: agent for agent in self.cluster.live()}
        led = {url: sum(1 for leader in leaders.values() if leader == url) for url in by_url}
        busiest = by_url[max(led, key=lambda url: led[url])]
        busiest.signal(signal.SIGKILL)
        terminal.line(
            f"kill -9 {busiest.pid}: agent {busiest.name}, which leads {led[busiest.url]} of {PARTITIONS} "
            f"partitions, is gone at {share:.0%} of the stream"
        )
        names = {agent.url: agent.name for agent in self.cluster.agents}
        return busiest, LeaderWatch(busiest, names, leaders)

    def check(self) -> None:
        if self.options.without_spark:
            terminal.step("pyarrow reads the topic and counts every flight")
            self.run_check("arrow_check.py", {})
            self.say_that_all_arrived()
            return
        self.wait_for_spark()
        terminal.step('Spark reads the topic: spark.read.format("shoal")')
        from shoal.spark import java

        home = java.find(self.home / "java")
        self.run_check("spark_check.py", {"JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"})
        self.say_that_all_arrived()

    def say_that_all_arrived(self) -> None:
        terminal.line(
            f"All {flights.FLIGHTS:,} flights arrived exactly once, though a leader was killed meanwhile"
        )

    def run_pipeline(self) -> None:
        terminal.step("A declarative pipeline: a project, and two runs with orders sent between them")
        for topic in ("orders", "receipts"):
            self.shoal("topic", "create", topic, "--partitions", "2", "--replication-factor", "2")
        self.shoal("spark", "init", str(self.project()))
        sent = 0
        for turn, count in enumerate(ORDERS):
            path = self.home / f"orders-{turn}.ndjson"
            lines = (f'{{"customer":"{CUSTOMERS[i % 4]}","item":{i}}}\n' for i in range(sent, sent + count))
            path.write_text("".join(lines))
            self.shoal("produce", "orders", str(path), "--key-field", "customer")
            sent += count
            self.run_spark_pipeline(self.home / f"pipeline-{turn}.log")
            self.run_check("pipeline_check.py", {}, str(self.project()), str(sent))

    def run_spark_pipeline(self, path: pathlib.Path) -> None:
        terminal.line(f"$ cd {self.project()}; shoal spark run")
        with open(path, "wb") as log:
            run = subprocess.Popen(
                [shoal_command(), "spark", "run", "--agent", self.urls()],
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=self.project(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that the JVM can be ended with it
            )
        self.children.append(run)
        if run.wait(timeout=PIPELINE_TIMEOUT_SECONDS) != 0:
            raise cluster.ClusterProblem(f"the pipeline's run failed: see {path}")

    def wait_for_spark(self) -> None:
        if self.spark_thread is None:
            return
        bar = terminal.Bar("fetch Spark")
        while self.spark_thread.is_alive():
            bar.update(self.spark_share)
            self.spark_thread.join(environment.POLL_SECONDS)
        if self.spark_problem is not None:
            raise cluster.ClusterProblem(f"{self.spark_problem}; --without-spark does without it")
        bar.update(1.0)

    def run_check(self, script: str, variables: dict[str, str], *arguments: str) -> None:
        path = environment.ROOT / "scripts" / script
        with open(self.home / "check.log", "wb") as log:
            check = subprocess.Popen(
                [sys.executable, str(path), self.urls(), *(arguments or [str(self.flights_path())])],
                env={**os.environ, **variables},
                cwd=self.home,
                stderr=log,
                start_new_session=True,  # so that the JVM it starts can be ended with it
            )
        self.children.append(check)
        if check.wait(timeout=CHECK_TIMEOUT_SECONDS) != 0:
            raise cluster.ClusterProblem(f"the check failed: see {self.home / 'check.log'}")

    def say_goodbye(self) -> None:
        url = self.survivor()
        terminal.step("The agents still run. Try:")
        sys.stderr.flush()
        for command in goodbye_commands(url):
            print(f"    {command}")
        print("\n    stop them:  scripts/quickstart --stop", flush=True)

    # Helpers

    def shoal(self, *arguments: str) -> None:
        """Runs one command and lets the user see what a user would see."""
        terminal.line(f"$ shoal {' '.join(arguments)}")
        sys.stderr.flush()
        command = [shoal_command(), "--agent", self.survivor(), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.children.append(process)
        if process.wait(timeout=STREAM_TIMEOUT_SECONDS) != 0:
            raise cluster.ClusterProblem(f"shoal {' '.join(arguments)}: exit code {process.returncode}")

    def survivor(self) -> str:
        live = self.cluster.live()
        if not live:
            raise cluster.ClusterProblem(f"no agent is alive any more: see the logs in {self.home}")
        return live[0].url

    def urls(self) -> str:
        return ",".join(agent.url for agent in self.cluster.live())

    def project(self) -> pathlib.Path:
        return self.home / "shop"

    def flights_path(self) -> pathlib.Path:
        return self.home / "flights.ndjson"

    def stored(self) -> int:
        """How many records the survivors call committed; the last answer while they cannot say."""
        with contextlib.suppress(OSError, cluster.ClusterProblem):
            answer = cluster.get(self.survivor(), "/v1/topics/flights/offsets")
            self._stored = sum(partition["high_watermark"] for partition in answer["partitions"])
        return self._stored

    def abandon(self) -> None:
        """Ends everything that this run has started."""
        environment.cancel()
        for child in self.children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    own_group = os.getpgid(child.pid) == child.pid
                    (os.killpg if own_group else os.kill)(child.pid, signal.SIGKILL)
                child.wait()
        self.cluster.stop()


class LeaderWatch:
    """Tells, as it happens, when the member list notices a death and where the leaders go."""

    def __init__(self, victim: cluster.AgentProcess, names: dict[str, str], leaders: dict[int, str]) -> None:
        self._victim = victim
        self._names = names
        self._leaders = leaders
        self._status = "alive"
        self._killed_at = time.monotonic()

    def look(self, url: str) -> None:
        with contextlib.suppress(OSError):  # an answer that is late is looked for again
            self._look_at_leaders(url)
            self._look_at_status(url)

    def _look_at_leaders(self, url: str) -> None:
        seconds = time.monotonic() - self._killed_at
        now = leaders_by_partition(cluster.get(url, "/v1/routes?topic=flights"))
        for partition, leader in sorted(now.items()):
            if leader and leader != self._leaders.get(partition):
                terminal.line(
                    f"+{seconds:4.1f} s  partition {partition} is led by {self._names.get(leader, leader)}"
                )
                self._leaders[partition] = leader

    def _look_at_status(self, url: str) -> None:
        seconds = time.monotonic() - self._killed_at
        for member in cluster.get(url, "/v1/members")["members"]:
            if member["name"] == self._victim.name and member["status"] != self._status:
                self._status = member["status"]
                terminal.line(
                    f"+{seconds:4.1f} s  the member list says that {self._victim.name} is {self._status}"
                )

    def wait_until_noticed(self, url: str) -> None:
        deadline = time.monotonic() + STREAM_TIMEOUT_SECONDS
        while self._status != "failed" or self._victim.url in self._leaders.values():
            if time.monotonic() > deadline:
                raise cluster.ClusterProblem("the member list never noticed that an agent was killed")
            self.look(url)
            time.sleep(POLL_SECONDS)


def shoal_command() -> str:
    """The `shoal` that was installed beside the interpreter of this script."""
    return str(pathlib.Path(sys.executable).parent / "shoal")


def leaders_by_partition(routes: dict[str, Any]) -> dict[int, str]:
    partitions = routes["topics"]["flights"]["partitions"]
    return {entry["partition"]: entry["leader_url"] or "" for entry in partitions}


def goodbye_commands(url: str) -> list[str]:
    """Four commands, each of which works as it stands."""
    return [
        f"curl '{url}/v1/members'",
        f"curl '{url}/v1/topics/flights/partitions/0/records?offset=-3'",
        f'curl \'{url}/v1/topics/hello/records\' --json \'{{"records": [{{"key": "me", "value": "hi"}}]}}\'',
        f"curl '{url}/v1/topics/hello/partitions/0/records'",
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/quickstart")
    parser.add_argument("--without-spark", action="store_true", help="check with pyarrow instead of Spark")
    parser.add_argument("--rate", type=int, default=20_000, help="records per second (default 20000)")
    parser.add_argument("--stop", action="store_true", help="end the agents that the last run left")
    parser.add_argument("--directory", type=pathlib.Path, default=DIRECTORY, help="where data and logs go")
    options = parser.parse_args(arguments)
    options.directory = options.directory.resolve()
    if options.rate < 1:
        parser.error("--rate must be at least 1")
    return options


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = parse(sys.argv[1:])
    if options.stop:
        agents = cluster.LocalCluster(options.directory)
        agents.recall()
        terminal.line(f"stopped {agents.stop()} agents of {options.directory}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    show = Show(options)
    try:
        show.run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the cleaning up
        show.abandon()
        terminal.problem("interrupted; nothing is left running")
        return 130
    except (cluster.ClusterProblem, environment.EnvironmentProblem, subprocess.TimeoutExpired) as problem:
        show.abandon()
        terminal.problem(str(problem))
        return 1
    except BaseException:
        show.abandon()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
