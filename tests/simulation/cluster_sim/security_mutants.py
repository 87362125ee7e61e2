"""Deliberate faults in what agents know of principals, roles and tokens, and in what they tell of changes;
mutants.py runs them."""

from __future__ import annotations

import os
from typing import Any

from shoal.agent.audit import post
from shoal.agent.audit.post import AuditPost
from shoal.agent.http.core import doorkeeper
from shoal.agent.http.core.doorkeeper import Doorkeeper
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.principals import TOKENS_MAX, Security
from shoal.agent.topics import catalog
from shoal.agent.topics.catalog_service import CatalogService
from shoal.format.batch import ProducerStamp

Patch = tuple[Any, str, Any]


def remember_verdicts_too_long() -> list[Patch]:
    """The fast ways let in whom they have let in before, whatever has changed since."""

    def look(self: Doorkeeper) -> None:
        self._now_ms = doorkeeper.wall_ms()

    return [(Doorkeeper, "_look", look)]


def judge_by_the_state_before_a_crash() -> list[Patch]:
    """An agent that has just started asks nobody what it has missed."""

    async def become_current(self: CatalogService) -> None:
        self.is_current = True
        self._watch.changed()

    return [(CatalogService, "_become_current", become_current)]


def lose_a_revocation_in_a_copy() -> list[Patch]:
    """A state has the tokens that were written last, revoked or not, in files and in copies for peers."""
    written = catalog.state_document
    first: dict[str, list[Any]] = {}

    def mutated(state: Security) -> dict[str, Any]:
        document = written(state)
        for item in document["principals"]:
            known = first.setdefault(item["name"], [])
            known += [token for token in item["tokens"] if token not in known]
            item["tokens"] = known[-TOKENS_MAX:]
        return document

    return [(catalog, "state_document", mutated)]


def depose_the_last_administrator() -> list[Patch]:
    """Nobody looks whether another one is left."""
    return [(Security, "_is_last", lambda *_: False)]


def leave_changes_to_the_leader() -> list[Patch]:
    """Who does not lead the catalog forgets what it was told."""
    write = AuditPost._write_changes

    async def mutated(self: AuditPost, trail: AuditTrail) -> None:
        if self._catalog.leader() != self._peers.agent_id:
            trail.changes.clear()
        await write(self, trail)

    return [(AuditPost, "_write_changes", mutated)]


def tell_of_a_change_as_if_alone() -> list[Patch]:
    """Each agent writes changes as its own, so that nobody knows which stand there."""
    return [(post, "change_stamp", lambda _: ProducerStamp(os.urandom(16), 0, 0))]
