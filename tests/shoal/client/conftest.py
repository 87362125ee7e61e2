"""A blocking client before a made-up cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blocking_fixtures import QUICK, cluster_on_thread
from fake_cluster import FakeCluster

from shoal import Client


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Three agents, on a thread of their own."""
    with cluster_on_thread(3) as fake:
        yield fake


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    """A client that knows one of them."""
    with Client(cluster.urls[0], QUICK) as client:
        yield client
