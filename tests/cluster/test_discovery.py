"""Agents of several hosts that nobody told of each other: mDNS alone, over a network that really is one.

Where no network namespace can be made this module holds no test but says so.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator

import cluster as local
import pytest
from namespaces import STOP_TIMEOUT_SECONDS, Network, why_not
from real_agents import wait_until

pytestmark = pytest.mark.slow
HOSTS = 2
FISH = {"fish1": 1, "fish2": 1, "fish3": 2}
"""Name -> host: the second on host 1 takes ports of its own."""
FOWL = {"fowl": 2}
REASON = why_not()

if REASON:
    warnings.warn(f"NO NETWORK NAMESPACES, mDNS over hosts is not tested: {REASON}", stacklevel=1)


@contextlib.contextmanager
def started(network: Network, cluster: str, directory: pathlib.Path, names: dict[str, int]) -> Iterator[None]:
    """An agent for each name on its host, with no word of where the others are; ended by their ids."""
    processes = []
    try:
        for name, host in names.items():
            command = ["ip", "netns", "exec", network.namespace(host), sys.executable, "-m", "shoal.agent"]
            command += ["agent", "--data", str(directory / name), "--name", name, "--cluster", cluster]
            command += ["--bind", network.address(host), "--insecure"]
            with (directory / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ.copy()))
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait(STOP_TIMEOUT_SECONDS)


def seen_by(url: str) -> set[str]:
    """Names of the living in that agent's list; nobody while it cannot be asked."""
    try:
        members = local.get(url, "/v1/members")["members"]
    except OSError:
        return set()
    return {member["name"] for member in members if member["status"] == "alive"}


if not REASON:

    def test_agents_of_several_hosts_meet_by_mdns_alone(tmp_path: pathlib.Path) -> None:
        """Two agents on one host and one on another are one cluster; one that calls itself otherwise, on the
        same wires, is another."""
        network = Network()
        ours, theirs = f"fish-{secrets.token_hex(3)}", f"fowl-{secrets.token_hex(3)}"
        try:
            network.up(HOSTS)
            with started(network, ours, tmp_path, FISH), started(network, theirs, tmp_path, FOWL):
                urls = [
                    f"http://{network.address(host)}:{7070 + place}"
                    for host in range(1, HOSTS + 1)
                    for place in range(2)
                ]

                def views() -> list[set[str]]:
                    return sorted((seen_by(url) for url in urls), key=sorted)

                expected = sorted([set(FISH)] * len(FISH) + [set(FOWL)] * len(FOWL), key=sorted)
                wait_until(lambda: views() == expected, "each cluster's agents see each other")
        finally:
            network.down()
