"""What ops/ says, done: pods' commands and the configuration of bare hosts, on hosts of their own with names.

Where no network namespace can be made this module holds no test but says so.
"""

from __future__ import annotations

import base64
import os
import pathlib
import re
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator

import cluster as local
import pytest
from namespaces import NamedAgents, agents_on_a_network, why_not
from real_agents import is_ready, wait_until

from tests.ops.kubernetes_files import command_of, container, name_of, pods

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTS = 3
REASON = why_not()

if REASON:
    warnings.warn(f"NO NETWORK NAMESPACES, ops/ is not carried out: {REASON}", stacklevel=1)


class Deployed(NamedAgents):
    """With a gossip key where a secret, or an operator, would put it. `service`: the name clients use."""

    service = ""

    def start(self, count: int) -> None:
        key = base64.b64encode(os.urandom(32)).decode()
        (self.directory / "gossip.key").write_text(key)
        super().start(count)

    def here(self, text: str) -> str:
        """A path of the deployment, on this machine."""
        return text.replace("@/etc/shoal/", f"@{self.directory}/")


class Pods(Deployed):
    """As the kubelet starts them, but for the image and the directory of the data."""

    service = "shoal.default.svc"

    def name(self, host: int) -> str:
        return name_of(pods()[host - 1])

    def places(self, host: int) -> list[str]:
        command = command_of(pods()[host - 1], f"node-{host}")[1:]
        return [self.here(one) for one in command if not one.startswith(("--data=", "--cluster="))]


class BareHosts(Deployed):
    """By ops/shoal.toml, with the two lines changed that differ."""

    service = "shoal.example.com"

    def name(self, host: int) -> str:
        return f"shoal-{host}.example.com"

    def places(self, host: int) -> list[str]:
        text = (ROOT / "ops" / "shoal.toml").read_text()
        for key, value in (("advertise", self.name(host)), ("failure_domain", f"rack-{host}")):
            text, count = re.subn(rf'(?m)^{key} = ".*"$', f'{key} = "{value}"', text)
            assert count == 1, key
        path = self.directory / f"{host}.toml"
        path.write_text(self.here(text))
        return ["--config", str(path)]


@pytest.fixture(scope="module", params=[Pods, BareHosts])
def agents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory: pathlib.Path = tmp_path_factory.mktemp("deployed")
    with agents_on_a_network(HOSTS, directory, request.param) as started:
        try:
            for host in range(1, HOSTS + 1):
                wait_until(lambda host=host: is_ready(started.url(host), HOSTS), f"host {host} is ready")
            yield started
        except BaseException:
            sys.stderr.write(started.logs())
            raise


def status(agents: Deployed, host: int, path: str, name: str) -> int:
    """Of a GET under a Host."""
    request = urllib.request.Request(agents.url(host) + path, headers={"Host": name})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


if not REASON:

    def test_agents_form_one_cluster_by_their_names(agents: Deployed) -> None:
        """Sealed, and each in a failure domain of its own."""
        assert len(agents.cluster_ids(HOSTS)) == 1
        listed = local.get(agents.url(1), "/v1/members")["members"]
        assert {one["url"] for one in listed} == {f"http://{agents.name(host)}:7070" for host in (1, 2, 3)}
        assert len({one["failure_domain"] for one in listed}) == HOSTS
        missing = local.get(agents.url(1), "/v1/agent")["missing_protections"]
        assert "a gossip key" not in missing

    def test_probes_services_and_proxies_are_answered_and_nobody_else(agents: Deployed) -> None:
        """A probe names an address; a client, its service; a page of somebody else, its own name."""
        for host in range(1, HOSTS + 1):
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                page = container()[probe]["httpGet"]["path"]
                address = agents.url(host).removeprefix("http://")
                wait_until(
                    lambda host=host, page=page, address=address: status(agents, host, page, address) == 200,
                    f"{page} is 200",
                )
            assert status(agents, host, "/v1/topics", agents.name(host)) == 200
            assert status(agents, host, "/v1/topics", f"{agents.service}:7070") == 200
            assert status(agents, host, "/v1/topics", "evil.example") == 403

    def test_records_go_in_anywhere_and_come_out_anywhere(agents: Deployed) -> None:
        """Three replicas, one on each host."""
        for host in range(1, HOSTS + 1):
            url = f"{agents.url(host)}/v1/topics/t/records?timeout=20s"
            request = urllib.request.Request(url, data=f"from {host}".encode(), method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
        for host in range(1, HOSTS + 1):
            found = local.get(agents.url(host), "/v1/topics/t/partitions/0/records?offset=0")["records"]
            assert sorted(record["value"] for record in found) == ["from 1", "from 2", "from 3"]
