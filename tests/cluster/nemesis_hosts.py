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
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field

NETWORK = "10.77.0"
HUB = f"{NETWORK}.254"
HTTP_PORT = 7070
GOSSIP_PORT = 7946
CLUSTER = "nemesis"
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


@dataclass(frozen=True)
class Secrets:
    """Of a cluster with TLS and authentication, as `shoal secure init` makes them."""

    directory: pathlib.Path
    first_token: str = field(repr=False)

    @property
    def ca(self) -> pathlib.Path:
        return self.directory / "ca.crt"

    def configuration(self, namespace: str) -> pathlib.Path:
        """Of a host's agent."""
        return self.directory / "hosts" / namespace / "shoal.toml"

    @classmethod
    def make(cls, directory: pathlib.Path, addresses: dict[str, str]) -> Secrets:
        """For hosts by their names. Raises RuntimeError."""
        (first, first_address), *others = addresses.items()
        common = ["--dir", str(directory)]
        init = ["init", "--cluster", CLUSTER, "--name", first, "--address", first_address]
        token = _secure(*init, *common)
        for name, address in others:
            _secure("agent", name, "--address", address, *common)
        return cls(directory, token)


def _secure(*arguments: str) -> str:
    command = [sys.executable, "-m", "shoal.agent", "secure", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"shoal secure {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


@dataclass
class Host:
    """One host. `number` from 1. `started_s`, `disturbed_s`: of the monotonic clock; the latter is when an
    operator, or a fault, has last done something to it."""

    number: int
    directory: pathlib.Path
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    starts: int = 0
    flags: list[str] = field(default_factory=list)
    started_s: float = 0.0
    disturbed_s: float = 0.0
    secrets: Secrets | None = None

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
        self.started_s = self.disturbed_s = time.monotonic()
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "shoal.agent", "agent"]
        command += ["--data", str(self.data), "--bind", self.address, *self._settings()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHOAL_MDNS": "false"}
        with open(self.directory / f"{self.namespace}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _settings(self) -> list[str]:
        """Beside its place."""
        if self.secrets is not None:
            return ["--config", str(self.secrets.configuration(self.namespace))]
        ports = ["--http-port", str(HTTP_PORT), "--gossip-port", str(GOSSIP_PORT)]
        return ["--cluster", CLUSTER, "--insecure", "--name", self.namespace, *ports]

    def signal(self, number: int) -> None:
        self.disturbed_s = time.monotonic()
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
        secrets = self.secrets
        tls = None if secrets is None else ssl.create_default_context(cafile=str(secrets.ca))
        url = f"{'http' if tls is None else 'https'}://{self.address}:{HTTP_PORT}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2, context=tls) as answer:
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

    def __init__(
        self, directory: pathlib.Path, count: int, *, small_disks: bool = False, secured: bool = False
    ) -> None:
        self.directory = directory
        self._cut_s = 0.0
        self.cuts: set[tuple[int, int]] = set()
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip netns` keeps names: nobody else's
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "address", "add", f"{HUB}/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")
        self.all = [Host(number, directory) for number in range(1, count + 1)]
        addresses = {host.namespace: host.address for host in self.all}
        self.secrets = Secrets.make(directory / "secrets", addresses) if secured else None
        seeds = [f"--join={host.address}:{GOSSIP_PORT}" for host in self.all]
        for host in self.all:
            host.flags = [*seeds, "--expect", str(count)]
            host.secrets = self.secrets
            host.make_network()
            host.data.mkdir(parents=True)
            if small_disks:
                run("mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_BYTES}", "tmpfs", str(host.data))

    @property
    def disturbed_s(self) -> float:
        """When something was last done to any of them, or to the network."""
        return max(self._cut_s, *(host.disturbed_s for host in self.all))

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wrong at the moment, as far as faults go."""
        return not self.cuts and all(host.is_running and not host.paused for host in self.all)

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
        self._cut_s = time.monotonic()
        for sender, receiver in sorted(links - self.cuts):
            self.all[sender - 1].point(receiver, right=False)
        self.cuts |= links

    def heal(self, links: set[tuple[int, int]] | None = None) -> None:
        """These, or all."""
        self._cut_s = time.monotonic()
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
