"""The asker of a change of the security state, and the change's place in the catalog's log: plain values."""

from __future__ import annotations

from typing import Final, NamedTuple

ASKED_CHARACTERS_MAX: Final = 256

Place = tuple[int, int]
"""Epoch and offset of a command of the catalog's log; of no two the same."""


class AskedBy(NamedTuple):
    """The asker of a change, for the audit. `address`: the other end of the connection. `at_ms`: wall clock
    of the agent that was asked. `request`: the id of the request."""

    principal: str
    proof: str
    address: str
    at_ms: int
    request: str
