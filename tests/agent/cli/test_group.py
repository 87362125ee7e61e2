"""Consumer groups on the command line: shown, changed, and consumed by commands of the user's."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from command_line import COMMAND_SECONDS, assert_one_line, finish, run, start
from fake_cluster import FakeCluster, refuse, reset_after_storing
from fake_group_routes import FakeGroups

from shoal.agent.cli.group import changeable, describe, list_, start_text
from shoal.agent.cli.group_text import consumer_rows, kept_text, totals_text, waits_text
from shoal.agent.cli.main import app
from shoal.agent.cli.records.group_consume import KEY_BYTES_MAX, _Counts, _run
from shoal.agent.cli.terminal.completion import complete_group
from shoal.agent.cli.terminal.output import CliError
from shoal.agent.groups.place import START
from shoal.client.produce.producer import batch_of


@pytest.fixture
async def groups() -> AsyncIterator[FakeGroups]:
    """One agent with a topic of two partitions."""
    cluster = FakeCluster(1)
    groups = FakeGroups(cluster)
    async with cluster:
        topic = cluster.create("payments", 2)
        for number, log in enumerate(topic.partitions):
            log.append([batch_of([b"%d-%d" % (number, row) for row in range(5)])], None)
        yield groups


def url(groups: FakeGroups) -> str:
    return groups.cluster.urls[0]


def undone(groups: FakeGroups) -> int:
    return sum(
        desk.group.spans.undone + desk.feed.count(desk.group.next, desk.append_us)
        for desk in groups.desks("payments", "billing")
    )


BUSY_PARTITION = {
    "partition": 1_023,
    "position": {"offset": 12_345_678_901},
    "high_watermark": 12_345_999_999,
    "lag": 321_098,
    "lag_seconds": 200_000,
    "in_flight": 100_000,
    "delayed": 100_000,
    "owner": "warehouse-machine-17",
    "window": "window-full",
    "blocked_by": "customer-0123456789",
    "stopped": 1_000,
    "consumers": [{"consumer": "warehouse-machine-17", "holds": 100_000, "seen_ms": 90_000}],
}
BUSY_GROUP = {
    "id": "0123456789abcdef" * 2,
    "mode": "key-ordered",
    "paused": True,
    "retry": {"first": "1s", "factor": 2, "most": "5m"},
    "max_attempts": 5,
    "visibility": "30s",
    "dead": "letter",
    "session": "30s",
    "totals": {"lag": 321_098},
    "partitions": [BUSY_PARTITION],
}
"""As large as the numbers of a group become."""


@pytest.mark.parametrize("command", [list_, describe])
def test_tables_of_groups_fit_a_terminal(
    command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 columns, whatever stands in them: what can be spared goes, and lag and position stay."""
    listed = {"mode": "key-ordered", "paused": True, "lag": 321_098, "in_flight": 100_000, "dead": 100_000}
    found = [{"name": "billing-of-the-warehouse", **listed}]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "shoal.agent.cli.group.with_admin", lambda *_: found if command is list_ else BUSY_GROUP
    )
    arguments = ("payments",) if command is list_ else ("payments", "billing")
    command(*arguments)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    table = lines[next(number for number, line in enumerate(lines) if "LAG" in line) :]
    assert max(map(len, table)) <= 80, table
    assert any("321,098" in line for line in table)


def test_messages_that_wait_are_named() -> None:
    """Where they stopped, and for which key the others wait; an agent of before tells less."""
    stopped = {"partition": 3, "stopped": 18, "stopped_offsets": [7, 12_345]}
    blocked = {"partition": 4, "blocked_by": "00ff", "blocked_offset": 9}
    assert waits_text("t", [stopped, {"partition": 0, "stopped": 1}, {**blocked, "blocked_key": "k"}]) == [
        "t/3: stopped at 7, 12345 and 16 more; `shoal group decide`",
        "t/4: all wait for key k, hash 00ff at offset 9",
    ]
    assert waits_text("t", [{**blocked, "blocked_key_base64": "/wA="}]) == [
        "t/4: all wait for key /wA= (base64), hash 00ff at offset 9"
    ]
    assert waits_text("t", [blocked]) == ["t/4: all wait for hash 00ff at offset 9"]
    totals = {"totals": {"lag": 1}, "partitions": [{"pending": 2}, {"pending": 3}, {}]}
    assert totals_text(totals) == ["lag 1 message, 5 not due yet"]


