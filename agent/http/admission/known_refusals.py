"""Refusals of requests of the fast ways, remembered within one second of the wall clock.

Law of this file: memory; nobody is judged here, and the time is an argument. A refused client asks the same
again a thousand times a second, and is to cost others little. A second, since answers have its date. So a
credential that the clock alone makes a good one is one in the next second.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from shoal.agent.http.admission.guard import Guard
from shoal.agent.security.access import Identity, PeerCertificate
from shoal.errors import ShoalError

REFUSALS_MAX: Final = 1_024
"""As many as heads are remembered. When full they are forgotten, not searched."""
SECOND_MS: Final = 1_000

Asked: TypeAlias = tuple[str | None, PeerCertificate | None, str, str]
"""What the verdict on a fast request depends on: its credentials, operation and resource."""


class KnownRefusal(NamedTuple):
    """Why a request is refused, and its sender as far as it has proven itself. `answers`: those that were
    sent, by what their connections tell a browser."""

    identity: Identity
    error: ShoalError
    answers: dict[Guard, bytes]


class KnownRefusals:
    """Of one server. `told`: of this second."""

    __slots__ = ("_second", "told")

    def __init__(self) -> None:
        self._second = 0
        self.told: dict[Asked, KnownRefusal] = {}

    def look(self, now_ms: float) -> None:
        """Forget those of another second. `now_ms`: wall clock."""
        second = int(now_ms) // SECOND_MS
        if second != self._second:
            self._second = second
            self.told.clear()

    def remember(self, asked: Asked, identity: Identity, error: ShoalError) -> None:
        """From the last look on, unless the identity expires in its second: then another reason counts."""
        ends_ms = identity.expires_ms
        if ends_ms is not None and ends_ms // SECOND_MS <= self._second:
            return
        if len(self.told) >= REFUSALS_MAX:
            self.told.clear()
        error.__traceback__ = error.__context__ = None  # they would keep the frames that it came through
        self.told[asked] = KnownRefusal(identity, error, {})
