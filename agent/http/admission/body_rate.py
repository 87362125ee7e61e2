"""A body on its way in: what of it is here counts, what is promised does not, and it has to keep coming.

Law of this file: accounts and deadlines; the bytes themselves are body.py's and front.py's.
"""

from __future__ import annotations

from typing import Self

from shoal.agent.http.admission.limits import Gate, HttpLimits
from shoal.errors import ShoalError


class BodyReservation:
    """One request's share of the gate's bytes, as its body comes and is used. The context gives all of it
    back at its end.

    A place is held only while a part of the body is worked on (`with gate.place()`). A slow sender holds
    none, so other requests go on.
    """

    __slots__ = ("_arriving_bytes", "_gate", "size_bytes")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._arriving_bytes = 0
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop(self.size_bytes)

    def arrive(self, size_bytes: int) -> None:
        """So much more is here of a body that is not complete; ShoalError overloaded, and as before."""
        if not self._gate.arrive(size_bytes):
            self._gate.refuse_bytes(size_bytes)
        self._arriving_bytes += size_bytes
        self.size_bytes += size_bytes

    def take_whole(self, size_bytes: int) -> None:
        """All of a body was here at once; ShoalError overloaded, and as before."""
        self._gate.hold(size_bytes)
        self.size_bytes += size_bytes

    def complete(self) -> None:
        """The body is complete: its bytes leave the room of incomplete bodies."""
        self._gate.arriving_bytes -= self._arriving_bytes
        self._arriving_bytes = 0

    def drop(self, size_bytes: int) -> None:
        """So much of it is no longer held."""
        arriving_bytes = min(size_bytes, self._arriving_bytes)
        self._gate.give_up(0, arriving_bytes)
        self._arriving_bytes -= arriving_bytes
        self._gate.hold(arriving_bytes - size_bytes)
        self.size_bytes -= size_bytes


class Pace:
    """Whether a body keeps coming, judged over windows of `body_stall_ms` in which it was waited for."""

    __slots__ = ("_bytes", "_least_bytes", "_limits", "_waited_s")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._begin(0)

    def _begin(self, held_bytes: int) -> None:
        self._bytes = 0
        self._waited_s = 0.0
        self._least_bytes = self._limits.least_bytes(held_bytes)

    def patience_s(self) -> float:
        """How long the next piece may be awaited before `came` is asked."""
        return max(0.0, self._limits.body_stall_ms / 1000 - self._waited_s)

    def came(self, size_bytes: int, waited_s: float, held_bytes: int) -> None:
        """So many bytes, perhaps none, after so long. ShoalError bad-request when that is too little."""
        self._bytes += size_bytes
        self._waited_s += waited_s
        if self.patience_s() > 0:
            return
        if self._bytes < self._least_bytes:
            raise too_slow(self._limits, self._bytes, self._least_bytes)
        self._begin(held_bytes)


def too_slow(limits: HttpLimits, brought_bytes: int, least_bytes: int) -> ShoalError:
    """400 for a body that does not keep coming."""
    seconds = limits.body_stall_ms / 1000
    brought = f"{brought_bytes} bytes" if brought_bytes else "nothing"
    wanted = f"; at least {least_bytes} bytes were wanted" if brought_bytes else ""
    return ShoalError(
        "bad-request", f"the body brought {brought} for {seconds:g} s and is not complete{wanted}"
    )
