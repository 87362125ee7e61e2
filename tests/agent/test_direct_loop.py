"""The event loop with a shorter way: it does what asyncio's does, whoever is woken by whatever."""

import asyncio
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shoal.agent import direct_loop
from shoal.agent.direct_loop import CALLS_MAX, DirectSelector, new_event_loop


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In such a loop; 20 seconds at most."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


def test_a_reader_alone_is_called_where_the_kernel_was_asked() -> None:
    """Its callback runs inside `select`; asyncio hears of nothing."""
    here, there = socket.socketpair()
    callers: list[str] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def readable() -> None:
            here.recv(1)
            frame = sys._getframe()
            while frame.f_back is not None:
                frame = frame.f_back
                if frame.f_code is DirectSelector.select.__code__:
                    callers.append("select")
            over.set_result(None)

        loop.add_reader(here, readable)
        loop.call_later(0.01, there.send, b"x")
        await over
        loop.remove_reader(here)

    with here, there:
        run(body)
    assert callers == ["select"]


def test_several_at_once_are_left_to_asyncio() -> None:
    """Both have their callbacks in the same round, and neither inside `select`."""
    pairs = [socket.socketpair() for _ in range(2)]
    seen: list[tuple[int, int]] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def readable(number: int) -> None:
            pairs[number][0].recv(1)
            seen.append((number, len(loop._ready)))  # type: ignore[attr-defined]
            if len(seen) == 2:
                over.set_result(None)

        for number, (here, _) in enumerate(pairs):
            loop.add_reader(here, readable, number)
        for _, there in pairs:
            there.send(b"x")
        await over
        for here, _ in pairs:
            loop.remove_reader(here)

    run(body)
    for pair in pairs:
        for end in pair:
            end.close()
    assert sorted(number for number, _ in seen) == [0, 1]
    assert seen[0][1] == 1, "the first knew that another had come"


def test_timers_are_kept_while_readers_are_called() -> None:
    """A reader that always has something to read holds no timer up, old or new."""
    here, there = socket.socketpair()
    fired: list[str] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        calls = 0

        def readable() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                loop.call_later(0.01, fired.append, "new")
                loop.call_later(0.05, over.set_result, None)

        there.send(b"x")  # never taken out
        loop.add_reader(here, readable)
        loop.call_later(0.02, fired.append, "old")
        await over
        loop.remove_reader(here)
        assert calls > CALLS_MAX

    with here, there:
        run(body)
    assert sorted(fired) == ["new", "old"]


def test_another_thread_and_a_task_get_their_turn() -> None:
    """What is called from elsewhere, and what a reader schedules, runs although readers go on."""
    here, there = socket.socketpair()

    async def body() -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        woken = asyncio.Event()
        there.send(b"x")
        loop.add_reader(here, woken.set)
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(told.set,))
        thread.start()
        await told.wait()
        await woken.wait()
        loop.remove_reader(here)
        thread.join()

    with here, there:
        run(body)


def test_a_reader_that_fails_is_reported_and_nothing_stops() -> None:
    """As every callback: the exception goes to the loop's handler."""
    here, there = socket.socketpair()
    reported: list[BaseException] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        over = loop.create_future()

        def readable() -> None:
            here.recv(1)
            loop.call_later(0.01, over.set_result, None)
            raise ZeroDivisionError

        loop.add_reader(here, readable)
        loop.call_later(0.01, there.send, b"x")
        await over
        loop.remove_reader(here)

    with here, there:
        run(body)
    assert [type(error) for error in reported] == [ZeroDivisionError]


def test_streams_work_over_it() -> None:
    """A server, a client, and more than a socket's buffer in both directions."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2**22))
        await writer.drain()
        writer.close()

    async def body() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = bytes(range(256)) * 2**14
        writer.write(sent)
        assert await reader.read(-1) == sent
        writer.close()
        server.close()

    run(body)


def test_an_asyncio_that_is_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of the parts that are looked at, the selector is an ordinary one."""
    monkeypatch.setattr(direct_loop, "_PARTS", {"_ready", "_no_such_part"})
    loop = new_event_loop()
    try:
        assert loop._selector._loop is None  # type: ignore[attr-defined]
        assert isinstance(loop._selector, selectors.EpollSelector)  # type: ignore[attr-defined]
        assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    finally:
        loop.close()
