"""The names that people gave to topics and agents, for log lines and error texts.

Law of this file: a table and the looking up in it, no I/O. Each agent has a table of its own, which its tasks
and callbacks find in their context. So agents that share a process never mix their names, and no part of an
agent has to be handed the table. An id that the table lacks is shown in short, with the word for what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CATALOG_NAME = "_catalog"
AGENTS_MAX = 8_192
"""Agents remembered, those that left included; the one heard of longest ago makes way."""
NAME_CHARACTERS_MAX = 64
SHORT_DIGITS = 8
_CATALOG_ID = bytes(16)


class Names:
    """One agent's table. `find_topic` answers the name of a topic id, None for one that it does not know;
    `own` is this agent's name."""

    def __init__(self) -> None:
        self.find_topic: Callable[[bytes], str | None] = lambda _: None
        self.own: str | None = None
        self._agents: dict[str, str] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Everything that is started in this context shows these names."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def learn_agent(self, agent_id: str, name: str | None) -> None:
        """As its gossip tag says. A text that is no name could forge log lines, and is not taken."""
        if not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX:
            return
        self._agents.pop(agent_id, None)
        self._agents[agent_id] = name
        if len(self._agents) > AGENTS_MAX:
            del self._agents[next(iter(self._agents))]

    def agent(self, agent_id: str) -> str:
        """With the id where several had the name, such as an agent that lost its disk and its successor."""
        name = self._agents.get(agent_id)
        if name is None:
            return f"agent {agent_id[:SHORT_DIGITS]}"
        is_shared = sum(other == name for other in self._agents.values()) > 1
        return f"{name} ({agent_id[:SHORT_DIGITS]})" if is_shared else name

    def topic(self, topic_id: bytes) -> str:
        """By its id."""
        if topic_id == _CATALOG_ID:
            return CATALOG_NAME
        return self.find_topic(topic_id) or f"topic {topic_id.hex()[:SHORT_DIGITS]}"


_CURRENT: ContextVar[Names] = ContextVar("names", default=Names())  # noqa: B039 -- nobody fills the default


def own_name() -> str | None:
    """Of the agent whose code this is; None before it has read its directory."""
    return _CURRENT.get().own


def agent_name(agent_id: str) -> str:
    """The agent's name among people, as far as this agent knows it."""
    return _CURRENT.get().agent(agent_id)


def topic_name(topic_id: bytes) -> str:
    """The topic's name among people."""
    return _CURRENT.get().topic(topic_id)


def partition_name(topic_id: bytes, partition: int) -> str:
    """`topic/number`; the catalog has one partition, and is called by its name alone."""
    name = topic_name(topic_id)
    return name if topic_id == _CATALOG_ID else f"{name}/{partition}"
