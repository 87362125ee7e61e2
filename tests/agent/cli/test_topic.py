"""Topics on the command line: settings that can be given, seen and changed, trimming, and what people type
for sizes, durations and times."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web
from command_line import assert_one_line, run
from fake_cluster import FakeCluster
from listening import serving

from shoal.agent.cli.main import app
from shoal.agent.cli.terminal.amounts import age_limit_text, duration_text, moment_ms, size_bytes, start_of
from shoal.agent.cli.terminal.completion import complete_member, complete_topic, joined_words
from shoal.agent.cli.terminal.output import CliError
from shoal.agent.cli.terminal.run import with_asked
from shoal.agent.cli.topic import show_topics
from shoal.agent.cli.topic_settings import (
    OPTIONS,
    change_text,
    replicas_text,
    setting_rows,
    shown_settings,
    summary,
)
from shoal.client.produce.producer import batch_of

NOW_MS = round(datetime(2026, 1, 8, tzinfo=UTC).timestamp() * 1_000)
DAY_MS = 86_400_000


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One agent."""
    async with FakeCluster(1) as fake:
        yield fake


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("67108864", 67_108_864),
        ("64MiB", 64 << 20),
        ("64M", 64 << 20),
        ("64mb", 64_000_000),
        ("1.5 GiB", 3 << 29),
        ("2T", 2 << 40),
        ("0", 0),
        ("none", None),
    ],
)
def test_sizes(text: str, expected: int | None) -> None:
    """Powers of 1024, or of 1000 where the unit says so."""
    assert size_bytes(text, "--x") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("7d", "7d"), ("2w", "14d"), ("90s", "90s"), ("500ms", "500ms"), ("none", None)]
)
def test_durations(text: str, expected: str | None) -> None:
    """As agents take them; weeks too."""
    assert age_limit_text(text, "--x") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("beginning", "earliest"),
        ("end", "latest"),
        ("-10", "-10"),
        ("-0", "latest"),
        ("17", "17"),
        ("-1d", f"@{NOW_MS - DAY_MS}"),
        ("@1d", f"@{NOW_MS - DAY_MS}"),
        ("@-1d", f"@{NOW_MS - DAY_MS}"),
        ("@1w", f"@{NOW_MS - 7 * DAY_MS}"),
        ("@2026-01-08", f"@{NOW_MS}"),
        ("@2026-01-08T00:00:00Z", f"@{NOW_MS}"),
        ("@2026-01-08 01:00+01:00", f"@{NOW_MS}"),
        (f"@{NOW_MS}", f"@{NOW_MS}"),
        (f"@{NOW_MS // 1_000}", f"@{NOW_MS}"),
    ],
)
def test_places_to_begin(text: str, expected: str) -> None:
    """Words, counts, offsets; times that are relative, dates, with a zone, or numbers."""
    assert start_of(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["sizeless", "-1", "5 parsecs", "MiB", "", "9" * 400])
def test_what_is_no_size_or_duration_is_told(text: str) -> None:
    """With what would be one."""
    with pytest.raises(CliError, match=r"--x .* is no size"):
        size_bytes(text, "--x")
    with pytest.raises(CliError, match=r"--x .* is no duration") as error:
        age_limit_text(text, "--x")
    assert "`none`" in error.value.advice


def test_a_duration_that_must_be_there_is_not_none() -> None:
    """And nobody is advised to give it."""
    with pytest.raises(CliError, match=r"--x 'none' is no duration") as error:
        duration_text("none", "--x")
    assert "`none`" not in error.value.advice


@pytest.mark.parametrize("text", ["yesterday", "@", "@yesterday", "@-", "1h", "--5", "9" * 5_000])
def test_what_is_no_place_is_told(text: str) -> None:
    """Naming the forms that are understood."""
    with pytest.raises(CliError) as error:
        start_of(text, NOW_MS)
    assert "@2026-01-01" in error.value.advice
    assert error.value.exit_code == 2


