"""Rules: read, written, compared with what is asked; prefixes at their edges; the roles that are built in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.agent.security.needs import ACTIONS, Action, Need, ResourceKind, need
from shoal.agent.security.rules import (
    RULES_MAX,
    Resource,
    Rule,
    RuleError,
    allowed,
    built_in_role,
    check_role_name,
    rule_from_text,
    rules_from_texts,
)

READ = need(ResourceKind.TOPIC, Action.READ)
CONSUME = need(ResourceKind.GROUP, Action.CONSUME)
NAMES = st.text("abz019._-", min_size=1, max_size=12).filter(lambda name: not name.startswith("_"))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["orders", "order", "a"], ["_catalog"]),
        ("orders", ["orders"], ["order", "orders1", "Orders", "orders/x", ""]),
        ("orders*", ["orders", "orders-eu", "orders.x"], ["order", "Orders", "", "xorders"]),
        ("o*", ["orders", "o"], ["", "p"]),
    ],
)
def test_a_topic_is_meant_by_its_name_or_a_prefix(pattern: str, yes: list[str], no: list[str]) -> None:
    """The table of the edges."""
    rules = [rule_from_text(f"topic:{pattern}=read")]
    assert [name for name in yes if not allowed(rules, READ, name)] == []
    assert [name for name in no if allowed(rules, READ, name)] == []
    assert not allowed(rules, need(ResourceKind.TOPIC, Action.WRITE), yes[0])
    assert not allowed(rules, need(ResourceKind.CLUSTER, Action.ADMIN), "")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["orders/billing", "o/b"], ["_x/b"]),
        ("orders/billing", ["orders/billing"], ["orders/billing2", "orders/bill", "order/billing"]),
        ("orders/*", ["orders/billing", "orders/b"], ["orders-eu/billing", "order/billing"]),
        ("orders/b*", ["orders/billing", "orders/b"], ["orders/a", "orders-b/a"]),
        ("orders*", ["orders/billing", "orders-eu/b"], ["order/billing"]),
    ],
)
def test_a_group_is_meant_with_its_topic(pattern: str, yes: list[str], no: list[str]) -> None:
    """TOPIC/GROUP, as topics are."""
    rules = [rule_from_text(f"group:{pattern}=consume")]
    assert [name for name in yes if not allowed(rules, CONSUME, name)] == []
    assert [name for name in no if allowed(rules, CONSUME, name)] == []


@pytest.mark.parametrize(
    "text",
    [
        "", "=", "topic", "topic:", "topic:=read", "topic:orders", "topic:orders=", "topic:orders=consume",
        "topic:a*b=read", "topic:**=read", "topic:*a=read", "topic:a/b=read", "topic:_catalog=read",
        "topic:_*=read", "topic:or ders=read", "topic:orders=read,", "topic:orders=read,,write",
        "topic:orders=Read", "Topic:orders=read", "group:orders=consume", "group:orders/=consume",
        "group:/x=consume", "group:a/b/c=consume", "group:a/b/*=consume", "group:/*=consume",
        "group:orders*/billing=consume", "cluster:=admin", "cluster:x=admin", "cluster=read",
        "role:x=admin", "topic:orders=read\n", "topic:orders\n=read", "topic:" + "a" * 250 + "=read",
        "topic:orders=" + "read," * 200 + "read", "topic:ö=read",
    ],
)  # fmt: skip
def test_a_text_that_is_no_rule_is_refused(text: str) -> None:
    """With the one error, and nothing granted."""
    with pytest.raises(RuleError):
        rule_from_text(text)


@given(
    st.sampled_from(ResourceKind).flatmap(
        lambda kind: st.tuples(st.just(kind), st.sets(st.sampled_from(ACTIONS[kind]), min_size=1))
    ),
    NAMES,
    NAMES,
    st.booleans(),
)
def test_a_rule_is_read_as_it_was_written(
    what: tuple[ResourceKind, set[Action]], topic: str, group: str, is_prefix: bool
) -> None:
    """Whatever it grants; actions in their order."""
    kind, actions = what
    names = {ResourceKind.CLUSTER: "", ResourceKind.TOPIC: topic, ResourceKind.GROUP: f"{topic}/{group}"}
    resource = Resource(kind, names[kind], is_prefix and kind is not ResourceKind.CLUSTER)
    rule = Rule(tuple(action for action in ACTIONS[kind] if action in actions), resource)
    assert rule_from_text(str(rule)) == rule
    for action in ACTIONS[kind]:
        assert rule.allows(Need(action, kind), names[kind]) == (action in actions)


@given(st.text())
@example("topic:orders*=read")
@example("cluster=*")
def test_any_text_is_a_rule_or_the_one_error(text: str) -> None:
    """A rule that was read is written in a form that is read again."""
    try:
        rule = rule_from_text(text)
    except RuleError:
        return
    assert rule_from_text(str(rule)) == rule


def test_topics_of_the_system_need_an_administrator() -> None:
    """A rule for all topics is none for them; cluster=admin is enough, without a rule for topics."""
    everything = rules_from_texts(["topic:*=*", "group:*=*", "cluster=describe,operate"])
    administrator = rules_from_texts(["cluster=admin"])
    for name, wanted in (("_catalog", READ), ("_audit/x", CONSUME)):
        assert not allowed(everything, wanted, name)
        assert allowed(administrator, wanted, name)
    assert not allowed(administrator, READ, "orders")


def test_roles_that_are_built_in() -> None:
    """Each as the documents say, and no more: the table of every action."""
    able: dict[str, set[str]] = {}
    roles = ("viewer", "operator", "admin", "producer:orders*", "consumer:orders*", "consumer:orders")
    for role, kind in itertools.product(roles, ResourceKind):
        rules = built_in_role(role)
        assert rules is not None
        for action, name in itertools.product(ACTIONS[kind], ("orders", "orders-eu", "other")):
            names = {ResourceKind.TOPIC: name, ResourceKind.GROUP: f"{name}/g", ResourceKind.CLUSTER: ""}
            if allowed(rules, Need(action, kind), names[kind]):
                able.setdefault(role, set()).add(f"{kind}:{names[kind]}={action}")
    assert able["viewer"] == {
        "topic:orders=describe", "topic:orders-eu=describe", "topic:other=describe", "cluster:=describe",
    }  # fmt: skip
    assert able["producer:orders*"] == {
        f"topic:{topic}={action}" for topic in ("orders", "orders-eu") for action in ("describe", "write")
    }
    assert able["consumer:orders*"] == {
        f"topic:{topic}={action}" for topic in ("orders", "orders-eu") for action in ("describe", "read")
    } | {"group:orders/g=consume", "group:orders-eu/g=consume"}
    assert able["consumer:orders"] == {
        "topic:orders=describe", "topic:orders=read", "group:orders/g=consume",
    }  # fmt: skip
    assert "cluster:=operate" in able["operator"]
    assert not {"cluster:=admin", "topic:orders=read", "topic:orders=write"} & able["operator"]
    assert len(able["admin"]) == 3 * (6 + 2) + 3


def test_names_of_roles() -> None:
    """Those of built-in ones are taken; topics of theirs are those of a rule; a role holds rules alone."""
    assert built_in_role("clerk") is None
    assert built_in_role("viewer:orders") is None
    check_role_name("clerk.eu-1")
    for name in ("", "a/b", "a" * 65, "viewer", "operator", "admin", "producer", "consumer", "a:b", "a\n"):
        with pytest.raises(RuleError):
            check_role_name(name)
    with pytest.raises(RuleError, match=r"as consumer:orders\*"):
        check_role_name("consumer")
    for name in ("producer:", "producer:a*b", "consumer:_catalog", "consumer:a/b"):
        with pytest.raises(RuleError):
            built_in_role(name)
    with pytest.raises(RuleError, match="is no rule"):
        rules_from_texts(["role"])
    with pytest.raises(RuleError, match="no kind of thing"):
        rules_from_texts(["role:clerk=describe"])
    with pytest.raises(RuleError, match=f"there may be {RULES_MAX}"):
        rules_from_texts(f"topic:t{number}=read" for number in range(RULES_MAX + 1))
    assert len(rules_from_texts(["topic:a=read"] * 100)) == 1
