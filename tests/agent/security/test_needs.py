"""Needs: each kind of thing has its own actions, and a table that asks for others does not build."""

from __future__ import annotations

import itertools

import pytest

from shoal.agent.security.access import ANONYMOUS, OpenAccess, Proof
from shoal.agent.security.needs import ACTIONS, Action, ResourceKind, need


def test_an_action_belongs_to_its_kinds() -> None:
    """Every pair either is a need with a name of its own, or is refused."""
    named = set()
    for kind, action in itertools.product(ResourceKind, Action):
        if action in ACTIONS[kind]:
            named.add(str(need(kind, action)))
        else:
            with pytest.raises(ValueError, match=f"{kind} has no action {action}"):
                need(kind, action)
    assert len(named) == sum(map(len, ACTIONS.values()))
    assert {action for actions in ACTIONS.values() for action in actions} == set(Action)


def test_an_open_agent_asks_nobody() -> None:
    """Whatever is shown, and nothing, is the same identity there."""
    access = OpenAccess()
    assert not access.is_on
    for authorization in (None, "Bearer nonsense"):
        identity = access.identify(authorization, None, 0)
        assert identity.principal == ANONYMOUS
        assert identity.proof is Proof.OPEN
        assert access.may(identity, need(ResourceKind.CLUSTER, Action.ADMIN), "")