def test_what_is_no_place_is_told_by_its_option() -> None:
    """A group has no place that counts from the end: only --from is told of one."""
    for option, counts in (("--from", True), ("--to", False)):
        with pytest.raises(CliError, match=f"{option} 'yesterday' is no place") as error:
            start_of("yesterday", NOW_MS, option)
        assert ("-10, " in error.value.advice) is counts


def test_a_moment_may_be_in_the_past_or_ahead() -> None:
    """Only its form is judged here."""
    assert (
        moment_ms("1999-12-31", NOW_MS) < moment_ms("1s", NOW_MS) < NOW_MS < moment_ms("2099-01-01", NOW_MS)
    )


def test_settings_are_shown_as_they_are_typed() -> None:
    """Nothing is shown that is not so, and `none` is told in words."""
    segment = {"bytes": 64 << 20, "age": "1d"}
    never = {"retention": {"age": None, "bytes": None}, "segment": segment}
    assert shown_settings(never) == "retention for ever; segments of 64.0 MiB or 1d"
    for_groups = {"retention": {"hold_for_groups": True, "acknowledged": True}}
    assert shown_settings(for_groups) == "retention for ever, held for groups, until groups are done"
    some = {"retention": {"age": "7d", "bytes": 10 << 30}, "segment": segment | {"age": None}, "fsync": False}
    assert shown_settings(some) == (
        "retention 7d and at least 10.0 GiB a partition; segments of 64.0 MiB; fsync off"
    )


def test_replicas_that_are_missing_are_counted() -> None:
    """`3` with one agent was the wish, not what there is; a learner does not count yet."""
    one = {"replicas": [{"id": "a", "role": "leader"}, {"id": "b", "role": "learner"}]}
    three = {"replicas": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}
    assert summary({"partitions": [one, three], "replication_factor": 3}) == "2 partitions, 1 of 3 replicas"
    assert summary({"partitions": [three], "replication_factor": 3}) == "1 partition, 3 replicas"
    assert summary({"partitions": [one], "replication_factor": "all"}) == "1 partition, all replicas"
    assert (replicas_text(3, 1), replicas_text(3, 3), replicas_text(3, None)) == ("1 of 3", 3, 3)
    assert replicas_text("all", 1) == "all"


async def test_retention_is_given_seen_and_changed(cluster: FakeCluster) -> None:
    """At birth and later; what is not named stays; `none` is without end."""
    agent = cluster.urls[0]
    made = await run("topic", "create", "t", "--retention", "7d", "--segment-bytes", "16MiB", agent=agent)
    assert made.code == 0, made.stderr
    described = (await run("topic", "describe", "t", agent=agent)).stdout.splitlines()
    assert described[1] == "retention 7d; segments of 16.0 MiB or 1d"
    altered = await run("topic", "alter", "t", "--retention-bytes", "10GiB", agent=agent)
    assert altered.stderr.splitlines()[0] == (
        "topic t: 1 partition, 3 replicas; retention 7d and at least 10.0 GiB a partition; segments of"
        " 16.0 MiB or 1d"
    )
    again = await run("topic", "alter", "t", "--retention", "none", "-o", "json", agent=agent)
    assert json.loads(again.stdout)["retention"] == {"age": None, "bytes": 10 << 30}
    assert_one_line(await run("topic", "alter", "t", agent=agent), "nothing to change", "--retention")
    wrong = await run("topic", "alter", "t", "--retention", "soon", agent=agent)
    assert_one_line(wrong, "--retention 'soon' is no duration", "7d")
    size = await run("topic", "create", "u", "--retention", "10GB", agent=agent)
    assert_one_line(size, "--retention '10GB' is a size", "--retention-bytes 10GB")
    assert_one_line(await run("topic", "alter", "nope", "--retention", "1d", agent=agent), "unknown-topic")


