"""Real partitions between real agents: parts, one deaf direction, and a list that is one again after each.
How soon is said of the membership in virtual time: agents of a busy machine find themselves slow, and wait
longer before they call anybody failed.

Where no network namespace can be made this module holds no test but says so.
"""

from __future__ import annotations

import pathlib
import time
import warnings
from collections.abc import Iterator

import pytest
from namespaces import Agents, agents_on_a_network, why_not
from real_agents import is_ready, wait_until

pytestmark = pytest.mark.slow
HOSTS = 3
ALIVE = {f"host{host}": "alive" for host in range(1, HOSTS + 1)}
REASON = why_not()

if REASON:
    warnings.warn(f"NO NETWORK NAMESPACES, real partitions are not tested: {REASON}", stacklevel=1)


def only(members: set[int]) -> dict[str, str]:
    """These alive, the others failed."""
    return {f"host{host}": "alive" if host in members else "failed" for host in range(1, HOSTS + 1)}


def everybody_shows(agents: Agents, expected: dict[str, str]) -> bool:
    return all(agents.view(host) == expected for host in range(1, HOSTS + 1))


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    directory: pathlib.Path = tmp_path_factory.mktemp("partitions")
    with agents_on_a_network(HOSTS, directory) as started:
        for host in range(1, HOSTS + 1):
            wait_until(lambda host=host: is_ready(started.url(host), HOSTS), f"host {host} is ready")
        yield started


if not REASON:

    def test_parts_forget_nobody_and_are_one_again(agents: Agents) -> None:
        """Each side shows the other as failed and itself as alive, under one cluster id; when the cable is
        back all lists are equal, and nobody is in them twice."""
        network = agents.network
        network.part([1, 2], [3])
        wait_until(
            lambda: all(agents.view(host) == only({1, 2}) for host in (1, 2)) and agents.view(3) == only({3}),
            "each part shows the other as failed",
        )
        assert len(agents.cluster_ids(HOSTS)) == 1
        network.join([1, 2], [3])
        wait_until(lambda: everybody_shows(agents, ALIVE), "the lists are equal")
        assert len(agents.cluster_ids(HOSTS)) == 1

    def test_one_deaf_direction_is_bridged_and_a_mute_host_is_missed(agents: Agents) -> None:
        """What 1 says to 2 is lost: the third probes for them, and nobody fails. What 1 says to anybody is
        lost: the others miss it; and it is back soon after it is heard again."""
        network = agents.network
        network.cut(1, 2)
        seen = set()
        for _ in range(20):
            seen |= {status for host in range(1, HOSTS + 1) for status in agents.view(host).values()}
            time.sleep(0.3)
        assert "failed" not in seen
        network.cut(1, 3)
        wait_until(
            lambda: all(agents.view(host) == only({2, 3}) for host in (2, 3)),
            "the mute host is missed",
        )
        for other in (2, 3):
            network.mend(1, other)
        wait_until(lambda: everybody_shows(agents, ALIVE), "the lists are equal")
