"""The manifests of ops/kubernetes as values, their structure, and the commands that their pods run.

Law of this file: the structure is what Kubernetes documents of the fields that are used here (apps/v1, v1,
policy/v1, networking.k8s.io/v1). A field that does not stand here is a mistake, or is to be added with its
type.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import yaml

DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "ops" / "kubernetes"
NAMESPACE = "default"

Shape = Any
"""A type, a set of the texts that are allowed, [the shape of each item], or {field: its shape}; a field whose
name ends in `!` is required. {"*": shape} is a map with any keys."""

TEXTS: Shape = {"*": str}
NAME = {"name!": str, "labels": TEXTS}
SELECTOR: Shape = {"matchLabels!": TEXTS}
PORT: Shape = {"name!": str, "containerPort!": int, "protocol": {"TCP", "UDP"}}
PROBE: Shape = {
    "httpGet!": {"path!": str, "port!": str, "scheme": {"HTTP", "HTTPS"}},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
}
RESOURCES: Shape = {"requests": TEXTS, "limits": TEXTS}
CONTAINER: Shape = {
    "name!": str,
    "image!": str,
    "args": [str],
    "env": [{"name!": str, "valueFrom!": {"fieldRef!": {"fieldPath!": str}}}],
    "ports": [PORT],
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "resources": RESOURCES,
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
POD: Shape = {
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
        "seccompProfile": {"type!": {"RuntimeDefault", "Unconfined", "Localhost"}},
    },
    "topologySpreadConstraints": [
        {
            "maxSkew!": int,
            "topologyKey!": str,
            "whenUnsatisfiable!": {"DoNotSchedule", "ScheduleAnyway"},
            "labelSelector": SELECTOR,
        }
    ],
    "containers!": [CONTAINER],
    "volumes": [{"name!": str, "secret": {"secretName!": str, "defaultMode": int}}],
}
SPECS: dict[tuple[str, str], Shape] = {
    ("v1", "Service"): {
        "clusterIP": {"None"},
        "publishNotReadyAddresses": bool,
        "selector!": TEXTS,
        "ports!": [{"name!": str, "port!": int, "targetPort!": str, "protocol": {"TCP", "UDP"}}],
    },
    ("apps/v1", "StatefulSet"): {
        "serviceName!": str,
        "replicas": int,
        "podManagementPolicy": {"OrderedReady", "Parallel"},
        "minReadySeconds": int,
        "selector!": SELECTOR,
        "template!": {"metadata!": {"labels!": TEXTS}, "spec!": POD},
        "volumeClaimTemplates": [
            {"metadata!": NAME, "spec!": {"accessModes!": [str], "resources!": RESOURCES}}
        ],
    },
    ("policy/v1", "PodDisruptionBudget"): {"maxUnavailable!": int, "selector!": SELECTOR},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector!": SELECTOR,
        "policyTypes!": [str],
        "ingress!": [
            {
                "from!": [{"namespaceSelector": {"matchLabels": TEXTS}, "podSelector!": SELECTOR}],
                "ports!": [{"port!": str, "protocol": {"TCP", "UDP"}}],
            }
        ],
    },
}


def manifests() -> list[dict[str, Any]]:
    """Those that the kustomization lists, in its order."""
    listed = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())["resources"]
    found = [yaml.safe_load_all((DIRECTORY / name).read_text()) for name in listed]
    return [document for documents in found for document in documents]


def manifest(kind: str, name: str = "shoal") -> dict[str, Any]:
    """One of them."""
    (found,) = (one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def mistakes(document: dict[str, Any]) -> list[str]:
    """What is not as Kubernetes wants it."""
    spec = SPECS.get((document.get("apiVersion", ""), document.get("kind", "")))
    if spec is None:
        return [f"{document.get('kind')} of {document.get('apiVersion')} is not known here"]
    whole = {"apiVersion!": str, "kind!": str, "metadata!": NAME, "spec!": spec}
    return list(_mistakes(document, whole, document["kind"]))


def _mistakes(value: Any, shape: Shape, path: str) -> list[str]:
    if isinstance(shape, set):
        return [] if value in shape else [f"{path}: {value!r} is none of {sorted(shape)}"]
    if isinstance(shape, type):
        return [] if type(value) is shape else [f"{path}: {value!r} is no {shape.__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{path}: a list is needed"]
        return [one for i, item in enumerate(value) for one in _mistakes(item, shape[0], f"{path}[{i}]")]
    if not isinstance(value, dict):
        return [f"{path}: a map is needed"]
    if "*" in shape:
        return [one for key, item in value.items() for one in _mistakes(item, shape["*"], f"{path}.{key}")]
    fields = {name.removesuffix("!"): below for name, below in shape.items()}
    found = [
        f"{path}: {name[:-1]} is missing" for name in shape if name.endswith("!") and name[:-1] not in value
    ]
    found += [f"{path}: {key} is not a field" for key in value if key not in fields]
    return found + [
        one
        for key, item in value.items()
        if key in fields
        for one in _mistakes(item, fields[key], f"{path}.{key}")
    ]


def pods() -> list[str]:
    """Their names, in order."""
    stateful = manifest("StatefulSet")
    return [f"{stateful['metadata']['name']}-{number}" for number in range(stateful["spec"]["replicas"])]


def container() -> dict[str, Any]:
    """The agent's."""
    (found,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def command_of(pod: str, node: str) -> list[str]:
    """The arguments of `shoal` in a pod, with its variables in their places as the kubelet does it."""
    fields = {"metadata.name": pod, "metadata.namespace": NAMESPACE, "spec.nodeName": node}
    values = {one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container()["env"]}
    return [re.sub(r"\$\(([A-Z_]+)\)", lambda found: values[found[1]], text) for text in container()["args"]]


def name_of(pod: str) -> str:
    """Under which the headless service makes a pod known."""
    return f"{pod}.{manifest('StatefulSet')['spec']['serviceName']}.{NAMESPACE}.svc"


def secure_words() -> list[str]:
    """The arguments of `shoal` that make the secret, as kustomization.yaml says them."""
    lines = (DIRECTORY / "kustomization.yaml").read_text().splitlines()
    text = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    found = re.search(r"shoal (secure init .*?) kubectl create secret generic (\S+) --from-file=(\S+)", text)
    assert found is not None
    words = found[1].split()
    (volume,) = (
        one for one in manifest("StatefulSet")["spec"]["template"]["spec"]["volumes"] if "secret" in one
    )
    assert volume["secret"]["secretName"] == found[2]
    assert found[3] == f"secrets/hosts/{words[words.index('--name') + 1]}"
    return words
