"""Connections of aiohttp that would outlive their session, before an agent that never says goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pathlib
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Self

import aiohttp
import pytest
from secure_cluster import Files, server_context
from secure_cluster import files as files

from shoal import AsyncClient, ClientConfig
from shoal.connector import EndingConnector

UPLOAD_BYTES = 32 << 20
"""More than the buffers of two sockets hold."""
SECONDS_MAX = 60.0


class SilentAgent:
    """Accepts, shakes hands if it has TLS, and neither answers nor closes. `accepted`: it has shaken hands.
    `dialled`: it has been called."""

    def __init__(self, tls: ssl.SSLContext | None, *, shakes_hands: bool) -> None:
        self._tls = tls
        self._shakes_hands = shakes_hands
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self.dialled, self.accepted = threading.Event(), threading.Event()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                self._held.append(self._listener.accept()[0])
            except OSError:  # closed
                return
            self.dialled.set()
            if self._tls is not None and self._shakes_hands:
                with contextlib.suppress(OSError):  # the client has ended meanwhile
                    self._held.append(self._tls.wrap_socket(self._held.pop(), server_side=True))
            self.accepted.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for held in [*self._held, self._listener]:
            held.close()


def warnings_of(program: Callable[[], Awaitable[None]]) -> list[str]:
    """Those that Python has for a user who runs it with -W always."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(asyncio.wait_for(program(), SECONDS_MAX))  # type: ignore[arg-type]
        gc.collect()
    return [str(warning.message) for warning in caught]


@pytest.fixture(params=[True, False], ids=["asked", "in the handshake"])
def agent(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[SilentAgent]:
    """With TLS, which it completes or not."""
    with SilentAgent(server_context(tmp_path), shakes_hands=request.param) as silent:
        yield silent


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_program_that_gives_a_request_up_ends_without_a_warning(
    is_cancelled: bool, agent: SilentAgent, files: Files
) -> None:
    """By cancelling it, or by closing the client below it; in the answer, or in the handshake."""
    config = ClientConfig(first_contact_ms=0, connect_timeout_ms=60_000)

    async def program() -> None:
        async with AsyncClient(agent.url, config, ca=files.ca) as client:
            question = asyncio.create_task(client.topics())
            await asyncio.to_thread(agent.accepted.wait)
            await asyncio.sleep(0.1)  # the request is on its way
            if is_cancelled:
                question.cancel()
                await asyncio.wait((question,))
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await question
        assert question.done()

    assert warnings_of(program) == []


@pytest.mark.parametrize("is_ending", [True, False])
def test_a_session_ends_with_all_its_connections(is_ending: bool, tmp_path: pathlib.Path) -> None:
    """Of a request that was given up while its body was being sent. aiohttp's own connector leaves it open:
    once it does not, ours may go."""

    async def program() -> None:
        connector = EndingConnector() if is_ending else aiohttp.TCPConnector()
        async with aiohttp.ClientSession(connector=connector) as session:
            upload = asyncio.create_task(session.post(agent.url, data=b"x" * UPLOAD_BYTES).__aenter__())
            await asyncio.to_thread(agent.dialled.wait)
            await asyncio.sleep(0.1)
            upload.cancel()
            await asyncio.wait((upload,))
            assert upload.cancelled()

    with SilentAgent(None, shakes_hands=False) as agent:
        found = [text for text in warnings_of(program) if "unclosed transport" in text]
    assert len(found) == (0 if is_ending else 1)


def test_a_connection_that_was_kept_is_used_again_and_ends(files: Files, tmp_path: pathlib.Path) -> None:
    """An answer lets it live; a second close does nothing."""
    body = b"HTTP/1.1 204 No Content\r\n\r\n"
    made = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(body)
        writer.close()

    async def program() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(tmp_path))
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            connector = EndingConnector(ssl=ssl.create_default_context(cafile=files.ca))
            async with aiohttp.ClientSession(connector=connector) as session:
                for _ in range(3):
                    async with session.get(url) as got:
                        assert got.status == 204
            assert connector.closed
            await connector.close()

    assert warnings_of(program) == []
    assert made == 1
