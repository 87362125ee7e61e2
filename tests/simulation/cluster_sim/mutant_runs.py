"""Runs mutants, each seed in a process of its own, some at once.

Law of this file: it knows nothing of what a mutant does. A process for each seed, so that what one run leaves
(coroutines that were killed and never ended) cannot reach the next.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Seeded(Protocol):
    """A mutant, as far as it matters here."""

    @property
    def first_seed(self) -> int: ...


M = TypeVar("M", bound=Seeded)


@dataclass
class _Running(Generic[M]):
    """A mutant under one seed. `pipe` gives what was said when it has ended."""

    mutant: M
    seed: int
    pid: int
    pipe: int

    def found(self) -> str:
        """Empty if nobody noticed; waits for the end."""
        with os.fdopen(self.pipe, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        os.waitpid(self.pid, 0)
        return said


def _begin(caught: Callable[[M, int], str | None], mutant: M, seed: int) -> _Running[M]:
    """The process ends without cleaning up: what was killed in it never ends."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        gc.disable()  # to the end: coroutines that were killed are never collected
        try:
            os.write(writing, (caught(mutant, seed) or "").encode())
        finally:
            os._exit(0)
    os.close(writing)
    return _Running(mutant, seed, pid, reading)


def run(
    mutants: Iterable[M], caught: Callable[[M, int], str | None], *, seeds: int, jobs: int
) -> Iterator[tuple[M, int, str]]:
    """Each mutant with its last seed and what noticed it, empty if nothing did within so many seeds; in the
    order in which they end. `jobs`: how many run at once, which changes nothing in any of them."""
    waiting = deque(mutants)
    running: dict[int, _Running[M]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.popleft()
            begun = _begin(caught, mutant, mutant.first_seed)
            running[begun.pipe] = begun
        for pipe in select.select(list(running), [], [])[0]:
            ended = running.pop(pipe)
            found = ended.found()
            if found or ended.seed + 1 == ended.mutant.first_seed + seeds:
                yield ended.mutant, ended.seed, found
            else:
                begun = _begin(caught, ended.mutant, ended.seed + 1)
                running[begun.pipe] = begun
