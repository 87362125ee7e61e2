"""An agent's log, read as programs read it: a JSON document a line, each held against the schema."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from real_agents import wait_until

from shoal.agent.log_lines.schema import faults_of


def documents(agent: Any) -> list[dict[str, Any]]:
    """Every whole line. Fails where one is none of the schema."""
    text = pathlib.Path(agent.log).read_text()
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise AssertionError(f"{agent.name} logged what is no JSON: {line!r}") from None
        assert faults_of(found[-1]) == [], line
        assert found[-1].get("agent", agent.name).startswith(agent.name), line
    return found


def lines(agent: Any, start: str = "") -> list[str]:
    """The messages that begin so."""
    said = [str(document["message"]) for document in documents(agent)]
    return [line for line in said if line.startswith(start)]


def told(agent: Any, start: str, *, what: str = "") -> list[str]:
    """Waits for the first such line."""
    return list(wait_until(lambda: [line for line in lines(agent, start) if what in line], f"{start} {what}"))


def events(agent: Any, event: str) -> list[dict[str, Any]]:
    """The lines of an event."""
    return [document for document in documents(agent) if document["event"] == event]
