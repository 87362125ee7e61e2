"""Lifeguard's local health awareness: how far this node should distrust its own timing.

Law of this file: one score. It rises when probes fail without even a nack, and when others had to
be refuted: both hint that we are the slow one; it falls with each success. Timeouts scale with it.
"""


class Awareness:
    """A health score from 0 (well) to maximum - 1."""

    __slots__ = ("_maximum", "score")

    def __init__(self, maximum: int) -> None:
        assert maximum >= 1
        self._maximum = maximum
        self.score = 0

    def apply(self, delta: int) -> None:
        """Move the score by delta, within its bounds."""
        self.score = min(max(0, self.score + delta), self._maximum - 1)

    def scale(self, interval_ms: int) -> int:
        """The interval stretched by the score."""
        return interval_ms * (self.score + 1)


def probe_failure_delta(expected_nacks: int, received_nacks: int) -> int:
    """What a failed probe says about us: helpers that stayed silent, too, count against our own network."""
    if expected_nacks > 0:
        return max(0, expected_nacks - received_nacks)
    return 1
