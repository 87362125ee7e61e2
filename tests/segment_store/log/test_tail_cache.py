"""The newest frames in memory, beside a plain list."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shoal.format.batch import LogIndex
from shoal.segment_store.log.tail_cache import TailCache


class Stamp:
    def __init__(self, index: int) -> None:
        self.index = LogIndex(index)


class Held:
    """As much of a frame as a cache looks at."""

    def __init__(self, index: int, size_bytes: int) -> None:
        self.stamp = Stamp(index)
        self.data = bytes(size_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_a_list_would(seed: int) -> None:
    """Appends, cuts of the end and drops of the beginning in any order; the bound is for what is written."""
    rng = random.Random(seed)
    limit_bytes = 200
    cache, frames = TailCache(limit_bytes), list[Any]()
    next_index = rng.randrange(1, 50)
    for _ in range(2_000):
        match rng.choice(["put", "put", "put", "shrink", "cut"]):
            case "put":
                frame: Any = Held(next_index, rng.randrange(1, 40))
                cache.put(frame)
                frames.append(frame)
                next_index += 1
            case "shrink":
                written = next_index - rng.randrange(6)
                cache.shrink(LogIndex(written))
                while sum(len(one.data) for one in frames) > limit_bytes and frames[0].stamp.index <= written:
                    frames.pop(0)
            case "cut":
                if rng.random() < 0.2:
                    next_index = max(1, next_index - rng.randrange(12))
                    cache.cut(LogIndex(next_index))
                    frames = [one for one in frames if one.stamp.index < next_index]
        assert (len(cache), cache.size_bytes) == (len(frames), sum(len(one.data) for one in frames))
        assert cache.first_index == (frames[0].stamp.index if frames else None)
        for index in range(next_index - len(frames) - 2, next_index + 2):
            wanted = next((one for one in frames if one.stamp.index == index), None)
            found = cache.run(LogIndex(index), LogIndex(index), 0)
            assert (found[0] if found else None) is wanted
        first, bound = next_index - rng.randrange(1, 8), rng.randrange(1, 100)
        last = first + rng.randrange(5)
        held = (
            [one for one in frames if first <= one.stamp.index <= last]
            if cache.run(LogIndex(first), LogIndex(first), 0)
            else []
        )
        fitting = [
            one for at, one in enumerate(held) if sum(len(two.data) for two in held[: at + 1]) <= bound
        ]
        assert cache.run(LogIndex(first), LogIndex(last), bound) == (fitting or held[:1])


def test_a_frame_that_leaves_a_gap_is_a_fault() -> None:
    """What is newer than the oldest frame is held: readers rely on it."""
    cache, first, later = TailCache(100), Held(5, 1), Held(7, 1)
    frame: Any = first
    cache.put(frame)
    frame = later
    with pytest.raises(AssertionError):
        cache.put(frame)