def test_letters_that_cannot_come_again_are_named() -> None:
    """The first ones, with the reason; an agent of before says nothing of them."""
    letters = [{"partition": 1, "offset": at, "reason": "trimmed"} for at in range(6)]
    (line,) = kept_text("t", {"kept": 20, "kept_letters": letters})
    assert line.startswith("20 letters cannot come again, and stay dead letters (t/1 offset 0: trimmed, t/1")
    assert line.endswith(" and 2 more)")
    assert kept_text("t", {"redriven": 1, "copied": 0}) == []


async def test_a_group_is_made_shown_changed_and_deleted(groups: FakeGroups) -> None:
    """Each command says what it did, and JSON is the agents' own document."""
    agent = url(groups)
    none = await run("group", "list", "payments", agent=agent)
    assert (none.code, none.stdout) == (0, "")
    assert "shoal group create payments NAME" in none.stderr
    made = await run(
        "group", "create", "payments", "billing", "--visibility", "2m", "--max-attempts", "none",
        "--retry-first", "10s", "--dead", "drop", agent=agent,
    )  # fmt: skip
    assert made.code == 0
    assert "group billing of payments created shared; visibility 2m; attempts without end" in made.stderr
    again = await run("group", "create", "payments", "billing", agent=agent)
    assert_one_line(again, "group-differs", "shoal group change")
    shown = await run("group", "describe", "payments", "billing", agent=agent)
    assert shown.stdout.startswith("group billing of payments, shared, id ")
    assert "lag 10 messages" in shown.stdout
    assert "PARTITION  POSITION  END  LAG" in shown.stdout
    document = json.loads(
        (await run("group", "describe", "payments", "billing", "--json", agent=agent)).stdout
    )
    assert document["retry"]["first"] == "10s"
    paused = await run("group", "pause", "payments", "billing", agent=agent)
    assert "shared, PAUSED" in paused.stderr
    assert "yes" in (await run("group", "list", "payments", agent=agent)).stdout
    assert "PAUSED" not in (await run("group", "resume", "payments", "billing", agent=agent)).stderr
    changed = await run("group", "change", "payments", "billing", "--retry-most", "1h", agent=agent)
    assert "up to 1h" in changed.stderr
    assert_one_line(await run("group", "change", "payments", "billing", agent=agent), "nothing to change")
    stale = await run(
        "group", "change", "payments", "billing", "--session", "5s", "--if-version", "0", agent=agent
    )
    assert_one_line(stale, "settings-changed")
    assert_one_line(await run("group", "delete", "payments", "billing", agent=agent), "--yes")
    gone = await run("group", "delete", "payments", "billing", "--yes", agent=agent)
    assert gone.stderr.strip() == "group billing of payments is deleted"
    unknown = await run("group", "describe", "payments", "billing", agent=agent)
    assert_one_line(unknown, "unknown-group", "shoal group list")


