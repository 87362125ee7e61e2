"""Scenarios as command scripts with printed outcomes: testdata/*.txt.

Law of this file: read a script, run it, print what happened. To put the outcomes of today into the files, and
review them as a diff: python tests/replication/scenarios.py --rewrite

scenario_files.py says what a file looks like. The commands:

    cluster voters=3      begin; also learners=1, term=7, entries=1 (in a request), logs=0:1,1,2/1:1 (terms)
    campaign N            the election timer of N runs out
    deliver [A->B]        one round of delivery
    drop [A->B]           lose what waits
    settle                deliver until nothing is left
    pass MS               time passes for everybody
    propose N COUNT       append at N
    transfer N M          N hands over to M
    read N TOKEN          N asks for a read index
    hold N, sync N        N's disk stops answering; it has answered
    cut N, heal           nothing reaches or leaves N; everything does again
    crash N               N restarts from what its disk has
    state                 one line for each replica
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable

if __name__ == "__main__":
    TESTS = pathlib.Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(TESTS.parent), str(TESTS / "replication"), str(TESTS / "simulation")]

from raft_group import Group
from raft_sim.trace import describe

from shoal.replication.config import RaftConfig
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import Message
from tests.scenario_files import rewrite

TESTDATA = pathlib.Path(__file__).resolve().parent / "testdata"


class Script:
    """Runs commands; each gives the lines it prints."""

    def __init__(self) -> None:
        self._group = Group()

    def run(self, command: str) -> list[str]:
        """Carry one command out: the messages it made leave, or what it was asked to show."""
        name, *arguments = command.split()
        action: Callable[..., list[str] | None] = getattr(self, f"_do_{name}")
        sent_before, reads_before = len(self._group.sent), len(self._group.reads)
        try:
            shown = action(*arguments)
        except ReplicationError as error:
            return [f"{type(error).__name__}: {error}"]
        if shown is not None:
            return shown
        group = self._group
        lines = [describe(message) for message in group.sent[sent_before:]]
        return lines + [
            f"{ordinal} reads {token} at {index}" for ordinal, token, index in group.reads[reads_before:]
        ]

    def _do_cluster(self, *options: str) -> list[str]:
        given = dict(option.split("=", 1) for option in options)
        logs = {}
        for item in given.get("logs", "").split("/"):
            if item:
                ordinal, _, terms = item.partition(":")
                logs[int(ordinal)] = [int(term) for term in terms.split(",") if term]
        config = RaftConfig(
            quiet_after_ms=None, commit_notice_ms=0, max_entries_per_append=int(given.get("entries", "256"))
        )
        term = int(given["term"]) if "term" in given else None
        learners = int(given.get("learners", "0"))
        self._group = Group(int(given["voters"]), learners=learners, logs=logs, term=term, config=config)
        return self._do_state()

    def _do_state(self) -> list[str]:
        return [repr(core) for core in self._group.cores.values()]

    def _do_campaign(self, ordinal: str) -> None:
        self._group.campaign(int(ordinal))

    def _do_deliver(self, link: str = "") -> None:
        self._group.deliver(_on_link(link))

    def _do_settle(self) -> None:
        self._group.settle()

    def _do_drop(self, link: str = "") -> list[str]:
        matches = _on_link(link)
        lost = [message for message in self._group.mail if matches(message)]
        self._group.mail = [message for message in self._group.mail if not matches(message)]
        return [f"lost {describe(message)}" for message in lost]

    def _do_propose(self, ordinal: str, count: str) -> None:
        self._group.propose(int(ordinal), int(count))

    def _do_pass(self, duration_ms: str) -> list[str]:
        self._group.pass_time(int(duration_ms))
        return self._do_state()

    def _do_hold(self, ordinal: str) -> list[str]:
        self._group.held.add(int(ordinal))
        return []

    def _do_sync(self, ordinal: str) -> None:
        self._group.release(int(ordinal))
        self._group.drain(int(ordinal))

    def _do_cut(self, ordinal: str) -> list[str]:
        self._group.cut.add(int(ordinal))
        return []

    def _do_heal(self) -> list[str]:
        self._group.cut.clear()
        return []

    def _do_transfer(self, ordinal: str, target: str) -> None:
        self._group.cores[int(ordinal)].transfer_leadership(ReplicaId(0, int(target)), self._group.now_ms)
        self._group.drain(int(ordinal))

    def _do_read(self, ordinal: str, token: str) -> None:
        self._group.cores[int(ordinal)].read_index(int(token), self._group.now_ms)
        self._group.drain(int(ordinal))

    def _do_crash(self, ordinal: str) -> list[str]:
        core = self._group.restart(int(ordinal))
        return [repr(core)]


def _on_link(link: str) -> Callable[[Message], bool]:
    sender, _, receiver = link.partition("->")

    def matches(message: Message) -> bool:
        return sender in ("", str(message.sender.index)) and receiver in ("", str(message.receiver.index))

    return matches


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(__doc__)
    rewrite(TESTDATA, Script)
