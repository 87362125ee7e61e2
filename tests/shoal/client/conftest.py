"""A blocking client before a made-up cluster; and what retries and asks by a clock that stand-stills of the
process do not move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blocking_fixtures import QUICK, cluster_on_thread
from fake_cluster import FakeCluster
from steady_loop import now_ms

from shoal import Client


@pytest.fixture(autouse=True)
def steady_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client gives up after a time of its loop: a machine that stands still would end its attempts."""
    monkeypatch.setattr("shoal.client.http.requests.now_ms", now_ms)


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
