"""ops/Containerfile and ops/compose.yml: built where there is an engine, and read as text everywhere."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import typer
import yaml

from shoal import __version__
from shoal.agent.cli.main import app
from shoal.agent.config import AgentConfig
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.tls.contexts import make_contexts
from shoal.agent.tls.names import names_host
from tests.ops.found_tools import ENGINE

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
AGENTS = ("herring", "sardine", "anchovy")

BUILD_SECONDS = 3_000


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each, with continued lines joined."""
    text = (OPS / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [
        (line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line and not line.startswith("#")
    ]


def compose() -> dict[str, Any]:
    document = yaml.safe_load((OPS / "compose.yml").read_text())
    assert isinstance(document, dict)
    return document


def names_a_version(image: str) -> bool:
    """A tag with a number of two parts at least; not `latest`, and not none."""
    return re.search(r":v?\d+\.\d+", image) is not None


# ---- the image ---------------------------------------------------------------------------------------


def test_the_image_is_made_of_versions_and_of_what_is_here() -> None:
    """Each base image has a version; each copied path is in the repository, and all packages are copied."""
    stages, copied = set(), set()
    for name, arguments in instructions():
        if name == "FROM":
            image, _, stage = arguments.partition(" AS ")
            assert names_a_version(image) or image in stages, image
            stages.add(stage)
        elif name == "COPY" and "--from=" not in arguments:
            copied.update(word for word in arguments.split()[:-1] if not word.startswith("--"))
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert {"agent", "membership", "replication", "segment_store", "shoal"} <= copied
    assert {"README.md", "LICENSE", "setup.cfg", "pyproject.toml", "pyspark_shoal.py"} <= copied
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert not ignored & {path.split("/")[0] for path in copied}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "build-system" in build


def test_the_agents_image_runs_as_nobody_special_with_one_volume() -> None:
    """Its last stage is the agent; it has a health check, and a command that the agent takes."""
    names = [name for name, _ in instructions()]
    last = dict(instructions()[len(names) - 1 - names[::-1].index("FROM") :])
    assert last["USER"] == "7070:7070"
    assert last["VOLUME"] == "/var/lib/shoal"
    assert "SHOAL_DATA=/var/lib/shoal" in last["ENV"]
    assert json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"]) == ["shoal", "agent"]
    program, _, check = last["HEALTHCHECK"].partition("CMD ")
    assert "--interval" in program
    compile(json.loads(check)[2], "health check", "exec")
    assert "/livez" in check
    python = re.search(r"python:(\d+)\.(\d+)", (OPS / "Containerfile").read_text())
    assert python is not None
    assert (3, 11) <= (int(python[1]), int(python[2])) <= (3, 13)


# ---- compose -----------------------------------------------------------------------------------------


def test_compose_names_versions_files_and_volumes_that_are_there() -> None:
    """Nothing is `latest`, nothing is mounted that does not exist, and ports are this machine's alone."""
    document = compose()
    services = document["services"]
    assert set(services) == {*AGENTS, "prometheus", "grafana", "notebook", "secrets", "principals"}
    stages = {arguments.partition(" AS ")[2] for name, arguments in instructions() if name == "FROM"}
    for name, service in services.items():
        assert names_a_version(service["image"]), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (OPS / source).exists(), source
            else:
                assert source in document["volumes"]
        if "build" in service:
            assert service["build"]["target"] in stages
            assert service["image"].endswith(f":{__version__}")


def test_compose_agents_are_one_cluster() -> None:
    """Their commands make configurations; they have each other's names, which are those of the services, and
    failure domains apart. No address is written down: a service may have another one after each start."""
    services = compose()["services"]
    command = typer.main.get_command(app).commands["agent"]  # type: ignore[attr-defined]
    configs = []
    for name in AGENTS:
        word, *arguments = services[name]["command"]
        assert word == "agent"
        context = command.make_context("agent", list(arguments))
        given = {
            key: value for key, value in context.params.items() if value and key not in ("config", "check")
        }
        assert context.params["config"] == "/etc/shoal/shoal.toml"
        assert f"{name}-files:/etc/shoal:ro" in services[name]["volumes"]
        config = AgentConfig.from_sources({**given, "data": "/var/lib/shoal", "cluster": "fish"})
        assert config.name == config.advertise == name
        HostPolicy(f"http://{config.advertise}:7070").check(
            f"{name}:7070", None
        )  # raises for a name not its own
        configs.append(config)
    written = set(re.findall(r"\d+\.\d+\.\d+\.\d+", (OPS / "compose.yml").read_text()))
    assert written == {"0.0.0.0", "127.0.0.1"}
    addresses = {(config.advertise, 7946) for config in configs}
    assert len(addresses) == 3
    assert all(set(config.seeds) == addresses and config.expect == 3 for config in configs)
    assert {config.cluster for config in configs} == {"fish"}
    assert len({config.failure_domain for config in configs}) == 3
    grace = services["herring"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > 2 * configs[0].shutdown_timeout_ms / 1_000


def test_prometheus_and_the_notebook_know_the_agents() -> None:
    """By the names of their services, which are those that they answer to."""
    services = compose()["services"]
    urls = [f"https://{name}:7070" for name in AGENTS]
    for one in ("notebook", "principals"):
        assert services[one]["environment"]["SHOAL_AGENT"].split(",") == urls
    scraped = yaml.safe_load((OPS / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert [f"{job['scheme']}://{target}" for target in job["static_configs"][0]["targets"]] == urls
    mounts = services["prometheus"]["volumes"] + services["grafana"]["volumes"]
    inside = {mount.split(":")[1] for mount in mounts}
    assert set(scraped["rule_files"]) <= inside
    source = yaml.safe_load((OPS / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((OPS / "grafana" / "dashboards.yml").read_text())["providers"]
    assert f"{provider['options']['path']}/shoal.json" in inside


def script(service: str) -> str:
    """Of a service that ends, with its dollars as the shell sees them."""
    found = compose()["services"][service]
    assert found["entrypoint"] == ["/bin/sh", "-euc"]
    (text,) = found["command"]
    return str(text).replace("$$", "$")


def test_the_files_of_compose_are_made_once_and_fit(tmp_path: pathlib.Path) -> None:
    """The service's own script, in directories of the test: each agent's configuration works, and a second
    run changes nothing."""
    programs = tmp_path / "bin"
    holders = (*AGENTS, "prometheus", "notebook", "operator")
    for place in (programs, tmp_path / "secrets", *(tmp_path / "files" / name for name in holders)):
        place.mkdir(parents=True)
    for name, line in (("shoal", f'exec {sys.executable} -m shoal.agent "$@"'), ("chown", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    text = script("secrets")
    for place in ("/secrets", "/files"):
        text = text.replace(f" {place}", f" {tmp_path}{place}")
    made = []
    for _ in range(2):
        subprocess.run(
            ["/bin/sh", "-euc", text],
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            cwd=ROOT,
            check=True,
            timeout=120,
            capture_output=True,
        )
        files = sorted((tmp_path / "files").glob("*/*"))
        made.append([(path, path.read_bytes()) for path in files])
    assert made[0] == made[1]
    for name in AGENTS:
        directory = tmp_path / "files" / name
        config = ConfigSource({}, {}, str(directory / "shoal.toml")).read()
        contexts = make_contexts(config.tls, config.cluster)
        assert names_host(contexts.certificate, name)
        assert not (directory / "authority.key").exists()
        assert config.asks_for_credentials
    scraped = yaml.safe_load((OPS / "prometheus.yml").read_text())["scrape_configs"][0]["tls_config"]
    assert {pathlib.Path(path).name for path in scraped.values()} == {
        path.name for path in (tmp_path / "files" / "prometheus").iterdir()
    }
    assert (tmp_path / "files" / "operator" / "first.token").read_text().startswith("shoal_")
    for line in script("principals").splitlines():
        words = shlex.split(line)[1:]
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)


def test_the_notebooks_cells_are_python() -> None:
    """A document of the fourth notebook format."""
    notebook = json.loads((OPS / "notebook" / "shoal.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 3
    for cell in cells:
        compile(cell, "cell", "exec")
    assert any('format("shoal")' in cell for cell in cells)


def test_commands_in_the_files_name_themselves() -> None:
    """The comments say commands that fit the files."""
    first = (OPS / "Containerfile").read_text().splitlines()[0].lstrip("# ")
    words = shlex.split(first.split("  ")[0])
    assert words[words.index("-f") + 1] == "ops/Containerfile"
    assert f"shoal:{__version__}" in words


if ENGINE is not None:

    @pytest.mark.slow
    @pytest.mark.timeout(BUILD_SECONDS)
    def test_the_image_is_built_and_runs() -> None:
        """It shows its version, and checks a start as the user it runs as."""
        assert ENGINE is not None
        tag = "shoal-test:build"
        built = [ENGINE, "build", "-f", "ops/Containerfile", "-t", tag, "."]
        ran = subprocess.run(
            built, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
        assert ran.returncode == 0, ran.stderr[-4_000:]
        for arguments, said in ((["version"], __version__), (["agent", "--check"], "ok      directory")):
            started = [ENGINE, "run", "--rm", tag, *arguments]
            shown = subprocess.run(started, capture_output=True, text=True, timeout=120, check=True)
            assert said in shown.stdout
