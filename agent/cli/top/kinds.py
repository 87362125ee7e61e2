"""The tables of `shoal top`, by name: all that its declaration needs of them."""

from __future__ import annotations

from enum import StrEnum


class TableKind(StrEnum):
    """The tables."""

    TOPICS = "topics"
    AGENTS = "agents"
    PARTITIONS = "partitions"
