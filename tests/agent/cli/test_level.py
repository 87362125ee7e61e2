"""`shoal cluster`: the level and who understands which, as table and JSON; raised, and refused in a line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command_line import assert_one_line, run
from fake_cluster import FakeCluster
from http_fixtures import one_agent, two_agents

from shoal.agent.levels import outlook


async def test_the_level_as_a_table_and_as_json() -> None:
    """The first line says what happens next."""
    async with one_agent() as agent:
        url = agent.broker.url
        ran = await run("cluster", "level", agent=url)
        assert (ran.code, ran.stderr) == (0, "")
        lines = ran.stdout.splitlines()
        assert lines[0] == f"level 1: {RISES}"
        assert [line.split() for line in lines[-2:]] == [
            ["MEMBER", "STATUS", "UNDERSTANDS", "HOLDS"],
            ["one", "alive", "1", "to", "2", "-"],
        ]
        ran = await run("cluster", "level", "--output", "json", agent=url)
        assert json.loads(ran.stdout) == agent.broker.level_document()


async def test_the_level_is_raised_and_stays_as_it_is_the_second_time() -> None:
    """Asked of an agent that does not lead the catalog, while the first one named is down."""
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.catalog_leader_id = first.broker.agent_id
        for arguments in ((), ("--to", "2")):
            agents = f"http://127.0.0.1:1,{second.broker.url}"
            ran = await run("cluster", "raise-level", *arguments, agent=agents)
            assert (ran.code, ran.stdout) == (0, "")
            assert ran.stderr == "level 2: the highest that its members understand\n"
            assert cluster.level == 2
        arguments = ("--without", "gone", "--without", "lost", "--output", "json")
        ran = await run("cluster", "raise-level", *arguments, agent=second.broker.url)
        assert json.loads(ran.stdout)["level"] == 2
        assert cluster.raised_without == [[], [], ["gone", "lost"]]


async def test_a_refusal_is_one_line_and_changes_nothing() -> None:
    """With the reason as the agent gives it; a number is checked here."""
    async with one_agent() as agent:
        ran = await run("cluster", "raise-level", "--to", "3", agent=agent.broker.url)
        assert_one_line(ran, "nobody understands level 3")
        assert ran.code == 1
        for wrong in ("two", "2.5", ""):
            ran = await run("cluster", "raise-level", "--to", wrong, agent=agent.broker.url)
            assert_one_line(ran, "--to")
            assert ran.code == 2
        assert agent.broker.cluster.level == 1


@pytest.mark.parametrize("command", ["level", "raise-level"])
async def test_an_agent_of_before_levels_is_told_as_such(command: str) -> None:
    """It has no such route, and a line about routes would tell nobody what to do."""
    async with FakeCluster(1) as former:
        ran = await run("cluster", command, agent=former.urls[0])
        assert_one_line(
            ran,
            f"{former.urls[0]} is an agent of a version before feature levels: while it works in its cluster,"
            " that is at level 1, and rises once every agent is upgraded; ask an upgraded one",
        )
        assert ran.code == 1


async def test_no_agent_is_one_line() -> None:
    """As for every command."""
    ran = await run("cluster", "level", agent="http://127.0.0.1:1")
    assert_one_line(ran, "is an agent running?")


def member(name: str, highest: int, status: str = "alive", *, holds: bool = False) -> dict[str, Any]:
    return {"id": name * 8, "name": name, "status": status, "lowest": 1, "highest": highest, "holds": holds}


GONE = (
    "b, c must be upgraded before it can rise to 2; `shoal cluster raise-level --without c` leaves out a host"
    " that is gone for good"
)
HIGHEST = "the highest that its members understand"
LEFT = (
    "b may come back with the former version (--replace-after); `shoal cluster raise-level` raises it to 2"
    " without waiting"
)
RISES = "every member understands 2; it rises within a minute, and by `shoal cluster raise-level` at once"


@pytest.mark.parametrize(
    ("level", "possible", "members", "expected"),
    [
        (2, 2, [member("a", 2), member("b", 2)], HIGHEST),
        (1, 1, [member("a", 2), member("b", 1)], "b must be upgraded before it can rise to 2"),
        (
            1, 1, [member("a", 2), member("b", 1), member("c", 1, "failed")],
            GONE,
        ),
        (
            1, 1, [member("a", 2), *(member(f"b{at}", 1) for at in range(10))],
            f"{', '.join(f'b{at}' for at in range(8))} and 2 more must be upgraded before it can rise to 2",
        ),
        (
            1, None, [member("a", 3) | {"lowest": 3}, member("b", 1)],
            "b must be upgraded before it can rise to 3",
        ),
        (1, 2, [member("a", 2), member("b", 2)], RISES),
        (
            1, 2, [member("a", 2, holds=True), member("b", 2)],
            "held by a (--hold-level); `shoal cluster raise-level` raises it to 2",
        ),
        (
            1, 2, [member("a", 2), member("b", 1, "left")],
            LEFT,
        ),
        (1, 2, [member("a", 2), member("b", 2, "left")], RISES),
        (1, 1, [member("a", 1), member("b" * 4, 1) | {"name": None}], HIGHEST),
    ],
)  # fmt: skip
def test_what_happens_to_the_level_next_is_told(
    level: int, possible: int | None, members: list[dict[str, Any]], expected: str
) -> None:
    """And which member or option keeps it from rising."""
    assert outlook({"level": level, "possible": possible, "members": members}) == expected
