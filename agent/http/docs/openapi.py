"""GET /openapi.json: the routes that the router has, as an OpenAPI 3.1 description; /docs: as a page.

Each is made once, when it is first asked for, of the very operations that requests are dispatched by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from aiohttp import web

from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.api.group_schemas import GROUP_NAME, LABEL
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.needs import told
from shoal.agent.http.api.operation import Answer, Operation, Parameter, Schema
from shoal.agent.http.api.operations import PAGE
from shoal.agent.http.api.schemas import NAME, PARTITION_NUMBER, SCHEMAS, TEXT, USER_NAME
from shoal.agent.http.api.security_schemas import PRINCIPAL_NAME, ROLE_NAME, TOKEN_ID
from shoal.agent.http.api.table_operations import KEY
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.problems import json_bytes
from shoal.agent.http.docs.page import SECURITY_POLICY, docs_page, group_of
from shoal.errors import PROBLEM_MEDIA_TYPE

OPENAPI_VERSION = "3.1.0"
API_VERSION = "1"
NEEDS = "x-shoal-needs"
"""Of an operation: the permission that an asker needs where authentication is on; empty for none."""
_PROBLEM = "problem"
_KEPT = "max-age=3600"  # it changes with the agent's version only
_INTRODUCTION = (
    "One port of every agent serves everything; any agent answers any request, and asks the leader where it "
    "must. What is not answered as described is a problem document (RFC 9457). GET routes answer HEAD too."
)
_VARIABLES: dict[str, tuple[str, Schema]] = {
    "topic": ("1 to 249 of a-z A-Z 0-9 . _ - (a leading _ is the system's).", NAME),
    "partition": ("The partition's number.", PARTITION_NUMBER),
    "member": ("A member's name or id.", TEXT),
    "group": ("1 to 64 of a-z A-Z 0-9 . _ -.", GROUP_NAME),
    "consumer": ("1 to 128 printable characters.", LABEL),
    "key": ("The row's key, percent-encoded; slashes may also stand in it as they are.", KEY),
    "principal": ("1 to 256 of a-z A-Z 0-9 . _ @ + : / | -, percent-encoded.", PRINCIPAL_NAME),
    "role": ("1 to 64 of a-z A-Z 0-9 . _ -, or a built-in one as `consumer:orders*`.", ROLE_NAME),
    "token": ("The token's id: the 8 characters behind `shoal_`.", TOKEN_ID),
    "kept": ("The name that a kept topic had, or its id.", TEXT),
}


class Description:
    """The description of these routes, and its own."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = (*routes, Route(api.OPENAPI, self.openapi), Route(api.DOCS, self.docs))

    @property
    def _operations(self) -> list[Operation]:
        return [route.operation for route in self.routes]

    @cached_property
    def _document(self) -> bytes:
        return json_bytes(openapi_document(self._operations)) + b"\n"

    @cached_property
    def _page(self) -> bytes:
        return docs_page(self._operations, _INTRODUCTION).encode()

    async def openapi(self, _: Call) -> web.Response:
        """The description; it changes with the agent's version only."""
        return web.Response(body=self._document, content_type=JSON_TYPE, headers={"Cache-Control": _KEPT})

    async def docs(self, _: Call) -> web.Response:
        """The same for a person."""
        return web.Response(
            body=self._page,
            content_type=PAGE,
            charset="utf-8",
            headers={"Cache-Control": _KEPT, "Content-Security-Policy": SECURITY_POLICY},
        )


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The description of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Shoal", "version": API_VERSION, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(SCHEMAS.items())),
            "responses": {
                _PROBLEM: {
                    "description": "What is wrong; `code` is stable.",
                    "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answers = {str(status): _answer(answer) for status, answer in sorted(operation.answers.items())}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [group_of(operation)],
        "summary": operation.summary,
        NEEDS: told(operation.needs),
        "responses": answers | {"default": {"$ref": f"#/components/responses/{_PROBLEM}"}},
    }
    parameters = []
    for name in operation.variables:
        description, schema = _VARIABLES[name]
        if name == "topic" and operation.method != "GET":  # nobody changes what is the system's
            schema = USER_NAME
        parameters.append(_parameter("path", Parameter(name, description, schema, required=True)))
    parameters += [_parameter("query", parameter) for parameter in operation.parameters]
    parameters += [_parameter("header", parameter) for parameter in operation.headers]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        body = operation.body
        described["requestBody"] = {"required": body.required, "content": _content(body.content)}
    return described


def _parameter(place: str, parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.description}
    if answer.content:
        described["content"] = _content(answer.content)
    if answer.headers:
        described["headers"] = {name: {"schema": TEXT} for name in answer.headers}
    return described


def _content(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {media: {"schema": dict(schema)} for media, schema in content.items()}
