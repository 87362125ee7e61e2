"""What a deliberate fault is, and where tests are."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`tests`: node ids; at least one of them must fail. `what`: the rule's sentence that is broken."""

    rule: int
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


A, R, S = "tests/agent/", "tests/replication/", "tests/segment_store/"
