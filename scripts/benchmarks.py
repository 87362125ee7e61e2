"""The benchmarks of scripts/bench: agents as users start them, floors beside them, one table.

Law of this file: ratios count, since machines are shared and noisy; floor and measurement alternate, and the
median of the rounds is what is said. Only what was measured in this run is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import bench_topics
import benchmarks_calls
import benchmarks_client
import benchmarks_curves
import benchmarks_gossip
import benchmarks_groups
import benchmarks_metrics
import benchmarks_principals
import benchmarks_quota
import benchmarks_refusals
import benchmarks_replication
import benchmarks_secure
import benchmarks_start
import benchmarks_store
import benchmarks_tables
import benchmarks_timers
import benchmarks_tokens
import cluster
import environment
import floors
import load
import performance_page
import terminal
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES, post
from row import Row

PRODUCE_BATCHES = 2500
SINGLE_REQUESTS = 20_000
LATENCY_REQUESTS = 1500
FAILOVER_KILLS = 10
READ_BYTES = 8 * 2**20


class Bench:
    """One run: a directory, a number of rounds, and the agents of the benchmark at hand."""

    def __init__(self, directory: pathlib.Path, rounds: int) -> None:
        self.directory = directory
        self.rounds = rounds

    @contextlib.contextmanager
    def agents(self, count: int) -> Iterator[cluster.LocalCluster]:
        """`count` fresh agents that have found each other; they and their data are gone afterwards."""
        directory = self.directory / secrets.token_hex(4)
        agents = cluster.LocalCluster(directory)
        try:
            names = tuple(f"bench-{number}" for number in range(count))
            agents.start(environment.command("shoal"), f"bench-{secrets.token_hex(4)}", names)
            bench_topics.wait_ready(agents)
            yield agents
        finally:
            agents.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def produce(self) -> list[Row]:
        """Arrow batches into one partition of one agent, beside write + fdatasync of the same bytes."""
        body = bench_topics.arrow_body()
        with self.agents(1) as agents:
            url = agents.agents[0].url
            bench_topics.create_topic(url, "bench", 1, 1)
            target = f"{url}/v1/topics/bench/partitions/0/records"
            request = load.request_bytes("POST", target, body, Content_Type=ARROW)
            ours, floor = self.alternate(
                lambda: post(request, url, connections=8, requests=PRODUCE_BATCHES).per_second,
                lambda: PRODUCE_BATCHES / floors.synced_writes(self.directory, body, PRODUCE_BATCHES),
            )
        return [
            Row(
                "Arrow produce, 1 agent, 8 connections, fdatasync",
                f"{ours * BATCH_RECORDS / 1e6:.2f} M records/s ({ours * len(body) / 1e6:.0f} MB/s)",
                f"write + fdatasync {floor * len(body) / 1e6:.0f} MB/s",
                ours / floor,
                0.60,
            )
        ]

    @contextlib.contextmanager
    def lone_posts(self) -> Iterator[tuple[bytes, str, bytes, str]]:
        """A single-record POST and the URL of an agent for it; the same of an empty aiohttp handler."""
        body = b"x" * RECORD_BYTES
        with self.agents(1) as agents, floors.empty_handler() as empty:
            url = agents.agents[0].url
            bench_topics.create_topic(url, "bench", 1, 1)
            target = f"{url}/v1/topics/bench/records"
            request = load.request_bytes("POST", target, body, Content_Type="text/plain")
            nothing = load.request_bytes("POST", empty, body, Content_Type="text/plain")
            yield request, url, nothing, empty

    def single(self) -> list[Row]:
        """Single-record POSTs over 64 connections, beside an empty aiohttp handler."""
        with self.lone_posts() as (request, url, nothing, empty):
            ours, floor = self.alternate(
                lambda: post(request, url, connections=64, requests=SINGLE_REQUESTS).per_second,
                lambda: post(nothing, empty, connections=64, requests=SINGLE_REQUESTS).per_second,
            )
        name = "single-record POST, 64 connections, fdatasync"
        return [Row(name, f"{ours:,.0f}/s", f"empty handler {floor:,.0f}/s", ours / floor, 0.50)]

    def latency(self) -> list[Row]:
        """One single-record POST in flight, beside the empty handler and one fdatasync."""
        with self.lone_posts() as (request, url, nothing, empty):
            ours, floor = self.alternate(
                lambda: bench_topics.p50_us(request, url, LATENCY_REQUESTS),
                lambda: (
                    bench_topics.p50_us(nothing, empty, LATENCY_REQUESTS)
                    + floors.sync_latency_us(self.directory, b"x" * 1024, LATENCY_REQUESTS)
                ),
            )
        name = "single-record POST, one in flight, p50"
        return [
            Row(name, f"{ours:.0f} us", f"empty handler + fdatasync {floor:.0f} us", ours / floor, 2.0, True)
        ]

    def replication(self) -> list[Row]:
        """Three agents: produce, one record in flight, fail-over by every fault, a thousand partitions."""
        return benchmarks_replication.rows(self)

    def faults(self) -> list[Row]:
        """Fail-over alone: by kill -9, by SIGSTOP and by dropped packets, as two kinds of client see it."""
        return benchmarks_replication.failover(self)

    def replicated(self) -> list[Row]:
        """The first two of them, which take a minute."""
        return [*benchmarks_replication.produce(self), *benchmarks_replication.latency(self)]

    def read(self) -> list[Row]:
        """Arrow reads of 8 MiB, beside a bare socket copy of as many bytes."""
        body = bench_topics.arrow_body()
        reads = 60
        with self.agents(1) as agents:
            url = agents.agents[0].url
            bench_topics.create_topic(url, "bench", 1, 1)
            path = f"{url}/v1/topics/bench/partitions/0/records"
            fill = load.request_bytes("POST", path, body, Content_Type=ARROW)
            post(fill, url, connections=8, requests=READ_BYTES * 8 // len(body))
            target = f"{path}?offset=0&max_bytes={READ_BYTES}"
            request = load.request_bytes("GET", target, Accept=ARROW)

            def fetch() -> float:
                seen = post(request, url, connections=2, requests=reads)
                return seen.answer_bytes / seen.seconds

            ours, floor = self.alternate(
                fetch, lambda: floors.socket_copy_bytes_per_second(reads * READ_BYTES)
            )
        name = "Arrow read, 8 MiB fetches, 2 connections"
        return [
            Row(name, f"{ours / 1e9:.2f} GB/s", f"socket copy {floor / 1e9:.2f} GB/s", ours / floor, None)
        ]

    def failovers(self, kills: int) -> list[float]:
        """Seconds from each kill -9 of the leader to the next acknowledged append at a survivor."""
        seconds = []
        bar = terminal.Bar("fail-over")
        with self.agents(3) as agents:
            bench_topics.create_topic(agents.agents[0].url, "bench", 1, 3)
            for number in range(kills):
                seconds.append(self.one_failover(agents))
                bar.update((number + 1) / kills, f"{seconds[-1]:.2f} s")
        return seconds

    def failover(self) -> list[Row]:
        """kill -9 of a leader, to the next acknowledged append at a survivor; median and worst of ten."""
        seconds = self.failovers(FAILOVER_KILLS)
        median, worst = statistics.median(seconds), max(seconds)
        name = f"fail-over after kill -9, {len(seconds)} kills"
        measured = f"median {median:.2f} s, worst {worst:.2f} s"
        return [Row(name, measured, "bar: 1.5 s", median / 1.5, 1.0, True)]

    def store(self) -> list[Row]:
        """The segment store alone, without an agent around it."""
        return benchmarks_store.rows(self.directory, self.alternate)

    def start(self) -> list[Row]:
        """An agent with a thousand partitions, or hundreds of segments, killed and started again."""
        return benchmarks_start.rows(self)

    def client(self) -> list[Row]:
        """Shoal's own blocking client: single records, batches, reading."""
        return benchmarks_client.rows(self)

    def metrics(self) -> list[Row]:
        """Counters beside none, and scrapes of a thousand partitions."""
        return benchmarks_metrics.rows(self)

    def gossip(self) -> list[Row]:
        """Membership alone: what it costs, and how soon a death is seen, beside Serf."""
        return benchmarks_gossip.rows()

    def groups(self) -> list[Row]:
        """Consumer groups: messages received and acknowledged, handed over, and after a kill; timer
        topics; tables."""
        return [*benchmarks_groups.rows(self), *self.timers(), *self.tables()]

    def tables(self) -> list[Row]:
        """Of these only tables: rows by key, what views cost others, the disk; none below their level."""
        return benchmarks_tables.rows(self)

    def secure(self) -> list[Row]:
        """What TLS, tokens, principals and refusals cost, each beside the same without it."""
        return [*self.tls(), *self.links(), *self.tokens(), *self.refusals(), *self.principals()]

    def tls(self) -> list[Row]:
        """Of that only Arrow batches and reads over TLS, beside the open and bare servers with TLS."""
        return benchmarks_secure.rows(self)

    def links(self) -> list[Row]:
        """Of that only links over TLS, beside links in the open."""
        return [benchmarks_secure.links(self)]

    def tokens(self) -> list[Row]:
        """Of that only single records with tokens, beside an agent that asks nobody."""
        return benchmarks_tokens.rows(self)

    def quota(self) -> list[Row]:
        """Single records of one principal, beside another at ten times its quota."""
        return benchmarks_quota.rows(self)

    def refusals(self) -> list[Row]:
        """Of that only appends while others are refused."""
        return benchmarks_refusals.rows(self)

    def principals(self) -> list[Row]:
        """Of that only the catalog of many tokens, as an agent that joins applies it."""
        return benchmarks_principals.rows(self)

    def timers(self) -> list[Row]:
        """Of these only timer topics: appends, ten million pending, in time, and what views cost others."""
        return benchmarks_timers.rows(self)

    def curves(self) -> list[Row]:
        """Rate and latency over connections, and the spread of fail-over times: points for lab/curves.csv."""
        return benchmarks_curves.rows(self)

    def calls(self) -> list[Row]:
        """Calls that the leader of three replicas makes for one record, and its moves from file to file."""
        return benchmarks_calls.rows(self)

    def spark(self) -> list[Row]:
        """Spark reading, streaming and writing a topic."""
        import benchmarks_spark  # PySpark is there only where this was asked for
        import benchmarks_spark_shipping
        import benchmarks_spark_small

        found = [*benchmarks_spark.rows(self), *benchmarks_spark_small.rows(self)]
        return [*found, *benchmarks_spark_shipping.rows(self)]

    def spark_write(self) -> list[Row]:
        """Of that only writing."""
        import benchmarks_spark

        return benchmarks_spark.write_rows(self)

    def spark_micro(self) -> list[Row]:
        """Of that only small micro-batches."""
        import benchmarks_spark_small

        return benchmarks_spark_small.micro_rows(self)

    def spark_tasks(self) -> list[Row]:
        """Of that only small partitions, and a filter."""
        import benchmarks_spark_small

        return benchmarks_spark_small.task_rows(self)

    def spark_shipping(self) -> list[Row]:
        """Of that only the first query of executors without Shoal."""
        import benchmarks_spark_shipping

        return benchmarks_spark_shipping.rows(self)

    def spark_before(self) -> list[Row]:
        """Of that only large work beside another commit, or beside the short ways turned off."""
        import benchmarks_spark_small

        return benchmarks_spark_small.before_rows(self)

    def one_failover(self, agents: cluster.LocalCluster) -> float:
        survivors = {agent.url: agent for agent in agents.live()}
        leader = survivors.pop(bench_topics.wait_leader(next(iter(survivors)), "bench"))
        url = next(iter(survivors))
        bench_topics.append_until_acknowledged(url)
        leader.signal(signal.SIGKILL)
        started = time.monotonic()
        bench_topics.append_until_acknowledged(url)
        seconds = time.monotonic() - started
        agents.restart(leader)
        bench_topics.wait_ready(agents)
        bench_topics.wait_caught_up(agents)
        return seconds

    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]:
        """The medians of both, measured in turn so that a noisy minute meets both."""
        measured, floored = [], []
        bar = terminal.Bar("rounds")
        for number in range(self.rounds):
            floored.append(floor())
            measured.append(ours())
            bar.update((number + 1) / self.rounds, f"ratio {measured[-1] / floored[-1]:.2f}")
        return statistics.median(measured), statistics.median(floored)


