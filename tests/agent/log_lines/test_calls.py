"""Every logger call of the agent shows topics and agents by name: what a program can check of that."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from shoal.agent.log_lines.cluster_news import TEXTS
from shoal.agent.log_lines.schema import OTHER, slug

ROOT = pathlib.Path(__file__).resolve().parents[3]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
AGENT_IDS = {"agent_id", "peer", "peer_id", "holder", "leader", "follower", "receiver", "target"}
FULL_TOPIC_IDS = {"agent/topics/kept_replicas.py", "agent/topics/catalog_reconciler.py"}
"""Where a whole id is what an operator has to give to a command, or to find on the disk."""


class Call(NamedTuple):
    """`place`: file and line."""

    path: str
    place: str
    node: ast.Call


@functools.cache
def calls() -> tuple[Call, ...]:
    return tuple(_calls())


def _calls() -> Iterator[Call]:
    for path in sorted((ROOT / "agent").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "seldom"), attr=level)):
                    assert level in LEVELS, f"{name}:{node.lineno}"
                    yield Call(name, f"{name}:{node.lineno}", node)


def shows_an_id(argument: ast.expr) -> bool:
    """An agent's id that no name was looked up for, whole or cut off."""
    match argument:
        case ast.Subscript(value=value, slice=ast.Slice()):
            return shows_an_id(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in AGENT_IDS
    return False


def test_logger_calls_show_agents_by_name() -> None:
    """An agent's id goes through agent_name()."""
    found = calls()
    assert len(found) > 90, "the calls are found"
    assert [call.place for call in found if any(map(shows_an_id, call.node.args))] == []
    bad = ast.parse("logger.info('%s %s', peer[:8], member.agent_id)", mode="eval").body
    assert isinstance(bad, ast.Call)
    assert [shows_an_id(argument) for argument in bad.args] == [False, True, True]


def test_logger_calls_show_topics_by_name() -> None:
    """A topic's id goes through topic_name(), a partition is its GroupId."""
    shown = [call for call in calls() if "topic_id.hex()" in ast.unparse(call.node)]
    assert {call.path for call in shown} == FULL_TOPIC_IDS


def test_the_text_of_a_line_is_a_constant() -> None:
    """Lines of one place are counted together, and found in the code by their text."""
    assert [call.place for call in calls() if not isinstance(call.node.args[0], ast.Constant)] == []


def test_every_call_has_an_event() -> None:
    """It is stated, or its text has words for one; a text of libraries below says it too."""
    silent = [
        call.place
        for call in calls()
        if slug(str(call.node.args[0].value)) == OTHER  # type: ignore[attr-defined]
        and not any(keyword.arg == "extra" for keyword in call.node.keywords)
    ]
    assert silent == []
    below = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in ("membership", "segment_store", "replication")
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r'logger\.\w+\("%s", ', line) and '"event"' not in line
    ]
    assert below == []


def named_events() -> set[str]:
    """The events of the table for operators."""
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    table = page.partition("| event | message |")[2].partition("\n\n")[0]
    return {event for row in table.splitlines()[2:] for event in re.findall(r"`([^`]+)`", row.split("|")[1])}


def stated_events() -> set[str]:
    """Those that calls state, in the agent and in the gossip that it runs."""
    stated = set(TEXTS)
    for path in sorted([*(ROOT / "agent").rglob("*.py"), *(ROOT / "membership").rglob("*.py")]):
        stated |= set(re.findall(r'about\(\s*"([a-z-]+)"', path.read_text()))
        stated |= set(re.findall(r'extra=\{"event": "([a-z-]+)"', path.read_text()))
    return stated


def test_events_that_the_page_names_are_logged() -> None:
    """Somewhere in the code, by these words: who matches on them waits for no line that never comes."""
    logged = stated_events() | {"recovered-replicas"}
    logged |= {slug(str(call.node.args[0].value)) for call in calls()}  # type: ignore[attr-defined]
    assert len(named_events()) > 30
    assert named_events() - logged == set()


def test_events_that_calls_state_are_on_the_page() -> None:
    """A line that was given a name is one to match on."""
    assert stated_events() - named_events() == set()
