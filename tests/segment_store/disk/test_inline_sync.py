"""Small writes synced within the call: when, and that a call is judged as the ring is."""

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from disk_suite import FileDiskSuite

from shoal.segment_store import SyncFailed
from shoal.segment_store.disk import ring as ring_disk
from shoal.segment_store.disk.inline_sync import (
    ALONE_IN_A_ROW,
    CROWDED_GAP_US,
    CROWDED_IN_A_ROW,
    MAX_IN_CALL_BYTES,
    QUICK_US,
    TIMES_AS_LONG,
    QuickSyncs,
)
from shoal.segment_store.disk.ring import RingDisk

APART_US = 4 * CROWDED_GAP_US


def proven(now_us: int = 0) -> tuple[QuickSyncs, int]:
    """A disk that was quick and idle until now."""
    quick = QuickSyncs()
    for _ in range(ALONE_IN_A_ROW):
        assert not quick.begin(100, now_us)
        quick.ended(now_us, now_us + 80, in_call=False)
        now_us += 80 + APART_US
    return quick, now_us


def test_a_quick_and_idle_disk_is_asked_in_the_call() -> None:
    """Not before it has shown that it is, and for small writes only."""
    quick, now_us = proven()
    assert not quick.begin(MAX_IN_CALL_BYTES + 1, now_us)
    for _ in range(10 * ALONE_IN_A_ROW):
        assert quick.begin(MAX_IN_CALL_BYTES, now_us)
        quick.ended(now_us, now_us + 60, in_call=True)
        now_us += 60 + APART_US


@pytest.mark.parametrize("breaks", ["slow", "crowd"])
def test_the_proof_begins_anew(breaks: str) -> None:
    """After a sync through the ring that took long, or that had company."""
    quick, now_us = proven()
    if breaks == "slow":
        quick.ended(now_us, now_us + QUICK_US + 1, in_call=False)
    else:
        quick.crowd()
    for _ in range(ALONE_IN_A_ROW):
        now_us += 2 * QUICK_US
        assert not quick.begin(100, now_us)
        quick.ended(now_us, now_us + 80, in_call=False)
    assert quick.begin(100, now_us + APART_US)


def test_who_waits_for_the_call_is_given_the_ring() -> None:
    """Several in a row that begin right behind the one before; a few do not count."""
    quick, now_us = proven()
    for _ in range(3):
        for _ in range(CROWDED_IN_A_ROW - 1):
            assert quick.begin(100, now_us)
            quick.ended(now_us, now_us + 60, in_call=True)
            now_us += 60 + CROWDED_GAP_US - 1
        now_us += APART_US
    assert quick.begin(100, now_us)
    quick.ended(now_us, now_us, in_call=True)
    for _ in range(CROWDED_IN_A_ROW - 1):
        assert quick.begin(100, now_us)
        quick.ended(now_us, now_us, in_call=True)
    assert not quick.begin(100, now_us)
    assert not quick.begin(100, now_us + APART_US)


@pytest.mark.parametrize(
    ("took_us", "gap_us", "in_calls"), [(900, 150, False), (900, 900, True), (60, 150, True)]
)
def test_calls_hold_the_loop_for_half_of_the_time(took_us: int, gap_us: int, in_calls: bool) -> None:
    """A disk that answers within a millisecond may still be busy: whoever else waits would wait in turn."""
    quick, now_us = QuickSyncs(), 0
    held_us = 0
    for _ in range(1_000):
        in_call = quick.begin(100, now_us)
        held_us += took_us * in_call
        quick.ended(now_us, now_us + took_us, in_call=in_call)
        now_us += took_us + gap_us
    if in_calls:
        assert held_us > took_us * (1_000 - 2 * ALONE_IN_A_ROW)
    else:
        assert held_us < took_us * 1_000 // 4


@pytest.mark.parametrize("seed", range(20))
def test_slow_calls_hold_the_loop_for_a_tenth_of_the_time(seed: int) -> None:
    """And one stall, whatever the disk does: in any span that ends with the rest after it."""
    rng = random.Random(seed)
    quick, now_us = QuickSyncs(), 0
    stalls: list[tuple[int, int]] = []
    calls = 0
    worst = 10 ** rng.randrange(3, 7)
    for _ in range(20_000):
        in_call = quick.begin(100, now_us)
        took_us = (
            rng.randrange(QUICK_US, worst + QUICK_US) if rng.random() < 0.002 else rng.randrange(20, 200)
        )
        quick.ended(now_us, now_us + took_us, in_call=in_call)
        calls += in_call
        if in_call and took_us > QUICK_US:
            stalls.append((now_us, took_us))
        now_us += took_us + rng.choice((10, APART_US, 3 * APART_US))
    assert calls > 1000
    assert stalls
    for (began_us, took_us), (next_us, _) in pairwise(stalls):
        assert next_us - (began_us + took_us) >= TIMES_AS_LONG * took_us


class Eager(QuickSyncs):
    """Every write that has the disk for itself is made in the call."""

    __slots__ = ()

    def begin(self, length: int, now_us: int) -> bool:
        return True


