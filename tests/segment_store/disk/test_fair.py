"""A bounded number of syncs in flight, and nobody starves: the schedule alone, and logs behind it."""

import asyncio
import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_frames import SMALL, next_frame, open_log

from shoal.segment_store import DiskFailed, SyncFailed, ThreadDisk
from shoal.segment_store.disk import system_calls
from shoal.segment_store.disk.disk import Buffer
from shoal.segment_store.disk.fair_queue import STAMPS_MIN, SYNC_COST_BYTES, SyncSchedule
from shoal.segment_store.disk.ring import RingDisk
from shoal.segment_store.disk.threads import SyncRequest

MIB = 2**20
Asked = tuple[str, int, int]  # key, size, number


def _run(schedule: SyncSchedule[Asked], keys: list[str], size: int, small: str, starts: int) -> list[str]:
    """Every key but `small` always wants to sync `size` bytes; `small` asks once, in the middle. Who started
    from then on."""
    flying: list[Asked] = []
    for key in keys:
        schedule.offer(key, size, (key, size, 0))
    order: list[str] = []
    for number in range(starts):
        if number == starts // 2:
            schedule.offer(small, 4096, (small, 4096, 0))
            order.clear()
        while (request := schedule.start()) is not None:
            flying.append(request)
            order.append(request[0])
        over = flying.pop(0)
        schedule.ended(over[1])
        if over[0] != small:
            schedule.offer(over[0], size, over)
        schedule.check_invariants()
    return order


def test_a_small_request_passes_the_busy() -> None:
    """Forty partitions sync eight megabytes at a time for ever; one that asks for a page is next or nearly
    so."""
    order = _run(SyncSchedule(), [f"busy{number}" for number in range(40)], 8 * MIB, "small", 400)
    assert order.index("small") <= 4
    shares = [order.count(f"busy{number}") for number in range(40)]
    assert max(shares) - min(shares) <= 1


def test_one_busy_partition_does_not_hold_up_another() -> None:
    """Whoever has a thousand requests waiting is passed by one who has a single one."""
    schedule: SyncSchedule[Asked] = SyncSchedule(1)
    for number in range(1000):
        schedule.offer("busy", 4096, ("busy", 4096, number))
    assert schedule.start() == ("busy", 4096, 0)
    schedule.offer("other", 4096, ("other", 4096, 0))
    schedule.ended(4096)
    assert schedule.start() == ("other", 4096, 0)


def test_one_larger_than_the_bound_goes_alone() -> None:
    """It neither waits for ever nor has company."""
    schedule: SyncSchedule[str] = SyncSchedule(4, MIB)
    assert schedule.start_at_once(100)
    assert not schedule.start_at_once(2 * MIB)
    schedule.offer("large", 2 * MIB, "large")
    assert schedule.start() is None
    schedule.ended(100)
    assert schedule.start() == "large"
    assert not schedule.start_at_once(0)
    schedule.ended(2 * MIB)
    assert schedule.start_at_once(0)
    schedule.check_invariants()


@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 10, 4096, MIB, 9 * MIB]), st.booleans()),
        max_size=60,
    ),
)
def test_everything_that_is_asked_for_happens_once_and_in_order(
    limit: int, asked: list[tuple[str, int, bool]]
) -> None:
    """Whatever the mixture: bounds hold, each key's requests keep their order, none is lost."""
    schedule: SyncSchedule[Asked] = SyncSchedule(limit, 4 * MIB)
    started: list[Asked] = []
    flying: list[Asked] = []

    def drain(ends: int) -> None:
        while (request := schedule.start()) is not None:
            flying.append(request)
            started.append(request)
        schedule.check_invariants()
        for _ in range(min(ends, len(flying))):
            schedule.ended(flying.pop(0)[1])

    for number, (key, size, pause) in enumerate(asked):
        schedule.offer(key, size, (key, size, number))
        if pause:
            drain(1)
    while flying or len(schedule):
        drain(1)
    assert sorted(started, key=lambda request: request[2]) == [
        (key, size, number) for number, (key, size, _) in enumerate(asked)
    ]
    for key in "abcd":
        numbers = [request[2] for request in started if request[0] == key]
        assert numbers == sorted(numbers)
    assert (schedule.in_flight, schedule.bytes_in_flight) == (0, 0)


