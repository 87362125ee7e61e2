"""ops/nginx.conf and ops/Caddyfile: read as their programs do, and held against what an agent needs."""

from __future__ import annotations

import datetime
import pathlib
import re
import shutil
import subprocess
import tomllib
from typing import Any

import pytest

from shoal.agent.config import AgentConfig
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.tls.authority import Authority, make_authority

OPS = pathlib.Path(__file__).resolve().parents[2] / "ops"
NAME = "shoal.example.com"

Block = list[tuple[list[str], Any]]
"""Of a configuration of nginx: the words of each line, and the block behind them or None."""


def nginx(text: str) -> Block:
    """As nginx reads it. Raises ValueError for what is no such text."""
    tokens = re.findall(r"#[^\n]*|\"(?:[^\"\\]|\\.)*\"|[{};]|[^\s{};\"#]+", text)
    return _block(iter([token for token in tokens if not token.startswith("#")]), is_top=True)


def _block(tokens: Any, *, is_top: bool) -> Block:
    found: Block = []
    words: list[str] = []
    for token in tokens:
        if token == "{" and words:
            found.append((words, _block(tokens, is_top=False)))
            words = []
        elif token == ";" and words:
            found.append((words, None))
            words = []
        elif token == "}" and not words and not is_top:
            return found
        elif token in "{};":
            raise ValueError(f"{token} behind {words}")
        else:
            words.append(token.strip('"'))
    if words or not is_top:
        raise ValueError("it ends in the middle")
    return found


def below(block: Block, *words: str) -> Block:
    """The block of a line."""
    (found,) = (inside for line, inside in block if line == list(words))
    assert isinstance(found, list)
    return found


def seconds(block: Block, name: str) -> float:
    ((value,),) = ([line[1]] for line, _ in block if line[0] == name)
    assert value.endswith("s")
    return float(value[:-1])


def with_files(path: pathlib.Path, place: str, directory: pathlib.Path) -> pathlib.Path:
    """A copy of the configuration whose certificates and keys are there."""
    authority = make_authority("fish", datetime.datetime.now(datetime.UTC), 1)
    own = Authority.from_pair(authority).sign_agent("proxy", [NAME], datetime.datetime.now(datetime.UTC), 1)
    for name, content in (
        ("shoal-ca.crt", authority.certificate),
        (f"{NAME}.crt", own.certificate),
        (f"{NAME}.key", own.key),
    ):
        (directory / name).write_bytes(content)
    copy = directory / path.name
    copy.write_text(path.read_text().replace(place, f"{directory}/"))
    return copy


@pytest.mark.parametrize("text", ["a { b;", "a b", "a; }", "{ a; }", "a { b }"])
def test_what_is_no_configuration_is_found(text: str) -> None:
    """A brace or a semicolon too few or too many."""
    with pytest.raises(ValueError, match=r"behind|middle"):
        nginx(text)


def test_nginx_passes_on_what_an_agent_needs(tmp_path: pathlib.Path) -> None:
    """The Host with its port, streams and bodies as they come, no link, nobody else's forwards; it waits
    longer than any answer takes, and sends nothing twice that may have happened."""
    http = below(nginx((OPS / "nginx.conf").read_text()), "http")
    server = below(http, "server")
    assert (["server_name", NAME], None) in server
    assert (["listen", "443", "ssl"], None) in server, "tokens come this way"
    assert (["client_max_body_size", "0"], None) in server
    assert below(server, "location", "=", "/v1/peer") == [(["return", "403"], None)]
    location = below(server, "location", "/")
    for line in (
        ["proxy_pass", "https://shoal"],
        ["proxy_ssl_verify", "on"],
        ["proxy_ssl_name", NAME],
        ["proxy_http_version", "1.1"],
        ["proxy_set_header", "Connection", ""],
        ["proxy_set_header", "Host", "$http_host"],
        ["proxy_set_header", "Shoal-Forwarded-By", ""],
        ["proxy_buffering", "off"],
        ["proxy_request_buffering", "off"],
    ):
        assert (line, None) in location
    limits = HttpLimits()
    longest_s = (limits.timeout_ms + limits.wait_ms) / 1_000
    assert seconds(location, "proxy_read_timeout") > longest_s
    assert seconds(location, "proxy_send_timeout") > longest_s
    (retried,) = (line for line, _ in location if line[0] == "proxy_next_upstream")
    assert "non_idempotent" not in retried
    upstream = [line[0] for line, _ in below(http, "upstream", "shoal")]
    assert "keepalive" in upstream
    assert "zone" in upstream, "workers share what they know of the agents"
    if (program := shutil.which("nginx")) is not None:
        done = subprocess.run(
            [program, "-t", "-c", str(with_files(OPS / "nginx.conf", "/etc/nginx/", tmp_path))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_caddy_passes_on_what_an_agent_needs(tmp_path: pathlib.Path) -> None:
    """The same; Host is passed on by Caddy unless it is told otherwise."""
    text = (OPS / "Caddyfile").read_text()
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert lines[0] == [NAME, "{"]
    assert ["respond", "/v1/peer", "403"] in lines
    assert ["header_up", "-Shoal-Forwarded-By"] in lines
    assert ["flush_interval", "-1"] in lines
    assert ["health_uri", "/readyz"] in lines
    assert not any(line[:2] == ["header_up", "Host"] for line in lines)
    assert ["tls_server_name", NAME] in lines
    assert text.count("{") == text.count("}") == 3
    if (program := shutil.which("caddy")) is not None:
        done = subprocess.run(
            [
                program,
                "validate",
                "--config",
                str(with_files(OPS / "Caddyfile", "/etc/caddy/", tmp_path)),
                "--adapter",
                "caddyfile",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_example_of_bare_hosts_takes_the_proxys_name() -> None:
    """A configuration that the agent takes, known by names, each of them a seed."""
    config = AgentConfig.from_sources({}, {}, tomllib.loads((OPS / "shoal.toml").read_text()))
    assert config.advertised_name == "shoal-1.example.com"
    assert [host for host, _ in config.seeds] == [f"shoal-{number}.example.com" for number in (1, 2, 3)]
    assert config.http.allowed_hosts == (NAME,)
    assert config.expect == 3