async def test_a_group_is_sought_redriven_and_decided(groups: FakeGroups) -> None:
    """An offset belongs to one partition, a time to all; what cannot be is said before anybody is asked."""
    agent = url(groups)
    groups.create("payments", "billing")
    latest = await run("group", "seek", "payments", "billing", "--to", "latest", "--yes", agent=agent)
    assert latest.stderr.splitlines() == [
        "payments/0: group billing goes on at 5", "payments/1: group billing goes on at 5"
    ]  # fmt: skip
    assert undone(groups) == 0
    one = await run(
        "group", "seek", "payments", "billing", "--to", "2", "-p", "1", "--yes", "--json", agent=agent
    )
    assert [entry["offset"] for entry in json.loads(one.stdout)["partitions"]] == [2]
    assert undone(groups) == 3
    early = await run(
        "group", "seek", "payments", "billing", "--to", "earliest", "-p", "0", "--yes", agent=agent
    )
    assert early.code == 0
    assert undone(groups) == 8
    for words, said in (
        (("--to", "7"), "add --partition"),
        (("--to", "-7"), "counts from the end"),
        (("--to", "9", "-p", "0"), "beyond-end"),
        (("--to", "latest", "-p", "9"), "no partition 9"),
    ):
        refused = await run("group", "seek", "payments", "billing", *words, "--yes", agent=agent)
        assert_one_line(refused, said)
    groups.redriven = 3
    redriven = await run("group", "redrive", "payments", "billing", "--limit", "7", agent=agent)
    assert redriven.stderr.strip() == "3 dead letters of payments delivered again to billing"
    assert groups.said("redrive") == [{"limit": 7}]
    decided = await run(
        "group", "decide", "payments", "billing", "retry", "-p", "1", "--offset", "4", agent=agent
    )
    assert decided.stderr.strip() == "payments/1 offset 4: retry"
    assert groups.said("decide") == [{"partition": 1, "offset": 4, "action": "retry"}]
    groups.decided = False
    late = await run(
        "group", "decide", "payments", "billing", "drop", "-p", "1", "--offset", "4", agent=agent
    )
    assert_one_line(late, "payments/1 offset 4 is not stopped in group billing")


async def test_a_redrive_of_some_letters_is_never_done_twice(groups: FakeGroups) -> None:
    """An answer is lost on the way: with a limit the command says so, and does not bring as many again. A
    certain refusal is asked again, and a redrive of all letters anyway."""
    agent = url(groups)
    groups.create("payments", "billing")
    some, everything = ("redrive", "payments", "billing", "--limit", "7"), ("redrive", "payments", "billing")
    groups.act_faults.append(reset_after_storing)
    lost = await run("group", *some, agent=agent)
    assert lost.code != 0
    assert groups.said("redrive") == [{"limit": 7}]
    groups.act_faults.append(refuse("no-leader"))
    assert (await run("group", *some, agent=agent)).code == 0
    assert groups.said("redrive") == [{"limit": 7}] * 2
    groups.act_faults.append(reset_after_storing)
    assert (await run("group", *everything, agent=agent)).code == 0
    assert groups.said("redrive")[2:] == [{}, {}]


async def test_messages_are_written_and_acknowledged(groups: FakeGroups) -> None:
    """As text, JSON and by a template; the command ends when all is done. --no-ack changes nothing."""
    agent = url(groups)
    looked = await run("consume", "payments", "--group", "billing", "--no-ack", agent=agent)
    assert len(looked.stdout.splitlines()) == 10
    assert undone(groups) == 10
    some = await run(
        "consume", "payments", "--group", "billing", "--limit", "3", "-f", "%p %o %v\\n", agent=agent
    )
    assert len(some.stdout.splitlines()) == 3
    rest = await run("consume", "payments", "--group", "billing", "-o", "json", agent=agent)
    found = [json.loads(line) for line in rest.stdout.splitlines()]
    lines = {f"{one['partition']} {one['offset']} {one['value']}" for one in found}
    assert lines | set(some.stdout.splitlines()) == {f"{p} {n} {p}-{n}" for p in range(2) for n in range(5)}
    assert len(lines) == 7
    assert undone(groups) == 0
    assert (await run("consume", "payments", "--group", "billing", agent=agent)).stdout == ""


