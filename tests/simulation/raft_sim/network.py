"""A network that loses, delays, duplicates, reorders and cuts.

Law of this file: whether and when a packet arrives. What it says is nobody's business here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from raft_sim.knobs import Knobs


class Network:
    """Links are between agents and one-way: blocked holds (from, to). loss_burst is added to the usual
    loss."""

    def __init__(self, knobs: Knobs, rng: random.Random) -> None:
        self._knobs = knobs
        self._rng = rng
        self.blocked: set[tuple[str, str]] = set()
        self.loss_burst = 0.0
        self.perfect = False

    def passes(self, sender: str, receiver: str) -> bool:
        """Whether the link is up."""
        return (sender, receiver) not in self.blocked

    def delays_ms(self, sender: str, receiver: str) -> Iterator[int]:
        """When the copies of a packet arrive, from now; none if it is lost."""
        if not self.passes(sender, receiver):
            return
        knobs, rng = self._knobs, self._rng
        if self.perfect:
            yield rng.randint(1, knobs.delay_ms_max)
            return
        if rng.random() < knobs.loss + self.loss_burst:
            return
        yield self._delay_ms()
        if rng.random() < knobs.duplication:
            yield self._delay_ms()

    def _delay_ms(self) -> int:
        if self._rng.random() < self._knobs.straggler:
            return self._rng.randint(1, self._knobs.straggler_ms_max)
        return self._rng.randint(1, self._knobs.delay_ms_max)

    def heal(self) -> None:
        """All links up, no losses: the liveness phase."""
        self.blocked.clear()
        self.loss_burst = 0.0
        self.perfect = True


def cut(shape: str, agents: list[str], rng: random.Random) -> set[tuple[str, str]]:
    """The links that a partition of that shape takes down."""
    order = rng.sample(agents, len(agents))
    half = len(order) // 2
    if shape == "isolate":
        return _both_ways(order[:1], order[1:])
    if shape == "halves":
        return _both_ways(order[:half], order[half:])
    if shape == "bridge":  # one agent alone sees both halves
        return _both_ways(order[:half], order[half + 1 :])
    if shape == "ring":  # everybody sees two neighbours
        size = len(order)
        near = {(order[i], order[(i + step) % size]) for i in range(size) for step in (1, size - 1)}
        return {(a, b) for a in order for b in order if a != b and (a, b) not in near}
    if shape == "mute":  # one agent hears, and is not heard
        return {(order[0], other) for other in order[1:]}
    assert shape == "deaf"  # one agent is heard, and does not hear
    return {(other, order[0]) for other in order[1:]}


SHAPES = ("isolate", "halves", "bridge", "ring", "mute", "deaf")


def _both_ways(left: list[str], right: list[str]) -> set[tuple[str, str]]:
    return {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}
