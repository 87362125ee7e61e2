"""A timer's view beside a sorted list for as long as one likes: runs, merges, restarts, power failures at any
write, and damage, all chosen by a seed. The campaign `timers` and a test walk here."""

from __future__ import annotations

import random

from memory_disk import Fault, MemoryDisk

from shoal.agent.receive import DuePlace
from shoal.agent.views.timer_view import END
from shoal.agent.views.view import ViewNotReady
from tests.agent.views.view_desk import DIRECTORY, TimerDesk, random_dues

START = DuePlace(0, 0)
KEPT_RUNS_MAX = 64
"""A view with more of them merges too late."""


async def walk(seed: int, steps: int) -> int:
    """So many steps; how many faults there were. Raises AssertionError."""
    rng = random.Random(seed)
    desk = TimerDesk(MemoryDisk(random.Random(seed), pause_max=2))
    faults = 0
    try:
        await desk.open()
        for step in range(steps):
            await desk.append(random_dues(rng), 100 + step)
            fault = rng.choices((_work, _fail, _damage), (6, 2, 1))[0]
            faults += await fault(desk, rng)
            desk.view.check_invariants()
            assert len(desk.view.manifest.runs) <= KEPT_RUNS_MAX
            after, until = sorted(rng.sample([START, END, *desk.places], 2)) if desk.places else (START, END)
            assert await desk.due(after, until) == desk.expected(after, until), f"seed {seed}, step {step}"
        await desk.settle()
        assert await desk.due(START) == desk.expected(START), f"seed {seed}, at the end"
    finally:
        TimerDesk.opened.remove(desk)
        await desk.close()
    return faults


async def _work(desk: TimerDesk, rng: random.Random) -> int:
    for _ in range(rng.choice((0, 0, 1, 5))):
        await desk.maker.work(expired_us=0, seal=rng.random() < 0.3)
    return 0


async def _fail(desk: TimerDesk, rng: random.Random) -> int:
    """The disk fails in the midst of a run, a merge or a manifest, and then the power."""
    operation = rng.choice(("write", "sync", "open", "unlink", "sync_directory"))
    desk.disk.faults = [Fault(operation, 5, "view", skip=rng.randrange(12), times=1)]
    try:
        while await desk.maker.work(expired_us=0, seal=True):
            pass
    except OSError:
        if rng.random() < 0.5:  # the agent goes on with what it has
            desk.disk.faults = []
            assert await desk.due(START) == desk.expected(START)
    desk.disk.faults = []
    desk.disk.crash(random.Random(rng.random()))
    await desk.open()
    files = set(await desk.disk.list(f"{DIRECTORY}/view")) - {"manifest.a", "manifest.b"}
    assert files == {entry.name.file for entry in desk.view.manifest.runs}
    return 1


async def _damage(desk: TimerDesk, rng: random.Random) -> int:
    """A byte of a run flips, or the run is lost; the log still has its records."""
    with desk.view.pinned() as runs:
        paths = [run.path for run in runs]
    if not paths:
        return 0
    path = rng.choice(paths)
    if rng.random() < 0.2:
        desk.disk.lose(path)
    else:
        desk.disk.damage(path, rng.randrange(len(desk.disk.content(path))), 1 << rng.randrange(8))
    await desk.open()
    try:
        assert await desk.due(START) == desk.expected(START)  # a byte that nobody reads
    except ViewNotReady:
        while not desk.view.is_whole:
            assert await desk.maker.work(expired_us=0)
    return 1
