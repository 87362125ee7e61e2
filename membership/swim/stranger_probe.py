"""Strangers who want in while the table is full: one that answers at the address it claims is let in.

Law of this file: who has been asked, and whose answer counts. What becomes of those who answer is core.py's.

A pool without a key can be filled with invented nodes that never die, because their inventor refutes
their deaths. They answer nothing. So a stranger is pinged where it claims to be, with a number that nobody
else has seen, and takes the place of one that never answered. A claim costs us one small packet, as much as
it cost its sender: nobody is hit by more than was sent.
"""

import random

from shoal.membership.wire.messages import Alive, Endpoint, Ping, is_ipv4

MAX_RINGS = 1024
"""Strangers asked at a time; the newest push out the oldest. At ten thousand claims a second each has a tenth
of one to answer, a hundred times a network's round trip."""

MAX_RINGS_PER_EVENT = 16
"""Of one datagram or exchange of state: who joins brings itself, and perhaps a few that came with it."""


class StrangerProbe:
    """One per core."""

    def __init__(self) -> None:
        self._asked: dict[int, Alive] = {}
        self._left = MAX_RINGS_PER_EVENT

    def next_event(self) -> None:
        """Something else arrived."""
        self._left = MAX_RINGS_PER_EVENT

    def ring(self, claim: Alive, local: Endpoint, local_name: str, rng: random.Random) -> Ping | None:
        """What to send to the claimed address; None when this event has been given its share."""
        if not self._left:
            return None
        self._left -= 1
        sequence = rng.getrandbits(32)
        if len(self._asked) >= MAX_RINGS:
            del self._asked[next(iter(self._asked))]
        self._asked[sequence] = claim
        return Ping(sequence, claim.node, local, local_name)

    def answered(self, sequence: int, source: Endpoint) -> Alive | None:
        """The node whose claim an ack from there proves, if there is one."""
        claim = self._asked.get(sequence)
        if claim is None or not _same_place(claim.endpoint, source):
            return None
        return self._asked.pop(sequence)

    def check_invariants(self) -> None:
        assert len(self._asked) <= MAX_RINGS
        assert 0 <= self._left <= MAX_RINGS_PER_EVENT


def _same_place(claimed: Endpoint, source: Endpoint) -> bool:
    """IPv4 addresses may come in IPv6 clothes."""
    if claimed.port != source.port:
        return False
    if is_ipv4(claimed.address) and is_ipv4(source.address):
        return claimed.address[-4:] == source.address[-4:]
    return claimed.address == source.address
