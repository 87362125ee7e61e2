"""The needs of operations: each names one, of the thing that its path names."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.agent.http.api import cluster_operations, group_operations, operations
from shoal.agent.http.api.needs import (
    CLUSTER_OPERATE,
    GROUP_CONSUME,
    TOPIC_READ,
    TOPIC_WRITE,
    OtherNeed,
    told,
)
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.app import PARTS
from shoal.agent.http.docs.openapi import NEEDS, Description, openapi_document
from shoal.agent.http.docs.page import docs_page


def test_an_operation_without_needs_does_not_build() -> None:
    """A route that forgot its permission would be open to everybody."""
    with pytest.raises(TypeError, match="needs"):
        Operation("odd", "GET /v1/odd", "Odd.", {})  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not of one kind"):
        Operation("odd", "GET /v1/odd", "Odd.", {}, needs=())
    with pytest.raises(ValueError, match="not of one kind"):
        dataclasses.replace(operations.PRODUCE, needs=(*TOPIC_WRITE, *CLUSTER_OPERATE))


@pytest.mark.parametrize(("path", "needs"), [("/v1/odd", TOPIC_READ), ("/v1/topics/{topic}", GROUP_CONSUME)])
def test_needs_are_about_a_thing_that_the_path_names(path: str, needs: tuple[object, ...]) -> None:
    """No verdict could be given about a topic that nobody named."""
    with pytest.raises(ValueError, match="names nothing"):
        Operation("odd", f"GET {path}", "Odd.", {}, needs=needs)  # type: ignore[arg-type]


def test_the_resource_of_a_request_comes_from_its_path() -> None:
    """Wherever topic and group stand in it."""
    assert operations.PRODUCE_TO_PARTITION.resource(("orders", "3")) == "orders"
    assert group_operations.RECEIVE.resource(("orders", "billing")) == "orders/billing"
    assert group_operations.RECEIVE_FROM_PARTITION.resource(("orders", "3", "billing")) == "orders/billing"
    assert group_operations.PRESENCE.resource(("orders", "billing", "worker-1")) == "orders/billing"
    assert cluster_operations.FORCE_LEAVE.resource(("herring",)) == ""
    assert operations.LIST_TOPICS.resource(()) == ""


def test_the_descriptions_tell_the_needs() -> None:
    """Of every route, in /openapi.json and in /docs."""
    routed = [
        route.operation for route in Description(route for part in PARTS for route in part.ROUTES).routes
    ]
    document, page = openapi_document(routed), docs_page(routed, "")
    for operation in routed:
        described = document["paths"][operation.path][operation.method.lower()]
        assert described[NEEDS] == told(operation.needs)
        assert f"<code>{told(operation.needs)}</code>" in page or operation.needs is OtherNeed.NOTHING
    open_to_all = {operation.name for operation in routed if operation.needs is OtherNeed.NOTHING}
    assert open_to_all == {"livez", "readyz", "index", "indexOfApi", "openapi", "docs"}
