"""A token that is exchanged under a client: its file, the requests under way, lone records, a pickle."""

from __future__ import annotations

import asyncio
import os
import pathlib
import pickle
import ssl
from collections import deque
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from blocking_fixtures import cluster_on_thread
from fake_cluster import FakeCluster
from fake_group_routes import FakeGroups
from secure_cluster import TOKEN, Files, secure_cluster
from secure_cluster import files as files
from secure_cluster import tls as tls

from shoal import AsyncClient, Client, ShoalError
from shoal.client.produce.producer import batch_of
from shoal.credentials import Secret, token_of


async def test_a_token_is_exchanged_under_whoever_runs(files: Files, tls: ssl.SSLContext) -> None:
    """Its file is looked at before each request, whoever makes it."""
    cluster = FakeCluster(1)
    cluster.tls, cluster.token = tls, TOKEN
    FakeGroups(cluster)
    async with cluster, AsyncClient(cluster.urls, token=files.token, ca=files.ca) as client:
        partition = cluster.create("t").partitions[0]
        partition.append([batch_of([b"one"], None)], None)
        follower = client.consumer("t", start="earliest", follow=True)
        subscription = await client.subscribe("t", group="g").open()
        assert (await subscription.poll()).value == b"one"  # type: ignore[union-attr]
        assert (await follower.poll()).batch.num_rows == 1  # type: ignore[union-attr]
        for number in range(3):
            cluster.token = f"{TOKEN}{number}"
            pathlib.Path(files.token[1:]).write_text(f"{TOKEN}{number}\n")  # before the loop's next turn
            await cluster.changed()
            partition.append([batch_of([b"two"], None)], None)
            async with asyncio.timeout(60):
                assert await client.topics()
                for poll in (subscription.poll, follower.poll):
                    assert await poll() is not None
        assert "TOKEN" not in repr(client._cluster.credentials)
        await subscription.close()


async def test_a_wait_that_its_token_ends_goes_on_with_the_next(files: Files, tls: ssl.SSLContext) -> None:
    """An agent ends it with a refusal. The file is looked at again then, and nobody hears of it."""
    cluster = FakeCluster(1)
    cluster.tls, cluster.token = tls, TOKEN
    groups = FakeGroups(cluster)

    async def exchanged(request: web.Request, proceed: Callable[[], Awaitable[web.Response]]) -> web.Response:
        cluster.token = f"{cluster.token}+"
        pathlib.Path(files.token[1:]).write_text(cluster.token)
        raise ShoalError("unauthenticated", "the token is not known here")

    async with cluster, AsyncClient(cluster.urls, token=files.token, ca=files.ca) as client:
        partition = cluster.create("t").partitions[0]
        partition.append([batch_of([b"one"], None)], None)
        for faults in (cluster.read_faults, groups.receive_faults):
            faults.append(exchanged)
        async with asyncio.timeout(60):
            assert (await client.consumer("t", start="earliest").poll()).batch.num_rows == 1  # type: ignore[union-attr]
            async with client.subscribe("t", group="g") as subscription:
                assert (await subscription.poll()).value == b"one"  # type: ignore[union-attr]
    assert (cluster.token, cluster.read_faults, groups.receive_faults) == (f"{TOKEN}++", deque(), deque())


async def test_a_half_written_file_leaves_the_token_before(files: Files, tls: ssl.SSLContext) -> None:
    """It goes on as long as it counts, and the whole file is taken where it counts no more. Nobody else asks
    in between: what a subscription sent ahead would be refused too, and its next poll would say so."""
    async with (
        secure_cluster(tls) as cluster,
        AsyncClient(cluster.urls, token=files.token, ca=files.ca) as client,
    ):
        for number in range(3):
            pathlib.Path(files.token[1:]).write_text("two words")
            assert await client.topics() == []
            cluster.token = f"{TOKEN}{number}"
            with pytest.raises(ShoalError, match="the token is not known here"):
                await client.topics()
            pathlib.Path(files.token[1:]).write_text(f"{TOKEN}{number}\n")
            assert await client.topics() == []


def test_lone_records_go_on_with_the_new_token(files: Files, tls: ssl.SSLContext) -> None:
    """One is refused on the short way and passes on the ordinary one; heads made with the old token are gone,
    so that those behind it take the short way again."""

    def secured(cluster: FakeCluster) -> None:
        cluster.tls, cluster.token = tls, TOKEN

    with (
        cluster_on_thread(1, secured) as cluster,
        Client(cluster.urls, token=files.token, ca=files.ca) as client,
        client.producer("t") as producer,
    ):
        for _ in range(3):  # the first has no identity yet
            producer.append(b"a")
        lone = producer._inner.lone
        assert lone is not None
        (old,) = lone._heads.values()
        assert TOKEN.encode() in old
        cluster.token = f"{TOKEN}2"
        pathlib.Path(files.token[1:]).write_text(f"{TOKEN}2")
        assert producer.append(b"b").offset == 3
        assert lone._heads == {}
        lone._paused_until.clear()  # in place of waiting
        assert producer.append(b"c").offset == 4
        (new,) = lone._heads.values()
        assert f"{TOKEN}2".encode() in new


def test_a_pickled_token_is_the_newest_and_knows_no_file(files: Files) -> None:
    """As Spark's tasks get it."""
    secret = token_of(files.token)
    pathlib.Path(files.token[1:]).write_text(f"{TOKEN}2")
    copied = pickle.loads(pickle.dumps(secret))
    assert type(copied) is Secret
    assert copied.reveal() == secret.reveal() == f"{TOKEN}2"
    os.chmod(files.token[1:], 0o644)  # everybody may read it now: it is not taken
    pathlib.Path(files.token[1:]).write_text(f"{TOKEN}3")
    assert secret.reveal() == f"{TOKEN}2"
    os.unlink(files.token[1:])
    assert secret.reveal() == f"{TOKEN}2"
    assert TOKEN not in repr(secret)
