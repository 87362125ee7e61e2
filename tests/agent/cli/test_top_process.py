"""`shoal top` as a process: in a pipe, on terminals down to one character, and when agents are lost."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from command_line import assert_one_line, finish, run, start
from fake_cluster import FakeCluster

from shoal.client.produce.producer import batch_of


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Two agents and a topic."""
    async with FakeCluster(2) as fake:
        fake.create("orders", 2)
        yield fake


async def test_in_a_pipe_it_prints_blocks(cluster: FakeCluster) -> None:
    """One a look, with rates from the first on, and no control character; a topic alone; JSON lines."""
    agent = cluster.urls[0]
    ran = await run("top", "--count", "2", "-i", "0.2", agent=agent)
    assert (ran.code, ran.stderr) == (0, "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ran.stdout)
    blocks = ran.stdout.strip().split("\n\n")
    assert len(blocks) == 2
    for block in blocks:
        head, titles, orders, *agents = block.splitlines()
        assert head.endswith("Z cluster fake: 2 of 2 agents alive, 1 topic, 2 partitions, 0 records/s")
        assert titles.split()[:2] == ["TOPIC", "RECORDS/S"]
        assert orders.split()[:2] == ["orders", "0"]
        assert [line.split()[0] for line in agents] == ["AGENT", "agent-0", "agent-1"]
    alone = await run("top", "orders", "-n", "1", "-i", "0.2", "--sort", "partition", agent=agent)
    assert [line.split()[0] for line in alone.stdout.splitlines()[1:3]] == ["PARTITION", "orders/0"]
    lines = (await run("--json", "top", "-n", "2", "-i", "0.2", agent=agent)).stdout.splitlines()
    assert [json.loads(line)["topics"][0]["name"] for line in lines] == ["orders", "orders"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nope",), ("nope", "unknown-topic")),
        (("--sort", "speed"), ("--sort 'speed' is no column of topics or agents", "RECORDS/S")),
        (("orders", "--view", "agents"), ("--view agents shows all of them, and not orders",)),
        (("--interval", "0"), ("--interval",)),
        (("--count", "0"), ("--count",)),
        (("--view", "people"), ("people",)),
    ],
)
async def test_what_cannot_be_shown_is_one_line(
    cluster: FakeCluster, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """No traceback, and no block before it."""
    assert_one_line(await run("top", *arguments, agent=cluster.urls[0]), *words)


async def lines_until(process: Process, word: bytes) -> bytes:
    """What it writes up to a line with that word."""
    assert process.stdout is not None
    found = b""
    async with asyncio.timeout(120):
        while word not in found:
            line = await process.stdout.readline()
            assert line, found
            found += line
    return found


async def test_it_goes_on_when_the_agent_is_lost(cluster: FakeCluster) -> None:
    """With another one, and says so; without any it keeps trying, until one is back. Ctrl-C is no failure."""
    process = await start("top", "-i", "0.2", agent=cluster.urls[0])
    await lines_until(process, b"2 of 2 agents alive")
    await cluster.kill(0)
    await lines_until(process, f"{cluster.urls[0]} did not answer: asking {cluster.urls[1]}".encode())
    await lines_until(process, b"agent-0  failed")
    await cluster.kill(1)
    await lines_until(process, b"no answer for ")
    port = int(cluster.urls[1].rpartition(":")[2])
    await cluster.agents[1].start(port)
    await lines_until(process, b"1 of 2 agents alive")
    process.send_signal(signal.SIGINT)
    _, errors = await finish(process)
    assert (process.returncode, errors) == (0, b"")


async def test_a_reader_that_goes_away_ends_it(cluster: FakeCluster) -> None:
    """As `| head` does: no failure, and nothing is said."""
    command = f"{sys.executable} -m shoal.agent top -i 0.2 --agent {cluster.urls[0]} | head -n 1"
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert out.count(b"\n") == 1
    assert err == b""


class Terminal:
    """A terminal of a few columns with `shoal top` on it."""

    def __init__(self, near: int, far: int, process: Process) -> None:
        self.near, self.far, self.process = near, far, process
        self.shown = b""

    async def until(self, *words: bytes) -> bytes:
        """Everything since the last call, up to these words in their order; None of them may be missing."""
        loop, place = asyncio.get_running_loop(), 0
        async with asyncio.timeout(600):  # pytest's own bound is 900 s
            for word in words:
                while (found := self.shown.find(word, place)) < 0:
                    self.shown += await loop.run_in_executor(None, os.read, self.near, 1 << 16)
                place = found + len(word)
        seen, self.shown = self.shown[:place], self.shown[place:]
        return seen


@asynccontextmanager
async def terminal(columns: int, rows: int, *arguments: str, kind: str = "xterm") -> AsyncIterator[Terminal]:
    """`shoal top` on a new terminal of this size and kind; it is killed if it has not ended."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal.agent", "top", *arguments),
        stdin=far, stdout=far, stderr=far, env=environment | {"TERM": kind}, start_new_session=True,
    )  # fmt: skip
    try:
        yield Terminal(near, far, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(near)
        os.close(far)


ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def screens(shown: bytes) -> list[list[str]]:
    """The lines of each screen that was drawn, without colours."""
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    return [part.decode().replace("\r", "").split("\n") for part in plain.split(b"\x1b[H")[2:]]


@pytest.mark.parametrize("end", [b"q", signal.SIGINT, signal.SIGTERM])
async def test_on_twenty_columns_it_is_legible_and_leaves_the_terminal_as_it_was(
    cluster: FakeCluster, end: bytes | signal.Signals
) -> None:
    """No line is wider; keys work; at the end the screen, the cursor and the modes are those of before."""
    async with terminal(20, 10, "-i", "0.2", "--agent", cluster.urls[0]) as one:
        modes = termios.tcgetattr(one.far)
        shown = await one.until(ENTER, b"TOPIC", b"orders  ", b"0 ", b"orders  ")
        assert termios.tcgetattr(one.far)[3] & (termios.ICANON | termios.ECHO) == 0
        cluster.topics["orders"].partitions[0].append([batch_of([b"x"] * 999)], None)
        os.write(one.near, b"\r")
        shown += await one.until(b"partitions of order~", b"orders/0", b"orders/1")
        os.write(one.near, b"\x1b")
        shown += await one.until(b"topics by records/s")
        for lines in screens(shown)[:-1]:
            assert max(map(len, lines)) <= 20
            assert len(lines) <= 10
        if isinstance(end, bytes):
            os.write(one.near, end)
        else:
            one.process.send_signal(end)
        assert await asyncio.wait_for(one.process.wait(), 60) == 0
        await one.until(SHOW_CURSOR, LEAVE)
        assert termios.tcgetattr(one.far) == modes


async def test_a_terminal_may_shrink_while_it_runs(cluster: FakeCluster) -> None:
    """To one character, and back."""
    async with terminal(80, 24, "--agent", cluster.urls[0]) as one:
        await one.until(ENTER, b"PARTITIONS  TROUBLE")
        for rows, columns in ((1, 1), (5, 12), (24, 80)):
            fcntl.ioctl(one.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            one.process.send_signal(signal.SIGWINCH)
        await one.until(b"PARTITIONS  TROUBLE")
        os.write(one.near, b"q")
        assert await asyncio.wait_for(one.process.wait(), 60) == 0


async def test_the_screen_says_that_nobody_answers(cluster: FakeCluster) -> None:
    """The last rows stay; keys still work."""
    async with terminal(60, 20, "-i", "0.2", "--agent", cluster.urls[0]) as one:
        await one.until(ENTER, b"orders")
        await cluster.kill(0)
        await cluster.kill(1)
        await one.until(b"no answer for ", b"orders")
        os.write(one.near, b"\t")
        await one.until(b"agents by records/s", b"agent-1")
        os.write(one.near, b"q")
        assert await asyncio.wait_for(one.process.wait(), 60) == 0


async def test_no_agent_is_said_before_the_screen_is_taken() -> None:
    """One line on the screen that was there."""
    async with terminal(80, 24, "--agent", "http://127.0.0.1:1") as one:
        shown = await one.until(b"is an agent running?")
        assert ENTER not in shown
        assert await asyncio.wait_for(one.process.wait(), 60) == 1


async def test_a_terminal_that_can_do_nothing_gets_blocks(cluster: FakeCluster) -> None:
    """TERM=dumb, as in an editor's shell."""
    async with terminal(80, 24, "-n", "1", "--agent", cluster.urls[0], kind="dumb") as one:
        shown = await one.until(b"agent-1 ")
        assert b"\x1b" not in shown
        assert await asyncio.wait_for(one.process.wait(), 60) == 0


async def test_it_can_be_put_into_the_background(cluster: FakeCluster) -> None:
    """Ctrl-Z gives the terminal back as it was; `fg` takes it again."""
    async with terminal(80, 24, "-i", "0.2", "--agent", cluster.urls[0]) as one:
        modes = termios.tcgetattr(one.far)
        await one.until(ENTER, b"orders")
        one.process.send_signal(signal.SIGTSTP)
        await one.until(SHOW_CURSOR, LEAVE)
        async with asyncio.timeout(60):
            while os.waitid(os.P_PID, one.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
                await asyncio.sleep(0.01)  # as a shell waits: what comes before it stands still is lost
        assert termios.tcgetattr(one.far) == modes
        one.process.send_signal(signal.SIGCONT)
        await one.until(ENTER, b"orders")
        os.write(one.near, b"q")
        assert await asyncio.wait_for(one.process.wait(), 60) == 0
        await one.until(LEAVE)
        assert termios.tcgetattr(one.far) == modes


async def test_the_first_table_has_the_column_that_it_is_sorted_by(cluster: FakeCluster) -> None:
    """Agents have leads, topics have none; the next key sorts by the next column."""
    async with terminal(80, 24, "--sort", "leads", "--agent", cluster.urls[0]) as one:
        await one.until(ENTER, b"agents by leads", b"agent-0")
        os.write(one.near, b"s")
        await one.until(b"agents by holds")
        os.write(one.near, b"q")
        assert await asyncio.wait_for(one.process.wait(), 60) == 0
