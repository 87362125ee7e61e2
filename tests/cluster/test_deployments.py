"""What ops/ says, done: pods' commands and the configuration of bare hosts, on hosts of their own with names.

Where no network namespace can be made this module holds no test but says so.
"""

from __future__ import annotations

import abc
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from namespaces import NamedAgents, agents_on_a_network, why_not
from real_agents import wait_until

from tests.ops.kubernetes_files import command_of, container, name_of, pods, secure_words

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = 3
REASON = why_not()

if REASON:
    warnings.warn(f"NO NETWORK NAMESPACES, ops/ is not carried out: {REASON}", stacklevel=1)


class Deployed(NamedAgents, abc.ABC):
    """With the files of `shoal secure` where a secret, or an operator, would put them. `service`: the name
    clients use."""

    service = ""
    token = ""

    def start(self, count: int) -> None:
        self.token = self.secure()
        super().start(count)

    @abc.abstractmethod
    def secure(self) -> str:
        """Make the files; the first administrator's token."""

    def shoal(self, *words: str) -> str:
        """A command where the operator is; its standard output."""
        command = [sys.executable, "-m", "shoal.agent", *words]
        ran = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def protection(self, cluster: str) -> list[str]:
        return []

    def url(self, host: int) -> str:
        return super().url(host).replace("http://", "https://")

    def ask(
        self, host: int, path: str, name: str = "", *, body: bytes | None = None, has_token: bool = True
    ) -> tuple[int, bytes]:
        """Status and body. `name`: of the Host; the certificate has to be one of the cluster's authority."""
        context = ssl.create_default_context(cafile=str(self.directory / "secrets" / "ca.crt"))
        context.check_hostname = False  # hosts are asked by the addresses of this test's network
        headers = {"Host": name} if name else {}
        if has_token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url(host) + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def get(self, host: int, path: str) -> Any:
        """Of an answer that is JSON."""
        status, body = self.ask(host, path)
        return json.loads(body) if status == 200 else {}


class Pods(Deployed):
    """As the kubelet starts them, but for the image and the directory of the data."""

    service = "shoal.default.svc"

    def secure(self) -> str:
        return self.shoal(*secure_words())

    def name(self, host: int) -> str:
        return name_of(pods()[host - 1])

    def places(self, host: int) -> list[str]:
        command = command_of(pods()[host - 1], f"node-{host}")[1:]
        secret = f"--config={self.directory}/secrets/hosts/shoal/"
        return [one.replace("--config=/etc/shoal/", secret) for one in command if "--data=" not in one]


class BareHosts(Deployed):
    """By ops/shoal.toml, with the lines changed that differ, and the cluster's own hash."""

    service = "shoal.example.com"

    def secure(self) -> str:
        first, *others = (["--address", self.name(host)] for host in range(1, HOSTS + 1))
        token = self.shoal("secure", "init", "--cluster", "fish", "--name", "host-1", *first)
        for number, address in enumerate(others, 2):
            self.shoal("secure", "agent", f"host-{number}", *address)
        return token

    def name(self, host: int) -> str:
        return f"shoal-{host}.example.com"

    def places(self, host: int) -> list[str]:
        text = (ROOT / "ops" / "shoal.toml").read_text()
        made = tomllib.loads((self.directory / "secrets" / "cluster.toml").read_text())
        changed = {
            "advertise": self.name(host),
            "failure_domain": f"rack-{host}",
            "bootstrap_token_hash": made["bootstrap_token_hash"],
        }
        for key, value in changed.items():
            text, count = re.subn(rf'(?m)^{key} = "[^"]*"', f'{key} = "{value}"', text)
            assert count == 1, key
        path = self.directory / "secrets" / "hosts" / f"host-{host}" / "shoal.toml"
        path.write_text(text)
        return ["--config", str(path)]


def is_ready(agents: Deployed, host: int) -> bool:
    """It serves, and sees all the others."""
    alive = agents.get(host, "/v1/members?status=alive").get("members", ())
    return agents.ask(host, "/readyz")[0] == 200 and len(alive) == HOSTS


@pytest.fixture(scope="module", params=[Pods, BareHosts])
def agents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory: pathlib.Path = tmp_path_factory.mktemp("deployed")
    with agents_on_a_network(HOSTS, directory, request.param) as started:
        try:
            for host in range(1, HOSTS + 1):
                wait_until(lambda host=host: is_ready(started, host), f"host {host} is ready")
            yield started
        except BaseException:
            sys.stderr.write(started.logs())
            raise


if not REASON:

    def test_agents_form_one_cluster_by_their_names(agents: Deployed) -> None:
        """Secured, and each in a failure domain of its own."""
        listed = [agents.get(host, "/v1/members") for host in (1, 2, 3)]
        assert len({one["cluster_id"] for one in listed}) == 1
        members = listed[0]["members"]
        assert {one["url"] for one in members} == {f"https://{agents.name(host)}:7070" for host in (1, 2, 3)}
        assert len({one["failure_domain"] for one in members}) == HOSTS
        for host in range(1, HOSTS + 1):
            about = agents.get(host, "/v1/agent")
            assert (about["posture"], about["missing_protections"]) == ("secured", [])

    def test_probes_services_and_proxies_are_answered_and_nobody_else(agents: Deployed) -> None:
        """A probe names an address and has no token; a client has one, and names its service; a page of
        somebody else, its own name."""
        for host in range(1, HOSTS + 1):
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                page = container()[probe]["httpGet"]["path"]
                wait_until(
                    lambda host=host, page=page: agents.ask(host, page, has_token=False)[0] == 200,
                    f"{page} is 200",
                )
            assert agents.ask(host, "/v1/topics", has_token=False)[0] == 401
            assert agents.ask(host, "/v1/topics", agents.name(host))[0] == 200
            assert agents.ask(host, "/v1/topics", f"{agents.service}:7070")[0] == 200
            assert agents.ask(host, "/v1/topics", "evil.example")[0] == 403

    def test_the_health_check_of_the_image_speaks_tls(agents: Deployed) -> None:
        """Beside the agent, as the engine runs it; where no agent is it fails."""
        text = (ROOT / "ops" / "Containerfile").read_text()
        found = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])$", text, re.MULTILINE | re.DOTALL)
        assert found is not None
        _, *words = json.loads(found[1])
        for namespace, status in ((agents.network.namespace(1), 0), (None, 1)):
            inside = [] if namespace is None else ["ip", "netns", "exec", namespace]
            ran = subprocess.run(
                [*inside, sys.executable, *words],
                env={**os.environ, "SHOAL_DATA": str(agents.directory / "1")},
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert ran.returncode == status, ran.stderr

    def test_records_go_in_anywhere_and_come_out_anywhere(agents: Deployed) -> None:
        """Three replicas, one on each host."""
        for host in range(1, HOSTS + 1):
            path = "/v1/topics/t/records?timeout=20s"
            assert agents.ask(host, path, body=f"from {host}".encode())[0] == 200
        for host in range(1, HOSTS + 1):
            found = agents.get(host, "/v1/topics/t/partitions/0/records?offset=0")["records"]
            assert sorted(record["value"] for record in found) == ["from 1", "from 2", "from 3"]
