"""`shoal bench`: its figures, its bare sockets, and the life of the topic that it makes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pathlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from command_line import assert_one_line, finish, run, start
from fake_cluster import FakeCluster, refuse
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.cli.bench import command, floors, rounds
from shoal.agent.cli.bench.figures import (
    BenchFigures,
    Latencies,
    Throughput,
    megabytes,
    milliseconds,
    times,
)
from shoal.agent.cli.bench.plan import ROUNDS, BenchPlan
from shoal.agent.cli.main import main
from shoal.agent.cli.terminal.output import CliError
from shoal.agent.cli.terminal.progress import ProgressBar
from shoal.client.async_client import AsyncClient
from shoal.client.http.requests import ClientConfig
from shoal.errors import ShoalError

PLAN = BenchPlan("shoal-bench-test", 2, 3, records=500, value_bytes=100, samples=10, seconds=60.0)
SMALL = ("bench", "--records", "500", "--samples", "5")


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents."""
    async with FakeCluster(3) as fake:
        yield fake


# ---- what is said -------------------------------------------------------------------------------


def test_the_plan_fits_80_columns() -> None:
    """With as many records as it takes, and a name that agents give themselves."""
    plan = replace(
        PLAN, topic=f"{command.PREFIX}0123abcd", records=10**9, value_bytes=1 << 20, samples=1_000_000
    )
    lines = plan.lines({"name": "buildhost-17-1a2b3c4d", "cluster": "fish"})
    assert max(map(len, lines)) <= 80, lines


