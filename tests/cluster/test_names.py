"""Agents on hosts of their own, known by names: they meet, serve, and follow a name to another address.

Where no network namespace can be made this module holds no test but says so.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator

import cluster as local
import pytest
from namespaces import NamedAgents, agents_on_a_network, why_not
from real_agents import is_ready, leaders, wait_until

pytestmark = pytest.mark.slow
HOSTS = 3
ALIVE = {f"host{host}": "alive" for host in range(1, HOSTS + 1)}
MOVE_SECONDS = 60.0
"""Two looks at the name, five seconds apart, and a second of gossip; the rest is a busy machine."""
REASON = why_not()

if REASON:
    warnings.warn(f"NO NETWORK NAMESPACES, names of hosts are not tested: {REASON}", stacklevel=1)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedAgents]:
    directory: pathlib.Path = tmp_path_factory.mktemp("names")
    with agents_on_a_network(HOSTS, directory, NamedAgents) as started:
        try:
            for host in range(1, HOSTS + 1):
                wait_until(lambda host=host: is_ready(started.url(host), HOSTS), f"host {host} is ready")
            yield started
        except BaseException:
            sys.stderr.write(started.logs())
            raise


def append(agents: NamedAgents, host: int, value: str) -> bool:
    """Through that host's agent, whoever leads. Raises OSError."""
    url = f"{agents.url(host)}/v1/topics/t/records?timeout=30s"
    request = urllib.request.Request(url, data=value.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bool(answer.status == 200)


def shoal_in(agents: NamedAgents, host: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in that host's namespace."""
    shoal = str(pathlib.Path(sys.executable).parent / "shoal")
    return subprocess.run(
        ["ip", "netns", "exec", agents.network.namespace(host), shoal, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


if not REASON:

    def test_agents_meet_and_serve_by_names(agents: NamedAgents) -> None:
        """Seeds, member list, routes and forwards have names; a client in one of the hosts follows them."""
        urls = {f"http://{agents.name(host)}:7070" for host in range(1, HOSTS + 1)}
        for host in range(1, HOSTS + 1):
            listed = local.get(agents.url(host), "/v1/members")["members"]
            assert {member["url"] for member in listed} == urls
            assert append(agents, host, f"from {host}")
        assert set(leaders(agents.url(1), "t").values()) <= urls
        url = f"http://{agents.name(3)}:7070"
        done = shoal_in(agents, 2, "consume", "t", "--from", "earliest", "--agent", url)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split("\n")[:-1]) == ["from 1", "from 2", "from 3"]

    def test_a_name_with_an_address_that_nobody_has(agents: NamedAgents) -> None:
        """Clients try the other one; the agent itself and its links stay as they are."""
        agents.add_address(2, 200)
        done = shoal_in(agents, 3, "topic", "list", "--agent", f"http://{agents.name(2)}:7070")
        assert done.returncode == 0, done.stderr
        for host in range(1, HOSTS + 1):
            assert append(agents, host, f"beside, {host}")
            assert agents.view(host) == ALIVE
        assert agents.ended() == []

    def test_a_name_that_moves_is_followed(agents: NamedAgents) -> None:
        """An agent's host gets another address while it runs: the others find it there by its name, without a
        restart of anybody, and its replicas go on."""
        assert append(agents, 1, "before")
        moved = HOSTS
        agents.move(moved, 100 + moved)

        def is_found() -> bool:
            for host in range(1, HOSTS + 1):
                listed = local.get(agents.url(host), "/v1/members")["members"]
                found = {member["name"]: (member["status"], member["address"]) for member in listed}
                if found[f"host{moved}"] != ("alive", agents.network.address(100 + moved)):
                    return False
            return all(agents.view(host) == ALIVE for host in range(1, HOSTS + 1))

        wait_until(is_found, "the list has the new address", MOVE_SECONDS)
        assert agents.ended() == []
        for host in range(1, HOSTS + 1):
            wait_until(lambda host=host: append(agents, host, f"after, {host}"), "it takes records")
        wait_until(
            lambda: all(
                local.get(agents.url(host), "/v1/topics/t")["under_replicated"] == 0
                for host in range(1, HOSTS + 1)
            ),
            "its replica follows again",
            MOVE_SECONDS,
        )
        log = agents.logs()
        assert f"{agents.name(moved)} leads to {agents.network.address(100 + moved)} now" in log
