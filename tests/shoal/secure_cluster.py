"""A made-up cluster with TLS and a token, and the files with which a client asks it."""

from __future__ import annotations

import functools
import pathlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from certificates import Authority, Issued
from fake_cluster import FakeCluster

TOKEN = "shoal_abcdefgh_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJK_zz"


@functools.cache
def authority() -> Authority:
    """The tests' own, made once."""
    return Authority()


@functools.cache
def agents_certificate() -> Issued:
    """A good one, for 127.0.0.1."""
    return authority().issue("shoal://fish/agent")


class Files(NamedTuple):
    """Of one client."""

    ca: str
    certificate: str
    key: str
    token: str
    """With the `@`."""


@pytest.fixture
def files(tmp_path: pathlib.Path) -> Files:
    """Good ones."""
    issued = authority().client("ada")
    contents = (authority().pem, issued.cert, issued.key, TOKEN.encode() + b"\n")
    paths = [tmp_path / name for name in ("ca.pem", "client.pem", "client.key", "token")]
    for path, content in zip(paths, contents, strict=True):
        path.touch(mode=0o600)
        path.write_bytes(content)
    ca, certificate, key, token = map(str, paths)
    return Files(ca, certificate, key, f"@{token}")


def server_context(
    directory: pathlib.Path, issued: Issued | None = None, clients: Authority | None = None
) -> ssl.SSLContext:
    """Of an agent with this certificate. `clients`: whose certificates its clients must have."""
    path = directory / "agent.both"
    issued = issued or agents_certificate()
    path.write_bytes(issued.cert + issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem.decode())
    return context


@pytest.fixture
def tls(tmp_path: pathlib.Path) -> ssl.SSLContext:
    """Of agents with TLS."""
    return server_context(tmp_path)


@asynccontextmanager
async def secure_cluster(tls: ssl.SSLContext | None, count: int = 1) -> AsyncIterator[FakeCluster]:
    """That many agents, which ask for the token."""
    cluster = FakeCluster(count)
    cluster.tls, cluster.token = tls, TOKEN
    async with cluster:
        yield cluster
