"""Agents as real processes in network namespaces of their own, on one bridge: networks that really break.

Law of this file: it makes what it needs with `ip`, under names and in a subnet of its own, and takes
everything away again; agents are ended by their own process ids. It must be root.

One direction of a pair is cut by a neighbour entry that leads nowhere: the packets leave, and nobody takes
them, which is what a broken cable does. (Firewalls and tc need modules that many kernels lack.)
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import cluster as local

NOWHERE = "02:00:00:00:00:fe"
STOP_TIMEOUT_SECONDS = 60.0


def run_ip(*words: str) -> None:
    """Raises CalledProcessError with what `ip` said."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=100)


def why_not() -> str:
    """Why no namespaces can be made here; empty when they can."""
    if shutil.which("ip") is None:
        return "there is no ip command (package iproute2)"
    name = f"shoal-{secrets.token_hex(3)}"
    try:
        run_ip("netns", "add", name)
        try:
            run_ip("link", "add", f"{name}b", "type", "veth", "peer", "name", f"{name}c")
            run_ip("link", "del", f"{name}b")
        finally:
            run_ip("netns", "del", name)
    except (subprocess.SubprocessError, OSError) as error:
        return str(getattr(error, "stderr", "") or error).strip()
    return ""


class Network:
    """A bridge in this process's namespace, and hosts on it: number N has the address N."""

    def __init__(self) -> None:
        rng = random.SystemRandom()
        self._id = secrets.token_hex(3)
        self._prefix = f"10.{rng.randrange(64, 250)}.{rng.randrange(250)}"
        self._hosts: list[int] = []
        self.bridge = f"sb{self._id}"

    def address(self, host: int) -> str:
        return f"{self._prefix}.{host}"

    def namespace(self, host: int) -> str:
        return f"shoal-{self._id}-{host}"

    def up(self, hosts: int) -> None:
        """Hosts 1 to `hosts`; this namespace is host 254."""
        run_ip("link", "add", self.bridge, "type", "bridge")
        run_ip("addr", "add", f"{self.address(254)}/24", "dev", self.bridge)
        run_ip("link", "set", self.bridge, "up")
        for host in range(1, hosts + 1):
            name, outside, inside = self.namespace(host), f"v{self._id}{host}", f"w{self._id}{host}"
            run_ip("netns", "add", name)
            self._hosts.append(host)
            run_ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            run_ip("link", "set", inside, "netns", name, "name", "eth0")
            run_ip("link", "set", outside, "master", self.bridge, "up")
            run_ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            run_ip("-n", name, "link", "set", "lo", "up")
            run_ip("-n", name, "link", "set", "eth0", "up")

    def down(self) -> None:
        for host in self._hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                run_ip("netns", "del", self.namespace(host))  # takes its half of the cable away, and ours
        with contextlib.suppress(subprocess.CalledProcessError):
            run_ip("link", "del", self.bridge)

    def cut(self, sender: int, receiver: int) -> None:
        """What `sender` sends to `receiver` arrives nowhere."""
        self._neighbour("replace", sender, receiver, "lladdr", NOWHERE, "nud", "permanent")

    def mend(self, sender: int, receiver: int) -> None:
        self._neighbour("del", sender, receiver)

    def _neighbour(self, action: str, sender: int, receiver: int, *words: str) -> None:
        run_ip("-n", self.namespace(sender), "neigh", action, self.address(receiver), *words, "dev", "eth0")

    def part(self, one: list[int], others: list[int]) -> None:
        """Nothing passes in either direction."""
        for first in one:
            for second in others:
                self.cut(first, second)
                self.cut(second, first)

    def join(self, one: list[int], others: list[int]) -> None:
        for first in one:
            for second in others:
                self.mend(first, second)
                self.mend(second, first)


