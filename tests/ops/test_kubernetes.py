"""ops/kubernetes: manifests as Kubernetes wants them, which fit each other and the agent."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import shutil
import subprocess
from typing import Any

import pytest
import typer.main

from shoal import __version__
from shoal.agent.cli.main import app
from shoal.agent.cli.secure.store import CONFIGURATION
from shoal.agent.config import AgentConfig
from tests.ops.kubernetes_files import (
    DIRECTORY,
    NAMESPACE,
    command_of,
    container,
    manifest,
    manifests,
    mistakes,
    name_of,
    pods,
    secure_words,
)

KUBERNETES_VERSIONS = ("1.30", "1.34")
"""The schemas of the oldest and of a recent one, where the package kubernetes-validate is installed."""


def configurations() -> list[AgentConfig]:
    """What each pod's command comes to, by the command line itself."""
    command: Any = typer.main.get_command(app)
    made = []
    for number, pod in enumerate(pods()):
        name, *arguments = command_of(pod, f"node-{number}")
        context = command.commands[name].make_context(name, arguments)
        given = {name: value for name, value in context.params.items() if name not in ("config", "check")}
        made.append(AgentConfig.from_sources(given))
    return made


@pytest.mark.parametrize("document", manifests(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_manifest_has_the_structure_of_its_kind(document: dict[str, Any]) -> None:
    """No unknown field, no missing one, no value of another type; by the published schemas where they are."""
    assert mistakes(document) == []
    if importlib.util.find_spec("kubernetes_validate") is not None:
        published: Any = importlib.import_module("kubernetes_validate")
        for version in KUBERNETES_VERSIONS:
            published.validate(document, version, strict=True)


def test_mistakes_are_found() -> None:
    """A field that does not exist, one of another type, one that is missing, a kind of another version."""
    good = manifest("StatefulSet")
    assert mistakes(good) == []
    bad = copy.deepcopy(good)
    bad["spec"]["replica"] = 3
    bad["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "7070"
    bad["spec"]["template"]["spec"]["securityContext"]["seccompProfile"] = {"type": "Default"}
    del bad["spec"]["serviceName"]
    assert [one.partition(":")[0] for one in mistakes(bad)] == [
        "StatefulSet.spec",
        "StatefulSet.spec",
        "StatefulSet.spec.template.spec.securityContext.seccompProfile.type",
        "StatefulSet.spec.template.spec.containers[0].ports[0].containerPort",
    ]
    assert mistakes(good | {"apiVersion": "apps/v1beta1"}) == [
        "StatefulSet of apps/v1beta1 is not known here"
    ]


def test_services_and_policies_choose_the_pods_and_their_ports() -> None:
    """By the labels and the names of ports that the pods have."""
    stateful = manifest("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    ports = {
        (port["name"], port.get("protocol", "TCP")): port["containerPort"] for port in container()["ports"]
    }
    assert ports == {("http", "TCP"): 7070, ("gossip", "TCP"): 7946, ("gossip-udp", "UDP"): 7946}
    assert stateful["selector"]["matchLabels"] == labels
    agents, clients = manifest("Service", "shoal-agents")["spec"], manifest("Service")["spec"]
    for service in (agents, clients):
        assert service["selector"] == labels
        for port in service["ports"]:
            assert ports[port["targetPort"], port.get("protocol", "TCP")] == port["port"]
    assert stateful["serviceName"] == "shoal-agents"
    assert agents["clusterIP"] == "None"
    assert agents["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in clients
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    policy = manifest("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    among, from_clients = policy["ingress"]
    assert among["from"][0]["podSelector"]["matchLabels"] == labels
    assert {(port["port"], port.get("protocol", "TCP")) for port in among["ports"]} == set(ports)
    assert [port["port"] for port in from_clients["ports"]] == ["http"]
    labelled = {"matchLabels": {"shoal-client": "true"}}
    assert from_clients["from"] == [{"namespaceSelector": {}, "podSelector": labelled}]
    assert among["from"] == [{"podSelector": {"matchLabels": labels}}], "agents are in one namespace"


def test_the_pods_are_agents_that_find_each_other_by_name() -> None:
    """The command line takes what they are given; each is told all names, its own among them, and waits for
    as many agents as there are pods."""
    made = configurations()
    names = [name_of(pod) for pod in pods()]
    assert [config.advertised_name for config in made] == names
    service = manifest("Service")["metadata"]["name"]
    for config, pod in zip(made, pods(), strict=True):
        assert config.seeds == tuple((name, 7946) for name in names)
        assert config.expect == len(names)
        assert (config.name, config.http_port, config.gossip_port) == (pod, 7070, 7946)
        assert {service, f"{service}.{NAMESPACE}", f"{service}.{NAMESPACE}.svc"} <= set(
            config.http.allowed_hosts
        )
        (data,) = (one for one in container()["volumeMounts"] if one["name"] == "data")
        assert config.data == data["mountPath"]
    assert len({config.failure_domain for config in made}) == len(made)


def test_the_secret_has_what_secures_the_pods() -> None:
    """Made by one command, whose certificate names each pod and the service; probes speak TLS."""
    words = secure_words()
    named = {word for flag, word in itertools.pairwise(words) if flag == "--address"}
    service = manifest("Service")["metadata"]["name"]
    assert named == {service, f"{service}.{NAMESPACE}.svc", *map(name_of, pods())}
    assert words[words.index("--cluster") + 1] == configurations()[0].cluster
    (mount,) = (one for one in container()["volumeMounts"] if one["name"] == "secured")
    assert f"--config={mount['mountPath']}/{CONFIGURATION}" in container()["args"]
    assert "--insecure" not in container()["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container()[probe]["httpGet"]["scheme"] == "HTTPS"


def test_a_pod_has_the_time_the_rights_and_the_volumes_that_an_agent_needs() -> None:
    """It leaves before it is killed, probes ask for pages that there are, and nothing but data is written."""
    stateful = manifest("StatefulSet")["spec"]
    pod = stateful["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] * 1_000 > 2 * configurations()[0].shutdown_timeout_ms
    assert container()["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container()["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container()["readinessProbe"]["httpGet"]["path"] == "/readyz"
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in stateful["volumeClaimTemplates"]}
    assert {one["name"] for one in container()["volumeMounts"]} == volumes
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    assert container()["image"] == f"shoal:{__version__}"
    assert pod["enableServiceLinks"] is False, "names of services would be variables, such as SHOAL_HTTP_PORT"


def test_kustomize_takes_the_directory() -> None:
    """Where kubectl is installed; everywhere, it lists every file that is there."""
    listed = {"kustomization.yaml"} | {
        path.name
        for path in DIRECTORY.glob("*.yaml")
        if path.name in (DIRECTORY / "kustomization.yaml").read_text()
    }
    assert listed == {path.name for path in DIRECTORY.glob("*.yaml")}
    if (kubectl := shutil.which("kubectl")) is not None:
        done = subprocess.run(
            [kubectl, "kustomize", str(DIRECTORY)], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\nkind: ") + done.stdout.startswith("kind: ") == len(manifests())
