"""Lifeguard's suspicion: how long a suspected node has to speak up.

Law of this file: arithmetic and the set of accusers of one suspicion; no member list, no messages.

A suspicion begins long and every independent accusation shortens it (Lifeguard, section IV.B):
many accusers mean that the fault is the accused's, one accuser may itself be the one that is slow.
"""

import math
from typing import NamedTuple


class SuspicionBounds(NamedTuple):
    """`confirmations` are the further accusers after which the timeout has come down
    from maximum to minimum."""

    confirmations: int
    min_ms: int
    max_ms: int


def suspicion_bounds(*, mult: int, max_mult: int, probe_interval_ms: int, members: int) -> SuspicionBounds:
    """Bounds for a pool of `members` known records (self and dead ones included).

    min = mult * max(1, log10(members)) * probe interval, max = max_mult * min. A pool
    too small to confirm waits the minimum.
    """
    scale_thousandths = int(max(1.0, math.log10(max(1.0, float(members)))) * 1000)
    min_ms = mult * scale_thousandths * probe_interval_ms // 1000
    confirmations = max(0, mult - 2)
    if members - 2 < confirmations:
        confirmations = 0
    return SuspicionBounds(confirmations, min_ms, max_mult * min_ms if confirmations else min_ms)


def suspicion_timeout_ms(confirmed: int, bounds: SuspicionBounds) -> int:
    """The whole timeout after `confirmed` further accusers: max - ln(c+1)/ln(k+1) *
    (max-min), never below min."""
    if bounds.confirmations < 1:
        return bounds.min_ms
    fraction = math.log(confirmed + 1.0) / math.log(bounds.confirmations + 1.0)
    return max(bounds.min_ms, math.floor(bounds.max_ms - fraction * (bounds.max_ms - bounds.min_ms)))


class Suspicion:
    """One running suspicion. The first accuser starts it and does not count as a confirmation."""

    __slots__ = ("_accusers", "_bounds", "_started_ms")

    def __init__(self, accuser: str, bounds: SuspicionBounds, now_ms: int) -> None:
        self._accusers = {accuser}
        self._bounds = bounds
        self._started_ms = now_ms

    @property
    def deadline_ms(self) -> int:
        """When the suspected node is to be declared dead."""
        return self._started_ms + suspicion_timeout_ms(len(self._accusers) - 1, self._bounds)

    def postpone(self, by_ms: int) -> None:
        """The time in which nobody here could have heard a refutation does not count."""
        self._started_ms += by_ms

    def confirm(self, accuser: str) -> bool:
        """Count a further accuser; True when it was new and still matters, so that it is worth gossiping."""
        if len(self._accusers) > self._bounds.confirmations or accuser in self._accusers:
            return False
        self._accusers.add(accuser)
        return True