async def test_each_message_runs_a_command(groups: FakeGroups, tmp_path: pathlib.Path) -> None:
    """Its value on standard input, where it is from in variables; a status other than 0 has it come again."""
    agent = url(groups)
    groups.create("payments", "billing", retry={"first": "0s", "most": "0s"})
    place = "$SHOAL_PARTITION/$SHOAL_OFFSET/$SHOAL_ATTEMPT"
    command = f"test {place} != 1/2/1 && (cat; echo) >> {tmp_path}/seen"
    ran = await run("consume", "payments", "--group", "billing", "--exec", command, agent=agent)
    assert ran.code == 0
    assert sorted((tmp_path / "seen").read_text().split()) == [f"{p}-{n}" for p in range(2) for n in range(5)]
    lines = ran.stderr.splitlines()
    assert lines == [
        "payments/1 offset 2: the command ended with 1", "10 messages done, 1 failed"
    ]  # fmt: skip
    assert groups.said("nack")[0]["reason"] == "the command ended with 1"
    assert undone(groups) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_releases_what_was_not_begun(
    groups: FakeGroups, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    """The command in hand is told to end; its message counts no attempt, and all is free at once."""
    agent = url(groups)
    command = f"touch {tmp_path}/begun; exec sleep 60"
    process = await start(
        "consume", "payments", "--group", "billing", "--batch", "4", "--exec", command, agent=agent
    )
    async with asyncio.timeout(60):
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.02)
    process.send_signal(number)
    _, err = await finish(process)
    assert process.returncode == 130
    assert err.decode().strip() == "0 messages done"
    assert undone(groups) == 10
    assert_all_are_free(groups)


