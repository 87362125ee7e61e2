"""Rules: which actions are allowed on which things; and roles, which are named lists of rules.

Law of this file: pure. Rules only allow, and what no rule allows is refused. A rule names one thing, or all
whose names begin with a prefix: `topic:orders*=read,describe`. Roles hold rules and no roles, so that none
can contain itself. Principals, and the roles that they have, stand in principals.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from shoal.agent.security.needs import ACTIONS, Action, Need, ResourceKind

RULES_MAX: Final = 64
"""Of one role, and of one principal: each request looks through them once."""
RULE_CHARACTERS_MAX: Final = 512
ROLE_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
ROLE_CHARACTERS_MAX: Final = 320
"""Of a name with its topics, as `consumer:orders*`."""
SYSTEM_PREFIX: Final = "_"
"""Topics of the system: they need cluster:admin, and no rule names them."""
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_GROUP: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}/[a-zA-Z0-9._-]{1,64}")
_GROUP_PREFIX: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}(/[a-zA-Z0-9._-]{0,64})?")
_ANY: Final = "*"


class RuleError(ValueError):
    """A text that is no rule or role. Its words say what one looks like."""


class Resource(NamedTuple):
    """A thing, or all of a kind whose names begin with `name`. The cluster has no name."""

    kind: ResourceKind
    name: str = ""
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.kind is ResourceKind.CLUSTER:
            return self.kind
        return f"{self.kind}:{self.name}{_ANY if self.is_prefix else ''}"

    def matches(self, name: str) -> bool:
        """Whether the thing of this name, of the same kind, is meant."""
        return name.startswith(self.name) if self.is_prefix else name == self.name


class Rule(NamedTuple):
    """Allows these actions on a resource. Actions stand in the order of ACTIONS, each once."""

    actions: tuple[Action, ...]
    resource: Resource

    def __str__(self) -> str:
        return f"{self.resource}={','.join(self.actions)}"

    def allows(self, wanted: Need, name: str) -> bool:
        """`name`: of the thing; empty for the cluster."""
        resource = self.resource
        return resource.kind is wanted.kind and wanted.action in self.actions and resource.matches(name)


@lru_cache(maxsize=4_096)
def rule_from_text(text: str) -> Rule:
    """`topic:orders*=read,describe`, `group:orders/billing=consume`, `cluster=describe`; `=*` for all actions
    of the kind. Raises RuleError, and nothing else."""
    if len(text) > RULE_CHARACTERS_MAX:
        raise RuleError(f"a rule has at most {RULE_CHARACTERS_MAX} characters")
    place, equals, actions = text.partition("=")
    if not equals:
        raise RuleError(f"{text!r} is no rule: write RESOURCE=ACTIONS, as topic:orders*=read,describe")
    kind, colon, pattern = place.partition(":")
    if kind not in tuple(ResourceKind):
        raise RuleError(f"{kind[:40]!r} is no kind of thing: there are topic, group, cluster")
    resource = _resource(ResourceKind(kind), pattern if colon else None)
    return Rule(_actions(resource.kind, actions), resource)


def rules_from_texts(texts: Iterable[str]) -> tuple[Rule, ...]:
    """In their order, each once. Raises RuleError, and nothing else."""
    rules = tuple(dict.fromkeys(rule_from_text(text) for text in texts))
    if len(rules) > RULES_MAX:
        raise RuleError(f"{len(rules)} rules: there may be {RULES_MAX}; a prefix names many topics at once")
    return rules


def allowed(rules: Iterable[Rule], wanted: Need, name: str) -> bool:
    """Whether one of them allows it. Things of the system are for those who may administer the cluster."""
    if wanted.kind is not ResourceKind.CLUSTER and name.startswith(SYSTEM_PREFIX):
        wanted, name = ADMINISTER, ""
    return any(rule.allows(wanted, name) for rule in rules)


ADMINISTER: Final = Need(Action.ADMIN, ResourceKind.CLUSTER)


def _resource(kind: ResourceKind, pattern: str | None) -> Resource:
    if kind is ResourceKind.CLUSTER:
        if pattern is not None:
            raise RuleError("there is one cluster, without a name: write cluster=ACTIONS")
        return Resource(kind)
    if not pattern:
        raise RuleError(f"{kind}: needs a name, a prefix with * behind it, or * for all")
    is_prefix = pattern.endswith(_ANY)
    name = pattern.removesuffix(_ANY)
    if _ANY in name:
        raise RuleError(f"{pattern!r}: * stands at the end only, for names that begin so")
    if name.startswith(SYSTEM_PREFIX):
        raise RuleError(f"{pattern!r}: topics of the system are open to those with cluster=admin only")
    form = _TOPIC if kind is ResourceKind.TOPIC else _GROUP_PREFIX if is_prefix else _GROUP
    if not (is_prefix and not name) and form.fullmatch(name) is None:
        example = "orders/billing or orders/*" if kind is ResourceKind.GROUP else "orders or orders*"
        raise RuleError(f"{pattern!r} names no {kind}: write it as {example}")
    return Resource(kind, name, is_prefix)


def _actions(kind: ResourceKind, text: str) -> tuple[Action, ...]:
    known = ACTIONS[kind]
    if text == _ANY:
        return known
    asked = text.split(",")
    for action in asked:
        if action not in known:
            raise RuleError(f"{kind} has no action {action[:40]!r}: there are {', '.join(known)}")
    return tuple(action for action in known if action in asked)


# ---- roles that are built in -------------------------------------------------------------------------------

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"

BUILT_IN: Final = {
    VIEWER: rules_from_texts(("topic:*=describe", "cluster=describe")),
    OPERATOR: rules_from_texts(
        ("topic:*=describe,create,alter", "group:*=manage", "cluster=describe,operate")
    ),
    ADMIN: rules_from_texts(("topic:*=*", "group:*=*", "cluster=*")),
}
"""Roles without topics of their own."""
OF_TOPICS: Final = (PRODUCER, CONSUMER)
"""Roles for topics that their names tell: `producer:orders*`."""


@lru_cache(maxsize=4_096)
def built_in_role(name: str) -> tuple[Rule, ...] | None:
    """The rules of `viewer`, `operator`, `admin`, `producer:TOPICS`, `consumer:TOPICS`; None for a name that
    is none of these. TOPICS: as in a rule. Raises RuleError for topics that cannot be."""
    kind, colon, topics = name.partition(":")
    if not colon:
        return BUILT_IN.get(name)
    if kind not in OF_TOPICS:
        return None
    if kind == PRODUCER:
        return rules_from_texts((f"topic:{topics}=describe,write",))
    groups = topics if topics.endswith(_ANY) else f"{topics}/*"
    return rules_from_texts((f"topic:{topics}=describe,read", f"group:{groups}=consume"))


def check_role_name(name: str) -> None:
    """Of a role that somebody makes. Raises RuleError, and nothing else."""
    if ROLE_NAME.fullmatch(name) is None:
        raise RuleError(f"{name[:80]!r} is no name of a role: use 1 to 64 of letters, digits, . _ -")
    if name in BUILT_IN:
        raise RuleError(f"role {name} is built in: choose another name")
    if name in OF_TOPICS:
        raise RuleError(f"role {name} is built in and has topics behind it, as {name}:orders* or {name}:*")
