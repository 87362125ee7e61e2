"""What a rehearsal of an upgrade counts, and which version it starts."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from log_history import Append, FinalLog, History
from upgrade_report import Change, Notes, Pause, copied_wrongly, longest, pauses, silent, summary, trouble_in
from versions import LEVELLED, ROOT, VersionProblem, own_levels, version_of, version_of_levels

EVENTS = ("events", 0)


def append(producer: str, sequence: int, began_s: float, ended_s: float, outcome: str = "ok") -> Append:
    return Append(
        producer, sequence, EVENTS, (f"{producer}-{sequence}",), began_s, ended_s, outcome, sequence
    )  # type: ignore[arg-type]


APPENDS = [
    append("a", 0, 0.0, 1.0),
    append("b", 0, 0.0, 1.5),
    append("a", 1, 1.1, 4.0),
    append("b", 1, 1.6, 2.0),
    append("b", 2, 2.1, 9.0, "info"),
    append("a", 2, 4.1, 4.5),
]


def test_a_pause_is_the_wait_for_an_acknowledgement() -> None:
    """Not counting what nobody acknowledged."""
    found = pauses(APPENDS)
    assert [item.producer for item in found] == ["a", "b", "a", "b", "a"]
    assert longest(found) == Pause(pytest.approx(2.9), "a", 1.1)
    assert longest(found, 4.2) == Pause(pytest.approx(0.4), "a", 4.1)
    assert longest(found, 1.05, 1.7) == Pause(pytest.approx(2.9), "a", 1.1)
    assert longest(found, 4.6) is None
    assert longest([]) is None


def test_a_producer_that_only_repeats_old_requests_is_silent() -> None:
    """An answer to what was asked before says nothing of now."""
    assert silent(APPENDS, ["a", "b", "c"], 0.5) == ["c"]
    assert silent(APPENDS, ["a", "b"], 2.0) == ["b"]
    assert silent(APPENDS, ["a", "b"], 4.1) == ["a", "b"]


def test_each_change_names_who_waited_longest_meanwhile() -> None:
    """A pause that reaches into a change counts for it."""
    changes = [
        Change("herring", "later", 3.9, 4.4, 0.25),
        Change("sardine", "later", 5.0, 6.0, 0.5),
    ]
    assert summary(changes, pauses(APPENDS)) == [
        "herring -> later: 0.5 s, stopped in 0.2 s; a waited 2.90 s",
        "sardine -> later: 1.0 s, stopped in 0.5 s; nobody waited",
    ]


def test_a_stream_that_loses_doubles_or_invents_is_found() -> None:
    """Each value of the source stands once in the copy, in whichever partition."""
    source = [FinalLog(EVENTS, "x", 0, ((0, "one"), (1, "two"), (2, "three")))]
    whole = [
        FinalLog(("copied", 0), "x", 0, ((0, "three"),)),
        FinalLog(("copied", 1), "x", 0, ((0, "one"), (1, "two"))),
    ]
    assert copied_wrongly(source, whole) == []
    wrong = [FinalLog(("copied", 0), "x", 0, ((0, "one"), (1, "one"), (2, "four"), (3, "three")))]
    assert copied_wrongly(source, wrong) == [
        "the stream's copy has 1 records missing: two",
        "the stream's copy has 1 records twice: one",
        "the stream's copy has 1 records from nowhere: four",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-23 12:00:00 ERROR shoal.agent events/0: stopped",
        "Traceback (most recent call last):",
        '{"ts":"2026-11-23T12:00:00Z","level":"error","message":"stopped"}',
    ],
)
def test_trouble_in_a_log_is_found_in_either_form(line: str) -> None:
    """Text and JSON lines; a name that contains the word is none."""
    calm = "12:00 INFO ready: http://127.0.0.1:7070 (ERRORS-1, cluster x)\n"
    assert trouble_in(calm) == []
    assert trouble_in(calm + line + "\n" + calm) == [line]


def test_lines_of_the_library_become_history() -> None:
    """An append, a read, the file of the library, an error; any other line is refused."""
    notes = Notes(History(), "events")
    notes.add(json.dumps(["library", "/x/shoal/__init__.py"]))
    notes.add(json.dumps(["append", "l.0", 4, 0, ["v1", "v2"], 1.0, 1.5, 7]))
    notes.add(json.dumps(["poll", "l.nearest", True, 0, 7, [[7, "v1"], [8, "v2"]], 9, 1.6, 1.7]))
    notes.add(json.dumps(["error", "Unreachable: nobody"]))
    assert notes.history.appends == [Append("l.0", 4, EVENTS, ("v1", "v2"), 1.0, 1.5, "ok", 7)]
    [poll] = notes.history.polls
    assert (poll.offset, poll.records, poll.next_offset) == (7, ((7, "v1"), (8, "v2")), 9)
    assert not poll.linearizable
    assert (notes.library, notes.errors) == ("/x/shoal/__init__.py", ["Unreachable: nobody"])
    with pytest.raises(ValueError, match="another kind"):
        notes.add(json.dumps(["guess", 1]))


def test_a_checkout_runs_its_own_code(tmp_path: pathlib.Path) -> None:
    """A directory without Shoal would run what is installed: it is refused by name."""
    assert version_of("this", ROOT).levels == own_levels()
    (tmp_path / "empty").mkdir()
    with pytest.raises(VersionProblem, match=r"would run instead of the code in .*empty"):
        version_of("nothing", tmp_path / "empty")
    broken = tmp_path / "broken" / "shoal"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('half a checkout')\n")
    with pytest.raises(VersionProblem, match=r"does not run here: .*half a checkout"):
        version_of("broken", tmp_path / "broken")


def test_an_agent_of_levels_has_them_everywhere() -> None:
    """The list is changed before anything has read it, and a later level has an addition."""
    lowest, highest = own_levels()
    version = version_of_levels(lowest, highest + 1)
    assert version.words == f"{lowest} to {highest + 1}"
    question = f"""
import sys; sys.path.insert(0, {str(LEVELLED.parent)!r})
import agent_of_levels
agent_of_levels.understand("{lowest}-{highest + 1}")
from shoal.agent import agent, levels
from shoal.agent.peers.terms import LinkTerms
from shoal.agent.topics.catalog import ChangeTopic
from shoal.agent.topics.catalog_codec import level_of_command
from shoal.agent.topics.settings import TopicSettings
change = ChangeTopic(bytes(16), TopicSettings(partitions=1, replication_factor=1))
print(agent.SUPPORTED, LinkTerms().levels, levels.SUPPORTED, level_of_command(change))
"""
    said = subprocess.run(
        [sys.executable, "-P", "-c", question], capture_output=True, text=True, timeout=100, check=False
    )
    understood = f"{lowest}-{highest + 1}"
    assert said.stdout.split() == [*([understood] * 3), str(highest + 1)], said.stderr
