"""A blocking client before a made-up cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blocking_fixtures import QUICK
from fake_cluster import FakeCluster

from shoal import Client
from shoal.client.loop_thread import LoopThread


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three agents, on a thread of their own."""
    thread = LoopThread("fake-cluster")
    try:

        async def start() -> FakeCluster:
            return await FakeCluster(3).__aenter__()

        fake = thread.run(start())
        yield fake
        thread.run(fake.__aexit__(None, None, None))
    finally:
        thread.close()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    """A client that knows one of them."""
    with Client(cluster.urls[0], QUICK) as client:
        yield client
