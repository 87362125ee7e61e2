"""What a power failure may do to a log, for the test beside this and for scripts/campaign.

The power fails at any operation, during recovery too, and takes any unsynced sectors with it.

After each failure the log opens without damage; every acknowledged frame is there byte for byte; what else
is there was offered at that index; a truncation that was acknowledged stays done; and whatever an opening
found it has made durable, so the next failure may not take it.
"""

import asyncio
import dataclasses
import errno
import random

from memory_disk import MemoryDisk
from store_frames import SMALL, all_frames, next_frame, open_log

from shoal.format.batch import Frame
from shoal.segment_store import DiskFailed, LogConfig, PartitionLog, StoreError


class _UnreliableDisk(MemoryDisk):
    """Loses power at the operation that was chosen."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, pause_max=3)
        self._chance = rng
        self.operations_left = 0

    async def begin(self, operation: str, path: str) -> None:
        self.operations_left -= 1
        if self.operations_left == 0:
            self.crash(self._chance)
            raise OSError(errno.EIO, "the power failed")
        await super().begin(operation, path)


class Witness:
    """What the log has promised, and what it may hold at all."""

    def __init__(self) -> None:
        self.promised: dict[int, bytes] = {}
        self.allowed: dict[int, set[bytes]] = {}
        self.outstanding: set[_Offer] = set()
        self.trim_asked = 1  # the log may begin anywhere up to here
        self.trim_done = 1  # it does not begin before

    def truncation_asked(self, from_index: int) -> None:
        self.promised = {index: data for index, data in self.promised.items() if index < from_index}
        for offer in self.outstanding:
            offer.cap = min(offer.cap, from_index - 1)

    def truncation_done(self, from_index: int, offered_before: dict[int, set[bytes]]) -> None:
        for index, before in offered_before.items():
            if index >= from_index:
                self.allowed[index] = self.allowed[index] - before

    def check(self, frames: list[Frame]) -> None:
        held = {frame.stamp.index: frame.data for frame in frames}
        first = min(held, default=1)
        assert self.trim_done <= first <= self.trim_asked, (self.trim_done, first, self.trim_asked)
        for index, data in self.promised.items():
            if index >= first:
                assert index in held, f"acknowledged entry {index} is lost; the log ends at {max(held)}"
                assert held[index] == data, f"acknowledged entry {index} was replaced"
        for index, data in held.items():
            assert data in self.allowed.get(index, ()), f"entry {index} was never offered, or was truncated"
        self.trim_asked = self.trim_done = first
        self.promised = held
        self.allowed = {index: {data} for index, data in self.promised.items()}
        self.outstanding.clear()


class _Offer:
    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.cap = 2**62


async def _append(log: PartitionLog, witness: Witness, rng: random.Random, term: int) -> None:
    frames: list[Frame] = []
    frame = next_frame(
        log,
        rng.randrange(4),
        term=term,
        fill=rng.randrange(256),
        first_of_segment=rng.random() < 0.1,
        value_bytes=rng.choice((1, 100, 700, 5000)),
    )
    frames.append(frame)
    offer = _Offer(frames)
    witness.allowed.setdefault(frame.stamp.index, set()).add(frame.data)
    witness.outstanding.add(offer)
    await log.append(frames)
    witness.outstanding.discard(offer)
    for done in frames:
        if done.stamp.index <= offer.cap:
            witness.promised[done.stamp.index] = done.data


async def _truncate(log: PartitionLog, witness: Witness, rng: random.Random) -> None:
    lowest = 1 if log.first_index == 1 else log.first_index + 1
    # What a trim relies on is committed, and never truncated.
    from_index = max(lowest, witness.trim_asked + 1, log.last_index + 1 - rng.randrange(5))
    before = {index: set(offered) for index, offered in witness.allowed.items()}
    witness.truncation_asked(from_index)
    await log.truncate_suffix(from_index)
    witness.truncation_done(from_index, before)


async def _trim(log: PartitionLog, witness: Witness, rng: random.Random) -> None:
    heads = [span.first_index for span in log.spans()]
    before = rng.choice(heads) if heads else 1
    witness.trim_asked = max(witness.trim_asked, before)
    await log.trim(before)
    witness.trim_done = max(witness.trim_done, before)


async def work(log: PartitionLog, witness: Witness, rng: random.Random) -> None:
    """Until the disk fails. Coroutines start in their order, so each stamps behind the one before."""
    term = int(log.last_term) + 1
    while True:
        steps = []
        for _ in range(rng.randrange(1, 7)):
            if rng.random() < 0.12:
                term += 1
                steps.append(_truncate(log, witness, rng))
            elif rng.random() < 0.06:
                steps.append(_trim(log, witness, rng))
            else:
                steps.append(_append(log, witness, rng, term))
        results = await asyncio.gather(*steps, return_exceptions=True)
        faults = [result for result in results if result is not None]
        if faults:
            for fault in faults:
                if not isinstance(fault, StoreError):
                    raise fault
            return
        if rng.random() < 0.05:
            await log.close()
            return


async def held_frames(log: PartitionLog) -> list[Frame]:
    return await all_frames(log) if log.last_index else []


async def _life(seed: int, crashes: int, config: LogConfig, witness: Witness) -> None:
    rng = random.Random(seed)
    disk = _UnreliableDisk(rng)
    for _ in range(crashes):
        disk.operations_left = rng.choice((rng.randrange(1, 12), rng.randrange(1, 60), rng.randrange(1, 300)))
        try:
            log = await open_log(disk, config=config)
        except DiskFailed:
            continue  # the power failed during recovery
        assert log.damage == (), (seed, log.damage)
        try:
            witness.check(await held_frames(log))
        except StoreError:
            assert disk.operations_left <= 0  # the reads met the failure
            continue
        await work(log, witness, rng)
        await log.close()
    disk.operations_left = 0
    log = await open_log(disk, config=config)
    witness.check(await held_frames(log))
    assert await log.verify() == []
    await log.close()


class Doubter(Witness):
    """Without fsync nothing is promised; what is there must still have been offered, and nothing looks
    damaged."""

    def check(self, frames: list[Frame]) -> None:
        self.promised.clear()
        super().check(frames)


def _without_clock(config: LogConfig) -> LogConfig:
    """Index entries by bytes written, not by time, which no seed decides."""
    return dataclasses.replace(config, index_interval_ms=1_000_000, index_interval_bytes=2_000)


def run_life(seed: int, config: LogConfig = SMALL, crashes: int = 8) -> None:
    """One log through up to so many power failures, everything from the seed. AssertionError names it."""
    config = _without_clock(config)
    witness = Witness() if config.fsync else Doubter()
    try:
        asyncio.run(_life(seed, crashes, config, witness))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


UNSYNCED = dataclasses.replace(SMALL, fsync=False)


async def _one_failure(seed: int, prefix: int, order: int) -> None:
    """The work of `seed` until its operation number `prefix`, where the power fails and the disk keeps what
    `order` says."""
    work_rng = random.Random(seed)
    disk = _UnreliableDisk(random.Random(order))
    witness = Witness()
    log = await open_log(disk, config=_without_clock(SMALL))
    disk.operations_left = prefix
    while disk.operations_left > 0:
        await work(log, witness, work_rng)
        await log.close()
        try:
            log = await open_log(disk, config=_without_clock(SMALL))
        except DiskFailed:
            assert disk.operations_left <= 0  # it was the opening that met the failure
    await log.close()
    log = await open_log(disk, config=_without_clock(SMALL))
    assert log.damage == (), log.damage
    witness.check(await held_frames(log))
    assert await log.verify() == []
    await log.close()


def run_prefixes(seed: int, operations: int, orders: int) -> int:
    """Every prefix of a trace of so many operations, each followed by a power failure that keeps, loses and
    tears unsynced sectors and names in so many ways. How many failures that were."""
    count = 0
    for prefix in range(1, operations + 1):
        for order in range(orders):
            try:
                asyncio.run(_one_failure(seed, prefix, order * operations + prefix))
            except BaseException as error:
                error.add_note(f"seed {seed}, prefix {prefix}, order {order}")
                raise
            count += 1
    return count
