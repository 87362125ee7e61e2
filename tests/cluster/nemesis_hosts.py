"""Real agents, each a process in a network namespace of its own: killed, frozen and cut off at will.

Law of this file: it makes hosts and does to them what it is told; which fault comes when is nemesis.py's. It
runs inside namespaces of its own (`unshare --net --mount --pid`), so nothing that it makes outlives it. A
path is cut by giving the sender a wrong hardware address for the receiver: packets vanish, one way.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field

NETWORK = "10.77.0"
HUB = f"{NETWORK}.254"
HTTP_PORT = 7070
GOSSIP_PORT = 7946
READY_LIMIT_S = 120.0
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FULL_DISK_BYTES = 512 * 2**20
"""Of a host whose disk is to run full: the agent keeps 64 MiB free, and what clients write in three minutes
must not fill it for good."""


def run(*command: str) -> None:
    """A system command. Raises CalledProcessError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def isolated(command: list[str]) -> list[str]:
    """The command in namespaces of its own; all that it starts ends with it."""
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@dataclass
class Host:
    """One host. `number` from 1."""

    number: int
    directory: pathlib.Path
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    starts: int = 0
    flags: list[str] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return f"host{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def http(self) -> tuple[str, int]:
        return self.address, HTTP_PORT

    @property
    def data(self) -> pathlib.Path:
        return self.directory / f"data{self.number}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def make_network(self) -> None:
        """A namespace with one interface on the hub's bridge."""
        name, here, there = self.namespace, f"v{self.number}", f"w{self.number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        run("ip", "link", "set", there, "netns", name)
        run("ip", "link", "set", here, "master", "hub", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", there, "address", _hardware(self.number))
        run("ip", "-n", name, "address", "add", f"{self.address}/24", "dev", there)
        run("ip", "-n", name, "link", "set", there, "up")

    def point(self, other: int, *, right: bool) -> None:
        """Send to that host, or into nothing."""
        hardware = _hardware(other) if right else _hardware(other, nobody=True)
        target, device = f"{NETWORK}.{other}", f"w{self.number}"
        run(
            *("ip", "-n", self.namespace, "neigh", "replace", target, "lladdr", hardware),
            *("nud", "permanent", "dev", device),
        )

    def start(self) -> None:
        """The agent, on its data."""
        assert not self.is_running
        self.starts += 1
        self.paused = False
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "shoal.agent", "agent"]
        command += ["--data", str(self.data), "--bind", self.address, "--cluster", "nemesis", "--insecure"]
        command += [
            "--name",
            self.namespace,
            "--http-port",
            str(HTTP_PORT),
            "--gossip-port",
            str(GOSSIP_PORT),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHOAL_MDNS": "false"}
        with open(self.directory / f"{self.namespace}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def signal(self, number: int) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def pause(self) -> None:
        self.paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self.signal(signal.SIGCONT)

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:{HTTP_PORT}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def last_words(self) -> str:
        path = self.directory / f"{self.namespace}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-5:]) if path.exists() else ""


def _hardware(number: int, *, nobody: bool = False) -> str:
    return f"02:00:00:00:{'ff' if nobody else '00'}:{number:02x}"


class Hosts:
    """All of them, and the hub where the clients are."""

    def __init__(self, directory: pathlib.Path, count: int, *, small_disks: bool = False) -> None:
        self.directory = directory
        self.cuts: set[tuple[int, int]] = set()
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps names: nobody else's
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "address", "add", f"{HUB}/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")
        self.all = [Host(number, directory) for number in range(1, count + 1)]
        seeds = [f"--join={host.address}:{GOSSIP_PORT}" for host in self.all]
        for host in self.all:
            host.flags = [*seeds, "--expect", str(count)]
            host.make_network()
            host.data.mkdir(parents=True)
            if small_disks:
                run("mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_BYTES}", "tmpfs", str(host.data))

    def start(self) -> None:
        """All, and wait until they serve. Raises RuntimeError."""
        for host in self.all:
            host.start()
        self.wait_ready(READY_LIMIT_S)

    def wait_ready(self, limit_s: float) -> float:
        """Until every agent serves; the seconds it took. Raises RuntimeError."""
        started = time.monotonic()
        while not all(host.is_ready() for host in self.all):
            if time.monotonic() - started > limit_s:
                late = [host for host in self.all if not host.is_ready()]
                raise RuntimeError("\n".join(f"{host.namespace}: {host.last_words()}" for host in late))
            time.sleep(0.1)
        return time.monotonic() - started

    def cut(self, links: set[tuple[int, int]]) -> None:
        """(from, to) by number."""
        for sender, receiver in sorted(links - self.cuts):
            self.all[sender - 1].point(receiver, right=False)
        self.cuts |= links

    def heal(self, links: set[tuple[int, int]] | None = None) -> None:
        """These, or all."""
        for sender, receiver in sorted(self.cuts if links is None else links & self.cuts):
            self.all[sender - 1].point(receiver, right=True)
        self.cuts -= set(self.cuts) if links is None else links

    def stop(self) -> None:
        """End every agent; what they left stays for whoever wants to see it."""
        for host in self.all:
            host.resume()
            host.kill()


def can_isolate() -> bool:
    """Whether this machine lets us make namespaces."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    script = "mount -t tmpfs tmpfs /run && ip link add hub type bridge && ip netns add x"
    done = subprocess.run(isolated(["sh", "-c", script]), capture_output=True, timeout=100, check=False)
    return done.returncode == 0
