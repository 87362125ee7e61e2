"""Requests of consumers, as tests send them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from http_fixtures import ARROW, Agent, Answer

GROUP = "/v1/topics/t/groups/g"


async def produce(agent: Agent, partition: int, *values: str, topic: str = "t") -> None:
    """One batch."""
    body = {"records": [{"key": f"k-{value}", "value": value} for value in values]}
    path = f"/v1/topics/{topic}/partitions/{partition}/records"
    assert (await agent.post(path, body)).status == 200


async def receive(agent: Agent, path: str = GROUP, **body: Any) -> Any:
    """The document of a receive."""
    answer = await agent.post(f"{path}/receive", body)
    assert answer.status == 200, answer.body
    return answer.json


async def receive_arrow(agent: Agent, path: str = GROUP, **body: Any) -> tuple[Answer, list[str]]:
    """The answer in Arrow, and its values."""
    answer = await agent.post(f"{path}/receive", body, Accept=ARROW)
    assert answer.status == 200, answer.body
    table = pa.ipc.open_stream(answer.body).read_all()
    return answer, [value.decode() for value in table.column("value").to_pylist()]


async def act(agent: Agent, verb: str, *receipts: str, path: str = GROUP, **body: Any) -> Any:
    """What became of receipts."""
    answer = await agent.post(f"{path}/{verb}", {"receipts": list(receipts), **body})
    assert answer.status == 200, answer.body
    return answer.json


def values(document: Any) -> list[str]:
    return [message["value"] for message in document["messages"]]


def codes(document: Any) -> list[str]:
    """Of the receipts that were not carried out."""
    return [item["code"] for item in document["failed"]]


def state(agent: Agent) -> tuple[object, ...]:
    """Everything that is kept of groups: in the catalog, and in each partition."""
    cluster = agent.broker.cluster
    folds = {place: delivery.fold.to_bytes() for place, delivery in cluster.deliveries.items()}
    return dict(cluster.groups), folds
