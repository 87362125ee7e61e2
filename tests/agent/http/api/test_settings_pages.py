"""The pages about settings, topics and commands say what the code says."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import tomllib
from typing import Any

import command_reference
import pytest

from shoal.agent.cli.agent import agent
from shoal.agent.config import READERS, AgentConfig
from shoal.agent.interface import MAX_PARTITIONS, MAX_REPLICATION_FACTOR
from shoal.agent.topics.settings import TopicSettings

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
    """With its variable, its flag if it has one, and its default."""
    rows = table("settings.md", "setting")
    assert [row[0] for row in rows] == list(READERS)
    flags = set(inspect.signature(agent).parameters) - {"config"}
    for name, variable, flag, default, meaning in rows:
        assert variable == f"SHOAL_{name.upper()}"
        assert flag == (f"--{name.replace('_', '-')}" if name in flags else ""), name
        assert meaning
        field = name if name in AgentConfig.__dataclass_fields__ else f"{name}_ms"
        is_empty = name == "data" or getattr(AgentConfig("d"), field) in (None, ())
        assert (default == "") == is_empty, name
        if default:
            assert READERS[name](default) == getattr(AgentConfig("d"), field), name


def test_the_example_file_is_a_configuration() -> None:
    """Every line of it is taken, by `--config` as by the reader here."""
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "settings.md").read_text(), re.DOTALL)
    config = AgentConfig.from_sources({}, {}, tomllib.loads(text))
    assert (config.cluster, config.expect, config.replace_after_ms) == ("fish", 3, 3_600_000)
    assert len(config.seeds) == 3


def test_every_setting_of_a_topic_is_listed() -> None:
    """With its default; a number of the page is the code's."""
    rows = {row[0]: row for row in table("operations.md", "in JSON")}
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
        assert rows[name][2].split(":")[0] == json.dumps(value).strip('"'), name
    assert f"1 to {MAX_PARTITIONS};" in rows["partitions"][3]
    assert f"1 to {MAX_REPLICATION_FACTOR}," in rows["replication_factor"][3]


def test_the_page_of_commands_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: `python scripts/command_reference.py` writes the page anew."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (DOCS / "commands.md").read_text() == command_reference.render()