async def test_retention_for_groups_is_switched_on_and_off(cluster: FakeCluster) -> None:
    """Both ways; a switch that is not named leaves its setting as it is."""
    agent = cluster.urls[0]
    made = await run("topic", "create", "t", "--retention", "7d", "--hold-for-groups", agent=agent)
    assert made.code == 0, made.stderr
    switched = ("--no-hold-for-groups", "--remove-acknowledged", "-o", "json")
    altered = await run("topic", "alter", "t", *switched, agent=agent)
    kept = json.loads(altered.stdout)["retention"]
    assert (kept["age"], kept["hold_for_groups"], kept["acknowledged"]) == ("7d", False, True)
    assert OPTIONS["retention.hold_for_groups"] == switched[0].replace("--no-", "--")
    assert OPTIONS["retention.acknowledged"] == switched[1]


async def test_settings_are_shown_with_their_defaults(cluster: FakeCluster) -> None:
    """What was set, what changes it, and what is fixed; as a table, or as the agent's document."""
    agent = cluster.urls[0]
    cluster.create("t", 6)
    await run("topic", "alter", "t", "--retention", "7d", "--segment-bytes", "16MiB", agent=agent)
    shown = await run("topic", "config", "t", agent=agent)
    head, _, *rows = shown.stdout.splitlines()
    assert head == "topic t, settings of version v1"
    assert {row.split()[0]: " ".join(row.split()[1:]) for row in rows} == {
        "partitions": "6 1 yes fixed",
        "replication_factor": "3 3 no --replication-factor",
        "retention.age": "7d none yes --retention",
        "retention.bytes": "none none no --retention-bytes",
        "segment.bytes": "16.0 MiB 64.0 MiB yes --segment-bytes",
        "segment.age": "1d 1d no --segment-age",
    }
    document = json.loads((await run("topic", "config", "t", "-o", "json", agent=agent)).stdout)
    assert document["settings"][0]["name"] == "partitions"
    assert_one_line(await run("topic", "config", "nope", agent=agent), "unknown-topic")
    odd = {"name": "segment.bytes", "value": 10_000_000, "default": 64 << 20, "set": True, "changeable": True}
    assert setting_rows({"settings": [odd]})[0][1:3] == ["10000000 B", "64.0 MiB"]


async def test_the_replication_factor_is_changed(cluster: FakeCluster) -> None:
    """A number or `all`; more than there are agents is taken and said; 0 and the number of partitions are
    refused, and a change of settings that are no longer those that were seen."""
    agent = cluster.urls[0]
    topic = cluster.create("t", 2)
    altered = await run("topic", "alter", "t", "--replication-factor", "5", agent=agent)
    assert (altered.code, topic.replication_factor) == (0, 5)
    assert altered.stderr.splitlines()[1] == "5 replicas are wanted"
    refused = await run("topic", "alter", "t", "--replication-factor", "0", agent=agent)
    assert_one_line(refused, "at least one replica", "shoal topic delete")
    for wrong in ("some", "-1", "\u0663"):
        refused = await run("topic", "alter", "t", f"--replication-factor={wrong}", agent=agent)
        assert_one_line(refused, "neither a number nor `all`")
    for large in ("9" * 10, "9" * 5_000):
        refused = await run("topic", "alter", "t", f"--replication-factor={large}", agent=agent)
        assert_one_line(refused, "--replication-factor 99999", "is far too large", "or `all`")
        assert len(refused.stderr) < 200
    fixed = await run("topic", "alter", "t", "--partitions", "9", agent=agent)
    assert_one_line(fixed, "the number of partitions of t is fixed", "copy the records")
    late = await run("topic", "alter", "t", "--replication-factor", "all", "--if-version", "v0", agent=agent)
    assert_one_line(late, "settings-changed", "shoal topic config")
    assert topic.replication_factor == 5
    seen = await run("topic", "alter", "t", "--replication-factor", "all", "--if-version", "v1", agent=agent)
    assert (seen.code, topic.replication_factor) == (0, "all")


def test_replicas_that_come_and_go_are_told() -> None:
    """Nothing when all are where they belong."""
    learner = {"replicas": [{"id": "a", "role": "leader"}, {"id": "b", "role": "learner"}]}
    assert change_text({"partitions": [learner], "missing_replicas": 0, "surplus_replicas": 0}) == ""
    assert change_text({"partitions": [learner, learner], "missing_replicas": 3, "surplus_replicas": 0}) == (
        "replicas change: 3 replicas to come (2 being copied)"
    )
    everywhere = {"partitions": [learner], "replication_factor": "all", "missing_replicas": 1}
    assert change_text(everywhere) == "replicas change: 1 replica to come"
    assert change_text({"partitions": [], "missing_replicas": 1, "surplus_replicas": 1}) == (
        "replicas change: 1 replica to come (0 being copied) and 1 replica to go"
    )