def test_a_bar_stays_in_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was folded cannot be drawn over: each update left a copy of it behind."""
    drawn = io.StringIO()
    monkeypatch.setattr(drawn, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((20, 24)))
    ProgressBar(drawn).update(0.5, "round 1 of 5: appends to a follower")
    assert drawn.getvalue() == "\r 50%  round 1 of 5:\x1b[K"


# ---- figures ------------------------------------------------------------------------------------


def test_the_99th_percentile_is_a_sample() -> None:
    """The nearest rank; of fewer than a hundred the slowest."""
    hundred = Latencies([number / 1_000 for number in range(100, 0, -1)])
    assert (hundred.median_s, hundred.p99_s) == (0.0505, 0.099)
    assert Latencies([0.003, 0.001, 0.002]).p99_s == 0.003
    assert Latencies([0.1]).document() == {"median_ms": 100.0, "p99_ms": 100.0, "samples": 1}


def test_throughput_is_the_median_of_the_rounds() -> None:
    """In records and in bytes of values; the slowest round stands beside it."""
    one = Throughput(200, [(100, 1.0), (100, 0.5), (30, 0.1)])
    assert one.document() == {
        "records_per_second": 200,
        "slowest_records_per_second": 100,
        "value_bytes_per_second": 40_000,
        "records": 230,
        "rounds": 3,
    }


def test_everything_stands_beside_the_bare_socket() -> None:
    """How many times its round trip, which share of its copy."""
    found = BenchFigures(Throughput(100, [(10_000, 1.0)]), Throughput(100, [(50_000, 1.0)]))
    found.append.samples_s, found.arrival.samples_s = [0.002], [0.004]
    found.round_trip.samples_s, found.handshake.samples_s, found.copies = [0.0001], [0.0001], [10e6]
    assert [row[3] for row in found.latency_rows()] == ["20 x", "40 x", "1.0 x", "1.0 x"]
    assert found.throughput_rows()[:2] == [
        ["produce, acks=all", "10,000", "10,000", "1 MB/s", "10.00%"],
        ["consume", "50,000", "50,000", "5 MB/s", "50.00%"],
    ]
    assert found.document()["floor"]["socket_copy_bytes_per_second"] == 10_000_000


def test_amounts_have_three_digits_that_mean_something() -> None:
    """And their unit."""
    texts = [milliseconds(one) for one in (0.0000412, 0.00341, 0.0128, 0.128, 12.8, 0.0)]
    assert texts == ["0.0412 ms", "3.41 ms", "12.8 ms", "128 ms", "12,800 ms", "0 ms"]
    assert [megabytes(one) for one in (82.04e6, 3.1e9, 1e3)] == ["82 MB/s", "3,100 MB/s", "0.001 MB/s"]
    assert [times(one) for one in (29.4, 1.26)] == ["29 x", "1.3 x"]


@given(st.integers(ROUNDS, 10**9))
def test_the_parts_of_the_rounds_are_the_whole(total: int) -> None:
    """And none of them is empty."""
    parts = [rounds.share(total, number) for number in range(ROUNDS)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_the_plan_says_what_it_will_do() -> None:
    """The topic, how much is written where, and for how long; a killed run leaves records for an hour."""
    text = "\n".join(PLAN.lines({"name": "herring", "cluster": "fish"}))
    for words in (
        "agent herring of cluster fish",
        "creates topic shoal-bench-test, and deletes it",
        "0.1 MB",
    ):
        assert words in text
    ages = {"retention": {"age": "1h"}, "segment": {"age": "1h"}}
    assert PLAN.settings() == {"partitions": 2, "replication_factor": 3, **ages}
    assert "replication_factor" not in replace(PLAN, replication_factor=None).settings()


# ---- bare sockets -------------------------------------------------------------------------------


def test_a_bare_socket_moves_the_bytes() -> None:
    """As often as was asked; a copy smaller than a chunk is one chunk."""
    found = floors.round_trips(20, 300_000)
    assert len(found) == 20
    assert min(found) > 0
    assert floors.copy_rate(10) > 0
    assert floors.copy_rate(5 << 20) > 0


def test_a_handshake_is_measured_at_the_agent(tmp_path: pathlib.Path) -> None:
    """By name, number or the path of a socket; where nobody listens, a line says so."""
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert len(floors.handshakes(f"unix://{path}", 3)) == 3
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert len(floors.handshakes(f"http://127.0.0.1:{port}/", 3)) == 3
    for url in (f"http://127.0.0.1:{port}", "http://nobody.invalid:7070", f"unix://{path}"):
        with pytest.raises(CliError, match="cannot be reached"):
            floors.handshakes(url, 1)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:7070", True),
        ("http://127.8.0.1", True),
        ("http://localhost:1", True),
        ("http://[::1]:7070", True),
        ("unix:///run/shoal/http.sock", True),
        ("http://10.0.0.7:7070", False),
        ("http://localhost.example:7070", False),
    ],
)
def test_an_agent_on_this_machine_is_known(url: str, here: bool) -> None:
    """It shares the processors."""
    assert floors.is_here(url) is here


# ---- against a cluster --------------------------------------------------------------------------


def client_of(cluster: FakeCluster) -> AsyncClient:
    return AsyncClient(cluster.urls, ClientConfig(first_contact_ms=0))


async def test_all_records_are_written_and_read_once(cluster: FakeCluster) -> None:
    """As many as planned, in five rounds, over all partitions; single appends go to the first one."""
    cluster.create(PLAN.topic, 2)
    told: list[float] = []
    async with client_of(cluster) as client:
        found = await rounds.BenchRounds(client, PLAN, lambda share, _: told.append(share)).run()
    assert [records for records, _ in found.produce.rounds] == [100] * ROUNDS
    assert [records for records, _ in found.consume.rounds] == [100] * ROUNDS
    counts = [len(one.samples_s) for one in (found.append, found.arrival, found.round_trip)]
    assert counts == [10, 10, 10]
    assert sum(log.end for log in cluster.topics[PLAN.topic].partitions) == 500 + 2 * 10 + 2
    assert all(log.end > 100 for log in cluster.topics[PLAN.topic].partitions)
    assert told == sorted(told)
    assert told[0] == 0.0


async def test_time_that_is_up_ends_a_round(cluster: FakeCluster) -> None:
    """It counts with what was done; each has at least one batch and one append."""
    cluster.create(PLAN.topic)
    plan = BenchPlan(PLAN.topic, 1, None, 10**9, 1 << 20, 10**6, seconds=0.001)
    async with client_of(cluster) as client:
        found = await rounds.BenchRounds(client, plan, lambda *_: None).run()
    assert [records for records, _ in found.produce.rounds] == [1] * ROUNDS
    assert len(found.append.samples_s) == len(found.arrival.samples_s) == ROUNDS


async def test_acknowledged_records_that_cannot_be_read_are_told(cluster: FakeCluster) -> None:
    """A cluster that loses them gets no figures."""
    cluster.create(PLAN.topic)
    runner = rounds.BenchRounds(client_of(cluster), PLAN, lambda share, what: lose() if what else None)

    async def pretend(request: web.Request, proceed: Any) -> web.Response:
        await request.read()
        appended = [{"partition": 0, "base_offset": 7, "count": 100}]
        return web.json_response({"count": 100, "appended": appended})

    def lose() -> None:
        cluster.faults.append(pretend)

    async with runner.client:
        with pytest.raises(CliError, match="100 records were acknowledged and 0 read"):
            await runner.run()


async def test_it_says_what_it_does_before_it_does_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole plan, and topics of other runs, while nothing is made yet."""
    cluster.create("shoal-bench-old")
    said: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(command, "say", lambda text: said.append((text, sorted(cluster.topics))))
    async with client_of(cluster) as client:
        report = await command.measure(client, PLAN)
    assert report is not None
    plan = [text for text, topics in said if topics == ["shoal-bench-old"] and "deleted" not in text]
    assert plan[0].startswith("1 topic of runs that go on or were killed: shoal-bench-old;")
    assert plan[1 : len(PLAN.lines({})) + 1] == PLAN.lines({"name": "agent-0", "cluster": "fake"})
    during = [text for text, topics in said if PLAN.topic in topics]
    assert during == ["it has 2 partitions, each on 3 agents"]
    assert sorted(cluster.topics) == ["shoal-bench-old"]