def print_table(rows: list[Row]) -> None:
    """Columns as wide as what stands in them."""
    head = ["", "measured", "floor of the same run", "ratio", "goal"]
    lines = [head]
    for row in rows:
        goal = "" if row.goal is None else f"{'<=' if row.lower_is_better else '>='} {row.goal:.2f}"
        lines.append([row.name, row.measured, row.floor, f"{row.ratio:.2f}", f"{goal:<8}{row.verdict()}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        name, measured, floor, ratio, goal = (
            f"{text:<{width}}" for text, width in zip(line, widths, strict=True)
        )
        print(f"{name}  {measured}  {floor}  {ratio}  {goal}".rstrip())


def main() -> int:
    everything = ["produce", "single", "latency", "failover", "replication", "read", "client"]
    everything += ["store", "start", "metrics", "gossip"]
    names = [
        *everything,
        "replicated",
        "faults",
        "groups",
        "timers",
        "tables",
        "secure",
        "tls",
        "links",
        "tokens",
        "quota",
        "refusals",
        "principals",
        "curves",
        "calls",
        "spark",
        "spark_write",
        "spark_micro",
        "spark_tasks",
        "spark_shipping",
        "spark_before",
    ]
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("which", nargs="*", metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=None)
    parser.add_argument("--record", action="store_true", help="append the rows to lab/results.csv")
    options = parser.parse_args()
    unknown = sorted(set(options.which) - set(names))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="shoal-bench-") as directory:
        bench = Bench(pathlib.Path(directory), options.rounds)
        for name in options.which or everything:
            terminal.step(name)
            rows += getattr(bench, name)()
    print_table(rows)
    if options.record:
        performance_page.record(rows, options.rounds)
    return 1 if any(row.verdict() == "MISSED" for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (cluster.ClusterProblem, load.LoadProblem) as problem:
        terminal.problem(str(problem))
        sys.exit(1)
    except KeyboardInterrupt:
        terminal.problem("interrupted")
        sys.exit(130)
