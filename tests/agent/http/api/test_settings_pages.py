"""The pages about settings, topics and commands say what the code says."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import tomllib
from typing import Any

import command_reference
import configuration_reference
import pytest

from shoal.agent.cli.agent import agent
from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.interface import MAX_PARTITIONS, MAX_REPLICATION_FACTOR
from shoal.agent.topics.settings import TopicSettings, changed_settings
from shoal.errors import ShoalError

DOCS = pathlib.Path(__file__).resolve().parents[4] / "docs"


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the table whose head begins so; cells without marks of code."""
    lines = iter((DOCS / page).read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def test_every_setting_of_an_agent_is_listed() -> None:
    """With its variable, its flag if it has one, and a default that reads back as the code's."""
    rows = table("configuration.md", "setting")
    assert [row[0] for row in rows] == list(SETTINGS)
    flags = set(inspect.signature(agent).parameters) - {"config"}
    for name, flag, variable, default, unit, effect, meaning in rows:
        assert variable == f"SHOAL_{name.upper()}"
        assert flag == (f"--{name.replace('_', '-')}" if name in flags else ""), name
        assert unit, name
        assert effect == SETTINGS[name].effect, name
        assert meaning.endswith("."), name
        value = SETTINGS[name].of(AgentConfig("d"))
        if name != "data" and value not in (None, ()):
            assert SETTINGS[name].read(default) == value, name
        else:
            assert bool(default) == (name != "data"), name


def test_every_variable_that_the_code_reads_is_listed() -> None:
    """Those of commands, clients and scripts too: whatever is looked up, or is named in a message."""
    text = (DOCS / "configuration.md").read_text()
    listed = set(re.findall(r"^\|.*?`(SHOAL_[A-Z_]+)`", text, re.MULTILINE))
    assert {"SHOAL_DATA", "SHOAL_AGENT", "SHOAL_CONFIG"} <= listed
    folders = (
        "agent",
        "membership",
        "replication",
        "segment_store",
        "shoal/client",
        "shoal/spark",
        "scripts",
    )
    files = [path for folder in folders for path in sorted((DOCS.parent / folder).rglob("*.py"))]
    read = {found for path in files for found in re.findall(r"[\"'](SHOAL_[A-Z_]+)[\"']", path.read_text())}
    assert "SHOAL_AGENT" in read
    ours = {"SHOAL_NODE_MISSING", "SHOAL_SERF_MISSING"}  # what scripts/test tells its own tests
    assert read - ours - listed == set()
    assert listed - read == {f"SHOAL_{name.upper()}" for name in SETTINGS} - read


def test_the_page_of_settings_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: `python scripts/configuration_reference.py` writes the page anew."""
    assert (DOCS / "configuration.md").read_text() == configuration_reference.render()
    lacking = {name: words for name, words in configuration_reference.SETTINGS.items() if name != "bind"}
    monkeypatch.setattr(configuration_reference, "SETTINGS", lacking)
    with pytest.raises(SystemExit, match="bind"):
        configuration_reference.render()


def test_the_example_file_is_a_configuration() -> None:
    """Every line of it is taken, by `--config` as by the reader here."""
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)
    config = AgentConfig.from_sources({}, {}, tomllib.loads(text))
    assert (config.cluster, config.expect, config.replace_after_ms) == ("fish", 3, 3_600_000)
    assert len(config.seeds) == 3


def test_every_setting_of_a_topic_is_listed() -> None:
    """With its default, and as one that may be changed later exactly where PATCH takes it."""
    rows = {row[0]: row for row in table("configuration.md", "in JSON")}
    document = TopicSettings().to_document()
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat |= (
            {f"{name}.{part}": one for part, one in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    assert set(rows) == set(flat)
    for name, value in flat.items():
        assert rows[name][2] == json.dumps(value).strip('"'), name
        table_name, _, part = name.partition(".")
        body = {table_name: {part: value}} if part else {table_name: value}
        try:
            changed_settings(TopicSettings(), body)
            is_fixed = False
        except ShoalError:
            is_fixed = True
        assert is_fixed == (rows[name][3] == "creation"), name
    assert f"1 to {MAX_PARTITIONS}." in rows["partitions"][4]
    assert f"1 to {MAX_REPLICATION_FACTOR}," in rows["replication_factor"][4]


def test_the_page_of_commands_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: `python scripts/command_reference.py` writes the page anew."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (DOCS / "cli.md").read_text() == command_reference.render()
