"""Real agents of two feature levels: a rolling upgrade under clients, the way back, and the refusals.

The upgrade from a commit is `scripts/campaign upgrade`.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import urllib.error
import urllib.request
from typing import Any

import cluster as local
import pytest
from real_agents import wait_until
from rehearsal import TOPIC, Rehearsal
from upgrade_report import longest, pauses, summary
from versions import own_levels, version_of_levels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

LOWEST, LEVEL = own_levels()
FORMER = version_of_levels(LOWEST, LEVEL)
LATER = version_of_levels(LOWEST, LEVEL + 1)
TWO_ABOVE = version_of_levels(LEVEL + 2, LEVEL + 3)
PAUSE_SECONDS = 0.1
"""Of a producer: some fifty acknowledgements a second, so that none waits unseen. Most of what three agents
compute in a minute are these appends; the campaign has three times as many."""
HANGING_SECONDS = 20.0
"""Longer than any pause of a cluster that works, on a machine that does other work. Where the machine takes
longer than this to change one agent, that is the bar."""


def change_retention(url: str, age: str) -> tuple[int, dict[str, Any]]:
    """What agents of the later level write into the catalog from that level on only."""
    body = json.dumps({"retention": {"age": age}}).encode()
    request = urllib.request.Request(
        f"{url}/v1/topics/{TOPIC}", body, {"Content-Type": "application/json"}, method="PATCH"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def last_line(said: str) -> str:
    """Of an agent that refused to go on; it shows no traceback."""
    assert "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.strip()]
    assert lines, "nothing was said"
    return lines[-1]


async def raise_level(url: str, *arguments: str) -> tuple[int, str]:
    """`shoal cluster raise-level`, as an operator calls it: its exit code, and everything it said."""
    done = await asyncio.to_thread(LATER.run, "cluster", "raise-level", "--agent", url, *arguments)
    return done.returncode, done.stdout + done.stderr


async def everywhere(cluster: Rehearsal, level: int) -> None:
    """Wait until each agent says that the cluster is at this level, and what each member understands."""
    for name in local.NAMES:
        await asyncio.to_thread(cluster.wait_level, name, level)


def members(url: str, status: str) -> set[str]:
    """The names of those, as the agent at this URL sees them."""
    return {item["name"] for item in local.get(url, f"/v1/members?status={status}")["members"]}


def nobody_has_failed(url: str) -> bool:
    """Raises ClusterProblem with all members, as the agent at this URL sees them."""
    found = local.get(url, "/v1/members")["members"]
    if any(item["status"] == "failed" for item in found):
        raise local.ClusterProblem(f"{url} says {found}")
    return True


async def test_a_rolling_upgrade_there_and_back_disturbs_no_client(tmp_path: pathlib.Path) -> None:
    """Three agents become the later version one by one, the former again, the later again, while producers
    and readers work over HTTP and by the library. What the later level adds is refused until it is raised."""
    async with Rehearsal(tmp_path, FORMER, [LATER], seed=1, pause_seconds=PAUSE_SECONDS) as cluster:
        for version in (LATER, FORMER, LATER):
            await cluster.roll(version)
            await everywhere(cluster, LEVEL)
            if version is LATER:
                status, refused = await asyncio.to_thread(change_retention, cluster.urls[1], "7d")
                assert (status, refused["code"]) == (409, "level-too-low"), refused
                assert "shoal cluster level" in refused["detail"]
        code, said = await raise_level(cluster.urls[0])
        assert code == 0, said
        await everywhere(cluster, LEVEL + 1)
        status, changed = await asyncio.to_thread(change_retention, cluster.urls[2], "7d")
        assert status == 200, changed
        await cluster.change(local.NAMES[0], LATER, hold=False)
        await cluster.judge()
    for line in summary(cluster.changes, found := pauses(cluster.history.appends)):
        print(line)
    worst = longest(found, cluster.changes[0].began_s)
    assert cluster.anomalies == []
    assert len(cluster.changes) == 3 * len(local.NAMES) + 1
    assert worst is not None
    longest_change = max(change.ended_s - change.began_s for change in cluster.changes)
    assert worst.seconds < max(HANGING_SECONDS, longest_change), worst
    assert cluster.history.acknowledged_records > 1_000
    assert len(cluster.history.polls) > 100


async def test_what_an_upgrade_refuses(tmp_path: pathlib.Path) -> None:
    """The level stays while a former agent is down. Once it has risen the former version does not start,
    neither on its data nor empty, and neither does a version whose levels all lie above. The clients go on,
    and the agents that were refused leave nothing behind."""
    async with Rehearsal(tmp_path, FORMER, [], seed=2, pause_seconds=PAUSE_SECONDS) as cluster:
        down, *others = local.NAMES
        url = cluster.agent(others[0]).url
        for name in others:
            await cluster.change(name, LATER)
        await asyncio.to_thread(kill, cluster.agent(down))
        for status in ("alive", "failed"):  # it was killed a moment ago; gossip has said so
            await asyncio.to_thread(
                wait_until, lambda of=status: down in members(url, of), f"{down} is {status}"
            )
            for arguments in ((), ("--to", str(LEVEL + 1))):
                code, said = await raise_level(url, *arguments)
                assert code == 1, said
                assert f"{down} understands {FORMER.words}; upgrade them" in said
        await asyncio.to_thread(cluster.wait_level, others[1], LEVEL)
        cluster.install(down, LATER, hold=True)
        await asyncio.to_thread(cluster.start_agent, down)
        code, said = await raise_level(url)
        assert code == 0, said
        await everywhere(cluster, LEVEL + 1)
        await asyncio.to_thread(cluster.stop_agent, down)
        empty = ["--cluster", cluster.cluster, "--name", "guest", "--data"]
        for version, words in (
            (FORMER, "install on its host the version of Shoal that the other members run"),
            (TWO_ABOVE, "install an older version of Shoal on its host first, and raise the level"),
        ):
            for options in (cluster.agents.options(down), [*empty, str(tmp_path / version.name)]):
                place = cluster.place(local.NAMES.index(down))
                refused = await asyncio.to_thread(version.run, "agent", *options, **place)
                said = last_line(refused.stderr)
                print(said)
                assert refused.returncode == 1
                assert f"at level {LEVEL + 1}, and the agent understands {version.words}: {words}" in said
        await asyncio.to_thread(cluster.start_agent, down)
        # Gossip goes round: a busy agent may have missed that a refused one leaves, and hears it then.
        await asyncio.to_thread(
            wait_until, lambda: nobody_has_failed(url), "those that were refused have left"
        )
        await cluster.until_served()
        await cluster.judge()
    assert cluster.anomalies == []


def kill(agent: local.AgentProcess) -> None:
    """kill -9; returns when it is gone."""
    agent.signal(signal.SIGKILL)
    wait_until(lambda: not agent.is_alive(), f"{agent.name} is gone")