async def test_topics_are_listed_with_the_replicas_that_they_have(cluster: FakeCluster) -> None:
    """One agent, and a topic that wants three."""
    cluster.create("t", 2)
    cluster.create("u", 1, replication_factor=1)
    rows = [
        line.split("  ") for line in (await run("topic", "ls", agent=cluster.urls[0])).stdout.splitlines()
    ]
    shown = {row[0]: [cell.strip() for cell in row if cell.strip()][3] for row in rows[1:]}
    assert shown == {"t": "1 of 3", "u": "1"}
    assert (await run("topic", "rm", "t", "--yes", agent=cluster.urls[0])).code == 0
    assert list(cluster.topics) == ["u"]


async def test_trimming(cluster: FakeCluster) -> None:
    """Before an offset of one partition, before a time, or up to the end; asked for, since it is for good."""
    agent = cluster.urls[0]
    for log in cluster.create("t", 2).partitions:
        log.append([batch_of([b"a", b"b", b"c"])], None)
    refused = await run("topic", "trim", "t", "--before", "2", agent=agent)
    assert_one_line(refused, "trimming t needs a yes", "--yes")
    refused = await run("topic", "trim", "t", "--before", "2", "--yes", agent=agent)
    assert_one_line(refused, "an offset belongs to one partition", "--partition")
    trimmed = await run("topic", "trim", "t", "-p", "1", "--before", "2", "-y", agent=agent)
    assert (trimmed.code, trimmed.stderr) == (0, "t/1: removed 2 records; it begins at offset 2\n")
    timed = await run("topic", "trim", "t", "--before", "@1h", "-y", "-o", "json", agent=agent)
    assert json.loads(timed.stdout)["partitions"] == [
        {"partition": 0, "before": 3, "removed": 1, "log_start_offset": 3},
        {"partition": 1, "before": 3, "removed": 1, "log_start_offset": 3},
    ]
    again = await run("topic", "trim", "t", "-p", "0", "--before", "1", "-y", agent=agent)
    assert (
        again.stderr == "t/0: removed nothing: no whole segment lies before offset 1; it begins at offset 3\n"
    )
    assert (await run("topic", "trim", "t", "--before", "latest", "-y", agent=agent)).code == 0
    for wrong in ("earliest", "-5", "soon"):
        ran = await run("topic", "trim", "t", "--before", wrong, "-y", agent=agent)
        assert (ran.code, len(ran.stderr.splitlines())) == (2, 1)
    beyond = await run("topic", "trim", "t", "-p", "0", "--before", "4", "-y", agent=agent)
    assert_one_line(beyond, "t/0 ends at offset 3, before 4: nothing was removed; `--before latest`")
    gone = await run("topic", "trim", "t", "-p", "7", "--before", "1", "-y", agent=agent)
    assert_one_line(gone, "t has no partition 7")


async def test_an_error_names_once_the_agent_that_was_asked() -> None:
    """With its URL: another cluster's agent may answer otherwise. Advice for HTTP clients goes."""

    class Asked:
        asked = "http://a:7070"

        async def agent(self) -> dict[str, str]:
            return {"name": "ag0", "cluster": "fish"}

    there: Any = Asked()
    for detail, expected in {
        "there is no topic 't' in cluster fish (agent ag0 was asked): create it with PUT /v1/topics/t": (
            "there is no topic 't' in cluster fish (agent ag0 at http://a:7070 was asked)"
        ),
        "there is no topic 't'": "there is no topic 't', says ag0 of cluster fish at http://a:7070",
        "5 needs 5, there are 3 (agent ag0 was asked): start more agents, or leave the factor out": (
            "5 needs 5, there are 3 (agent ag0 at http://a:7070 was asked)"
        ),
    }.items():
        assert await with_asked(detail, there) == expected


