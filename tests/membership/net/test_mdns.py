"""mDNS on loopback between processes, and what is made of hostile announcements."""

import asyncio
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE

import pytest

from shoal.membership.net.mdns import Discovery, Found, decode_announcement

OTHER = """
import asyncio, sys
from shoal.membership.net.mdns import Discovery

async def main():
    found = asyncio.Event()
    def on_found(other):
        if other.agent_id == sys.argv[2]:
            print(other.agent_id, other.cluster, other.address, other.port, flush=True)
            found.set()
    discovery = Discovery(
        cluster="pool", agent_id=sys.argv[1], address="127.0.0.1", gossip_port=4102, on_found=on_found
    )
    await discovery.start()
    async with asyncio.timeout(40):
        await found.wait()
    await asyncio.to_thread(sys.stdin.readline)
    await discovery.stop()

asyncio.run(main())
"""


async def test_two_processes_find_each_other_on_loopback() -> None:
    """Both ways, though `lo` does not carry the MULTICAST flag; a goodbye removes the other again."""
    mine, other = secrets.token_hex(16), secrets.token_hex(16)
    heard: asyncio.Queue[Found] = asyncio.Queue()
    discovery = Discovery(
        cluster="pool", agent_id=mine, address="127.0.0.1", gossip_port=4101, on_found=heard.put_nowait
    )
    await discovery.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OTHER, other, mine, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(40):
            found = await heard.get()
            while found.agent_id != other:  # agents of another test or user of this host
                found = await heard.get()
            assert found == Found(other, "pool", "127.0.0.1", 4102)
            line = await process.stdout.readline()
            assert line.decode().split() == [mine, "pool", "127.0.0.1", "4101"]
            process.stdin.write(b"stop\n")
            await process.stdin.drain()
            while any(agent.agent_id == other for agent in discovery.found()):
                await asyncio.sleep(0.05)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await discovery.stop()


async def test_stop_right_after_start_and_twice() -> None:
    """An agent may be told to go at any time."""
    discovery = Discovery(
        cluster="pool",
        agent_id=secrets.token_hex(16),
        address="127.0.0.1",
        gossip_port=4103,
        on_found=lambda _: None,
    )
    await discovery.start()
    await discovery.stop()
    await discovery.stop()


@pytest.mark.parametrize(
    ("properties", "addresses", "port"),
    [
        ({b"agent": b"a", b"cluster": b"c"}, [], 1),
        ({b"agent": b"a", b"cluster": b"c"}, ["10.0.0.1"], None),
        ({b"agent": b"a"}, ["10.0.0.1"], 1),
        ({b"agent": b"a", b"cluster": None}, ["10.0.0.1"], 1),
        ({b"agent": b"\xff", b"cluster": b"c"}, ["10.0.0.1"], 1),
        ({b"agent": b"a" * 129, b"cluster": b"c"}, ["10.0.0.1"], 1),
    ],
)
def test_unusable_announcements_are_ignored(
    properties: dict[bytes, bytes | None], addresses: list[str], port: int | None
) -> None:
    """Anybody on the network may announce anything."""
    assert decode_announcement(properties, addresses, port) is None


def test_usable_announcement() -> None:
    """Cluster and agent from TXT, address and port from the service."""
    properties: dict[bytes, bytes | None] = {b"agent": b"a", b"cluster": b"c"}
    assert decode_announcement(properties, ["10.0.0.1", "10.0.0.2"], 7) == Found("a", "c", "10.0.0.1", 7)