class Agents:
    """One agent on each host, each told of the first."""

    def __init__(self, network: Network, directory: pathlib.Path) -> None:
        self.network = network
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def url(self, host: int) -> str:
        return f"http://{self.network.address(host)}:7070"

    def start(self, count: int) -> None:
        cluster = f"test-{secrets.token_hex(4)}"
        for host in range(1, count + 1):
            command = [
                "ip",
                "netns",
                "exec",
                self.network.namespace(host),
                sys.executable,
                "-m",
                "shoal.agent",
            ]
            command += ["agent", "--data", str(self.directory / str(host)), *self.protection(cluster)]
            command += ["--name", f"host{host}", "--expect", str(count), *self.places(host)]
            with (self.directory / f"{host}.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ.copy())
            self._processes.append(process)

    def protection(self, cluster: str) -> list[str]:
        """The flags that say which cluster it is, and who is let in."""
        return ["--cluster", cluster, "--insecure"]

    def places(self, host: int) -> list[str]:
        """The flags that say where an agent is, and where it meets the others."""
        return ["--bind", self.network.address(host), "--join", f"{self.network.address(1)}:7946"]

    def ended(self) -> list[int]:
        """Hosts whose agent runs no more."""
        return [host for host, process in enumerate(self._processes, 1) if process.poll() is not None]

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait(STOP_TIMEOUT_SECONDS)

    def view(self, host: int) -> dict[str, str]:
        """Name to status in that agent's list, in which nobody stands twice."""
        members = local.get(self.url(host), "/v1/members")["members"]
        assert len({member["name"] for member in members}) == len(members), members
        return {member["name"]: member["status"] for member in members}

    def cluster_ids(self, hosts: int) -> set[Any]:
        return {local.get(self.url(host), "/v1/members")["cluster_id"] for host in range(1, hosts + 1)}

    def logs(self) -> str:
        """The last lines of everybody, for a failing test."""
        files = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in files)


class NamedAgents(Agents):
    """Agents that are known by names, from a hosts file of each namespace; addresses may change."""

    def __init__(self, network: Network, directory: pathlib.Path) -> None:
        super().__init__(network, directory)
        self._addresses: dict[int, str] = {}
        self._others: dict[int, str] = {}

    def url(self, host: int) -> str:
        return f"http://{self._addresses[host]}:7070"

    def name(self, host: int) -> str:
        """As agents and clients know it."""
        return f"shoal-{host}.shoal.test"

    def places(self, host: int) -> list[str]:
        return ["--bind", "0.0.0.0", "--advertise", self.name(host), "--join", f"{self.name(1)}:7946"]

    def start(self, count: int) -> None:
        self._addresses = {host: self.network.address(host) for host in range(1, count + 1)}
        for host in self._addresses:
            self._hosts_file(host).parent.mkdir(parents=True)
        self._tell_names()
        super().start(count)

    def stop(self) -> None:
        super().stop()
        for host in self._addresses:
            shutil.rmtree(self._hosts_file(host).parent, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may have theirs there
            pathlib.Path("/etc/netns").rmdir()

    def move(self, host: int, number: int) -> None:
        """The host gets another address and loses the one it had; all names are told."""
        address, namespace = self.network.address(number), self.network.namespace(host)
        run_ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        run_ip("-n", namespace, "addr", "del", f"{self._addresses[host]}/24", "dev", "eth0")
        run_ip("-n", namespace, "addr", "replace", f"{address}/24", "dev", "eth0")  # secondary ones go along
        self._addresses[host] = address
        self._tell_names()

    def add_address(self, host: int, number: int) -> None:
        """The host's name leads to that address too, first of all. Nobody has it."""
        self._others[host] = self.network.address(number)
        self._tell_names()

    def _hosts_file(self, host: int) -> pathlib.Path:
        """`ip netns exec` puts it in the place of /etc/hosts."""
        return pathlib.Path("/etc/netns") / self.network.namespace(host) / "hosts"

    def _tell_names(self) -> None:
        told = (self._others, self._addresses)
        lines = [f"{address} {self.name(host)}\n" for some in told for host, address in some.items()]
        for host in self._addresses:
            self._hosts_file(host).write_text("127.0.0.1 localhost\n" + "".join(lines))


@contextlib.contextmanager
def agents_on_a_network(count: int, directory: pathlib.Path, kind: type[Agents] = Agents) -> Iterator[Any]:
    """Everything is taken away again, whatever happens."""
    network = Network()
    agents = kind(network, directory)
    try:
        network.up(count)
        agents.start(count)
        yield agents
    finally:
        agents.stop()
        time.sleep(0.1)
        network.down()
