"""Timer topics from the command line, at a real agent: made, shown, produced to and consumed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
from agents import Running, agents_in
from command_line import assert_one_line, finish, run, start

from shoal.agent.cli.records.produce_input import due_options
from shoal.agent.cli.terminal.output import UsageError
from shoal.format.timestamps import parse_time


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Running]:
    async with agents_in(tmp_path) as started:
        yield await started.alone("one")


async def test_a_timer_topic_is_made_filled_and_consumed(agent: Running) -> None:
    """Its kind is shown; a delay and a time say when its records are due."""
    url = agent.agent.url
    made = await run("topic", "create", "due", "--kind", "timer", agent=url)
    assert (made.code, made.stderr) == (0, made.stderr), made
    listed = await run("topic", "list", agent=url)
    assert listed.stdout.splitlines()[1].split()[:2] == ["due", "timer"]
    described = await run("topic", "describe", "due", agent=url)
    assert described.stdout.startswith("topic due (timer), ")
    refused = await run(
        "topic", "create", "bounded", "--kind", "timer", "--retention-bytes", "1GiB", agent=url
    )
    assert refused.code == 1
    assert "retention.bytes is not for topics of kind timer" in refused.stderr

    begun_us = time.time_ns() // 1_000
    for options in (("--delay", "300ms"), ("--deliver-at", "2030-01-01T09:00:00Z"), ()):
        produced = await run("produce", "due", *options, agent=url, stdin=f"tea {options}\n".encode())
        assert produced.code == 0, produced.stderr
    consumed = await run("consume", "due", "--output", "json", agent=url)
    records = [json.loads(line) for line in consumed.stdout.splitlines()]
    assert records[1]["deliver_at"] == "2030-01-01T09:00:00.000000Z"
    assert records[2]["deliver_at"] is None
    assert begun_us <= parse_time(records[0]["deliver_at"]) - 300_000 <= time.time_ns() // 1_000

    await run("topic", "create", "copy", "--kind", "timer", agent=url)
    again = await run("produce", "copy", agent=url, stdin=consumed.stdout.encode())
    assert again.code == 0, again.stderr
    copied = await run("consume", "copy", "--output", "json", agent=url)
    found = [json.loads(line)["deliver_at"] for line in copied.stdout.splitlines()]
    assert found == [record["deliver_at"] for record in records]

    await run("produce", "log", agent=url, stdin=b"plain\n")
    for topics in (("log", "due"), ("due", "log")):
        process = await start("consume", *topics, "--output", "arrow", agent=url)
        out, err = await finish(process)
        assert process.returncode == 0, err
        with pa.ipc.open_stream(out) as reader:
            assert reader.schema.names[0] == "topic"
            assert reader.schema.names[-1] in ("headers", "deliver_at")
            assert reader.read_all().num_rows == 4

    taken = await run("consume", "due", "--group", "g", "--limit", "2", "--output", "json", agent=url)
    assert taken.code == 0, taken.stderr
    values = [json.loads(line)["value"] for line in taken.stdout.splitlines()]
    assert sorted(values) == ["tea ('--delay', '300ms')", "tea ()"]


async def test_a_log_takes_no_due_time(agent: Running) -> None:
    """The refusal says which kind of topic does, and nothing is stored."""
    url = agent.agent.url
    await run("topic", "create", "log", agent=url)
    refused = await run("produce", "log", "--delay", "5s", agent=url, stdin=b"tea\n")
    assert refused.code == 1
    assert "needs a topic of kind timer" in refused.stderr
    assert (await run("consume", "log", agent=url)).stdout == ""
    late = await run("produce", "log", "--delay", "4000d", agent=url, stdin=b"tea\n")
    assert_one_line(late, "ten years")


@pytest.mark.parametrize(
    ("delay", "deliver_at", "word"),
    [
        ("soon", None, "--delay"),
        ("-5s", None, "--delay"),
        (None, "soon", "--deliver-at"),
        ("5s", "5", "both"),
    ],
)
def test_options_that_say_no_time_are_refused(delay: str | None, deliver_at: str | None, word: str) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError, match=word):
        due_options(delay, deliver_at)
    assert due_options(None, None) == {}
    assert pa.scalar(due_options(None, "5")["deliver_at"]).cast(pa.int64()).as_py() == 5_000
