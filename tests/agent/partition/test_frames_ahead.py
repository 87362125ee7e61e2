"""The newest frames of a replica: its own before the log was given them, the log's from then on."""

import random
from itertools import accumulate
from typing import Any, NamedTuple

import pytest

from shoal.agent.partition.frames_ahead import FramesAhead
from shoal.format.batch import LogIndex


class Stamp(NamedTuple):
    """As much of a stamp as is looked at."""

    index: int


class Made(NamedTuple):
    """As much of a frame as is looked at."""

    stamp: Stamp
    data: bytes


class KeepingLog:
    """A log that has the newest of its frames in memory."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.kept = 0

    @property
    def last_index(self) -> int:
        return len(self.frames)

    def held_run(self, first: int, last: int, max_bytes: int) -> list[Any]:
        if first <= len(self.frames) - self.kept:
            return []
        return within(self.frames[first - 1 : last], max_bytes)


def within(frames: list[Any], max_bytes: int) -> list[Any]:
    """The first of them that fit, but at least one."""
    sizes = accumulate(len(frame.data) for frame in frames)
    return [frame for frame, size in zip(frames, sizes, strict=True) if size <= max_bytes] or frames[:1]


@pytest.mark.parametrize("seed", range(30))
def test_they_are_the_folds_frames_whatever_the_log_holds(seed: int) -> None:
    """Appended, cut and handed to the log in any order; the log may hold an abandoned branch for a while."""
    rng = random.Random(seed)
    log: Any = KeepingLog()
    ahead, fold, is_behind = FramesAhead(log), list[Any](), False
    for _ in range(600):
        match rng.choice(["append", "append", "append", "give", "cut", "forget"]):
            case "append":
                frame: Any = Made(Stamp(len(fold) + 1), rng.randbytes(rng.randrange(1, 40)))
                ahead.append(frame)
                fold.append(frame)
            case "give":  # truncations come first, so that nothing of another branch is left
                log.frames, is_behind = list(fold), False
                log.kept = min(log.kept + 3, len(fold))
                ahead.given()
                assert len(ahead.frames) == 0
            case "cut" if fold and rng.random() < 0.3:
                index = rng.randrange(max(1, len(fold) - 8), len(fold) + 1)
                ahead.truncate(LogIndex(index))
                del fold[index - 1 :]
                is_behind = is_behind or log.last_index >= index
            case "forget":
                log.kept = min(log.kept, rng.randrange(10))
        given = len(fold) - len(ahead.frames)
        for index in range(given + 1, len(fold) + 1):
            assert ahead.frames.get(LogIndex(index)) is fold[index - 1]
        assert is_behind or given <= log.last_index
        if fold:
            first, bound = rng.randrange(max(1, len(fold) - 12), len(fold) + 1), rng.randrange(1, 200)
            last = rng.randrange(first, len(fold) + 1)
            wanted = within(fold[first - 1 : last], bound)
            in_memory = first > given or first > len(log.frames) - log.kept
            assert ahead.run(LogIndex(first), LogIndex(last), bound) == (wanted if in_memory else [])
    assert ahead.frames.get(LogIndex(len(fold) + 1)) is None
