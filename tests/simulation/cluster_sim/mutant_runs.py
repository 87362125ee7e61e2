"""Runs mutants, each seed in a process of its own, some at once.

Law of this file: it knows nothing of what a mutant does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from cluster_sim.processes import Processes


class Seeded(Protocol):
    """A mutant, as far as it matters here."""

    @property
    def first_seed(self) -> int: ...


M = TypeVar("M", bound=Seeded)


@dataclass(frozen=True)
class Judged(Generic[M]):
    """A mutant and its last seed. `found`: what noticed it there, empty if nothing did within so many seeds.
    `death`: what the process died of that should have said so, else empty: then nothing is known.
    `processor_s`: of all its seeds."""

    mutant: M
    seed: int
    found: str
    death: str
    processor_s: float


class _Try(NamedTuple, Generic[M]):
    mutant: M
    seed: int
    processor_s: float
    """Of the seeds before."""


def run(
    mutants: Iterable[M], caught: Callable[[M, int], str | None], *, seeds: int, jobs: int
) -> Iterator[Judged[M]]:
    """In the order in which they end. No further seed is tried behind a death. `jobs`: how many run at once,
    which changes nothing in any of them."""
    waiting = deque(_Try(mutant, mutant.first_seed, 0.0) for mutant in mutants)
    with Processes[_Try[M]](lambda tried: caught(tried.mutant, tried.seed) or "") as processes:
        while waiting or len(processes):
            while waiting and len(processes) < jobs:
                processes.begin(waiting.popleft())
            for ended in processes.wait():
                mutant, seed, before_s = ended.work
                processor_s = before_s + ended.processor_s
                if ended.said or ended.death or seed + 1 == mutant.first_seed + seeds:
                    yield Judged(mutant, seed, ended.said, ended.death, processor_s)
                else:
                    waiting.appendleft(_Try(mutant, seed + 1, processor_s))