@given(st.integers(1, 30), st.integers(0, 4 * MIB))
def test_how_long_anybody_waits(others: int, size: int) -> None:
    """Behind what every other partition may ask for with the same cost, and what is in flight: no more."""
    schedule: SyncSchedule[str] = SyncSchedule(1)
    for other in range(others):
        for _ in range(50):
            schedule.offer(f"other{other}", 4096, f"other{other}")
    for _ in range(others * 3):
        assert schedule.start() is not None
        schedule.ended(4096)
    schedule.offer("me", size, "me")
    passed = 0
    while schedule.start() != "me":
        schedule.ended(4096)
        passed += 1
    turns = -(-(SYNC_COST_BYTES + size) // (SYNC_COST_BYTES + 4096))
    assert passed <= others * (turns + 1)


SIZES = st.sampled_from([0, 100, 4096, 70_000, MIB, 8 * MIB])


@given(st.lists(SIZES, min_size=1, max_size=40), SIZES, st.integers(1, 16), st.integers(0, 200))
def test_how_often_each_that_asks_again_passes(sizes: list[int], size: int, limit: int, before: int) -> None:
    """Whoever asks for its next sync when its last has ended is charged for that last one: it passes a
    waiting request by no more than that one's cost."""
    schedule: SyncSchedule[Asked] = SyncSchedule(limit)
    flying: list[Asked] = []
    passed = [0] * len(sizes)

    def drain() -> None:
        while (request := schedule.start()) is not None:
            flying.append(request)
            if request[0] != "me":
                passed[request[2]] += 1
        schedule.check_invariants()

    def end_one() -> None:
        over = flying.pop(0)
        schedule.ended(over[1])
        drain()
        schedule.offer(*over[:2], over)
        drain()

    for number, other in enumerate(sizes):
        schedule.offer(f"other{number}", other, (f"other{number}", other, number))
    drain()
    for _ in range(before):
        end_one()
    passed = [0] * len(sizes)
    schedule.offer("me", size, ("me", size, -1))
    drain()
    while not any(request[0] == "me" for request in flying):
        end_one()
        for number, other in enumerate(sizes):
            turns = -(-(SYNC_COST_BYTES + size) // (SYNC_COST_BYTES + other))
            assert passed[number] <= turns + 1


def test_stamps_of_those_that_are_gone_are_forgotten() -> None:
    """Twenty thousand partitions that each ask once, beside one that never stops: few stamps are kept."""
    schedule: SyncSchedule[str] = SyncSchedule(1)
    schedule.offer("busy", 0, "busy")
    for number in range(20_000):
        assert schedule.start() == "busy"
        schedule.offer(f"once{number}", 0, "once")
        schedule.offer("busy", 0, "busy")
        schedule.ended(0)
        assert schedule.start() == "once"
        schedule.ended(0)
        schedule.check_invariants()
    assert len(schedule._newest) <= 2 * STAMPS_MIN


def made(kind: str, schedule: SyncSchedule[SyncRequest]) -> ThreadDisk:
    return RingDisk(32, schedule) if kind == "ring" else ThreadDisk(schedule=schedule)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests had begun and not ended, at each begin."""
    running, seen = set[SyncRequest](), list[int]()
    begin, ended = SyncRequest.begin, SyncRequest.ended

    def counting_begin(request: SyncRequest) -> None:
        running.add(request)
        seen.append(len(running))
        begin(request)

    def counting_end(request: SyncRequest, error: BaseException | None) -> None:
        running.remove(request)
        ended(request, error)

    monkeypatch.setattr(SyncRequest, "begin", counting_begin)
    monkeypatch.setattr(SyncRequest, "ended", counting_end)
    return seen


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_many_logs_one_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty logs append at once over four syncs in flight: all succeed, the bound holds, and what comes
    while a log waits for its turn shares its next sync."""
    seen = counted(monkeypatch)
    disk = made(kind, SyncSchedule(4))
    logs = [await open_log(disk, f"{tmp_path}/log{number}") for number in range(30)]
    appends = []
    for _ in range(20):
        for log in logs:
            appends.append(log.append([next_frame(log)]))
    await asyncio.gather(*appends)
    for log in logs:
        assert log.synced_index == 20
        assert log._writer.syncs <= 4
        await log.close()
    assert max(seen) == 4
    assert (disk.schedule.in_flight, len(disk.schedule)) == (0, 0)
    await disk.close()


class Watched(SyncSchedule[SyncRequest]):
    """One sync in flight at a time, and how many of others began while requests of one directory waited."""

    def __init__(self, directory: Path) -> None:
        super().__init__(1)
        self._directory = str(directory)
        self._waits: list[list[int]] = []  # per request of it: its place among its own, others that began
        self.waited: list[tuple[int, int]] = []  # the same, of those that have begun

    def offer(self, key: str, size: int, request: SyncRequest) -> None:
        super().offer(key, size, request)
        if key == self._directory:
            self._waits.append([len(self._waits) + 1, 0])

    def start(self) -> SyncRequest | None:
        request = super().start()
        if request is not None and self._waits:
            if os.path.dirname(request.file.path) == self._directory:
                place, others = self._waits.pop(0)
                self.waited.append((place, others))
            else:
                for wait in self._waits:
                    wait[1] += 1
        return request


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_a_busy_log_does_not_starve_another(kind: str, tmp_path: Path) -> None:
    """With one sync in flight at a time, what a log asks for waits behind no more than another that never
    stops may ask for with the same cost, and one more."""
    schedule = Watched(tmp_path / "quiet")
    disk = made(kind, schedule)
    busy, quiet = await open_log(disk, f"{tmp_path}/busy"), await open_log(disk, f"{tmp_path}/quiet")
    stopped = False

    async def work() -> None:
        while not stopped:
            await busy.append([next_frame(busy, value_bytes=3000)])

    working = [asyncio.ensure_future(work()) for _ in range(2)]
    while len(schedule.waited) < 20:
        await quiet.append([next_frame(quiet)])
    assert max(others - place for place, others in schedule.waited) <= 1
    stopped = True
    await asyncio.gather(*working)
    for log in (busy, quiet):
        await log.close()
    await disk.close()


@pytest.mark.parametrize("kind", [OSError, SyncFailed])
async def test_a_failure_makes_room(
    kind: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends badly has ended: the error reaches the log it belongs to, others go on."""
    disk = made("threads", SyncSchedule(1))
    config = replace(SMALL, index_interval_ms=60_000)  # the fault is for the append, not for its index
    ill = await open_log(disk, f"{tmp_path}/ill", config)
    well = await open_log(disk, f"{tmp_path}/well", config)
    for log in (ill, well):
        await log.append([next_frame(log)])
    real = system_calls.write_and_sync

    def failing(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
        if "/ill/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise kind(errno.EIO, "the disk is ill")
        real(fd, offset, buffers)

    monkeypatch.setattr(system_calls, "write_and_sync", failing)
    results = await asyncio.gather(
        ill.append([next_frame(ill)]),
        *[well.append([next_frame(well)]) for _ in range(3)],
        return_exceptions=True,
    )
    assert isinstance(results[0], DiskFailed)
    assert results[1:] == [None] * 3
    for log in (ill, well):
        await log.close()
    assert (disk.schedule.in_flight, len(disk.schedule)) == (0, 0)
    await disk.close()


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_a_request_that_cannot_begin_makes_room(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug there reaches the caller; the file can be closed, and another sync gets the place."""
    disk = made(kind, SyncSchedule(1))
    file = await disk.open(str(tmp_path / "a"), create=True)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as ill:
        ill.setattr(type(file), "begin", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            await file.write_and_sync(0, b"lost")
    assert disk.schedule.in_flight == 0
    await file.write_and_sync(0, b"kept")
    assert await file.read(0, 10) == b"kept"
    await file.close()
    await disk.close()


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_a_closed_disk_refuses_syncs(kind: str, tmp_path: Path) -> None:
    """As a closed file does: the error is told from the loop, never in the call."""
    disk = made(kind, SyncSchedule(1))
    file = await disk.open(str(tmp_path / "a"), create=True)
    await disk.close()
    told: list[BaseException | None] = []
    file.begin_write_and_sync(0, b"late", told.append)
    assert told == []
    with pytest.raises(OSError, match="closed"):
        await file.sync()
    assert [type(error) for error in told] == [OSError]
    await file.close()