def line_of(*words: str) -> Any:
    """The context that the shell's completion has of a line."""
    command = typer.main.get_command(app)
    context = None
    left = list(words)
    while hasattr(command, "resolve_command"):
        context = command.make_context("shoal", left, parent=context, resilient_parsing=True)
        _, command, left = command.resolve_command(
            context, [*getattr(context, "_protected_args", ()), *context.args]
        )
    return command.make_context("shoal", left, parent=context, resilient_parsing=True)


async def test_the_names_of_topics_are_completed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that begin so; without an agent none, and no error."""
    for name in ("flights", "flags", "orders"):
        cluster.create(name)
    here, nowhere = cluster.urls[0], "http://127.0.0.1:1"
    monkeypatch.setenv("SHOAL_AGENT", here)
    assert await asyncio.to_thread(complete_topic, line_of("consume"), "fl") == ["flags", "flights"]
    assert await asyncio.to_thread(complete_member, line_of("drain"), "agent-") == ["agent-0"]
    monkeypatch.setenv("SHOAL_AGENT", f"{nowhere},{here}")
    assert await asyncio.to_thread(complete_topic, line_of("consume"), "fl") == ["flags", "flights"]
    monkeypatch.setenv("SHOAL_AGENT", "ftp://nowhere")
    assert complete_topic(line_of("consume"), "fl") == []
    monkeypatch.setenv("SHOAL_AGENT", nowhere)
    assert complete_topic(line_of("consume"), "fl") == []
    for words in (("--agent", here, "consume"), ("topic", "describe", "--agent", here)):
        found = await asyncio.to_thread(complete_topic, line_of(*words), "o")
        assert found == ["orders"]
    both = line_of("--agent", nowhere, "topic", "describe", "--agent", here)
    assert await asyncio.to_thread(complete_topic, both, "o") == ["orders"]


async def test_a_creation_whose_answer_was_lost_is_told_as_one(cluster: FakeCluster) -> None:
    """Who has just made a topic would not understand that it was there already."""
    cluster.lose_next_creation = True
    made = await run("topic", "create", "t", "--partitions", "2", agent=cluster.urls[0])
    assert (made.code, made.stderr.startswith("topic t created ")) == (0, True), made.stderr
    again = await run("topic", "create", "t", "--partitions", "2", agent=cluster.urls[0])
    assert again.stderr.startswith("topic t was there already: ")


async def test_names_are_completed_by_the_path_of_a_socket(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a URL; a path where nobody listens, or that no socket can have, completes nothing."""
    cluster.create("flights")
    runner = cluster.agents[0]._runner
    assert runner is not None
    await web.UnixSite(runner, tmp_path / "s").start()
    words = ("topic", "describe", "--agent")
    for path, expected in ((tmp_path / "s", ["flights"]), (tmp_path / "none", []), (f"/{'x' * 200}", [])):
        line = line_of(*words, f"unix://{path}")
        assert await asyncio.to_thread(complete_topic, line, "fl") == expected, path
    monkeypatch.setenv("SHOAL_AGENT", f"unix://{tmp_path / 's'}")
    assert await asyncio.to_thread(complete_member, line_of("drain"), "") == ["agent-0"]


