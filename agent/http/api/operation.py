"""One route, as its users see it: the terms in which agent/http/api/operations.py lists them all.

Pure values. The router takes method, path and the names of parameters from them, the description at
/openapi.json everything; knows neither handlers nor requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from shoal.agent.http.api.needs import CLUSTER, GROUP, TOPIC, Needs, OtherNeed

Schema = Mapping[str, Any]
"""A JSON Schema (draft 2020-12), as OpenAPI 3.1 has them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header of a request, always optional unless it says otherwise."""

    name: str
    description: str
    schema: Schema
    required: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A request's body: a schema by media type. Not `required`: it may have none.

    `example` is JSON.
    """

    content: Mapping[str, Schema]
    required: bool = True
    example: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The answer with one status: a schema by media type, and the names of Shoal's own headers."""

    description: str
    content: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Operation:
    """One method of one path; `{name}` is a segment that the handler gets as an argument. REST is all that is
    left of the path. Every status that `answers` does not have is a problem document.

    Raises ValueError for needs of a topic or a group that the path does not name.
    """

    name: str
    method_and_path: str
    summary: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    body: Body | None = None
    needs: Needs = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        kinds = set() if isinstance(self.needs, OtherNeed) else {item.kind for item in self.needs}
        if self.needs == () or len(kinds) > 1:
            raise ValueError(f"{self.name}: its needs are not of one kind")
        named = {TOPIC: {"topic"}, GROUP: {"topic", "group"}, CLUSTER: set[str]()}
        if not all(named[kind].issubset(self.variables) for kind in kinds):
            raise ValueError(f"{self.name}: its path names nothing that its needs could be about")

    @cached_property
    def method(self) -> str:
        """GET, PUT, POST, PATCH or DELETE."""
        return self.method_and_path.partition(" ")[0]

    @cached_property
    def path(self) -> str:
        """Of the route."""
        return self.method_and_path.partition(" ")[2]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The names of the handler's arguments, in their order."""
        return tuple(segment[1:-1] for segment in self.path.split("/") if is_variable(segment))

    def resource(self, arguments: tuple[str, ...]) -> str:
        """The thing that a request with these arguments acts on: a topic's name, TOPIC/GROUP, or empty for
        the cluster and for lists."""
        if isinstance(self.needs, OtherNeed) or self.needs[0].kind is CLUSTER:
            return ""
        topic = arguments[self.variables.index("topic")]
        if self.needs[0].kind is TOPIC:
            return topic
        return f"{topic}/{arguments[self.variables.index('group')]}"

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        """Of the query."""
        return frozenset(parameter.name for parameter in self.parameters)


REST = "{key}"
"""The segment that stands for the rest of a path: slashes, dots and escapes belong to a row's key."""


def is_variable(segment: str) -> bool:
    """Whether a segment of an operation's path stands for any."""
    return segment.startswith("{")
