"""The address of a former life of ours, under which others still list us.

Law of this file: what is known of that life, and what may be said for it; core.py says it.

A name moves only once it has left or died (memberlist), and others take some seconds until they believe that
a killed process has died. Its successor knows better, on its own host: nothing answers to the
name at that port, and a port of this very host is never just out of reach. So it says for its former life
what that could not say itself, that it left; once this was told, it claims the name for its own address. A
process that does answer there is no former life but a second one (a copied data directory): it keeps the
name, as ever.
"""

from shoal.membership.swim.broadcasts import Broadcast
from shoal.membership.wire.messages import Endpoint


class FormerLife:
    """At most one is looked at. `incarnation`: under which it is listed."""

    def __init__(self) -> None:
        self.incarnation = 0
        self._sequence: int | None = None
        self._leave: Broadcast | None = None

    @property
    def is_being_told(self) -> bool:
        """That it left is on its way: until that is over nothing else may be said of the name."""
        return self._leave is not None

    def may_be(self, endpoint: Endpoint, own: Endpoint) -> bool:
        """Whether to ask who is there, if nobody is asked already."""
        is_free = self._sequence is None and self._leave is None
        return is_free and endpoint.address == own.address and endpoint.port != own.port

    def asked(self, sequence: int, incarnation: int) -> None:
        """With the ping of this number."""
        self._sequence, self.incarnation = sequence, incarnation

    def is_over(self, sequence: int, *, reached: bool) -> bool:
        """Whether this is the answer to that ping, and nobody gave it."""
        if sequence != self._sequence:
            return False
        self._sequence = None
        return not reached

    def left(self, leave: Broadcast) -> None:
        """This says so."""
        self._leave = leave

    def moved(self, leave: Broadcast, incarnation: int) -> None:
        """The former life is this one, which has just changed its address."""
        self._sequence, self.incarnation = None, incarnation
        self._leave = leave

    def was_told(self) -> bool:
        """True once, when it has been said often enough."""
        if self._leave is None or not self._leave.finished:
            return False
        self._leave = None
        return True