@pytest.mark.parametrize(
    "body", [None, b"[]", b"5", b'{"topics": 5}', b'{"topics": [5]}', b'{"topics": [{"name": null}]}', b"{}"]
)
async def test_an_answer_that_no_agent_gives_completes_nothing(body: bytes | None) -> None:
    """Somebody has named the gossip port, or another server; nothing is printed over the line."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if body is None:
            writer.write(b"\x00\x01\nnot HTTP\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with serving(other) as url:
        assert await asyncio.to_thread(complete_topic, line_of("--agent", url, "consume"), "") == []


async def test_the_shell_asks_for_names(cluster: FakeCluster) -> None:
    """As bash does it, for every command that takes the name of a topic or member; fish acts on the code."""
    cluster.create("flights")
    for line, expected in {
        "shoal produce fl": "flights",
        "shoal consume flights fl": "flights",
        "shoal topic describe fl": "flights",
        "shoal topic trim fl": "flights",
        "shoal partition recover fl": "flights",
        "shoal force-leave ag": "agent-0",
        "shoal drain ag": "agent-0",
        "shoal cluster raise-level --without ag": "agent-0",
    }.items():
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        ran = await run(_SHOAL_COMPLETE="complete_bash", agent=cluster.urls[0], **words)
        assert (ran.code, ran.stdout.split(), ran.stderr) == (0, [expected], ""), line
    fish = {"_TYPER_COMPLETE_ARGS": "shoal topic describe fl", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    for agent, code in ((cluster.urls[0], 0), ("http://127.0.0.1:1", 1)):
        asked = await run(_SHOAL_COMPLETE="complete_fish", agent=agent, **fish)
        assert asked.code == code


async def test_bash_hands_a_url_over_in_pieces(cluster: FakeCluster) -> None:
    """It ends words at `:`, `=` and `@`: the agent that a line names was not found, and what was completed
    were commands and files."""
    cluster.create("flights")
    url = cluster.urls[0].removeprefix("http://").split(":")
    agent = ["--agent", "http", ":", f"//{url[0]}", ":", url[1]]
    for words, expected in (
        (["topic", "describe", *agent, "fl"], "flights"),
        ([*agent, "topic", "describe", "fl"], "flights"),
        (["--agent", "=", *agent[1:], "topic", "describe", "fl"], "flights"),
        (["drain", "--agent", *url[:1], ":", url[1], "ag"], "agent-0"),
        (["cluster", "raise-level", *agent, "--without", "=", "ag"], "agent-0"),
        (["produce", *agent, "-H", "a", "=", "b", "fl"], "flights"),
        (["consume", *agent, "--from", "@", "1h", "fl"], "flights"),
    ):
        asked = {"COMP_WORDS": "\n".join(["shoal", *words]), "COMP_CWORD": str(len(words))}
        ran = await run(_SHOAL_COMPLETE="complete_bash", agent="", **asked)
        assert (ran.code, ran.stdout.split(), ran.stderr) == (0, [expected], ""), words


@pytest.mark.parametrize(
    ("pieces", "at", "expected", "then"),
    [
        ("s produce -K : fl", 4, "s produce -K : fl", 4),
        ("s produce --key-separator : fl", 4, "s produce --key-separator : fl", 4),
        ("s produce -K = fl", 4, "s produce -K = fl", 4),
        ("s keys install @ new.key", 4, "s keys install @new.key", 3),
        ("s t --agent http : //[ :: 1] : 70 fl", 10, "s t --agent http://[::1]:70 fl", 4),
        ("s t --agent http : //a : 1,http : //b : 2 fl", 12, "s t --agent http://a:1,http://b:2 fl", 4),
        ("s t --agent unix : ///run/s fl", 6, "s t --agent unix:///run/s fl", 4),
        ("s t --from =@ 1h fl", 5, "s t --from=@1h fl", 3),
        ("s t --agent http : //a :", 6, "s t --agent http://a:", 3),
        ("s t x fl", 4, "s t x fl", 4),
        (": s", 1, ": s", 1),
    ],
)
def test_the_pieces_of_a_word_are_put_together(pieces: str, at: int, expected: str, then: int) -> None:
    """A separator that is an option's whole value stays one."""
    assert joined_words(pieces.split(), at) == (expected.split(), then)


@pytest.mark.parametrize("name", ["flights.raw.europe", "a" * 60])
def test_tables_fit_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be spared goes first; only a very long name is folded."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    sizes = {"records": 123_456_789, "bytes": 1_023 << 30, "under_replicated": 2}
    show_topics([{"name": name, "kind": "log", "partitions": 1_024, "replication_factor": 3} | sizes], {})
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "".join(line.partition(" ")[0] for line in lines[2:]) == name
    assert (len(lines) == 3) is (len(name) < 20)
    assert "KIND" not in "".join(lines)
    assert "123,456,789" in lines[2]
