"""Real agents' logs, as an operator reads them: what happened, by name, once, and nothing but that."""

from __future__ import annotations

import pathlib
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cluster as local
import pytest
from log_reader import documents, events, lines, told
from real_agents import is_ready, leaders, run_shoal, shoal_command, wait_until

pytestmark = pytest.mark.slow
PARTITIONS = 3  # with the catalog as many as a line names
AGENT_OF_CLOCK = str(pathlib.Path(__file__).with_name("agent_of_clock.py"))
AHEAD_S = 3_600
LONG_ID = re.compile(r"\b[0-9a-f]{32}\b")


def partitions_in(said: list[str]) -> set[str]:
    """Those named in lines."""
    return set(re.findall(r"\b(?:orders/\d+|_catalog)", " ".join(said)))


def test_survivors_tell_what_happened_to_an_agent_and_its_partitions(
    start_cluster: Callable[..., Any],
) -> None:
    """One of three is killed and comes back, then two are: members, leaders, replicas, each by name."""
    agents = start_cluster(3)
    url = agents.agents[0].url
    made = run_shoal("--agent", url, "topic", "create", "orders", "--partitions", str(PARTITIONS))
    assert made.returncode == 0, made.stderr
    wait_until(lambda: len(leaders(url, "orders")) == PARTITIONS, "every partition is led")
    victim, *survivors = sorted(
        agents.agents, key=lambda agent: -list(leaders(url, "orders").values()).count(agent.url)
    )
    for agent in agents.agents:
        assert len(told(agent, "ready: ")) == 1
        for other in agents.agents:
            assert other is agent or len(told(agent, "agent joined: ", what=other.name)) == 1

    victim.signal(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive(), "the agent is gone")
    for survivor in survivors:
        told(survivor, f"agent failed: {victim.name}")
    wait_until(
        lambda: (
            partitions_in([line for one in survivors for line in lines(one, "under-replicated: ")])
            >= {f"orders/{number}" for number in range(PARTITIONS)}
        ),
        "every partition is told to be under-replicated, by who leads it",
    )
    everything = [line for one in survivors for line in lines(one)]
    assert any(line.startswith("leadership gained: ") for line in everything)
    assert any(line.endswith(f"(missing: {victim.name})") for line in everything)
    gained = [line for one in survivors for line in events(one, "leadership-gained")]
    assert all(line["partitions"] and line["total"] for line in gained)
    assert all(line["term"] >= 1 for line in gained if "topic" in line)
    for survivor in survivors:
        assert len(lines(survivor, f"agent failed: {victim.name}")) == 1
        assert lines(survivor, f"agent is back: {victim.name}") == []

    place = agents.agents.index(victim)
    agents.restart(victim)
    victim = agents.agents[place]
    for survivor in survivors:
        assert told(survivor, "agent is back: ", what=victim.name) == [f"agent is back: {victim.name}"]
    wait_until(
        lambda: any(lines(survivor, "fully replicated again: ") for survivor in survivors),
        "replicas are told to be back",
    )
    assert told(victim, "recovered the catalog: ")[0].startswith("recovered the catalog: active; topics: ")
    assert "active" in told(victim, f"recovered {PARTITIONS} replicas: ")[-1]

    wait_until(lambda: is_ready(survivors[0].url, 3), "all are there again")
    for lost in (victim, survivors[1]):
        lost.signal(signal.SIGKILL)
    told(survivors[0], "no leader for 5 s: ")
    agents.restart(survivors[1])
    told(survivors[0], "led again: ")

    for survivor in survivors:
        said = pathlib.Path(survivor.log).read_text()
        assert LONG_ID.search(said) is None, LONG_ID.search(said)
        assert "Traceback" not in said
        assert len(documents(survivor)) < 300, "a bounded number of lines"


@pytest.fixture
def wrong_clock(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Three agents; the first one's machine has a clock that is ahead."""
    agents = local.LocalCluster(tmp_path)
    agents.install(local.NAMES[0], [sys.executable, AGENT_OF_CLOCK, str(AHEAD_S)], {})
    try:
        agents.start(shoal_command(), f"test-{secrets.token_hex(4)}", local.NAMES)
        wait_until(lambda: all(is_ready(one.url, 3) for one in agents.agents), "the agents are ready")
        yield agents
    finally:
        agents.stop()


def test_a_wrong_clock_is_told_of_by_all_and_leaving_is_no_failure(wrong_clock: Any) -> None:
    """The agent on it says what the machine is to be told; the others name it, as when it leaves and is
    back."""
    leaver, *others = wrong_clock.agents
    name = leaver.name
    assert f" by {AHEAD_S} s. " in told(leaver, "clock skew: this machine's clock ")[0]
    for other in others:
        told(other, f"clock skew: the clock of {name} differs by {AHEAD_S} s; set it")
    leaver.signal(signal.SIGTERM)
    wait_until(lambda: not leaver.is_alive(), "it has left")
    wrong_clock.restart(leaver)
    for other in others:
        assert told(other, "agent is back: ") == [f"agent is back: {name}"]
        assert lines(other, "agent left: ") == [f"agent left: {name}"]
        assert lines(other, "agent failed: ") == []
        assert [line["members"] for line in events(other, "clock-skew")] == [[name]]
