"""Values sent as JSON: read back as they were, by clients of both kinds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from fake_cluster import FakeCluster

from shoal import AsyncClient, Client, Record, ShoalError

VALUES = [{"item": 7, "name": "Käse"}, [1, 2.5, None], "text", None]


def check(records: list[Record]) -> None:
    """null is a value and no tombstone."""
    assert [record.json() for record in records] == VALUES
    assert records[0].value == '{"item":7,"name":"Käse"}'.encode()
    assert (records[0].key, records[0].headers) == (b"k", (("h", b"x"),))
    assert (records[3].value, records[3].timestamp.year) == (b"null", 2026)


async def test_what_is_sent_as_json_is_read_as_json() -> None:
    """Compact and in UTF-8, through the client and through a producer, blocking or with asyncio."""

    def blocking(url: str) -> None:
        with Client(url) as client:
            for value in VALUES[:2]:
                client.send_json("t", value, key="k", headers={"h": "x"})
            client.flush()
            with client.producer("t") as producer:
                for value in VALUES[2:]:
                    producer.send_json(value, timestamp=datetime(2026, 1, 2, tzinfo=UTC))
            check(list(client.consumer("t")))

    async with FakeCluster(1) as cluster:
        cluster.create("t")
        await asyncio.to_thread(blocking, cluster.urls[0])
        cluster.create("u")
        async with AsyncClient(cluster.urls[0]) as client:
            for value in VALUES[:2]:
                await client.send_json("u", value, key="k", headers={"h": "x"})
            await client.flush()
            async with client.producer("u") as producer:
                for value in VALUES[2:]:
                    await producer.send_json(value, timestamp=datetime(2026, 1, 2, tzinfo=UTC))
            check([record async for record in client.consumer("u")])


@pytest.mark.parametrize("wrong", [object(), float("nan"), {1: {2}}, [b"bytes"], "\ud800"])
async def test_what_json_cannot_express_is_refused_at_the_call(wrong: object) -> None:
    """The producer goes on."""
    async with FakeCluster(1) as cluster, AsyncClient(cluster.urls[0]) as client:
        cluster.create("t")
        async with client.producer("t") as producer:
            with pytest.raises(ShoalError, match="nothing that JSON can express"):
                await producer.send_json(wrong)
            await producer.send_json("right")
        assert [record.json() async for record in client.consumer("t")] == ["right"]
