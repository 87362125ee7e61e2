"""Curves instead of single numbers: rate and latency over connections, and how fail-over times are spread.

Law of this file: it measures and appends points to lab/curves.csv, drawn by plots.py: medians of the rounds.
"""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

import bench_topics
import load
import plots
import terminal
from row import Row

if TYPE_CHECKING:
    from benchmarks import Bench

CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 128)
REQUESTS_PER_CONNECTION = 300
REQUESTS_MIN = 1_000
KILLS = 20
AGENTS = (1, 3)


def rows(bench: Bench) -> list[Row]:
    """Measures all curves and records them. The rows are their ends, without a floor."""
    found, points = [], []
    machine_load = os.getloadavg()[0]
    for agents in AGENTS:
        name = "1 agent" if agents == 1 else f"{agents} agents, {agents} replicas"
        curve = _over_connections(bench, agents)
        for connections, (rate, p50, p99) in curve.items():
            points += [
                plots.Point("throughput", name, connections, rate),
                plots.Point("latency", f"{name}, p50", connections, p50 / 1e3),
                plots.Point("latency", f"{name}, p99", connections, p99 / 1e3),
            ]
        best = max(curve, key=lambda connections: curve[connections][0])
        rate, p50, p99 = curve[best]
        measured = f"{rate:,.0f}/s, p50 {p50 / 1e3:.1f} ms, p99 {p99 / 1e3:.1f} ms"
        found.append(
            Row(f"single-record POST, best load, {name}", measured, f"{best} connections", 1.0, None)
        )
    times = sorted(bench.failovers(KILLS))
    points += [
        plots.Point("fail-over", "kill -9 of the leader", seconds, 100 * number / len(times))
        for number, seconds in enumerate(times, 1)
    ]
    measured = f"median {statistics.median(times):.2f} s, worst {times[-1]:.2f} s"
    found.append(Row(f"fail-over curve, {len(times)} kills", measured, "no floor", 1.0, None))
    plots.record(points, machine_load)
    return found


def _over_connections(bench: Bench, agents: int) -> dict[int, tuple[float, float, float]]:
    """Requests a second, and the microseconds of p50 and p99, by connections."""
    body = b"x" * bench_topics.RECORD_BYTES
    curve = {}
    bar = terminal.Bar(f"load on {agents}")
    with bench.agents(agents) as cluster:
        bench_topics.create_topic(cluster.agents[0].url, "bench", 1, agents)
        url = bench_topics.wait_leader(cluster.agents[0].url, "bench")
        target = f"{url}/v1/topics/bench/records"
        request = load.request_bytes("POST", target, body, Content_Type="text/plain")
        for number, connections in enumerate(CONNECTIONS):
            requests = max(REQUESTS_MIN, REQUESTS_PER_CONNECTION * connections)
            runs = [
                bench_topics.post(request, url, connections=connections, requests=requests)
                for _ in range(bench.rounds)
            ]
            curve[connections] = (
                statistics.median(run.per_second for run in runs),
                statistics.median(statistics.median(run.latencies_us) for run in runs),
                statistics.median(_p99(run.latencies_us) for run in runs),
            )
            bar.update((number + 1) / len(CONNECTIONS), f"{curve[connections][0]:,.0f}/s")
    return curve


def _p99(latencies_us: list[float]) -> float:
    return sorted(latencies_us)[int(len(latencies_us) * 0.99)]
