"""The event loop with a shorter way: it does what asyncio's does, whoever is woken by whatever."""

import asyncio
import select
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.process import event_loop as direct_loop
from shoal.agent.process.event_loop import (
    CALLS_MAX,
    WINDOW_NS_MIN,
    DirectLoop,
    DirectSelector,
    expects_answers,
    new_event_loop,
)
from tests.agent.agents import agents_in


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


class Kernel:
    """What epoll says, and the time: each look takes `look_ns`, a wait as long as it may. Tells on the
    `comes`th look; None: never."""

    def __init__(self, look_ns: int, comes: int | None) -> None:
        self._look_ns = look_ns
        self._comes = comes
        self.now_ns = 1_000_000
        self.asked: list[float | None] = []
        self.yields = 0

    def poll(self, timeout: float | None, _: int) -> list[tuple[int, int]]:
        self.asked.append(timeout)
        self.now_ns += self._look_ns if timeout == 0 else int((timeout or 0) * 1e9)
        return [(-1, select.EPOLLIN), (-2, select.EPOLLIN)] if self._comes == len(self.asked) else []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sched_yield(self) -> None:
        self.yields += 1


def asked(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *, expects: bool, timeout: float | None) -> Kernel:
    """The same kernel, after one wait of a loop."""
    monkeypatch.setattr(direct_loop.time, "monotonic_ns", kernel.monotonic_ns)
    monkeypatch.setattr(direct_loop.os, "sched_yield", kernel.sched_yield)
    loop = new_event_loop()
    assert isinstance(loop, DirectLoop)
    selector, epoll = loop.direct_selector, loop.direct_selector._epoll
    try:
        if expects:
            expects_answers(loop)()
        selector._epoll = kernel
        assert selector.select(timeout) == []  # of descriptors that nobody registered nothing is told
    finally:
        selector._epoll = epoll
        loop.close()
    return kernel


def test_what_is_expected_is_waited_for_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth look meets it; the loop did not sleep, and let others have the core in between."""
    kernel = asked(monkeypatch, Kernel(look_ns=2_000, comes=5), expects=True, timeout=10.0)
    assert (kernel.asked, kernel.yields) == ([0] * 5, 4)


def test_what_does_not_come_soon_is_slept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of looks, and then the rest of the time."""
    kernel = asked(monkeypatch, Kernel(look_ns=2_000, comes=None), expects=True, timeout=10.0)
    looks = WINDOW_NS_MIN // 2_000
    assert kernel.asked == [0] * looks + [pytest.approx(10 - WINDOW_NS_MIN / 1e9)]
    assert kernel.now_ns == 1_000_000 + 10_000_000_000


def test_whoever_wants_the_core_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look took a millisecond: another process ran meanwhile, and this one goes to sleep."""
    kernel = asked(monkeypatch, Kernel(look_ns=1_000_000, comes=None), expects=True, timeout=None)
    assert kernel.asked == [0, None]


def test_without_a_word_nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ever: one question, however long it takes."""
    assert asked(monkeypatch, Kernel(2_000, None), expects=False, timeout=3.0).asked == [3.0]


def test_a_timer_that_is_due_sooner_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look goes beyond the time that the loop gave."""
    kernel = asked(monkeypatch, Kernel(look_ns=2_000, comes=None), expects=True, timeout=0.00001)
    assert kernel.asked == [0] * 5 + [0.0]
    assert kernel.now_ns == 1_000_000 + 12_000


def test_an_agents_links_tell_its_loop(tmp_path: Path) -> None:
    """In the loop that `shoal agent` runs in."""

    async def body() -> None:
        async with agents_in(tmp_path) as agents:
            running = await agents.alone("one")
            loop = asyncio.get_running_loop()
            assert isinstance(loop, DirectLoop)
            assert running.agent.node.links.on_append_sent == loop.direct_selector.expect

    run(body)


def test_another_loop_expects_nothing() -> None:
    """asyncio's own, as in a test: it is told, and sleeps all the same."""
    loop = asyncio.new_event_loop()
    try:
        expects_answers(loop)()
    finally:
        loop.close()


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
