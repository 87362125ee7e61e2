"""Runs of a view on their way to a peer: what is asked is what is read, anything else is refused, and bytes
that changed on the way count for nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from memory_disk import MemoryDisk

from shoal.agent.durable.ids import GroupId
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.views.run_format import RunName
from shoal.agent.views.upkeep.shipment import (
    ViewBorrower,
    ViewLender,
    decode_piece_wanted,
    encode_piece_wanted,
)
from shoal.agent.views.view import SortedView
from shoal.format.batch import LogIndex
from shoal.segment_store.errors import Damaged
from tests.agent.views.view_desk import TimerDesk

GROUP = GroupId(b"t" * 16, 4)
NAME = RunName(LogIndex(3), LogIndex(900), 17)


def test_a_request_is_read_as_it_was_written() -> None:
    """Group, run and position."""
    assert decode_piece_wanted(encode_piece_wanted(GROUP, NAME, 2**40)) == (GROUP, NAME, 2**40)


def test_other_bytes_are_refused() -> None:
    """Every other length, and a run that ends before it begins."""
    data = encode_piece_wanted(GROUP, NAME, 5)
    for wrong in (*(data[:length] for length in range(len(data))), data + b"\0"):
        with pytest.raises(PeerMessageError):
            decode_piece_wanted(wrong)
    with pytest.raises(PeerMessageError):
        decode_piece_wanted(encode_piece_wanted(GROUP, RunName(LogIndex(9), LogIndex(8), 1), 0))


class Line:
    """Links between two agents that change one byte of a piece. `damaged_at`: counted over all pieces."""

    def __init__(self, damaged_at: int | None) -> None:
        self._handlers: dict[PeerMessage, Callable[[str, bytes], Awaitable[bytes]]] = {}
        self._left = damaged_at

    def handle_request(self, message: PeerMessage, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self._handlers[message] = handler

    async def request(self, _: str, message: PeerMessage, payload: bytes, timeout_ms: int) -> bytes:
        assert timeout_ms > 0
        answer = await self._handlers[message]("asker", payload)
        if message is PeerMessage.VIEW_PIECE and self._left is not None:
            if self._left < len(answer):
                answer = answer[: self._left] + bytes([answer[self._left] ^ 4]) + answer[self._left + 1 :]
                self._left = None
            else:
                self._left -= len(answer)
        return answer


class OneView:
    """Views of an agent that has one."""

    def __init__(self, view: SortedView) -> None:
        self._view = view

    def lendable(self, group: GroupId) -> SortedView | None:
        return self._view if group == GROUP else None


@pytest.mark.parametrize("seed", range(12))
async def test_bytes_that_changed_on_the_way_count_for_nothing(seed: int) -> None:
    """Whichever byte it is; and the same copy without the fault is whole."""
    rng = random.Random(seed)
    desk = TimerDesk(MemoryDisk())
    await desk.open()
    for number in range(40):
        await desk.append([rng.randrange(10**6) for _ in range(30)], 100 + number)
    await desk.settle()
    view, size = desk.view, sum(entry.size_bytes for entry in desk.view.manifest.runs)
    files = replace(view.files, directory="copy/view")
    for damaged_at in (rng.randrange(size), None):
        line = Line(damaged_at)
        lender, borrower = ViewLender(line, OneView(view)), ViewBorrower(line)  # type: ignore[arg-type]
        try:
            if damaged_at is not None:
                with pytest.raises(Damaged):
                    await borrower.fetch("lender", GROUP, view, files, 1)
            else:
                manifest, runs = await borrower.fetch("lender", GROUP, view, files, 1)
                assert manifest.applied == view.saved
                assert [run.entry.rows for run in runs] == [entry.rows for entry in view.manifest.runs]
        finally:
            lender.stop()
    await desk.close()
    TimerDesk.opened.remove(desk)
