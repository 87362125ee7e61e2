"""The looks of `shoal top`: one agent is asked again and again, its answers are shown on a terminal or as
plain blocks.

Law of this file: it asks, waits and prints. rows.py decides what is shown, view.py what a key does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.agent.cli.terminal.interruption import interruptible, on_interruption
from shoal.agent.cli.terminal.output import CliError, age_text
from shoal.agent.cli.top.kinds import TableKind
from shoal.agent.cli.top.rows import ClusterRows, rows_of
from shoal.agent.cli.top.samples import ClusterSample, sample_of
from shoal.agent.cli.top.tables import Order, column_of, ordered, rows_in, table
from shoal.agent.cli.top.view import Key, ListView, TopView, page_rows, screen_lines, summary
from shoal.format.timestamps import format_time

if TYPE_CHECKING:
    from shoal.agent.cli.top.screen import TerminalScreen
    from shoal.client.async_admin import AdminClient

FIRST_INTERVAL_SECONDS = 1.0  # the first rates should not be waited for
PLAIN_WIDTH = 1_000  # a pipe has no width: nothing is left out
PLAIN_ROWS_MAX = 50  # of a table in a block; JSON has all


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The options of one run. `kinds`: the tables of a plain block."""

    topic: str | None
    kinds: tuple[TableKind, ...]
    order: Order
    interval_s: float
    count: int | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The rows of the last answer, and what is wrong with the answers since."""

    cluster: ClusterRows
    news: tuple[str, ...] = ()


async def _looks(client: AdminClient, options: TopOptions) -> AsyncGenerator[ClusterLook]:
    """One look after the other, at the interval; `news` as long as nobody answers. Raises for the first
    answer what the client raises: a wrong URL should not look like a cluster that is down."""
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    named = client.asked
    now = await _sample(client)
    if options.topic is not None and options.topic not in now.topics:
        await client.topic(options.topic)  # raises unknown-topic, unless it has just been created
    yield ClusterLook(rows_of(now, None))
    pause_s = min(options.interval_s, FIRST_INTERVAL_SECONDS)
    while True:
        await asyncio.sleep(max(0.0, now.at_s + pause_s - time.monotonic()))
        pause_s = options.interval_s
        try:
            before, now = now, await _sample(client)
            moved = () if now.asked == named else (f"{named} did not answer: asking {now.asked}",)
            yield ClusterLook(rows_of(now, before), moved)
        except (ShoalError, Unreachable) as error:
            silent = age_text(time.monotonic() - now.at_s)
            told = f"no answer for {silent}, trying again: {error.detail}"
            yield ClusterLook(rows_of(now, None), (told,))  # the rates of then are not those of now
            await asyncio.sleep(options.interval_s)


async def _sample(client: AdminClient) -> ClusterSample:
    topics = await client.topics()
    members = await client.members()
    try:
        return sample_of(topics, members, client.asked, time.monotonic())
    except (KeyError, TypeError, ValueError) as error:
        detail = f"{client.asked} answered with documents that this version does not know: {error!r}"
        raise CliError(detail, "use the `shoal` of the agents' version") from error


async def show(client: AdminClient, options: TopOptions) -> None:
    """A screen where there is one, else blocks."""
    is_plain = options.as_json or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "dumb")
    await (_print_blocks if is_plain else _show_screen)(client, options)


async def _print_blocks(client: AdminClient, options: TopOptions) -> None:
    """A block for each look but the first, which has no rates."""
    looks = _looks(client, options)
    from shoal.agent.cli.top.json_document import document_of

    with interruptible() as task:
        try:
            await anext(looks)
            for number in itertools.count(1):
                look = await anext(looks)
                time_text = format_time(time.time_ns() // 1_000)
                if options.as_json:
                    shown = {"time": time_text, "news": look.news} | document_of(look.cluster, options.topic)
                    print(json.dumps(shown, ensure_ascii=False), flush=True)
                else:
                    print("\n".join(_block(look, options, time_text)) + "\n", flush=True)
                if number == options.count:
                    return
        except asyncio.CancelledError:
            task.uncancel()
        finally:
            await looks.aclose()


def _block(look: ClusterLook, options: TopOptions, time_text: str) -> list[str]:
    """The lines of one look: when and what, then a table of each kind."""
    lines = [f"{time_text} {summary(look.cluster)}", *filter(None, (*look.news, look.cluster.trouble))]
    for kind in options.kinds:
        rows = ordered(kind, rows_in(kind, look.cluster, options.topic), options.order)
        lines += table(kind, rows[:PLAIN_ROWS_MAX], PLAIN_WIDTH)
        if len(rows) > PLAIN_ROWS_MAX:
            lines.append(f"and {len(rows) - PLAIN_ROWS_MAX:,} more")
    return lines


async def _show_screen(client: AdminClient, options: TopOptions) -> None:
    """The screen, until a key or a signal ends it."""
    looks = _looks(client, options)
    shown = _Shown(options, await anext(looks))
    from shoal.agent.cli.top.screen import TerminalScreen

    with on_interruption(shown.end), TerminalScreen(shown.pressed, shown.changed.set) as screen:
        asking = asyncio.create_task(shown.follow(looks))
        asking.add_done_callback(lambda _: shown.end())
        try:
            while not shown.ended:
                shown.changed.clear()
                shown.draw(screen)
                await shown.changed.wait()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await looks.aclose()
    if not asking.cancelled():
        asking.result()  # raises what ended it


class _Shown:
    """The state of the screen, and its changes."""

    def __init__(self, options: TopOptions, look: ClusterLook) -> None:
        self.changed = asyncio.Event()
        self.ended = False
        self._look = look
        self._count = options.count
        self._page = 1
        kind = next(kind for kind in options.kinds if column_of(kind, options.order.title))
        if options.topic is not None:
            inside = ListView(TableKind.PARTITIONS, options.topic, options.topic, options.order)
            self._view = TopView(inside, (ListView(chosen=options.topic),))
        else:
            self._view = TopView(ListView(kind, order=options.order))

    def end(self) -> None:
        self.ended = True
        self.changed.set()

    def pressed(self, keys: Sequence[Key]) -> None:
        """Change the view."""
        for key in keys:
            view = self._view.pressed(key, self._look.cluster, self._page)
            if view is None:
                self.end()
                return
            self._view = view
        self.changed.set()

    def draw(self, screen: TerminalScreen) -> None:
        """All of it, in the present size."""
        width, height = screen.size
        self._page = page_rows(height)
        screen.draw(screen_lines(self._view, self._look.cluster, self._look.news, width, height))

    async def follow(self, looks: AsyncGenerator[ClusterLook]) -> None:
        """Take the looks, up to the last one that was asked for."""
        number = 1
        while self._count is None or number < self._count:
            self._look = await anext(looks)
            self.changed.set()
            number += 1