async def test_a_run_prints_its_figures_and_leaves_nothing(cluster: FakeCluster) -> None:
    """As a table and as JSON: data on stdout, talk on stderr."""
    ran = await run(*SMALL, agent=cluster.urls[0])
    assert ran.code == 0, ran.stderr
    assert [line.split("  ")[0] for line in ran.stdout.splitlines()] == [
        "LATENCY", "append, acks=all", "append to follower", "TCP handshake with agent",
        "bare socket, there and back", "",
        "THROUGHPUT", "produce, acks=all", "consume", "bare socket, one way",
    ]  # fmt: skip
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert ran.stderr.splitlines()[-1].endswith("share its processors")
    ran = await run("--json", *SMALL, "--value-bytes", "1KiB", agent=cluster.urls[0])
    document = json.loads(ran.stdout)
    assert (document["cluster"], document["value_bytes"], document["produce"]["records"]) == (
        "fake",
        1_024,
        500,
    )
    assert document["append"]["samples"] == 5
    assert document["floor"]["socket_round_trip"]["median_ms"] > 0
    assert cluster.topics == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interruption_deletes_the_topic(cluster: FakeCluster, number: signal.Signals) -> None:
    """In the middle of a round; the exit code is that of an interruption."""
    process = await start("bench", "--records", "100000000", "--seconds", "600", agent=cluster.urls[0])
    async with asyncio.timeout(120):
        while not any(log.end > 5_000 for made in cluster.topics.values() for log in made.partitions):
            await asyncio.sleep(0.02)
    process.send_signal(number)
    out, err = await finish(process)
    assert (process.returncode, out) == (130, b"")
    assert b" is deleted\n" in err
    assert b"Traceback" not in err
    assert cluster.topics == {}


async def test_a_failure_deletes_the_topic(cluster: FakeCluster) -> None:
    """And is told in one line after the talk; a topic that was never made needs no deletion."""
    cluster.faults.extend([refuse("too-large")] * 50)
    ran = await run(*SMALL, agent=cluster.urls[0])
    assert (ran.code, ran.stdout, cluster.topics) == (1, "", {})
    assert "too-large on demand" in ran.stderr.splitlines()[-1]
    assert " is deleted" in ran.stderr
    nobody = await run(*SMALL, agent="http://127.0.0.1:1")
    assert_one_line(nobody, "cannot be reached")


async def test_a_topic_that_cannot_be_deleted_is_named(cluster: FakeCluster) -> None:
    """With the command that deletes it."""
    process = await start("bench", "--records", "100000000", "--seconds", "600", agent=cluster.urls[0])
    async with asyncio.timeout(120):
        while not any(log.end > 1_000 for made in cluster.topics.values() for log in made.partitions):
            await asyncio.sleep(0.02)
    (topic,) = cluster.topics
    for number in range(3):
        await cluster.kill(number)
    process.send_signal(signal.SIGINT)
    _, err = await finish(process)
    assert process.returncode == 130
    assert f"topic {topic} could not be deleted: ".encode() in err
    assert f"`shoal topic delete {topic} --yes`".encode() in err


async def test_an_interruption_while_the_topic_is_made_leaves_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is waited for: a topic that is made after its deletion would stay."""
    asked, answer = asyncio.Event(), asyncio.Event()
    create = AsyncClient.create_topic

    async def slowly(self: AsyncClient, *arguments: Any) -> Any:
        asked.set()
        await answer.wait()
        return await create(self, *arguments)

    monkeypatch.setattr(AsyncClient, "create_topic", slowly)
    async with client_of(cluster) as client:
        running = asyncio.create_task(command.measure(client, PLAN))
        await asked.wait()
        running.cancel()
        await asyncio.sleep(0)
        answer.set()
        assert await running is None
    assert f"PUT /v1/topics/{PLAN.topic}" in cluster.requests
    assert cluster.topics == {}


async def test_figures_are_shown_even_if_the_topic_stays(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the exit code says that something is left."""

    async def refused(*_: object) -> None:
        raise ShoalError("no-leader", "the catalog has no leader")

    monkeypatch.setattr(AsyncClient, "delete_topic", refused)
    async with client_of(cluster) as client:
        report = await command.measure(client, PLAN)
    assert report is not None
    assert report[0]["topic_deleted"] is False
    said = capsys.readouterr().err
    assert "could not be deleted: the catalog has no leader; `shoal topic delete" in said
    monkeypatch.setattr(command, "with_client", lambda *_: report)
    assert main(["bench", "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["produce"]["records"] == 500
