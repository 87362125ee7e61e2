"""`shoal bench`: says what it will do, makes a topic of its own, measures, and deletes the topic again.

Law of this file: the topic's life and the report. rounds.py measures.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.bench.plan import BenchPlan
from shoal.agent.cli.terminal.amounts import size_bytes
from shoal.agent.cli.terminal.interruption import interruptible
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    example,
    option,
)
from shoal.agent.cli.terminal.output import UsageError, listed, plural, say, show_json, show_table
from shoal.agent.cli.terminal.progress import ProgressBar
from shoal.agent.cli.terminal.run import with_client

if TYPE_CHECKING:
    from shoal.agent.cli.bench.figures import BenchFigures
    from shoal.client.async_client import AsyncClient

PREFIX = "shoal-bench-"
DELETE_SECONDS = 30.0
LEFT_SHOWN_MAX = 5
VALUE_BYTES_MAX = 1 << 20

app = typer.Typer()


@app.command(
    "bench",
    epilog=example(
        "shoal bench",
        "shoal bench --value-bytes 1KiB --partitions 6",
        "shoal bench --records 50000 --samples 100 --output json",
    ),
)
def bench(
    records: Annotated[int, option("N", "Records to produce and consume, in 5 rounds.", min=5)] = 500_000,
    value_bytes: Annotated[str, option("SIZE", "Of each record, at most 1MiB.")] = "100",
    samples: Annotated[
        int, option("N", "Single appends, and as many that a follower reads.", min=5, max=1_000_000)
    ] = 500,
    partitions: Annotated[int, option("N", "Of the topic that is made.", min=1)] = 1,
    replication_factor: Annotated[
        int | None, option("N", "Of that topic; default 3, or fewer with fewer members.", min=1)
    ] = None,
    seconds: Annotated[
        float, option("SECONDS", "Stop producing, and each kind of append, after so long.", min=0.5)
    ] = 20.0,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure your cluster: produce, consume and latency, beside a bare socket in the same run.

    It first says what it does. It makes a topic of its own, and deletes it at the end, also after Ctrl-C.
    Every acknowledgement is that of a majority's disks. The bare socket sends the same bytes between two
    threads of this machine: the least that any log pays, without disk and network. Medians of rounds that
    alternate; sizes count values alone, a MB is 10^6 bytes.
    """
    size = size_bytes(value_bytes, "--value-bytes")
    if size is None or not 1 <= size <= VALUE_BYTES_MAX:
        raise UsageError(f"--value-bytes {value_bytes} is not from 1 to 1MiB", "give one like 100 or 4KiB")
    topic = f"{PREFIX}{secrets.token_hex(4)}"
    plan = BenchPlan(topic, partitions, replication_factor, records, size, samples, seconds)
    report = with_client(agent, lambda client: measure(client, plan))
    if report is None:
        raise typer.Exit(128 + signal.SIGINT)
    about, figures = report
    if output is Output.JSON:
        show_json(about | figures.document())
    else:
        show_table(["LATENCY", "MEDIAN", "P99", "TO BARE SOCKET"], figures.latency_rows())
        print()
        throughput = ["THROUGHPUT", "RECORDS/S", "SLOWEST ROUND", "VALUES", "OF BARE SOCKET"]
        show_table(throughput, figures.throughput_rows())
    if not about["topic_deleted"]:
        raise typer.Exit(1)


async def measure(client: AsyncClient, plan: BenchPlan) -> tuple[dict[str, Any], BenchFigures] | None:
    """The figures, and where they were measured; None after an interruption. The topic is deleted in any
    case."""
    asked = await client.agent()
    left = [topic["name"] for topic in await client.topics() if topic["name"].startswith(PREFIX)]
    if left:
        say(
            f"{plural(len(left), 'topic')} of runs that go on or were killed: {listed(left, LEFT_SHOWN_MAX)};"
            " `shoal topic delete NAME` removes one"
        )
    for line in plan.lines(asked):
        say(line)
    from shoal.agent.cli.bench.floors import is_here  # these not for --help
    from shoal.agent.cli.bench.rounds import BenchRounds

    bar = ProgressBar(sys.stderr)
    with interruptible() as task:
        try:
            try:
                replicas = await _create(client, plan)
                say(f"it has {plural(plan.partitions, 'partition')}, each on {plural(replicas, 'agent')}")
                figures = await BenchRounds(client, plan, bar.update).run()
            finally:
                bar.close()
                is_gone = await _delete(client, plan.topic)
        except asyncio.CancelledError:
            task.uncancel()
            return None
    if is_here(client.asked):
        say("this agent runs on the machine that measures it: both share its processors")
    about = {
        "agent": client.asked,
        "cluster": asked.get("cluster"),
        "version": asked.get("version"),
        "partitions": plan.partitions,
        "replicas": replicas,
        "value_bytes": plan.value_bytes,
        "topic_deleted": is_gone,
    }
    return about, figures


async def _create(client: AsyncClient, plan: BenchPlan) -> int:
    """Make the topic; returns the replicas of each partition. An interruption waits for the answer: a topic
    that is made after its deletion would stay."""
    making = asyncio.ensure_future(client.create_topic(plan.topic, plan.settings()))
    try:
        _, topic = await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.gather(making, return_exceptions=True)
        raise
    return int(topic["effective_replication_factor"])


async def _delete(client: AsyncClient, topic: str) -> bool:
    """Delete the topic, whatever has happened before; whether it is gone. Says so where that is not
    possible."""
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    advice = f"`shoal topic delete {topic} --yes` removes it; its records go within two hours"
    try:
        async with asyncio.timeout(DELETE_SECONDS):
            await client.delete_topic(topic)
    except (ShoalError, Unreachable, TimeoutError) as error:
        if isinstance(error, ShoalError) and error.code == "unknown-topic":
            return True
        reason = getattr(error, "detail", f"no answer within {DELETE_SECONDS:g} s")
        say(f"topic {topic} could not be deleted: {reason}; {advice}")
        return False
    except asyncio.CancelledError:  # interrupted again
        say(f"topic {topic} may be left; {advice}")
        raise
    else:
        say(f"topic {topic} is deleted")
        return True