class TestInTheCall(FileDiskSuite):
    """A disk that proved quick does everything that any disk does."""

    def made(self) -> RingDisk:
        disk = RingDisk(entries=32)
        disk._quick_syncs = Eager()
        return disk

    async def test_a_short_write_goes_on_through_the_ring(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was not written goes there, with the sync, which the call has not made."""
        write, syncs = os.pwritev, _count_syncs(monkeypatch)
        monkeypatch.setattr(ring_disk.os, "pwritev", lambda fd, buffers, at: write(fd, [buffers[0][:3]], at))
        assert await _written(disk, root, [b"abcd", b"efgh"]) is None
        assert syncs == []
        file = await disk.open(f"{root}/a")
        assert await file.read(0, 100) == b"abcdefgh"
        await file.close()

    @pytest.mark.parametrize(
        ("error", "expected"),
        [(errno.EINTR, None), (errno.EAGAIN, None), (errno.ENOSPC, OSError), (errno.EIO, OSError)],
    )
    async def test_a_refused_write(
        self,
        disk: RingDisk,
        root: str,
        monkeypatch: pytest.MonkeyPatch,
        error: int,
        expected: type[OSError] | None,
    ) -> None:
        """It goes again through the ring where it may, and is no failed sync where it may not."""

        def refusing(*_: object) -> int:
            raise OSError(error, os.strerror(error))

        syncs = _count_syncs(monkeypatch)
        monkeypatch.setattr(ring_disk.os, "pwritev", refusing)
        outcome = await _written(disk, root, b"data")
        assert (outcome if outcome is None else type(outcome)) is expected
        assert outcome is None or outcome.errno == error
        assert syncs == []

    @pytest.mark.parametrize("error", [errno.EIO, errno.EINTR, errno.ENOSPC])
    async def test_a_failed_sync_is_never_tried_again(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        """Not even when the error says that it was interrupted, and not through the ring either."""
        syncs = _count_syncs(monkeypatch, error)
        submitted: list[object] = []
        monkeypatch.setattr(ring_disk.uring, "io_uring_submit", submitted.append)
        outcome = await _written(disk, root, b"data")
        assert type(outcome) is SyncFailed
        assert outcome.errno == (errno.EIO if error == errno.EINTR else error)
        assert (len(syncs), submitted) == (1, [])

    async def test_its_user_says_when_it_answers(self, disk: RingDisk, root: str) -> None:
        """Writes that were made in the call have one answer together, where the user has a place for it."""
        calls: list[Callable[[], None]] = []
        disk.call_soon = calls.append
        file = await disk.open(f"{root}/a", create=True)
        told: list[BaseException | None] = []
        for place in range(2):
            file.begin_write_and_sync(4 * place, b"data", told.append)
        await asyncio.sleep(0)
        assert (len(calls), told) == (1, [])
        calls[0]()
        assert told == [None, None]
        await file.close()

    async def test_a_disk_that_closes_tells_everybody(self, disk: RingDisk, root: str) -> None:
        """Its file and it wait for what was made and not told yet."""
        file = await disk.open(f"{root}/a", create=True)
        told: list[BaseException | None] = []
        file.begin_write_and_sync(0, b"data", told.append)
        assert told == []
        await asyncio.gather(file.close(), disk.close())
        assert told == [None]


async def test_one_at_a_time_goes_past_the_ring_and_several_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine's own disk, whose slow moments are left out: none begins close to the last."""
    monkeypatch.setattr("shoal.segment_store.disk.inline_sync.QUICK_US", 10**9)
    syncs = _count_syncs(monkeypatch)
    disk = RingDisk()
    files = [await disk.open(str(tmp_path / name), create=True) for name in "ab"]
    told: asyncio.Queue[BaseException | None] = asyncio.Queue()
    for number in range(ALONE_IN_A_ROW + 10):
        began_s = time.monotonic()
        files[0].begin_write_and_sync(number, b"x", told.put_nowait)
        assert await told.get() is None
        await asyncio.sleep(0.001 + time.monotonic() - began_s)
    assert len(syncs) == 10
    monkeypatch.setattr("shoal.segment_store.disk.inline_sync.CROWDED_GAP_US", 10**9)
    for number in range(100):
        for file in files:
            file.begin_write_and_sync(number, b"x", told.put_nowait)
        assert [await told.get() for _ in files] == [None, None]
    assert len(syncs) < 10 + 2 * CROWDED_IN_A_ROW
    for file in files:
        await file.close()
    await disk.close()


async def test_a_disk_that_is_told_of_others_goes_through_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next syncs have to prove the disk quick again, one by one."""
    monkeypatch.setattr("shoal.segment_store.disk.inline_sync.QUICK_US", 10**9)
    syncs = _count_syncs(monkeypatch)
    disk = RingDisk()
    file = await disk.open(str(tmp_path / "a"), create=True)
    told: asyncio.Queue[BaseException | None] = asyncio.Queue()
    for number in range(2 * ALONE_IN_A_ROW + 2):
        if number == ALONE_IN_A_ROW:
            disk.crowd()
        assert len(syncs) == max(number - 2 * ALONE_IN_A_ROW, 0)
        file.begin_write_and_sync(number, b"x", told.put_nowait)
        assert await told.get() is None
    await file.close()
    await disk.close()


def _count_syncs(monkeypatch: pytest.MonkeyPatch, error: int = 0) -> list[int]:
    """The syncs made in calls. With an error they fail."""
    syncs: list[int] = []
    real = ring_disk.sync_fully

    def counted(fd: int) -> None:
        syncs.append(fd)
        if error:
            raise SyncFailed(error, os.strerror(error))
        real(fd)

    monkeypatch.setattr(ring_disk, "sync_fully", counted)
    return syncs


async def _written(disk: RingDisk, root: str, data: bytes | list[bytes]) -> OSError | None:
    """What one caller hears of its write."""
    file = await disk.open(f"{root}/a", create=True)
    told: asyncio.Queue[BaseException | None] = asyncio.Queue()
    file.begin_write_and_sync(0, data, told.put_nowait)
    outcome = await asyncio.wait_for(told.get(), 40)
    await file.close()
    assert outcome is None or isinstance(outcome, OSError)
    return outcome
