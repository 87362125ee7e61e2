"""What an event loop has to do, as a program: test_each_python.py runs it on each CPython.

Argument: the path of event_loop.py. Prints the version, and that the shorter way was taken.
"""

import asyncio
import importlib.util
import socket
import sys
import threading

specification = importlib.util.spec_from_file_location("event_loop", sys.argv[1])
event_loop = importlib.util.module_from_spec(specification)
sys.modules["event_loop"] = event_loop
specification.loader.exec_module(event_loop)


def is_in_select() -> bool:
    """Whether `select` of the loop's own selector is among the callers."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is event_loop.DirectSelector.select.__code__:
            return True
    return False


async def readers_and_timers() -> None:
    """A reader alone is called in `select`; one that always has something to read holds up no timer."""
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    over, where, fired = loop.create_future(), [], []

    def readable() -> None:
        where.append(is_in_select())
        if len(where) == 3:
            loop.call_later(0.01, fired.append, "new")
            loop.call_later(0.05, over.set_result, None)

    loop.add_reader(here, readable)
    loop.call_later(0.01, there.send, b"x")  # never taken out
    loop.call_later(0.02, fired.append, "old")
    await over
    loop.remove_reader(here)
    here.close()
    there.close()
    assert where[0], "the reader was called by asyncio"
    assert len(where) > event_loop.CALLS_MAX
    assert sorted(fired) == ["new", "old"]


async def threads() -> None:
    """Another thread wakes the loop."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(told.set,))
    thread.start()
    await told.wait()
    thread.join()


async def streams() -> None:
    """More than a socket's buffer in both directions, with an answer expected."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2**22))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    sent = bytes(range(256)) * 2**14
    writer.write(sent)
    event_loop.expects_answers(asyncio.get_running_loop())()
    assert await reader.read(-1) == sent
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def main() -> None:
    """All of it, in 20 seconds at most."""
    async with asyncio.timeout(20):
        await readers_and_timers()
        await threads()
        await streams()


for direct in (True, False):
    with asyncio.Runner(
        loop_factory=lambda direct=direct: event_loop.new_event_loop(direct=direct)
    ) as runner:
        if direct:
            assert runner.get_loop().direct_selector._loop is not None, "asyncio is not built as expected"
            runner.run(main())
        else:
            assert not isinstance(runner.get_loop(), event_loop.DirectLoop)
            runner.run(streams())
print(f"{sys.version_info[0]}.{sys.version_info[1]} direct")