async def test_a_signal_while_a_command_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run already when nobody knows its process yet: the message is released all the same."""
    create, started = asyncio.create_subprocess_shell, asyncio.Event()
    processes: list[asyncio.subprocess.Process] = []

    async def slow(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await create(*arguments, **options))
        started.set()
        await asyncio.sleep(0)  # for the one who cancels
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_shell", slow)
    message = message_of(b"")
    running = asyncio.create_task(_run(message, "exec sleep 60", _Counts()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes[0].returncode == -signal.SIGTERM
    assert [called[0] for called in message.method_calls] == ["release"]


def assert_all_are_free(groups: FakeGroups) -> None:
    """Nothing is held, and what is not done counts no attempt."""
    for desk in groups.desks("payments", "billing"):
        assert desk.leader.describe(desk.now_ms, desk.append_us).in_flight == 0
        assert all(span.attempts == 0 for span in desk.group.spans.from_place(START))


async def in_shell(line: str, agent: str) -> bytes:
    """What a line of the shell, in which {shoal} is the command, writes to stderr."""
    shoal = f"{shlex.quote(sys.executable)} -m shoal.agent"
    process = await asyncio.create_subprocess_shell(
        line.format(shoal=shoal), stderr=asyncio.subprocess.PIPE, env={**os.environ, "SHOAL_AGENT": agent}
    )
    return (await finish(process))[1]


@pytest.mark.parametrize("acks", ["--ack", "--no-ack"])
async def test_a_closed_pipe_frees_all_that_was_not_written(groups: FakeGroups, acks: str) -> None:
    """`| head` ends the command; the message that could not be written comes again at once."""
    agent = url(groups)
    line = f"{{shoal}} consume payments --group billing --follow {acks} | head -n 1 > /dev/null"
    assert await in_shell(line, agent) == b""
    assert_all_are_free(groups)
    assert undone(groups) == 10 if acks == "--no-ack" else undone(groups) < 10


async def test_a_pipe_that_is_closed_behind_the_last_message_is_noticed(groups: FakeGroups) -> None:
    """No write tells of it. What is held until the end would be held for nobody."""
    line = "{shoal} consume payments --group billing --follow --no-ack | head -n 10 > /dev/null"
    assert await in_shell(line, url(groups)) == b""
    assert_all_are_free(groups)
    assert undone(groups) == 10


async def test_commands_whose_output_nobody_reads_fail_no_message(groups: FakeGroups) -> None:
    """They would end of it, one after the other, and all messages become dead letters."""
    line = "{shoal} consume payments --group billing --follow --exec 'cat; echo' | head -n 1 > /dev/null"
    assert b" done" in await in_shell(line, url(groups))
    assert groups.said("nack") == []
    assert_all_are_free(groups)


def message_of(value: bytes, key: bytes | None = None) -> Mock:
    """A message in hand, as far as a command needs it."""
    place = {"topic": "payments", "partition": 0, "offset": 0, "attempt": 1, "timestamp_us": 0}
    return Mock(**place, key=key, value=value, headers=(), settled=None)


async def test_a_command_never_starts_before_its_whole_input_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where this process is killed beside it, the command has a whole message and no part of one."""
    value, seen = os.urandom(300_000), []
    create = asyncio.create_subprocess_shell

    async def looking(command: str, stdin: Any, **options: Any) -> asyncio.subprocess.Process:
        seen.append(os.pread(stdin.fileno(), 1_000_000, 0))
        return await create(command, stdin=stdin, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_shell", looking)
    message = message_of(value)
    await _run(message, f"test $(wc -c) = {len(value)}", _Counts())
    assert seen == [value]
    assert [called[0] for called in message.method_calls] == ["ack"]


async def test_a_command_that_cannot_start_frees_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory, no processes: that is no failure of the message."""
    monkeypatch.setattr(asyncio, "create_subprocess_shell", Mock(side_effect=OSError("no processes")))
    message = message_of(b"")
    with pytest.raises(OSError, match="no processes"):
        await _run(message, "true", _Counts())
    assert [called[0] for called in message.method_calls] == ["release"]


async def test_a_key_that_no_variable_can_hold_is_left_out() -> None:
    """Linux would refuse to start the command, again and again."""
    for key, status in ((b"k" * KEY_BYTES_MAX, "ack"), (b"k" * (KEY_BYTES_MAX + 1), "nack"), (b"\0", "nack")):
        message = message_of(b"", key)
        await _run(message, 'test -n "$SHOAL_KEY"', _Counts())
        assert message.method_calls[0][0] == status


async def test_following_waits_for_the_topic(groups: FakeGroups) -> None:
    """As without a group, and says so."""
    process = await start(
        "consume", "later", "--group", "billing", "--follow", "--limit", "1", agent=url(groups)
    )
    async with asyncio.timeout(COMMAND_SECONDS):
        assert process.stderr is not None
        assert (await process.stderr.readline()).startswith(b"waiting for topic later;")
        topic = groups.cluster.create("later", 1)
        topic.partitions[0].append([batch_of([b"at last"])], None)
        assert await finish(process) == (b"at last\n", b"")


async def test_a_paused_group_is_told_of_once(groups: FakeGroups) -> None:
    """The command waits, since messages are left."""
    groups.create("payments", "billing")
    agent = url(groups)
    assert (await run("group", "pause", "payments", "billing", agent=agent)).code == 0
    process = await start("consume", "payments", "--group", "billing", agent=agent)
    async with asyncio.timeout(COMMAND_SECONDS):
        assert process.stderr is not None
        assert (await process.stderr.readline()).startswith(b"group billing is paused; `shoal group resume")
        assert (await run("group", "resume", "payments", "billing", agent=agent)).code == 0
        out, err = await finish(process)
    assert (len(out.splitlines()), err) == (10, b"")


async def test_messages_behind_a_stopped_one_are_told_of(groups: FakeGroups) -> None:
    """In an exclusive group they wait for an operator."""
    groups.create("payments", "billing", mode="exclusive", dead="stop", max_attempts=1)
    words = ("consume", "payments", "--group", "billing", "--partition", "0")
    process = await start(*words, "--exec", "exit 3", agent=url(groups))
    async with asyncio.timeout(COMMAND_SECONDS):
        assert process.stderr is not None
        assert await process.stderr.readline() == b"payments/0 offset 0: the command ended with 3\n"
        assert (await process.stderr.readline()).startswith(
            b"payments/0: messages wait behind one that stopped"
        )
        process.send_signal(signal.SIGINT)
        assert (await finish(process))[1] == b"0 messages done, 1 failed\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("payments", "--exec", "cat"), "add --group"),
        (("payments", "--consumer", "a"), "add --group"),
        (("payments", "--no-ack"), "add --group"),
        (("payments", "orders", "--group", "g"), "belongs to one topic"),
        (("payments", "--group", "g", "--from", "latest"), "shoal group seek"),
        (("payments", "--group", "g", "--lag"), "shoal group describe"),
        (("payments", "--group", "g", "--batch", "100001"), "batch"),
        (("payments", "--group", "g", "--exec", ""), "--exec is empty"),
        (("payments", "--group", "g", "--exec", "cat", "-o", "arrow"), "standard input"),
        (("payments", "--group", "g", "--exec", "cat", "-f", "%v"), "standard input"),
        (("payments", "--group", "g", "--exec", "cat", "--no-ack"), "--no-ack"),
    ],
)
async def test_options_that_do_not_fit_are_told(
    groups: FakeGroups, words: tuple[str, ...], said: str
) -> None:
    """One line, and nothing is received."""
    assert_one_line(await run("consume", *words, agent=url(groups)), said)
    assert not groups.bodies


async def test_group_names_are_completed_behind_a_topic(groups: FakeGroups) -> None:
    """Nothing without the topic."""
    groups.create("payments", "billing")
    groups.create("payments", "mail")

    def complete(*words: str) -> list[str]:
        root: Any = typer.main.get_command(app)
        context = root.context_class(root, info_name="shoal")
        command = root.commands["group"].commands["describe"]
        line = command.make_context(
            "describe", ["--agent", url(groups), *words], context, resilient_parsing=True
        )
        return complete_group(line, "b")

    assert await asyncio.to_thread(complete, "payments") == ["billing"]
    assert await asyncio.to_thread(complete) == []
    assert await asyncio.to_thread(complete, "absent") == []


def test_settings_are_translated() -> None:
    """Only what is named; what is no value is told."""
    assert changeable(None, None, (None, None, None), None, None) == {}
    assert changeable("1w", "7", ("1s", 3, None), None, "10s") == {
        "retry": {"first": "1s", "factor": 3}, "visibility": "7d", "session": "10s", "max_attempts": 7
    }  # fmt: skip
    with pytest.raises(CliError, match="--max-attempts 'many' is no number"):
        changeable(None, "many", (None, None, None), None, None)
    assert start_text("latest") == "latest"
    assert start_text("@2026-01-08") == "@2026-01-08T00:00:00.000000Z"
    with pytest.raises(CliError, match="--start '17' is an offset"):
        start_text("17")


def test_consumers_and_sums_are_shown_over_partitions() -> None:
    """A consumer of two partitions is one line."""
    held = {"consumer": "a", "holds": 2, "seen_ms": 4_000}
    idle = {"consumer": "b", "holds": 0, "seen_ms": 90_000}
    partitions = [
        {"partition": 0, "owner": None, "consumers": [held, idle, {**idle, "consumer": None}]},
        {"partition": 1, "owner": "a", "consumers": [{**held, "holds": 1, "seen_ms": 2_000}]},
    ]
    assert consumer_rows(partitions) == [
        ["(no name)", "", 0, "1m ago"], ["a", "0, 1", 3, "2s ago"], ["b", "", 0, "1m ago"],
    ]  # fmt: skip
    totals = {"lag": 1, "in_flight": 0, "delayed": 2, "stopped": 0, "dead": 3, "dropped": 0, "skipped": 0}
    assert totals_text({"totals": totals}) == ["lag 1 message, 2 delayed; 3 dead letters"]
