"""docs/security.md: its commands secure three hosts, whose agents would believe each other."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil

import pytest

from shoal.agent.cli.main import main
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.tls.authority import Authority, Pair
from shoal.agent.tls.contexts import make_contexts

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "security.md"


def commands() -> list[list[str]]:
    """Of the block that is marked so."""
    block = re.search(r"<!-- run: three hosts -->\n((?:    .*\n)+)", PAGE.read_text())
    assert block is not None
    return [shlex.split(line) for line in block[1].splitlines()]


def copied(words: list[str], network: pathlib.Path) -> None:
    """As cp and scp copy a directory; each host is a directory here."""
    program, options, source, target = words
    assert options == "-rp"
    host, _, path = target.rpartition(":")
    assert bool(host) == (program == "scp")
    shutil.copytree(source, network / (host or "10.0.0.1") / path.lstrip("/"))


def test_six_commands_secure_three_hosts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but for where a host is. Each has one authority, one key of gossip, and its own name and
    addresses; its files work together."""
    monkeypatch.chdir(tmp_path)
    assert len(commands()) == 6
    for words in commands():
        if words[0] == "shoal":
            assert main(words[1:]) == 0
        else:
            copied(words, tmp_path / "network")
    addresses, keys, seeds = [], set(), set()
    for host in sorted((tmp_path / "network").iterdir()):
        source = ConfigSource({}, {}, str(host / "etc" / "shoal" / "shoal.toml"))
        config = source.settle(source.file())
        addresses.append(config.advertised_host)
        assert config.advertised_host == host.name
        assert config.cluster == "fish"
        contexts = make_contexts(config.tls, config.cluster)
        authority = Authority.from_pair(
            Pair(contexts.files.ca, (tmp_path / "secrets" / "authority.key").read_bytes())
        )
        assert authority.has_signed(contexts.files.cert)
        assert config.pool.gossip_key is not None
        keys.add(pathlib.Path(config.pool.gossip_key[1:]).read_text())
        seeds.update(address for address, _ in config.seeds)
    assert addresses == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert len(keys) == 1
    assert seeds == {"10.0.0.1", "10.0.0.2"}
